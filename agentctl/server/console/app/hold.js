// The dialog that holds a session, or releases it. It is for administrators.

import { call, path, withQuery } from "./api.js";
import {
  describeHold, Dialog, ErrorText, html, useAction, useEffect, useRef, useState,
} from "./ui.js";

export function HoldDialog({ hold, id, db, onClose }) {
  const [reason, setReason] = useState("");
  const first = useRef(null);
  useEffect(() => first.current.focus(), []);
  const [submit, failure] = useAction(async () => {
    const place = withQuery(path`/sessions/${id}/hold`, { db_id: db });
    await (hold ? call("DELETE", place) : call("POST", place, { body: { reason } }));
    onClose();
  });
  return html`<${Dialog} title=${hold ? "Release the session?" : "Hold the session"} onClose=${onClose}>
    <form onSubmit=${submit}>
      ${hold
        ? html`<p>It is ${describeHold(hold)}.</p><p>After the release it can be deleted, also for its age.</p>`
        : html`<label class="field">Reason
            <input ref=${first} dir="auto" maxlength="500" required value=${reason} onInput=${(event) => setReason(event.target.value)} />
          </label><p>Nothing deletes the session until an administrator releases it.</p>`}
      <${ErrorText} error=${failure} />
      <div class="buttons">
        <button type="button" ref=${hold ? first : null} onClick=${onClose}>Close</button>
        <button type="submit" class="primary">${hold ? "Release" : "Hold"}</button>
      </div>
    </form>
  <//>`;
}
