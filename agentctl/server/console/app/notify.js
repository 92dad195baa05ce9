// Notifications of the browser about new approvals, while the page is open and after the user asks for them.

import { cut, html, toHash, Toggle, useState } from "./ui.js";

let on = false;

export const isNotifying = () => on;

/** Notify of the newest pending approval if it is new; return its time, `before` for the next call.
 *
 * `before` is null at first, when nothing is new.
 */
export function notifyOf([newest], before) {
  if (!newest || newest.created_at <= before) return before ?? "";
  if (on && before !== null) {
    const { tool_name: tool, component_type: kind, component_id: component, approval_id: id } = newest;
    const sent = new Notification(`Approval needed: ${cut(tool, 64)}`, { body: cut(component, 64), tag: id });
    sent.onclick = () => {
      window.focus();
      location.hash = toHash(["approvals", kind, component, id]);
      sent.close();
    };
  }
  return newest.created_at;
}

/** The switch of the notifications, which asks the browser for its permission. */
export function NotifyButton() {
  const [, render] = useState(0);
  const [refused, setRefused] = useState(false);
  if (!("Notification" in window)) return null;
  const toggle = async () => {
    const answer = on ? "" : await Notification.requestPermission();
    on = answer === "granted";
    setRefused(answer === "denied");
    // The count of approvals is read again at once, and more often from now on.
    dispatchEvent(new Event("console-decided"));
    render((count) => count + 1);
  };
  return html`${refused ? html`<span role="status">The browser refuses notifications of this site</span>` : null}
    <${Toggle} label="Notify me" on=${on} onClick=${toggle} />`;
}
