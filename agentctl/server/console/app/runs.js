// Runs in tables, and failed ones in groups with their exceptions for callers that may read them; the
// dialogs that ask, such as those that cancel, retry and fork runs.

import {
  call, can, cancelRun, componentOf, databaseOf, isAtRest, isFinal, kindOf, nameOf, path, placeOfRun,
  postOnce, refusalOf, tokensOf, withQuery,
} from "./api.js";
import {
  costOf, cut, Dialog, ErrorText, formatAge, formatAgo, formatClock, formatDuration, formatFirstToken,
  formatNumber, formatShort, formatSpan, formatTotal, html, LongTable, many, phaseOf, printable, shortCostOf,
  describeCause, exceptionOf, shortId, Snippet, Status, toHash, tookMilliseconds, twoLines, useAction, useComponents, useEffect, useEvery, useNames, useNow,
  useRef, useState,
} from "./ui.js";
import { writeExact } from "./exact.js";

const PAGE_ROWS = 100;

/** Return the causes of the failed runs of a list by their ids; null for one without a cause.
 *
 * `filters` are those of the list of runs. Callers without `runs:debug` have none.
 */
export function useCauses(rows, filters) {
  const [causes, set] = useState(new Map());
  const failed = can("runs", "debug") ? rows.filter((run) => run.status === "ERROR") : [];
  const missing = failed.map((run) => run.run_id).filter((id) => !causes.has(id));
  const key = missing.join();
  useEffect(() => {
    if (!key) return;
    let gone = false;
    const load = async () => {
      const { status, live, view, ...others } = filters;
      const found = new Map();
      let cursor = "";
      // The failed runs of these rows are on as many pages, or fewer.
      for (let left = 1 + Math.ceil(rows.length / PAGE_ROWS); left && cursor !== null; left -= 1) {
        const page = await call("GET", withQuery("/failures", { ...others, limit: PAGE_ROWS, cursor }));
        for (const each of page.data) found.set(each.run_id, each.cause);
        cursor = missing.every((id) => found.has(id)) ? null : page.meta.next_cursor;
      }
      const unknown = missing.filter((id) => !found.has(id)).map((id) => [id, null]);
      if (!gone) set((old) => new Map([...old, ...found, ...unknown]));
    };
    load().catch(() => null);
    return () => {
      gone = true;
    };
  }, [key]);
  return causes;
}

/** Return the place of a run in its conversation; members have none. */
const placeIn = (run, db) => toHash(["sessions", run.session_id], { run: run.parent_run_id ? "" : run.run_id, db });

/** A table of runs. With `onMark`, live runs can be marked and cancelled.
 *
 * `causes` are those of `useCauses`. `alone` is true for the runs of one component. `isLive` is true
 * for a list of live runs, which have a button to cancel, and neither a cost nor a first token yet.
 */
export function RunTable({ rows, db, marked, onMark, onCancel, causes = new Map(), alone = false, isLive = false }) {
  const names = useNames();
  const now = useNow(1000);
  const mark = onMark && rows.some((run) => !isFinal(run)) ? onMark : null;
  const shared = { now, db, names, onMark: mark, onCancel, alone, isLive };
  const row = (run, at) => html`<${Row} key=${run.run_id} run=${run} at=${at} marked=${marked?.has(run.run_id)}
    cause=${causes.get(run.run_id)} ...${shared} />`;
  const columns = html`${mark ? html`<col class="mid w-mark" />` : null}<col class="w-name" /><col class="w-status" />
    <col class="full w-owner" /><col class="far w-component" />
    <col class=${isLive ? "mid w-age" : "mid w-ago"} />
    ${isLive ? html`<col class="full w-number" /><col class="w-action" />`
      : html`<col class="full w-first" /><col class="far w-first" /><col class="full w-number" /><col class="full w-cost" />`}`;
  return html`<${LongTable} rows=${rows} row=${row} columns=${columns}>
    ${mark ? html`<th class="mid"><span class="hidden">Mark</span></th>` : null}
    <th>Run</th><th>Status</th><th class="full">${alone ? "User" : "Component, user"}</th><th class="far">Session</th>
    <th class="mid right">${isLive ? "Running for" : "Ended"}</th>
    ${isLive ? html`<th class="full right">Tokens</th><th><span class="hidden">Cancel</span></th>`
      : html`<th class="full right">First token</th><th class="far right">Duration</th><th class="full right">Tokens</th><th class="full right">Cost</th>`}
  <//>`;
}

/** The second line of a run: what was found, why it failed, what it waits for, or else its id. */
function describeRun(run, exception) {
  if (run.match) return [html`<${Snippet} match=${run.match} />`, "dim"];
  const phase = phaseOf(run);
  const color = phase.warning || phase.name === "paused" ? "yellow" : phase.name === "failed" ? "red" : "dim";
  const text = exception ? describeCause(exception) : phase.sentence;
  return text ? [cut(text, 200), color] : [html`<span class="mono">${shortId(run.run_id)}</span>`, "dim"];
}

function Row({ run, at, now, db, names, marked, onMark, onCancel, cause, alone, isLive }) {
  const kind = kindOf(run);
  const name = nameOf(run, names);
  const user = printable(run.user_id ?? "–");
  const live = !isFinal(run);
  const refusal = refusalOf(run);
  const exception = exceptionOf(cause);
  const [detail, color] = describeRun(run, exception);
  const message = `${run.depth ? "└ " : ""}${cut(run.input, 140) || shortId(run.run_id)}`;
  const sentence = exception || !cause ? phaseOf(run).sentence || null : describeCause(cause);
  const age = live ? formatSpan(tookMilliseconds(run, now) / 1000) : formatAgo(run.finished_at, now);
  return html`<tr aria-rowindex=${at + 2} data-run=${run.run_id} class=${run.depth ? "member" : ""}>
    ${onMark ? html`<td class="mid">${live ? html`<input type="checkbox" checked=${marked} disabled=${Boolean(refusal)}
      aria-label=${`Mark run ${shortId(run.run_id)}`} onChange=${() => onMark(run.run_id)} />` : null}</td>` : null}
    <td class="name" dir="auto"><a data-row href=${placeIn(run, db)} title=${run.run_id}><span class="found message">${message}</span>
      <span class="found" title=${sentence}><span class="compact">${alone ? "" : `${cut(name, 60)} · `}</span><span class="phone">${age} · </span><span class=${color}>${detail}</span></span></a></td>
    <td class="state"><${Status} run=${run} /></td>
    <td class="full">${alone ? twoLines(user) : html`<div class="pair" title=${`${kind} ${name}`} dir="auto">${cut(name, 60)}${
      kind === "agent" ? null : html` <span class="dim">${kind}</span>`}</div><div class="pair dim" title=${user} dir="auto">${user}</div>`}</td>
    <td class="far mono" title=${run.session_id}>${twoLines(cut(run.session_id, 40))}</td>
    <td class="mid right nowrap" title=${run.created_at}>${age}</td>
    ${isLive ? null : html`<td class="full right nowrap">${formatFirstToken(run)}</td>
      <td class="far right nowrap">${live ? "" : formatDuration(tookMilliseconds(run))}</td>`}
    <td class="full right" title=${formatNumber(tokensOf(run))}>${formatShort(tokensOf(run))}</td>
    ${isLive ? html`<td class="right">${live && run.cancel_requested_at == null
      ? html`<button type="button" disabled=${Boolean(refusal)} title=${refusal}
          aria-label=${`Cancel run ${shortId(run.run_id)}`} onClick=${() => onCancel(run)}>Cancel</button>` : null}</td>`
      : html`<td class="full right" title=${costOf(run)}>${shortCostOf(run)}</td>`}
  </tr>`;
}

const BARS = 24;

/** Return groups of failed runs, the largest first. Runs with equal place and type of their exception are a group. */
function groupFailures(rows, causes) {
  const groups = new Map();
  for (const run of rows.filter(isFinal)) {
    const cause = causes.get(run.run_id);
    const exception = exceptionOf(cause);
    const words = exception ? describeCause(exception) : phaseOf(run).sentence;
    const key = exception ? `${exception.type} ${exception.place ?? exception.message}` : words;
    const place = exception || !cause ? (exception?.place ?? "") : describeCause(cause);
    if (!groups.has(key)) groups.set(key, { key, words, place, runs: [] });
    groups.get(key).runs.push(run);
  }
  return [...groups.values()].sort((one, other) => other.runs.length - one.runs.length);
}

export function FailureGroups({ rows, causes, meta, more, db }) {
  const [chosen, choose] = useState("");
  const names = useNames();
  const now = useNow(10_000);
  const groups = groupFailures(rows, causes);
  const times = rows.map((run) => Date.parse(run.finished_at)).filter((time) => time);
  const span = [Math.min(...times), now];
  const group = groups.find((each) => each.key === chosen);
  return html`<p class="row spread dim"><span role="status">${many(groups.length, "group")} of
      ${rows.length < meta.total_count ? ` the newest ${formatNumber(rows.length)} of` : ""} ${formatTotal(meta, "failure")}</span>
      ${more.available ? html`<button type="button" class="link" disabled=${more.busy} onClick=${more.load}>Load 100 more</button>` : null}</p>
    <div class="table"><table>
      <colgroup><col class="w-name" /><col class="full w-part" /><col class="w-number" /><col class="mid w-bars" /><col class="mid w-ago" /></colgroup>
      <thead><tr><th>Exception</th><th class="full">Component</th><th class="right">Runs</th><th class="mid">Last ${formatAge(new Date(span[0]).toISOString(), now)}</th><th class="mid right">Last</th></tr></thead>
      <tbody>${groups.map((each) => {
        const [last] = each.runs;
        const found = [...new Set(each.runs.map((run) => nameOf(run, names)))].join(", ");
        return html`<tr key=${each.key} data-group>
          <td class="name" dir="auto"><a data-row href=${placeIn(last, db)} title=${each.place}><div class="two red">${cut(each.words, 140)}</div>
            <span class="sub">${cut(found, 60)}<span class="phone"> · ${formatAgo(last.finished_at, now)}</span></span></a></td>
          <td class="full">${twoLines(cut(found, 60))}</td>
          <td class="right"><button type="button" class="link" aria-expanded=${chosen === each.key} aria-label=${`Show the runs: ${each.runs.length}`}
            onClick=${() => choose(chosen === each.key ? "" : each.key)}>${formatNumber(each.runs.length)}</button></td>
          <td class="mid"><${Bars} runs=${each.runs} span=${span} /></td>
          <td class="mid right nowrap" title=${last.finished_at}>${formatAgo(last.finished_at, now)}</td></tr>`;
      })}</tbody></table></div>
    ${group ? html`<section><h2 class="group">${cut(group.words, 100)}</h2><${RunTable} rows=${group.runs} db=${db} causes=${causes} /></section>` : null}`;
}

function Bars({ runs, span: [from, to] }) {
  const counts = new Array(BARS).fill(0);
  for (const run of runs) counts[Math.max(0, Math.min(BARS - 1, Math.floor((BARS * (Date.parse(run.finished_at) - from)) / (to - from || 1))))] += 1;
  const most = Math.max(...counts);
  const path = counts.map((count, at) => (count ? `M${at * 5} 24h4v${-Math.max(2, (22 * count) / most)}h-4z` : "")).join("");
  return html`<svg width=${BARS * 5} height="24" aria-hidden="true"><path d=${path} fill="var(--red)" /><path d=${`M0 23.5h${BARS * 5}`} stroke="var(--line)" /></svg>`;
}

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
        change(run.run_id, { ...run, ...(await cancelRun(run, { reason })) });
      } catch (error) {
        failures.set(run.run_id, error.message);
        setSent((old) => ({ ...old, failures: new Map(failures) }));
      }
    }
  };
  useEvery(EVERY, waiting.length > 0, () => {
    for (const run of waiting.slice(0, 20)) {
      call("GET", withQuery(path`/runs/${run.run_id}`, { db_id: db, view: "phase" })).then(
        (found) => change(run.run_id, found),
        () => null,
      );
    }
  });
  const runs = sent ? [...sent.runs.values()] : [];
  return {
    send,
    sent,
    runs,
    failures: sent?.failures || new Map(),
    requested: runs.filter((run) => run.cancel_requested_at != null).length,
    stopped: runs.filter((run) => isAtRest(run) && run.cancel_requested_at != null).length,
  };
}

/** A dialog that asks before `work`, which gets the text of its field, if it has a `label`. */
export function Ask({ title, label, verb, close = "Close", danger = !label, work, onClose, children, ...field }) {
  const first = useRef(null);
  useEffect(() => first.current.focus(), []);
  const [submit, failure] = useAction(async ({ target }) => work(target.text?.value.trim()));
  return html`<${Dialog} title=${title} onClose=${onClose}><form onSubmit=${submit}>
    ${children}
    ${label ? html`<label class="field">${label}
      <input name="text" dir="auto" ref=${danger ? null : first} ...${field} /></label>` : null}
    <${ErrorText} error=${failure} />
    <div class="buttons">
      <button type="button" ref=${danger || !label ? first : null} onClick=${onClose}>${close}</button>
      <button type="submit" class=${danger ? "danger" : "primary"}>${verb}</button>
    </div>
  </form><//>`;
}

export function AskCancel({ runs, ...asked }) {
  return html`<${Ask} label="Reason" maxlength="500" danger=${true} close="Keep running" verb=${runs.length === 1 ? "Cancel run" : "Cancel runs"} ...${asked}>
    <ul>${runs.slice(0, 10).map((run) => html`<li key=${run.run_id}><code>${shortId(run.run_id)}</code>
      ${" "}${printable(componentOf(run))}, ${printable(run.user_id ?? "anonymous")}, ${formatDuration(Date.now() - Date.parse(run.created_at))}</li>`)}
      ${runs.length > 10 ? html`<li>and ${runs.length - 10} more</li>` : null}</ul>
    <p>Team members stop too. Side effects of finished tools remain.</p>
  <//>`;
}

export function CancelDialog({ runs, live, cancels, onClose }) {
  const [asking, setAsking] = useState(true);
  const now = useNow(asking ? 0 : 500);
  const ids = new Set(runs.map((run) => run.run_id));
  const members = live.filter((run) => ids.has(run.parent_run_id) && !ids.has(run.run_id)).length;
  const title = `Cancel ${many(runs.length, "run")}${members ? ` and ${many(members, "member")}` : ""}`;
  const work = (reason) => {
    setAsking(false);
    cancels.send(runs, reason);
  };
  if (asking) return html`<${AskCancel} title=${title} runs=${runs} work=${work} onClose=${onClose} />`;
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <${Progress} cancels=${cancels} now=${now} />
    <div class="buttons"><button type="button" onClick=${onClose}>Close</button></div>
    <p class="dim">You can close this dialog; the cancel continues.</p>
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
      ${final ? html`<dt>had already ended</dt><dd>${final}</dd>` : null}
    </dl>
    ${holding.map((run) => html`<p class="yellow" key=${run.run_id}>! ${shortId(run.run_id)}: ${printable(phaseOf(run).sentence)}</p>`)}
    ${[...failures].map(([id, text]) => html`<p class="error" key=${id}>${shortId(id)}: ${printable(text)}</p>`)}
  </div>`;
}

const STATES = { done: "done", failed: "failed", unknown: "outcome not known" };

function Plan({ plan, part }) {
  const more = plan.calls_total - plan.calls.length;
  return html`<div data-plan role="status">
    <p>${plan.at ? `Starts after ${part} ${plan.at} of the run.` : "Starts from the beginning."}</p>
    ${plan.runs_code ? html`<p>The code of the agent runs again, with all of its side effects.</p>` : null}
    ${plan.calls_unknown ? html`<p>The server of the run died, so its last calls may not be known.</p>` : null}
    ${plan.retries.map((id) => html`<p key=${id}>Already retried: <code>${shortId(id)}</code></p>`)}
    ${plan.calls.length
      ? html`<p>These tool calls may be made again:</p>
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
  return html`<label class="field">Keep messages up to
    <select value=${at} disabled=${messages === null} onChange=${(event) => onChange(Number(event.target.value))}>
      <option value="0">none: start over</option>
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
      const started = await postOnce(`${placeOfRun(run)}/${verb}`, body);
      onClose();
      location.hash = toHash(["sessions", started.session_id], { db: id ? databaseOf(target, id) : db, run: started.run_id });
    } catch (error) {
      if (!error.plan || plan) throw error;
      setPlan(error.plan);
    }
  });
  const title = verb === "retry" ? "Retry" : "Fork";
  return html`<${Dialog} title=${`${title} run ${shortId(run.run_id)}?`} onClose=${onClose}>
    <form onSubmit=${submit}>
      ${verb === "retry"
        ? html`<p>Starts a new run with the same input. Completed steps are reused.</p>`
        : html`<${Messages} run=${run} db=${db} at=${at} onChange=${change(setAt)} />
            <label class="field">New message
              <textarea rows="3" value=${message} onInput=${(event) => change(setMessage)(event.target.value)}
                placeholder="leave empty to reuse the original"></textarea></label>
            <label class="field">Continue with
              <select value=${other} onChange=${(event) => change(setOther)(event.target.value)}>
                <option value="">the same component</option>
                ${others.map((each) => html`<option key=${`${each.kind}:${each.id}`} value=${writeExact([each.kind, each.id])}>${cut(each.name || each.id, 40)}</option>`)}
              </select></label>
            <label><input type="checkbox" checked=${here} onChange=${(event) => change(setHere)(event.target.checked)} /> Keep in this session</label>`}
      ${plan ? html`<${Plan} plan=${plan} part=${part} />` : null}
      <${ErrorText} error=${failure} />
      <div class="buttons">
        <button type="button" ref=${first} onClick=${onClose}>Close</button>
        <button type="submit" class=${plan ? "danger" : "primary"} disabled=${busy}>${plan ? `${title} and repeat these calls` : title}</button>
      </div>
    </form>
  <//>`;
}
