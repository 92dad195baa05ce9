// The dialogs that retry and fork a run. What may be made again is listed and confirmed first.

import { call, can, componentOf, kindOf, path, postOnce, withQuery } from "./api.js";
import {
  cut, Dialog, ErrorText, html, shortId, toHash, useAction, useComponents, useEffect, useRef,
  useState,
} from "./ui.js";

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
