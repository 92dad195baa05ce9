// The dialogs that cancel, retry and fork runs, and hold or release a session.

import {
  call, can, cancelRun, componentOf, isAtRest, isFinal, kindOf, path, postOnce, withQuery,
} from "./api.js";
import {
  cut, describeHold, Dialog, ErrorText, formatClock, formatDuration, html, phaseOf, printable,
  shortId, toHash, useAction, useComponents, useEffect, useNow, useRef, useState,
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

const STATES = { done: "done", failed: "failed", unknown: "outcome not known" };

function Plan({ plan, part }) {
  const more = plan.calls_total - plan.calls.length;
  return html`<div data-plan role="status">
    <p>${plan.at ? `It begins after ${part} ${plan.at} of the run.` : "It works from the beginning."}</p>
    ${plan.runs_code ? html`<p>The code of the agent runs again, with all of its effects.</p>` : null}
    ${plan.calls_unknown ? html`<p>The server of the run died: calls that it made at last may not be known.</p>` : null}
    ${plan.retries.map((id) => html`<p key=${id}>The run was retried already: <code>${shortId(id)}</code></p>`)}
    ${plan.calls.length
      ? html`<p>Tool calls that may be made again:</p>
          <ul>${plan.calls.map((each) => html`<li key=${each.tool_call_id}><code>${cut(each.tool_name, 64)} ${cut(each.arguments, 300)}</code>
            ${" "}${STATES[each.state] || STATES.unknown}</li>`)}${more > 0 ? html`<li>and ${more} more</li>` : null}</ul>`
      : null}
  </div>`;
}

function Messages({ run, db, at, onChange }) {
  const [messages, setMessages] = useState(null);
  const [failure, setFailure] = useState(null);
  useEffect(() => {
    const place = path`/sessions/${run.session_id}/runs/${run.run_id}`;
    call("GET", withQuery(place, { db_id: db, cut: 200 })).then((found) => {
      setMessages(found.messages);
      onChange(found.messages.length);
    }, setFailure);
  }, []);
  if (failure) return html`<${ErrorText} error=${failure} />`;
  const describe = ({ role, content, tool_calls: calls = [] }) =>
    [role, content, ...calls.map((each) => `ƒ ${each.name}`)].filter(Boolean).join(" ");
  return html`<label class="field">After message
    <select value=${at} disabled=${messages === null} onChange=${(event) => onChange(Number(event.target.value))}>
      <option value="0">0 none: from the beginning</option>
      ${(messages || []).map((each, number) => html`<option key=${number} value=${number + 1}>${number + 1} ${cut(describe(each), 70)}</option>`)}
    </select></label>`;
}

/** Ask for the retry or the fork of a run. `verb` is `retry` or `fork`. */
export function RepeatDialog({ verb, run, db, onClose }) {
  const { components } = useComponents();
  const [plan, setPlan] = useState(null);
  const [at, setAt] = useState(0);
  const [message, setMessage] = useState("");
  const [other, setOther] = useState("");
  const [here, setHere] = useState(false);
  const first = useRef(null);
  const kind = kindOf(run);
  const part = kind === "workflow" ? "step" : "message";
  useEffect(() => first.current?.focus(), [plan !== null]);
  // Another choice has another plan.
  const change = (set) => (value) => (setPlan(null), set(value));
  const others = components.filter((each) => each.kind !== "workflow" && can(`${each.kind}s`, "run", each.id));
  const [submit, failure, busy] = useAction(async () => {
    const [target, id] = other ? JSON.parse(other) : [];
    const fork = { at, message: message.trim() || undefined, [`${target}_id`]: id, session_id: here ? run.session_id : undefined };
    try {
      const body = { ...(verb === "fork" ? fork : {}), confirm: plan?.confirm };
      const started = await postOnce(path`/${kind}s/${componentOf(run)}/runs/${run.run_id}/${verb}`, body);
      onClose();
      location.hash = toHash(["sessions", started.session_id], { db, run: started.run_id });
    } catch (error) {
      if (!error.plan || plan) throw error;
      setPlan(error.plan);
    }
  });
  const title = verb === "retry" ? "Retry" : "Fork";
  return html`<${Dialog} title=${`${title} run ${shortId(run.run_id)}?`} onClose=${onClose}>
    <form onSubmit=${submit}>
      ${verb === "retry"
        ? html`<p>A new run of this session, with the same input, begins with what the run has finished.</p>`
        : html`<${Messages} run=${run} db=${db} at=${at} onChange=${change(setAt)} />
            <label class="field">Next message
              <textarea rows="3" value=${message} onInput=${(event) => change(setMessage)(event.target.value)}
                placeholder="empty: that of the run"></textarea></label>
            <label class="field">Goes on with
              <select value=${other} onChange=${(event) => change(setOther)(event.target.value)}>
                <option value="">the same component</option>
                ${others.map((each) => html`<option key=${`${each.kind}:${each.id}`} value=${JSON.stringify([each.kind, each.id])}>${cut(each.name || each.id, 40)}</option>`)}
              </select></label>
            <label><input type="checkbox" checked=${here} onChange=${(event) => change(setHere)(event.target.checked)} /> in this session</label>`}
      ${plan ? html`<${Plan} plan=${plan} part=${part} />` : null}
      <${ErrorText} error=${failure} />
      <div class="buttons">
        <button type="button" ref=${first} onClick=${onClose}>Close</button>
        <button type="submit" class=${plan ? "danger" : "primary"} disabled=${busy}>${plan ? `${title}, and repeat this` : title}</button>
      </div>
    </form>
  <//>`;
}

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
