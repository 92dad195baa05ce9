// A session: its runs, loaded from the end, and its head: tokens and owner, rename, export, JSON.

import { call, can, path, send, state, withQuery } from "./api.js";
import { CUT, JsonDialog } from "./conversation.js";
import {
  Dialog, ErrorText, formatNumber, html, phaseOf, printable, saveFile, useAction, useCallback,
  useState,
} from "./ui.js";

const FORMATS = [["jsonl", "JSON Lines", "jsonl"], ["json", "JSON", "json"], ["markdown", "Markdown", "md"]];
const FIRST = 10;
const PAGE = 50;
const MAXIMUM_RUNS = 2000;
const COUNTED = ["failed", "queued", "running", "paused", "stopping"];

/** The runs of a session, newest last: the last ten, or those around the run of a link.
 *
 * `earlier` and `later` are true if there are more; without later ones they are followed.
 */
export function useRuns(id, db) {
  const place = path`/sessions/${id}/runs`;
  const [found, set] = useState({ runs: null, earlier: false, later: false, busy: false, error: null });
  const load = async (limit, more) => {
    const runs = await call("GET", withQuery(place, { db_id: db, parent: "none", view: "items", cut: CUT, limit, ...more }));
    return { full: runs.length === limit, runs: runs.filter((run) => run.parent_run_id == null && run.purpose == null).sort(byId) };
  };
  const attempt = async (work) => {
    if (found.busy) return;
    set((old) => ({ ...old, busy: true }));
    try {
      const changes = await work();
      set((old) => ({ ...old, ...changes(old), busy: false, error: null }));
    } catch (error) {
      set((old) => ({ ...old, busy: false, error }));
    }
  };
  const first = (wanted) => attempt(async () => {
    const last = await load(FIRST, { order: "desc" });
    if (!wanted || !last.full || last.runs[0]?.run_id <= wanted) return () => ({ runs: last.runs, earlier: last.full, later: false });
    const before = await load(FIRST / 2, { order: "desc", before: wanted });
    const after = await load(FIRST, before.runs.length ? { after: before.runs.at(-1).run_id } : {});
    return () => ({ runs: before.runs.concat(after.runs), earlier: before.full, later: after.full });
  });
  const loadEarlier = () => attempt(async () => {
    const page = await load(PAGE, { order: "desc", before: found.runs[0].run_id });
    return (old) => ({ runs: merge(page.runs, old.runs), earlier: page.full });
  });
  const loadLater = () => attempt(async () => {
    const page = await load(PAGE, { after: found.runs.at(-1).run_id });
    return (old) => ({ ...forget({ ...old, runs: merge(old.runs, page.runs) }), later: page.full });
  });
  const loadNew = async () => {
    const last = found.runs.at(-1);
    const { runs } = await load(PAGE, last ? { after: last.run_id } : {});
    if (runs.length) set((old) => forget({ ...old, runs: merge(old.runs, runs) }));
  };
  const add = (run) => (found.later ? first() : set((old) => ({ ...old, runs: merge(old.runs || [], [run]) })));
  const replace = useCallback(
    (run) =>
      set((old) => ({ ...old, runs: old.runs.map((each) => (each.run_id === run.run_id ? run : each)) })),
    [],
  );
  return { ...found, first, loadEarlier, loadLater, loadNew, add, replace };
}

const byId = (a, b) => (a.run_id < b.run_id ? -1 : 1);

/** Drop the oldest runs of a very long transcript; they can be loaded again. */
function forget(found) {
  if (found.runs.length <= MAXIMUM_RUNS) return found;
  return { ...found, runs: found.runs.slice(found.runs.length - MAXIMUM_RUNS + PAGE), earlier: true };
}

function merge(runs, more) {
  const known = new Set(runs.map((run) => run.run_id));
  return runs.concat(more.filter((run) => !known.has(run.run_id))).sort(byId);
}

/** Return the numbers of the loaded runs by their phase: `{loaded, all, failed, running, …}`. */
export function countPhases({ runs, earlier, later }) {
  const counts = { loaded: runs.length, all: !earlier && !later };
  for (const name of COUNTED) counts[name] = runs.filter((run) => phaseOf(run).name === name).length;
  return counts;
}

/** Return `3 runs · 1 failed · 1 running`, or `1,000 runs · of 10 shown: 1 failed`. */
export function describeCounts(counts, { turn_count: total = 0 }) {
  // The record is a moment older than the runs when one begins.
  const runs = counts.all ? counts.loaded : Math.max(total, counts.loaded);
  const parts = COUNTED.filter((name) => counts[name]).map((name) => `${counts[name]} ${name}`);
  if (!counts.all && parts.length) parts[0] = `of ${counts.loaded} shown: ${parts[0]}`;
  return [`${formatNumber(runs)} ${runs === 1 ? "run" : "runs"}`, ...parts].join(" · ");
}

export function SessionActions({ session, id, query, reload, children }) {
  const [renaming, setRenaming] = useState(false);
  const [json, setJson] = useState(false);
  const total = session.total_tokens;
  return html`
    ${total ? html`<span>${formatNumber(total)} tokens</span>` : null}
    <span>${printable(session.user_id ?? "no owner")}</span>
    ${children}
    ${can("sessions", "write", id) ? html`<button type="button" onClick=${() => setRenaming(true)}>Rename</button>` : null}
    ${state.me?.admin ? html`<${HoldButton} hold=${session.hold} id=${id} db=${query.db} reload=${reload} />` : null}
    <${ExportMenu} id=${id} db=${query.db} />
    <button type="button" aria-label="Session as JSON" onClick=${() => setJson(true)}>{ }</button>
    ${renaming ? html`<${Rename} session=${session} id=${id} db=${query.db}
      onClose=${() => (setRenaming(false), reload())} />` : null}
    ${json ? html`<${JsonDialog} title=${`Session ${id}`} value=${session} onClose=${() => setJson(false)}
      load=${() => call("GET", withQuery(path`/sessions/${id}`, { db_id: query.db }))} />` : null}`;
}

/** Hold or release a session. The dialog is fetched when it is opened. */
function HoldButton({ reload, ...about }) {
  const [View, setView] = useState(null);
  const show = () => import("./hold.js").then(({ HoldDialog }) => setView(() => HoldDialog), () => null);
  return html`<button type="button" onClick=${show}>${about.hold ? "Release" : "Hold"}</button>
    ${View ? html`<${View} ...${about} onClose=${() => (setView(null), reload())} />` : null}`;
}

/** The export of a session, in the formats of `agentctl sessions export`. */
function ExportMenu({ id, db }) {
  const [save, failure, busy] = useAction(async (event) => {
    const [format, , suffix] = FORMATS.find(([name]) => name === event.target.value);
    event.target.value = "";
    const place = withQuery(path`/sessions/${id}/export`, { format, db_id: db });
    const response = await send("GET", place, { accept: "*/*" });
    saveFile(`${id.replace(/[^\w.@-]/g, "_")}.${suffix}`, await response.blob());
  });
  return html`<select aria-label="Export the session" disabled=${busy} onChange=${save}>
      <option value="">${busy ? "Exporting…" : "Export…"}</option>
      ${FORMATS.map(([name, label]) => html`<option key=${name} value=${name}>${label}</option>`)}
    </select>
    <${ErrorText} error=${failure} />`;
}

function Rename({ session, id, db, onClose }) {
  const [name, setName] = useState(session.session_name);
  const [save, failure] = useAction(async () => {
    const place = withQuery(path`/sessions/${id}/rename`, { db_id: db });
    await call("POST", place, { body: { session_name: name } });
    onClose();
  });
  return html`<${Dialog} title="Rename the session" onClose=${onClose}>
    <form onSubmit=${save}>
      <label class="field">Name
        <input dir="auto" value=${name} maxlength="255" onInput=${(event) => setName(event.target.value)} />
      </label>
      <${ErrorText} error=${failure} />
      <div class="buttons">
        <button type="button" onClick=${onClose}>Close</button>
        <button type="submit" class="primary">Rename</button>
      </div>
    </form>
  <//>`;
}
