// The head of a session: tokens and owner, hold, rename, export, JSON.

import { call, can, path, send, state, withQuery } from "./api.js";
import { JsonDialog } from "./conversation.js";
import {
  Dialog, ErrorText, formatNumber, html, printable, saveFile, useAction, useState,
} from "./ui.js";

const FORMATS = [["jsonl", "JSON Lines", "jsonl"], ["json", "JSON", "json"], ["markdown", "Markdown", "md"]];

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
  const show = () => import("./actions.js").then(({ HoldDialog }) => setView(() => HoldDialog), () => null);
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
