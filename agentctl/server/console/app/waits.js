// What a paused run waits for, and what was decided: the lines of a transcript, and words for them.

import { can, componentOf, isPaused, mayRun } from "./api.js";
import {
  cut, formatClock, formatSpan, Glyph, html, Later, printable, useState,
} from "./ui.js";

/** The glyph and the color of a decision by its status. */
const DECISIONS = {
  pending: ["‖", "yellow"],
  approved: ["✓", "green"],
  answered: ["✓", "green"],
  rejected: ["✗", "red"],
  expired: ["✗", "red"],
  cancelled: ["■", "grey"],
};

const WAITS = {
  approval: "approval of",
  input: "an answer to",
  external: "the result of",
  outcome: "the outcome of",
};

const EXECUTIONS = {
  executing: "the call began, and has not ended",
  done: "the call was made",
  failed: "the call failed",
  unknown: "it is not known what the call did: its server died",
};

/** Return `approval of pay`: what a run waits for. */
export function describeWait(approval) {
  return `${WAITS[approval.kind] || WAITS.approval} ${cut(approval.tool_name, 64)}`;
}

/** Return the time that an approval has waited, or did, in seconds. */
export function waitedSeconds(approval, now) {
  const end = approval.decided_at ? Date.parse(approval.decided_at) : now;
  return Math.max(0, (end - Date.parse(approval.created_at)) / 1000);
}

/** Return how the caller can decide: `decide`, `continue` as the user of the run, or null. */
export function wayOf({ component_type: kind, component_id: component, policy, run_id: run, root_run_id: root }) {
  if (component && can("approvals", "write", component)) return "decide";
  // Only the root run is continued: that of a member says nothing about the rights on it.
  const runs = !component || root !== run || can(`${kind}s`, "run", component);
  return policy === "user" && runs ? "continue" : null;
}

/** The status of an approval: a glyph, a word, and what became of the call. */
export function ApprovalStatus({ approval }) {
  const words = approval.status === "pending" ? "waiting" : approval.status;
  const doubt = approval.execution === "unknown";
  return html`<${Glyph} look=${DECISIONS[approval.status]}>${printable(words)}<//>${
    approval.execution ? html`<span class=${doubt ? "yellow" : "dim"} title=${EXECUTIONS[approval.execution]}> · ${doubt ? "? unknown" : approval.execution}</span>` : null}`;
}

export function Decided({ approval }) {
  const { decided_by: by, decided_at: at, note } = approval;
  return html`<${ApprovalStatus} approval=${approval} />
    <span>${by ? ` by ${printable(by)}` : ""}${at ? ` ${formatClock(at)}, after ${formatSpan(waitedSeconds(approval))}` : ""}</span>
    ${note ? html`<span class="dim" dir="auto"> · ${printable(note)}</span>` : null}`;
}

export function DecidedLine({ approval }) {
  return html`<p class="decided" data-decided=${approval.approval_id}><${Decided} approval=${approval} />
    <span class="dim"> · ${describeWait(approval)}</span></p>`;
}

/** What a paused run waits for, with a button for each decision that the caller may make.
 *
 * `inPlace` is the name of the component if the form of the decision is shown in place of the button.
 */
export function Waits({ run, db, now, onDecided, inPlace = "" }) {
  const [chosen, setChosen] = useState(null);
  if (!isPaused(run)) return null;
  const pending = (run.approvals || []).filter((each) => each.status === "pending");
  const current = chosen && run.approvals.find((each) => each.approval_id === chosen);
  const shared = { load: () => import("./approvals.js"), run, db, onDecided };
  return html`${pending.map((each) => inPlace && mayDecide(each, run)
    ? html`<section class="strip yellow-soft" key=${each.approval_id} aria-label=${`Waiting for ${describeWait(each)}`} data-waits=${each.approval_id}>
        <${Later} name="Pending" plain=${inPlace} summary=${each} ...${shared} /></section>`
    : html`<div class="strip yellow-soft waits" role="status" key=${each.approval_id} data-waits=${each.approval_id}>
      <span><span class="yellow" aria-hidden="true">‖</span> Waiting ${formatSpan(waitedSeconds(each, now))} for ${describeWait(each)}</span>
      ${mayDecide(each, run)
        ? html`<button type="button" class="primary" aria-label=${`Decide: ${describeWait(each)}`} onClick=${() => setChosen(each.approval_id)}>Decide</button>`
        : inPlace ? html`<span class="dim">Another person has to decide. The answer continues here afterward.</span>`
        : html`<span class="dim">needs <code>approvals:${each.run_id === run.run_id ? componentOf(run) : "…"}:write</code></span>`}
    </div>`)}
    ${current ? html`<${Later} name="DecideDialog" key=${chosen} summary=${current} ...${shared} onClose=${() => setChosen(null)} />` : null}`;
}

/** Return true if the caller may decide about an approval that a run waits for. */
export function mayDecide(approval, run) {
  const own = approval.run_id === run.run_id;
  return can("approvals", "write", own ? componentOf(run) : undefined)
    || (approval.policy === "user" && mayRun(run));
}
