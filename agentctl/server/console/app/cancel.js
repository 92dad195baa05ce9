// The cancel of runs from a list: a dialog that stays until both facts about each run are known.

import { call, cancelRun, componentOf, isAtRest, isFinal, path, withQuery } from "./api.js";
import {
  Dialog, formatClock, formatDuration, html, phaseOf, printable, shortId, useEffect, useNow,
  useRef, useState,
} from "./ui.js";

const EVERY = 700;

/** Cancel runs, and follow them until their work has ended: `{send, runs, failures, …}`. */
export function useCancels(db) {
  const [sent, setSent] = useState(null);
  const waiting = sent ? [...sent.runs.values()].filter((run) => !isAtRest(run)) : [];
  const change = (id, fields) =>
    setSent((old) => {
      const runs = new Map(old.runs);
      runs.set(id, { ...runs.get(id), ...fields });
      return { ...old, runs };
    });
  const send = async (runs, reason) => {
    const failures = new Map();
    setSent({ at: Date.now(), total: runs.length, runs: new Map(), failures });
    for (const run of runs) {
      try {
        change(run.run_id, { ...run, ...(await cancelRun(run, { reason: reason || undefined })) });
      } catch (error) {
        failures.set(run.run_id, error.message);
        setSent((old) => ({ ...old, failures: new Map(failures) }));
      }
    }
  };
  useEffect(() => {
    if (!waiting.length) return;
    const timer = setInterval(() => {
      if (document.hidden) return;
      for (const run of waiting.slice(0, 20)) {
        call("GET", withQuery(path`/runs/${run.run_id}`, { db_id: db, view: "phase" })).then(
          (found) => change(run.run_id, found),
          () => null,
        );
      }
    }, EVERY);
    return () => clearInterval(timer);
  }, [waiting.map((run) => run.run_id).join()]);
  const runs = sent ? [...sent.runs.values()] : [];
  return {
    send,
    sent,
    runs,
    failures: sent?.failures || new Map(),
    requested: runs.filter((run) => run.cancel_requested_at != null).length,
    stopped: runs.filter((run) => isAtRest(run) && run.cancel_requested_at != null).length,
    clear: () => setSent(null),
  };
}

export function CancelDialog({ runs, live, cancels, onClose }) {
  const [asking, setAsking] = useState(true);
  const [reason, setReason] = useState("");
  const now = useNow(asking ? 0 : 500);
  const keep = useRef(null);
  useEffect(() => keep.current?.focus(), []);
  const ids = new Set(runs.map((run) => run.run_id));
  const members = live.filter((run) => ids.has(run.parent_run_id) && !ids.has(run.run_id)).length;
  const count = `${runs.length} ${runs.length === 1 ? "run" : "runs"}`;
  const below = members ? ` and ${runs.length === 1 ? "its" : "their"} ${members} ${members === 1 ? "member" : "members"}` : "";
  const submit = (event) => {
    event.preventDefault();
    setAsking(false);
    cancels.send(runs, reason.trim());
  };
  return html`<${Dialog} title=${`Cancel ${count}${below}`} onClose=${onClose}>
    ${asking
      ? html`<form onSubmit=${submit}>
          <ul>${runs.slice(0, 10).map((run) => html`<li key=${run.run_id}><code>${shortId(run.run_id)}</code>
            ${" "}${printable(componentOf(run))}, ${printable(run.user_id ?? "anonymous")}, ${formatDuration(now - Date.parse(run.created_at))}</li>`)}
            ${runs.length > 10 ? html`<li>and ${runs.length - 10} more</li>` : null}</ul>
          <label class="field">Reason
            <input maxlength="500" value=${reason} onInput=${(event) => setReason(event.target.value)} />
          </label>
          <p>What tools have done is not undone.</p>
          <div class="buttons">
            <button type="button" ref=${keep} onClick=${onClose}>Keep running</button>
            <button type="submit" class="danger">Cancel ${runs.length === 1 ? "run" : "runs"}</button>
          </div>
        </form>`
      : html`<${Progress} cancels=${cancels} now=${now} />
          <div class="buttons"><button type="button" onClick=${onClose}>Close</button></div>
          <p class="dim">The cancel goes on without this dialog.</p>`}
  <//>`;
}

function Progress({ cancels, now }) {
  const { sent, runs, requested, stopped, failures } = cancels;
  if (!sent) return null;
  const holding = runs.filter((run) => isFinal(run) && run.stopped_at == null);
  const final = runs.filter((run) => isFinal(run) && run.cancel_requested_at == null).length;
  const waiting = runs.length + failures.size < sent.total || !runs.every(isAtRest);
  return html`<div role="status">
    <dl class="facts">
      <dt>cancel requested</dt><dd>${requested} of ${sent.total} · ${formatClock(sent.at)}</dd>
      <dt>stopped</dt><dd>${stopped} of ${sent.total}${waiting ? ` · waiting ${formatDuration(now - sent.at)}` : ""}</dd>
      ${final ? html`<dt>had ended before</dt><dd>${final}</dd>` : null}
    </dl>
    ${holding.map((run) => html`<p class="yellow" key=${run.run_id}>! ${shortId(run.run_id)}: ${printable(phaseOf(run).sentence)}</p>`)}
    ${[...failures].map(([id, text]) => html`<p class="error" key=${id}>${shortId(id)}: ${printable(text)}</p>`)}
  </div>`;
}
