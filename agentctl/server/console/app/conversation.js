// One run of a conversation: its question, its answer, tools, members and steps, live or stored,
// and the strip that shows the two facts about a cancel.

import { call, can, cancelRun, componentOf, kindOf, path, withQuery } from "./api.js";
import { describePhase, describeHolding, isAtRest, isFinal } from "./phase.js";
import { follow } from "./stream.js";
import {
  Copy, cut, Dialog, formatClock, formatDuration, formatNumber, formatSize, html, printable,
  shortId, Status, Still, toHash, tookMilliseconds, useCaller, useEffect, useNow, useRef, useState,
} from "./ui.js";

const DELEGATION = ["delegate_task_to_member", "route_to_member"];
const FLUSH = 250;
const MAXIMUM_SHOWN = 20_000;

/** Characters after which the server cuts messages and results, until someone asks for the rest. */
export const CUT = 10_000;

/** The events of a live run as the items that a transcript shows. */
export class LiveView {
  constructor(id, component) {
    this.id = id;
    this.component = component;
    this.items = [];
    this.status = "RUNNING";
    this.startedAt = Date.now();
    this.task = "";
    this.progress = null;
    this.views = new Map([[id, this]]);
  }

  apply({ name, data }) {
    const kind = name.replace(/^Team(?=Run|Tool|Reasoning)/, "");
    const view = this.views.get(data.run_id) || this.addMember(data);
    const at = eventTime(data);
    if (kind === "RunStarted" || kind === "WorkflowStarted") view.startedAt = at;
    else if (kind === "RunContent") view.append("text", data.content);
    else if (kind === "ReasoningContentDelta") view.append("thinking", data.reasoning_content);
    else if (kind === "ToolCallStarted") view.startTool(data.tool, at);
    else if (kind === "ToolCallCompleted") view.endTool(data.tool, at);
    else if (kind === "RunProgress") view.progress = data;
    else if (kind === "StepStarted") view.items.push({ type: "step", name: data.step_name });
    else if (/^(Run|Workflow)(Completed|Cancelled|Error)$/.test(kind)) view.end(kind, data, at);
  }

  append(type, text) {
    const last = this.items[this.items.length - 1];
    if (last?.type === type) last.text += text || "";
    else this.items.push({ type, text: text || "" });
  }

  startTool(tool, at) {
    if (DELEGATION.includes(tool.tool_name)) this.task = tool.tool_args?.task || "";
    else this.items.push({ type: "tool", tool, startedAt: at });
  }

  endTool(tool, at) {
    const item = this.items.find((each) => each.tool?.tool_call_id === tool.tool_call_id);
    if (item) Object.assign(item, { tool, milliseconds: at - item.startedAt });
  }

  addMember(data) {
    const parent = this.views.get(data.parent_run_id) || this;
    const name = data.agent_name || data.team_name || componentOf(data);
    const view = new LiveView(data.run_id, name);
    view.views = this.views;
    this.views.set(data.run_id, view);
    parent.items.push({ type: "member", id: data.run_id, name, task: parent.task, view });
    return view;
  }

  end(kind, data, at) {
    const statuses = { Completed: "COMPLETED", Cancelled: "CANCELLED", Error: "ERROR" };
    this.status = statuses[kind.replace(/^(Run|Workflow)/, "")];
    this.milliseconds = at - this.startedAt;
    this.tokens = data.metrics?.total_tokens;
  }
}

function eventTime(data) {
  return data.at ? Date.parse(data.at) : data.created_at * 1000;
}

/** Return the items of a stored run. */
function itemsOf(run) {
  const items = [];
  const spans = new Map((run.spans || []).map((span) => [span.id, span]));
  const members = [...(run.member_runs || [])];
  const tools = new Map((run.tools || []).map((tool) => [tool.tool_call_id, tool]));
  if (run.reasoning_content) items.push({ type: "thinking", text: run.reasoning_content });
  let shown = "";
  for (const message of run.messages || []) {
    if (message.role !== "assistant") continue;
    const text = textOf(message.content);
    if (text) items.push({ type: "text", text, whole: message.truncated?.characters });
    shown += text;
    for (const made of message.tool_calls || []) {
      const tool = tools.get(made.id) || { ...made, tool_name: made.name, tool_args: made.arguments };
      tools.delete(made.id);
      const span = spans.get(made.id);
      if (DELEGATION.includes(tool.tool_name) && members.length) {
        const id = span?.member_run_id || members[0];
        members.splice(Math.max(0, members.indexOf(id)), 1);
        items.push({ type: "member", id, name: tool.tool_args?.member_id, task: tool.tool_args?.task });
      } else {
        items.push({ type: "tool", tool, milliseconds: spanMilliseconds(span) });
      }
    }
  }
  for (const tool of tools.values()) items.push({ type: "tool", tool });
  const rest = members.flatMap((id) => {
    const step = (run.spans || []).find((span) => span.kind === "step" && span.member_run_id === id);
    return [...(step ? [{ type: "step", name: step.name }] : []), { type: "member", id }];
  });
  if (!shown && run.content) items.push({ type: "text", text: textOf(run.content) });
  return rest.concat(items);
}

function spanMilliseconds(span) {
  return span?.finished_at ? Date.parse(span.finished_at) - Date.parse(span.started_at) : null;
}

function textOf(content) {
  return typeof content === "string" ? content : content == null ? "" : JSON.stringify(content);
}

/** Follow a run until it and its work have ended: `{run, view, refresh}`.
 *
 * Without a caller nothing is fetched; the events are read again after the sign-in.
 */
export function useRun(initial, db) {
  const { me, generation } = useCaller();
  const [run, setRun] = useState(initial);
  const [view, setView] = useState(null);
  const [, render] = useState(0);
  const place = path`/sessions/${initial.session_id}/runs/${initial.run_id}`;
  const load = async (cut) => {
    const found = await call("GET", withQuery(place, { db_id: db, cut }));
    setRun(found);
    return found;
  };
  const refresh = () => load(CUT);
  // A caller that cannot read the record keeps what the events have shown.
  const keepEvents = ({ status }) => setRun((old) => ({ ...old, status, unread: true }));
  const live = !isFinal(run);
  useEffect(() => {
    if (!live || me === null) return undefined;
    const control = new AbortController();
    const shown = new LiveView(run.run_id, componentOf(run));
    let timer = null;
    const onEvents = (events) => {
      events.forEach((event) => shown.apply(event));
      timer ??= setTimeout(() => {
        timer = null;
        render((count) => count + 1);
      }, FLUSH);
    };
    setView(shown);
    follow(run, { onEvents, signal: control.signal }).then(
      () => control.signal.aborted || refresh().catch(() => keepEvents(shown)),
      () => control.signal.aborted || setView(null),
    );
    return () => {
      clearTimeout(timer);
      control.abort();
    };
  }, [run.run_id, live, generation, me === null]);
  const waiting = me !== null && !run.unread && !isAtRest(run) && (isFinal(run) || run.cancel_requested_at != null || view === null);
  useEffect(() => {
    if (!waiting) return undefined;
    const timer = setInterval(() => document.hidden || refresh().catch(() => null), 700);
    return () => clearInterval(timer);
  }, [waiting]);
  return { run, view, setRun, refresh, loadAll: () => load() };
}

/** One run of the conversation. */
export function Turn({ initial, names, db, current, onChange, opened }) {
  const { run, view, setRun, loadAll } = useRun(initial, db);
  const [json, setJson] = useState(false);
  const live = !isFinal(run);
  const now = useNow(isAtRest(run) || run.unread ? 0 : 500);
  const kind = kindOf(run);
  const component = componentOf(run);
  const name = names.get(`${kind}:${component}`) || component;
  useEffect(() => run !== initial && onChange?.(run), [run]);
  const items = (live || run.unread) && view ? view.items : itemsOf(run);
  const tokens = run.metrics?.total_tokens;
  return html`<article class="turn" id=${`run-${run.run_id}`} data-run=${run.run_id}
    aria-label=${`Run ${shortId(run.run_id)}`} aria-current=${current ? "true" : null}>
    <div class="asked">
      <span class="by"><b>${printable(run.user_id ?? "anonymous")}</b> · <span title=${run.created_at}>${formatClock(run.created_at)}</span></span>
      <div class="bubble"><${Long} text=${run.input} /></div>
    </div>
    <section class="answer">
      <header>
        <span class="component">${printable(name)}</span>
        <${Status} run=${run} now=${now} />
        <span class="dim">${formatDuration(tookMilliseconds(run, now))}</span>
        ${tokens ? html`<span class="dim">${formatNumber(tokens)} tokens</span>` : null}
        <span class="tools">
          ${live ? html`<${CancelButton} run=${run} setRun=${setRun} />` : null}
          <a href=${toHash(["runs", run.run_id, "timeline"], { db })}>Timeline</a>
          <button type="button" class="link" aria-label="Show as JSON" onClick=${() => setJson(true)}>{ }</button>
        </span>
      </header>
      <${Items} items=${items} run=${run} names=${names} db=${db} now=${now} opened=${opened} onAll=${loadAll} />
      ${live ? html`<${Silence} view=${view} now=${now} />` : null}
      ${run.error ? html`<${Failure} run=${run} />` : null}
      <${Facts} run=${run} now=${now} />
    </section>
    ${json
      ? html`<${JsonDialog} title=${`Run ${run.run_id}`} value=${run} load=${loadAll}
          onClose=${() => setJson(false)} />`
      : null}
  </article>`;
}

function Silence({ view, now }) {
  if (!view) return html`<p class="dim">● waiting for its events</p>`;
  const { progress } = view;
  if (progress?.text || progress?.fraction != null) {
    const part = progress.fraction == null ? "" : ` ${Math.round(progress.fraction * 100)} %`;
    return html`<p class="dim">● ${cut(progress.text, 200)}${part}</p>`;
  }
  if (view.items.length || now - view.startedAt < 1000) return null;
  return html`<p class="dim">● waiting ${formatDuration(now - view.startedAt)} for the first token</p>`;
}

function Failure({ run }) {
  const { error, request_id: request } = run;
  return html`<div class="bar red"><b>${printable(error.code)}</b> ${printable(error.detail)}
    ${request ? html` <span class="nowrap">request <${Copy} text=${request} label=${shortId(request)} /></span>` : null}</div>`;
}

/** Both facts about a cancel: the request, and the end of the work. */
export function Facts({ run, now }) {
  const phase = describePhase(run, now);
  if (run.cancel_requested_at == null && !phase.warning && !run.late_result) return null;
  const requested = Date.parse(run.cancel_requested_at);
  const by = run.cancel_requested_by ? ` by ${run.cancel_requested_by}` : "";
  const parts = [];
  if (run.cancel_requested_at) {
    parts.push(`Cancel requested ${formatClock(requested)}${by}`);
  }
  if (phase.name === "stopping") {
    parts.push(`waiting for it to stop, ${formatDuration(now - requested)}`);
  } else if (phase.warning) {
    const since = run.finished_at ? ` (${formatDuration(now - Date.parse(run.finished_at))})` : "";
    parts.push(`Ended, but ${describeHolding(run.holding)}${since}`);
  } else if (phase.name === "stopped" && !run.late_result) {
    const after = requested ? `, ${formatDuration(Date.parse(run.stopped_at) - requested)} after the request` : "";
    parts.push(`Stopped ${formatClock(run.stopped_at)}${after}`);
  } else if (phase.name !== "stopped" && run.cancel_requested_at) {
    parts.push(`${phase.words} before the cancel took effect`);
  }
  if (run.late_result) {
    parts.push(`the run ended ${formatClock(run.finished_at)}; a late result was dropped ${formatClock(run.stopped_at)}`);
  }
  const goesOn = phase.warning || phase.name === "stopping";
  return html`<div class=${goesOn ? "strip yellow-soft" : "strip"} role="status" data-facts>
    <span>${phase.warning ? "! " : ""}${printable(parts.join(" · "))}</span>
    ${run.cancel_reason ? html`<span class="dim">Reason: ${printable(run.cancel_reason)}</span>` : null}
  </div>`;
}

/** Cancel one run, with a question in place. */
export function CancelButton({ run, setRun }) {
  const [asking, setAsking] = useState(false);
  const [failure, setFailure] = useState(null);
  const [reason, setReason] = useState("");
  const keep = useRef(null);
  const allowed = can(`${kindOf(run)}s`, "run", componentOf(run));
  useEffect(() => asking && keep.current?.focus(), [asking]);
  if (run.cancel_requested_at != null) return null;
  const cancel = async () => {
    try {
      const answer = await cancelRun(run, { reason: reason.trim() || undefined });
      setAsking(false);
      const fields = ["status", "cancel_requested_at", "cancel_requested_by", "finished_at", "stopped_at", "holding"];
      const given = fields.filter((field) => field in answer).map((field) => [field, answer[field]]);
      setRun((old) => ({ ...old, ...Object.fromEntries(given), cancel_reason: answer.reason }));
    } catch (error) {
      setFailure(error);
    }
  };
  return html`<button type="button" data-cancel disabled=${!allowed}
      title=${allowed ? null : `needs ${kindOf(run)}s:${componentOf(run)}:run`}
      onClick=${() => setAsking(true)}>Cancel</button>
    ${asking
      ? html`<${Dialog} title=${`Cancel run ${shortId(run.run_id)}?`} onClose=${() => setAsking(false)}>
          <p>${printable(componentOf(run))}, ${printable(run.user_id ?? "anonymous")}. Its members stop with it.
            What tools have done is not undone.</p>
          <label class="field">Reason
            <input maxlength="500" value=${reason} onInput=${(event) => setReason(event.target.value)} />
          </label>
          ${failure ? html`<p class="error" role="alert">${printable(failure.message)}</p>` : null}
          <div class="buttons">
            <button type="button" ref=${keep} onClick=${() => setAsking(false)}>Keep running</button>
            <button type="button" class="danger" onClick=${cancel}>Cancel run</button>
          </div>
        <//>`
      : null}`;
}

function Items({ items, run, names, db, now, opened, onAll, depth = 0 }) {
  return items.map((item, at) => {
    if (item.type === "text") {
      return html`<div key=${at}><${Still} view=${Answer} text=${item.text} /><${Rest} whole=${item.whole} onAll=${onAll} /></div>`;
    }
    if (item.type === "thinking") return html`<${Thinking} key=${at} text=${item.text} />`;
    if (item.type === "step") return html`<h3 key=${at} class="dim">Step ${printable(item.name)}</h3>`;
    if (item.type === "tool") {
      return html`<${ToolLine} key=${item.tool.tool_call_id || at} item=${item} run=${run} now=${now} opened=${opened} onAll=${onAll} />`;
    }
    return html`<${MemberLine} key=${item.id} item=${item} session=${run.session_id} names=${names}
      db=${db} now=${now} opened=${opened} depth=${depth} />`;
  });
}

let markdown = null;

/** A text as Markdown, plain until the parser is loaded. */
function Answer({ text }) {
  const [View, setView] = useState(() => markdown);
  useEffect(() => {
    if (View) return;
    import("./markdown.js").then(
      (loaded) => setView(() => (markdown = loaded.Markdown)),
      () => null,
    );
  }, []);
  const shown = printable(text);
  return View ? html`<${View} text=${shown} />` : html`<pre class="plain">${shown}</pre>`;
}

function Thinking({ text }) {
  return html`<details class="fold"><summary class="dim">thinking, ${formatSize(text.length)}</summary>
    <div class="inside"><${Long} text=${text} /></div></details>`;
}

/** The button that fetches a text that the server has cut. */
function Rest({ whole, onAll }) {
  if (!whole || !onAll) return null;
  return html`<button type="button" class="link" onClick=${() => onAll().catch(() => null)}>show all, ${formatSize(whole)}</button>`;
}

/** A text that is cut until someone asks for the rest. */
function Long({ text }) {
  const [all, set] = useState(false);
  const shown = printable(all ? text : String(text ?? "").slice(0, MAXIMUM_SHOWN));
  return html`${shown}${!all && text && text.length > MAXIMUM_SHOWN
    ? html` <button type="button" class="link" onClick=${() => set(true)}>show all, ${formatSize(text.length)}</button>`
    : null}`;
}

function ToolLine({ item, run, now, opened, onAll }) {
  const [open, setOpen] = useState(false);
  const [json, setJson] = useState(false);
  useEffect(() => setOpen(Boolean(opened)), [opened]);
  const { tool } = item;
  const running = tool.tool_call_error == null && tool.result == null && !isFinal(run);
  const result = textOf(tool.result);
  const size = tool.truncated?.characters || result.length;
  const args = Object.entries(tool.tool_args || {}).map(([key, value]) => `${key}=${JSON.stringify(value)}`);
  const short = cut(args.join(", "), 160);
  const loadWhole = () => call("GET", withQuery(
    path`/${kindOf(run)}s/${componentOf(run)}/runs/${run.run_id}/tools/${tool.tool_call_id}`, { session_id: run.session_id }));
  const glyph = running ? ["●", "blue", "running"] : tool.tool_call_error ? ["✗", "red", "failed"]
    : tool.result == null ? ["–", "dim", "no result"] : ["✓", "green", "done"];
  const time = running ? now - (item.startedAt || now) : item.milliseconds;
  return html`<div class="fold">
    <button type="button" class="line" aria-expanded=${open} onClick=${() => setOpen(!open)}>
      <span class="call mono">ƒ ${cut(tool.tool_name, 64)}(${short})${
        !running && result && result.length <= 80 ? html` <span class="dim">${cut(result, 80)}</span>` : null}</span>
      <span class="end">${size > 80 ? `${formatSize(size)} ` : ""}<span class=${glyph[1]} title=${glyph[2]}>${glyph[0]}</span>
        <span class="hidden">${glyph[2]}</span> ${time == null ? "" : formatDuration(time)}</span>
    </button>
    ${open
      ? html`<div class="inside">
          <h4>Arguments <button type="button" class="link" aria-label="Tool call as JSON" onClick=${() => setJson(true)}>{ }</button></h4>
          <pre class="json" tabindex="0">${cutJson(tool.tool_args)}</pre>
          <h4>Result ${result ? html`<${Copy} text=${result} />` : null}</h4>
          <pre class="json" tabindex="0">${result ? html`<${Long} text=${result} />` : glyph[2]}</pre>
          <${Rest} whole=${tool.truncated?.characters} onAll=${onAll} />
        </div>`
      : null}
    ${json
      ? html`<${JsonDialog} title=${`Tool call ${cut(tool.tool_name, 64)}`} value=${tool} load=${tool.truncated && loadWhole}
          onClose=${() => setJson(false)} />`
      : null}
  </div>`;
}

function cutJson(value) {
  return html`<${Long} text=${JSON.stringify(value ?? {}, null, 2)} />`;
}

function MemberLine({ item, session, names, db, now, opened, depth }) {
  const [stored, setStored] = useState(null);
  const [open, setOpen] = useState(null);
  const line = useRef(null);
  useEffect(() => setOpen(opened === undefined ? null : Boolean(opened)), [opened]);
  const load = async (cut) =>
    setStored(await call("GET", withQuery(path`/sessions/${session}/runs/${item.id}`, { db_id: db, cut })));
  useEffect(() => {
    if (item.view) return undefined;
    const watch = new IntersectionObserver((entries) => {
      if (!entries.some((each) => each.isIntersecting)) return;
      watch.disconnect();
      load(CUT).catch(() => setStored({ missing: true }));
    });
    watch.observe(line.current);
    return () => watch.disconnect();
  }, [item.id, item.view]);
  const run = item.view || stored || {};
  const failed = run.status === "ERROR";
  const shown = open ?? (failed || (item.view && run.status === "RUNNING"));
  const kind = kindOf(run);
  const id = componentOf(run) || item.name || "";
  const name = item.view ? item.name : names.get(`${kind}:${id}`) || id || "member";
  const task = item.task || stored?.input || "";
  const time = item.view ? (run.milliseconds ?? now - run.startedAt) : stored?.finished_at ? tookMilliseconds(stored) : null;
  const tokens = item.view ? run.tokens : stored?.metrics?.total_tokens;
  return html`<div class="fold" ref=${line} data-member=${item.id}>
    <button type="button" class="line" aria-expanded=${Boolean(shown)} onClick=${() => setOpen(!shown)}>
      <span class="call"><b>${cut(name, 60)}</b>${task ? `: ${cut(task, 160)}` : ""}</span>
      <span class="end">${run.status ? html`<${Status} run=${run} />` : run.missing ? "not available" : ""}
        ${failed && run.error ? ` ${run.error.code}` : ""}
        ${time == null ? "" : ` · ${formatDuration(time)}`}${tokens ? ` · ${formatNumber(tokens)} tokens` : ""}${
          stored?.tools?.length ? ` · ${stored.tools.length} ƒ` : ""}</span>
    </button>
    ${shown && depth < 4
      ? html`<div class="inside">
          ${run.error ? html`<${Failure} run=${run} />` : null}
          <${Items} items=${item.view ? item.view.items : stored ? itemsOf(stored) : []}
            run=${{ ...run, session_id: session }} names=${names} db=${db} now=${now} opened=${opened} onAll=${() => load()} depth=${depth + 1} />
        </div>`
      : null}
  </div>`;
}

/** A record as JSON, to read and to copy. */
export function JsonDialog({ title, value, load, onClose }) {
  const [shown, setShown] = useState(value);
  useEffect(() => {
    load?.().then(setShown, () => null);
  }, []);
  const text = JSON.stringify(shown, null, 2);
  return html`<${Dialog} title=${title} onClose=${onClose} wide=${true}>
    <pre class="json" tabindex="0"><${Long} text=${text} /></pre>
    <div class="buttons">
      <${Copy} text=${text} small=${false} />
      <button type="button" onClick=${onClose}>Close</button>
    </div>
  <//>`;
}
