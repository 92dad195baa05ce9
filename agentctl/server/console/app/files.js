// Files: attached, shown, downloaded and deleted. A preview is a blob of a type that executes nothing,
// all other files are downloads: none is a page of this origin.

import {
  ApiError, call, componentOf, databaseOf, kindOf, mayCall, newKey, path, send, state, withQuery,
} from "./api.js";
import {
  Dialog, ErrorText, formatAge, formatSize, html, Loaded, LoadMore, printable, saveFile, useAction,
  useCaller, useEffect, usePages, useRef, useState,
} from "./ui.js";
import { readExact } from "./exact.js";

const MAXIMUM_THUMBNAIL = 5_000_000;

/** Return the element that shows a type; empty for a download. */
function viewOf(type) {
  if (/^image\/(png|jpeg|gif|webp)$/.test(type)) return "img";
  if (/^audio\/(wav|mpeg|ogg|flac|mp4)$/.test(type)) return "audio";
  // No browser shows a PDF in a sandboxed frame: its viewer has its own process and origin.
  return type === "application/pdf" && navigator.pdfViewerEnabled ? "iframe" : "";
}

const read = async ({ file_id: id }, db) => (await send("GET", withQuery(path`/files/${id}/content`, { db_id: db }), { accept: "*/*" })).blob();

/** The bytes of a file as an element, fetched when it comes into view. `blob` has them already. */
function Preview({ file, db, blob, onError }) {
  const { generation } = useCaller();
  const [url, setUrl] = useState("");
  const box = useRef(null);
  useEffect(() => {
    let made = "";
    let gone = false;
    const watch = new IntersectionObserver(async (seen) => {
      if (!seen.some((each) => each.isIntersecting)) return;
      watch.disconnect();
      try {
        const bytes = blob || (await read(file, db));
        if (!gone) setUrl(made = URL.createObjectURL(new Blob([bytes], { type: file.media_type })));
      } catch (error) {
        onError(error);
      }
    });
    watch.observe(box.current);
    return () => {
      gone = true;
      watch.disconnect();
      URL.revokeObjectURL(made);
    };
  }, [file.file_id, generation]);
  const view = viewOf(file.media_type);
  const name = printable(file.name);
  return html`<span class="preview" ref=${box}>${url ? html`<${view} src=${url} alt=${view === "img" ? name : null} title=${name} controls=${view === "audio"} />` : null}</span>`;
}

/** A file: its picture, name and size, and what the caller can do with it. `children` are buttons. */
export function FileLine({ file, run, db = run && databaseOf(kindOf(run), componentOf(run)), blob, note, children }) {
  const [open, setOpen] = useState(false);
  const [lost, setLost] = useState(null);
  const [save, failure] = useAction(async () => saveFile(file.name, new Blob([blob || (await read(file, db))])));
  const reads = blob || mayCall("get_file_content");
  const view = reads && viewOf(file.media_type);
  const small = view === "img" && file.size <= MAXIMUM_THUMBNAIL;
  const name = printable(file.name);
  const facts = [file.media_type.split("/")[1].toUpperCase(), formatSize(file.size), file.version > 1 && `version ${file.version}`, note];
  const bytes = { file, db, blob, onError: setLost };
  const problem = html`<${ErrorText} error=${failure || lost} />`;
  return html`<div class="file" data-file=${file.file_id}>
    ${small && !lost ? html`<button type="button" class="thumb" aria-label=${`Show ${name}`} onClick=${() => setOpen(true)}><${Preview} ...${bytes} /></button>` : null}
    <span class="about"><b dir="auto">${name}</b> <span class="dim">${printable(facts.filter(Boolean).join(" · "))}</span> ${problem}</span>
    <span class="row">
      ${view && !small ? html`<button type="button" class="link" aria-label=${`Show ${name}`} onClick=${() => setOpen(true)}>Show</button>` : null}
      ${reads && !blob ? html`<button type="button" class="link" aria-label=${`Download ${name}`} onClick=${save}>Download</button>` : null}
      ${children}
    </span>
    ${open ? html`<${Dialog} title=${name} wide=${true} onClose=${() => setOpen(false)}>
      <${Preview} ...${bytes} />
      <div class="buttons">${problem}<button type="button" onClick=${save}>Download</button>
        <button type="button" onClick=${() => setOpen(false)}>Close</button></div><//>` : null}
  </div>`;
}

/** The files of the message of a run. */
export const Given = ({ run, db }) => html`<div class="files">${run.files.filter((file) => !file.created_at)
  .map((file) => html`<${FileLine} key=${file.file_id} file=${file} run=${run} db=${db} />`)}</div>`;

/** Return a function that sends as fetch does, and reports the part that is sent, which fetch does not. */
const uploadWith = (report) => (url, { method, headers, body, signal }) => new Promise((resolve, reject) => {
  const request = new XMLHttpRequest();
  request.open(method, url);
  for (const field of Object.entries(headers)) request.setRequestHeader(...field);
  request.upload.onprogress = ({ loaded, total }) => report(loaded / total);
  request.onload = () => resolve(new Response(request.responseText, { status: request.status }));
  request.onerror = request.onabort = reject;
  signal.addEventListener("abort", () => request.abort());
  request.send(body);
});

/** The files of the next message to a component, as a list in its box: chosen, dropped or pasted.
 *
 * Each of `files` has `key` and `file`, then its `record` or an `error`. They are uploaded one by one,
 * for the user of the session.
 */
export function Attach({ to, user, files, setFiles }) {
  const input = useRef(null);
  const queue = useRef(Promise.resolve());
  const [over, setOver] = useState(false);
  const change = (key, more) => setFiles((old) => old.map((each) => (each.key === key ? { ...each, ...more } : each)));
  const upload = async ({ key, file, control }) => {
    if (control.signal.aborted) return;
    const query = { name: file.name, db_id: databaseOf(to.kind, to.id), user_id: state.me?.admin ? user : null };
    try {
      const response = await send("POST", withQuery("/files", query), {
        body: file, signal: control.signal, using: uploadWith((part) => change(key, { part })),
      });
      change(key, { record: readExact(await response.text()) });
    } catch (error) {
      change(key, { error: error instanceof ApiError ? error : new ApiError(0) });
    }
  };
  const add = (chosen) => {
    const added = [...chosen].map((file) => ({ key: newKey(), file, part: 0, control: new AbortController() }));
    setFiles((old) => old.concat(added));
    for (const each of added) queue.current = queue.current.then(() => upload(each));
  };
  const remove = ({ key, control, record }) => {
    control.abort();
    if (record) call("DELETE", withQuery(path`/files/${record.file_id}`, { db_id: databaseOf(to.kind, to.id) })).catch(() => null);
    setFiles((old) => old.filter((each) => each.key !== key));
    input.current.nextSibling.focus();
  };
  useEffect(() => {
    const control = new AbortController();
    const take = (event) => {
      const { files: given, types } = event.dataTransfer || event.clipboardData;
      setOver(event.type === "dragover");
      if (event.defaultPrevented || !types.includes("Files")) return;
      event.preventDefault();
      if (event.type !== "dragover") add(given);
    };
    for (const name of ["dragover", "drop", "paste"]) addEventListener(name, take, control);
    addEventListener("dragleave", () => setOver(false), control);
    return () => control.abort();
  }, [to.id, user]);
  return html`
    ${files.length ? html`<ul class="files" aria-label="Files of the message">${files.map((each) => {
      const name = printable(each.file.name);
      const away = html`<button type="button" class="link" aria-label=${`Remove ${name}`} onClick=${() => remove(each)}>Remove</button>`;
      return html`<li key=${each.key}>${each.record ? html`<${FileLine} file=${each.record} blob=${each.file}>${away}<//>`
        : html`<div class="file"><span class="about"><b dir="auto">${name}</b> <span class="dim">${formatSize(each.file.size)}</span>
          ${" "}<${ErrorText} error=${each.error} /></span>
          ${each.error ? null : html`<progress value=${each.part} aria-label=${`Upload of ${name}`}></progress>`}${away}</div>`}</li>`;
    })}</ul>` : null}
    <input type="file" multiple hidden ref=${input} onChange=${({ target }) => (add(target.files), (target.value = ""))} />
    <button type="button" class=${over ? "attach over" : "attach"} onClick=${() => input.current.click()}>${over ? "Drop here" : "Attach"}</button>`;
}

/** The files of a session, or all that the caller can see. */
export function FilesDialog({ session, db, onClose }) {
  const { resource, rows, more } = usePages("/files", { session_id: session, db_id: db }, { every: 0, key: "file_id" });
  return html`<${Dialog} title=${session ? "Files of the session" : "Files"} wide=${true} onClose=${onClose}>
    <${Loaded} resource=${resource} place="/files" rows=${4}>${() => html`
      ${rows.length ? null : html`<p class="dim">No files yet.</p>`}
      <div class="files">${rows.map((file) => html`<${FileLine} key=${file.file_id} file=${file} db=${db}
        note=${`${file.run_id ? "made by a run" : "uploaded"} ${formatAge(file.created_at)} · ${file.user_id ?? "no owner"}`}>
        <${Delete} file=${file} db=${db} onDone=${resource.reload} /><//>`)}</div>
      <${LoadMore} more=${more} />`}<//>
    <div class="buttons"><button type="button" onClick=${onClose}>Close</button></div>
  <//>`;
}

function Delete({ file, db, onDone }) {
  const [sure, setSure] = useState(false);
  const [remove, failure] = useAction(async () => {
    await call("DELETE", withQuery(path`/files/${file.file_id}`, { db_id: db }));
    onDone();
  });
  if (!mayCall("delete_file")) return null;
  return html`<${ErrorText} error=${failure} /><button type="button" class=${sure ? "danger" : "link"}
    aria-label=${`${sure ? "Delete for good:" : "Delete"} ${printable(file.name)}`} onClick=${sure ? remove : () => setSure(true)}>${sure ? "Delete for good" : "Delete"}</button>`;
}
