// The head of a session: its tokens and owner, rename, export, JSON.

import { call, can, path, send, withQuery } from "./api.js";
import { JsonDialog } from "./conversation.js";
import { Dialog, formatNumber, html, phaseOf, printable, saveFile, useState } from "./ui.js";

const FORMATS = [["jsonl", "JSON Lines", "jsonl"], ["json", "JSON", "json"], ["markdown", "Markdown", "md"]];
const LIVE = ["queued", "running", "stopping"];

/** Return `3 runs · 1 failed · 1 running`, or `50+ runs` if earlier ones are not loaded. */
export function describeCounts({ runs, earlier }) {
  const parts = [`${formatNumber(runs.length)}${earlier ? "+" : ""} ${runs.length === 1 ? "run" : "runs"}`];
  for (const name of earlier ? LIVE : ["failed", ...LIVE]) {
    const count = runs.filter((run) => phaseOf(run).name === name).length;
    if (count) parts.push(`${count} ${name}`);
  }
  return parts.join(" · ");
}

/** What is known about a session, and what can be done with it. */
export function SessionActions({ session, id, query, reload, children }) {
  const [renaming, setRenaming] = useState(false);
  const [json, setJson] = useState(false);
  const total = session.total_tokens ?? session.session_data?.session_metrics?.total_tokens;
  return html`
    ${total ? html`<span>${formatNumber(total)} tokens</span>` : null}
    <span>${printable(session.user_id ?? "no owner")}</span>
    ${children}
    ${can("sessions", "write", id) ? html`<button type="button" onClick=${() => setRenaming(true)}>Rename</button>` : null}
    <${ExportMenu} id=${id} db=${query.db} />
    <button type="button" aria-label="Session as JSON" onClick=${() => setJson(true)}>{ }</button>
    ${renaming ? html`<${Rename} session=${session} id=${id} db=${query.db}
      onClose=${() => (setRenaming(false), reload())} />` : null}
    ${json ? html`<${JsonDialog} title=${`Session ${id}`} value=${session} onClose=${() => setJson(false)} />` : null}`;
}

/** The export of a session, in the formats of `agentctl sessions export`. */
function ExportMenu({ id, db }) {
  const [busy, setBusy] = useState(false);
  const [failure, setFailure] = useState(null);
  const save = async (event) => {
    const [format, , suffix] = FORMATS.find(([name]) => name === event.target.value);
    event.target.value = "";
    setBusy(true);
    setFailure(null);
    try {
      const place = withQuery(path`/sessions/${id}/export`, { format, db_id: db });
      const response = await send("GET", place, { accept: "*/*" });
      saveFile(`${id.replace(/[^\w.@-]/g, "_")}.${suffix}`, await response.blob());
    } catch (error) {
      setFailure(error);
    }
    setBusy(false);
  };
  return html`<select aria-label="Export the session" disabled=${busy} onChange=${save}>
      <option value="">${busy ? "Exporting…" : "Export…"}</option>
      ${FORMATS.map(([name, label]) => html`<option key=${name} value=${name}>${label}</option>`)}
    </select>
    ${failure ? html`<span class="error" role="alert">${printable(failure.message)}</span>` : null}`;
}

function Rename({ session, id, db, onClose }) {
  const [name, setName] = useState(session.session_name);
  const [failure, setFailure] = useState(null);
  const save = async (event) => {
    event.preventDefault();
    try {
      const place = withQuery(path`/sessions/${id}/rename`, { db_id: db });
      await call("POST", place, { body: { session_name: name } });
      onClose();
    } catch (error) {
      setFailure(error);
    }
  };
  return html`<${Dialog} title="Rename the session" onClose=${onClose}>
    <form onSubmit=${save}>
      <label class="field">Name
        <input value=${name} maxlength="255" onInput=${(event) => setName(event.target.value)} />
      </label>
      ${failure ? html`<p class="error" role="alert">${printable(failure.message)}</p>` : null}
      <div class="buttons">
        <button type="button" onClick=${onClose}>Close</button>
        <button type="submit" class="primary">Rename</button>
      </div>
    </form>
  <//>`;
}
