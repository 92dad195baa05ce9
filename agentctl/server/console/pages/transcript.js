// The transcript of a session: its runs from old to new, live ones as they work, and a message box.

import { call, can, chatUrl, mayCall, nameOf, path, send, state, tokensOf, withQuery } from "../app/api.js";
import { JsonDialog, Still } from "../app/conversation.js";
import { Compose, countPhases, describeCounts, Runs, targetOf, useThread } from "../app/thread.js";
import {
  costOf, cut, describeHold, Empty, ErrorText, formatClock, formatNumber, formatShort,
  Guard, html, Json, Later, Loaded, LOOKS, many, Menu, Page, phaseOf, printable, saveFile, Toggle, toHash, useAction, useCallback,
  useEffect, useKeys, useNames, useResource, useState,
} from "../app/ui.js";
import { writeExact } from "../app/exact.js";

const ask = { load: () => import("../app/runs.js"), name: "Ask" };
const FORMATS = [["jsonl", "JSON Lines", "jsonl"], ["json", "JSON", "json"], ["markdown", "Markdown", "md"]];

export default function Transcript({ parts, query }) {
  const id = parts[1];
  // Without its history: this is read again when a run begins and when it ends.
  const place = withQuery(path`/sessions/${id}`, { db_id: query.db, view: "summary" });
  const session = useResource(place);
  const [following, setFollowing] = useState(!query.run);
  const [counts, setCounts] = useState(null);
  const showCounts = useCallback((found) => {
    setCounts((old) => {
      // A run that begins or ends changes the totals of the session.
      if (old) session.reload();
      return found;
    });
  }, []);
  const title = session.data ? session.data.session_name || id : id;
  return html`<${Page} title=${title} reading=${true} back=${{ href: "#/sessions", label: "Sessions" }}
    aside=${session.data ? html`<span data-counts>${counts && describeCounts(counts, session.data)}</span>
      <${SessionActions} session=${session.data} id=${id} query=${query} reload=${session.reload}>
        <${Toggle} label="Follow" on=${following} onClick=${() => setFollowing(!following)} /><//>` : null}>
    <${Loaded} resource=${session} place=${path`/sessions/${id}`} rows=${4}>
      ${(data) => html`${data.hold ? html`<p class="bar yellow" title=${data.hold.held_at} data-hold>This session is ${describeHold(data.hold)}</p>` : null}
        <${Guard}><${Conversation} key=${id} session=${data} id=${id} query=${query}
        following=${following} setFollowing=${setFollowing} onCounts=${showCounts} /><//>`}
    <//>
  <//>`;
}

function Conversation({ session, id, query, following, setFollowing, onCounts }) {
  const names = useNames();
  const thread = useThread(id, query, following, setFollowing);
  const [folds, setFolds] = useState({ all: undefined, runs: {} });
  const { runs, count, current } = thread;
  const counts = runs.runs && countPhases(runs);
  useEffect(() => counts && onCounts(counts), [writeExact(counts)]);
  // Their place in the session, if the last one is loaded and they are counted.
  const total = session.turn_count ?? 0;
  const offset = runs.later || total < count ? null : total - count;
  useKeys({
    "[": () => thread.step(-1),
    "]": () => thread.step(1),
    o: () => current && setFolds((old) => ({ ...old, runs: { ...old.runs, [current]: !isOpen(old, current) } })),
    O: () => setFolds((old) => ({ all: !old.all, runs: {} })),
    t: () => current && (location.hash = `#/runs/${current}/timeline`),
    f: () => setFollowing((old) => !old),
    x: () => document.querySelector("[data-cancel]")?.click(),
    n: () => document.querySelector("[data-message]")?.focus(),
    y: () => current && navigator.clipboard.writeText(current).catch(() => null),
  });
  if (runs.runs === null) return html`<${Loaded} resource=${{ data: undefined, error: runs.error, reload: thread.reload }} />`;
  return html`<div class="transcript">
      <${Index} runs=${runs.runs} offset=${offset} current=${current} onSelect=${thread.select} session=${session} />
      <div ref=${thread.content}>
        ${count ? null : html`<${Empty}>No runs yet. Send the first message below.<//>`}
        <${Runs} thread=${thread} names=${names} db=${query.db} isOpen=${(run) => isOpen(folds, run)}>
          <${Compose} to=${targetOf(session)} name=${nameOf(session, names)} last=${runs.runs.at(-1)} session=${id} user=${session.user_id}
            onStarted=${thread.started} />
        <//>
      </div>
    </div>`;
}

/** Return true or false if the reader has opened or closed the tools of a run, else undefined. */
function isOpen(folds, run) {
  return folds.runs[run] ?? folds.all;
}

function Index({ runs, offset, current, onSelect, session }) {
  return html`<nav class="index" aria-label="Runs of the session">
    <ol>${runs.map((run, at) => html`<${Still} key=${run.run_id} view=${Entry} run=${run} number=${offset === null ? "" : offset + at + 1}
      current=${run.run_id === current} onSelect=${onSelect} />`)}</ol>
    ${[["metadata", session.metadata], ["state", session.session_state]].map(([label, value]) => value && Object.keys(value).length
      ? html`<details key=${label}><summary>${label}</summary><${Json} text=${writeExact(value, 2)} /></details>`
      : null)}
  </nav>`;
}

function Entry({ run, number, current, onSelect }) {
  const phase = phaseOf(run);
  const [glyph, color] = LOOKS[phase.name];
  const choose = (event) => (event.preventDefault(), onSelect(run.run_id));
  return html`<li><a href=${`#run-${run.run_id}`} onClick=${choose} aria-current=${current ? "true" : null}
    title=${cut(run.input, 80)}>
    <span class="dim">${number && formatNumber(number)}</span>
    <span class=${color}><span aria-hidden="true">${glyph}</span><span class="hidden">${phase.words}</span></span>
    ${formatClock(run.created_at).slice(0, 5)} <span>${formatShort(tokensOf(run))} ${tokensOf(run) === 1 ? "token" : "tokens"}</span></a></li>`;
}

/** The head of a session: its tokens and its owner, and a menu with what one seldom does. */
function SessionActions({ session, id, query, reload, children }) {
  const { hold } = session;
  const [renaming, setRenaming] = useState(false);
  const [holding, setHolding] = useState(false);
  const change = (show, method, action, name) => async (text) => {
    const place = withQuery(`${path`/sessions/${id}`}/${action}`, { db_id: query.db });
    await call(method, place, text === undefined ? {} : { body: { [name]: text } });
    show(false);
    reload();
  };
  const [json, setJson] = useState(false);
  const [files, setFiles] = useState(false);
  const [save, failure, busy] = useAction((format) => exportSession(id, query.db, format));
  const total = session.total_tokens;
  return html`
    ${total ? html`<span>${[many(total, "token"), costOf(session)].filter(Boolean).join(" · ")}</span>` : null}
    <span>${printable(session.user_id ?? "no owner")}</span>
    ${children}
    <${ErrorText} error=${failure} />
    <${Menu} label="More actions of the session">
      ${can("sessions", "write", id) ? html`<button type="button" onClick=${() => setRenaming(true)}>Rename…</button>` : null}
      ${chatUrl ? html`<a href=${`${chatUrl}${toHash(["sessions", id], { db: query.db })}`}>Open in the chat</a>` : null}
      ${mayCall("get_files") ? html`<button type="button" onClick=${() => setFiles(true)}>Files</button>` : null}
      <hr />
      ${FORMATS.map((format) => html`<button key=${format[0]} type="button" disabled=${busy} onClick=${() => save(format)}>Export as ${format[1]}</button>`)}
      <button type="button" onClick=${() => setJson(true)}>Show as JSON</button>
      ${state.me?.admin ? html`<hr /><button type="button" onClick=${() => setHolding(true)}>${hold ? "Release…" : "Hold…"}</button>` : null}
    <//>
    ${files ? html`<${Later} load=${() => import("../app/files.js")} name="FilesDialog" session=${id} db=${query.db} onClose=${() => setFiles(false)} />` : null}
    ${renaming ? html`<${Later} ...${ask} title="Rename the session" label="Name" verb="Rename" maxlength="255" defaultValue=${session.session_name}
      work=${change(setRenaming, "POST", "rename", "session_name")} onClose=${() => setRenaming(false)} />` : null}
    ${holding ? html`<${Later} ...${ask} title=${hold ? "Release the session?" : "Hold the session"} label=${hold ? "" : "Reason"} verb=${hold ? "Release" : "Hold"} danger=${false}
      maxlength="500" required work=${change(setHolding, hold ? "DELETE" : "POST", "hold", "reason")} onClose=${() => setHolding(false)}>
      ${hold ? html`<p>It is ${describeHold(hold)}.</p><p>After the release it can be deleted, also for its age.</p>`
        : html`<p>Nothing deletes the session until an administrator releases it.</p>`}<//>` : null}
    ${json ? html`<${JsonDialog} title=${`Session ${id}`} value=${session} onClose=${() => setJson(false)}
      load=${() => call("GET", withQuery(path`/sessions/${id}`, { db_id: query.db }))} />` : null}`;
}

/** Save a session in one of `FORMATS`, which are the formats of `agentctl sessions export`. */
async function exportSession(id, db, [format, , suffix]) {
  const place = withQuery(path`/sessions/${id}/export`, { format, db_id: db });
  const response = await send("GET", place, { accept: "*/*" });
  saveFile(`${id.replace(/[^\w.@-]/g, "_")}.${suffix}`, await response.blob());
}
