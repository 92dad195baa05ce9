// One run of a conversation: its question, its answer, tools, members and steps, live or stored, the
// strip that shows the two facts about a cancel, and the stream of its changes: server-sent events that
// are read with fetch, because EventSource cannot send the Authorization header. A stream that breaks is
// resumed after the last event.

import {
  ApiError, call, can, cancelRun, eventsOf, isAtRest, isFinal, isPaused, kindOf, nameOf,
  path, placeOfRun, refusalOf, send, tokensOf, withQuery,
} from "./api.js";
import {
  Component, Copy, costOf, cut, Dialog, ErrorText, formatClock, formatDuration, formatFirstToken, formatSize,
  Fragment, Glyph, html, Later, LOOKS, many, Menu, phaseOf, printable, shortId, Status, toHash, tookMilliseconds, useAction,
  useCaller, useEffect, useEvery, useNow, useResource, useState,
} from "./ui.js";
import { PlainFacts, PlainValue, wordsOf } from "./plain.js";
import { DecidedLine, mayDecide, Waits } from "./waits.js";
import { readExact, writeExact } from "./exact.js";

const FLUSH = 250;
const EVERY_PAUSED = 2000;
const EVERY_WAITING = 700;
const MAXIMUM_SHOWN = 20_000;

/** Characters after which the server cuts messages and results, until someone asks for the rest. */
export const CUT = 10_000;

const loadFiles = () => import("./files.js");
const loadDialogs = () => import("./runs.js");

const CALLS = {
  running: ["●", "blue", "running"],
  done: ["✓", "green", "done"],
  failed: ["✗", "red", "failed"],
  waiting: ["‖", "yellow", "waiting for approval"],
  cancelled: ["■", "grey", "stopped"],
};

/** Apply changes of a stream to runs by their id, each with its items. */
function applyChanges(runs, changes) {
  for (const { run_id: id, run, position, item, added } of changes) {
    const items = runs.get(id)?.items || [];
    if (run) runs.set(id, { ...run, items });
    else if (item) items[position] = item;
    else items[position].text += added;
  }
}

function textOf(content) {
  return typeof content === "string" ? content : content == null ? "" : writeExact(content);
}

/** Follow a run until it and its work have ended: `{run, runs, …}`.
 *
 * `runs` has what the stream has sent of a live run and of those below it, by id; it is null without
 * a stream. Without a caller nothing is fetched; the stream is read again after the sign-in, and
 * after a pause. The events of a run that is paused end; its record is read for the decision.
 */
function useRun(initial, db) {
  const { me, generation } = useCaller();
  const [run, setRun] = useState(initial);
  const [runs, setRuns] = useState(null);
  const [, render] = useState(0);
  const place = path`/sessions/${initial.session_id}/runs/${initial.run_id}`;
  const read = async (query) => {
    // A request that is refused would be a denial in the audit log.
    if (!can("sessions", "read", initial.session_id)) throw new ApiError(403);
    return call("GET", withQuery(place, { db_id: db, ...query }));
  };
  const load = async (cut) => setRun(await read({ view: "items", cut }));
  const refresh = () => load(CUT);
  const live = !isFinal(run);
  const paused = isPaused(run);
  useEffect(() => {
    if (!live || paused || me === null) return;
    const control = new AbortController();
    const followed = new Map();
    let timer = null;
    const draw = () => {
      timer = null;
      const current = followed.get(run.run_id);
      // A pause is read from the record: the stream also has those that are over.
      if (current && !isFinal(current) && !isPaused(current)) {
        const { status, phase } = current;
        setRun((old) => (old.status === status ? old : { ...old, status, phase }));
      }
      render((count) => count + 1);
    };
    const onChanges = (changes) => {
      applyChanges(followed, changes);
      timer ??= setTimeout(draw, FLUSH);
    };
    // A caller that cannot read the record keeps what the stream has sent, which has no cancels.
    const keep = () =>
      setRun((old) => {
        const streamed = followed.get(run.run_id);
        return { ...old, ...streamed, phase: old.cancel_requested_at ? null : streamed.phase, unread: true };
      });
    const isSettled = async () => {
      try {
        const found = await read({ view: "phase" });
        return isFinal(found) || isPaused(found);
      } catch {
        return followed.has(run.run_id) && isPaused(followed.get(run.run_id));
      }
    };
    setRuns(followed);
    follow(run, { onChanges, isSettled, signal: control.signal }).then(
      () => control.signal.aborted || refresh().catch(keep),
      () => control.signal.aborted || setRuns(null),
    );
    return () => {
      clearTimeout(timer);
      control.abort();
    };
  }, [run.run_id, live, paused, generation, me === null]);
  const look = async () => {
    const found = await read({ view: "phase" });
    if (!isPaused(found) || writeExact(found.approvals) !== writeExact(run.approvals)) await refresh();
  };
  useEvery(EVERY_PAUSED, paused && me !== null && !run.unread, () => look().catch(() => null));
  const waiting = me !== null && !run.unread && !paused && !isAtRest(run) && (isFinal(run) || run.cancel_requested_at != null || runs === null);
  useEvery(EVERY_WAITING, waiting, () => refresh().catch(() => null));
  return { run, runs: (live && !paused) || run.unread ? runs : null, setRun, refresh, loadAll: () => load(), loadRecord: () => read({}) };
}

/** Returns the message, and the object `input` of the request if the message is not its text. */
function formatAsked({ input, input_object: given }) {
  if (!given) return input;
  const text = writeExact(given);
  try {
    if (writeExact(readExact(input)) === text) return input;
  } catch {
  }
  return `${input}\ninput: ${text}`;
}

/** One run. `plain` is for the people of a chat: decisions in place, and nothing about its making. */
export function Turn({ initial, names, db, current, onChange, opened, plain }) {
  const { run, runs, setRun, refresh, loadAll, loadRecord } = useRun(initial, db);
  const [json, setJson] = useState(false);
  const live = !isFinal(run);
  const now = useNow(isAtRest(run) || run.unread ? 0 : 500);
  useEffect(() => run !== initial && onChange?.(run), [run]);
  const streamed = runs?.get(run.run_id)?.items || [];
  const items = streamed.length ? streamed : run.items || [];
  // After a decision the stored record is newer than the state of this page.
  const decided = () => void (run.unread ? setRun((old) => ({ ...old, status: "RUNNING", phase: null, unread: false })) : refresh().catch(() => null));
  const tokens = tokensOf(run);
  return html`<article class="turn" id=${`run-${run.run_id}`} data-run=${run.run_id} data-phase=${phaseOf(run).name}
    aria-label=${`Run ${shortId(run.run_id)}`} aria-current=${current ? "true" : null}>
    <div class="asked">
      <span class="by">${plain ? null : html`<b>${printable(run.user_id ?? "anonymous")}</b> · `}<span title=${run.created_at}>${plain ? formatLocal(run.created_at) : formatClock(run.created_at)}</span></span>
      <div class="bubble" dir="auto"><${Long} text=${formatAsked(run)} /></div>
      ${run.files?.some((file) => !file.created_at) ? html`<${Later} load=${loadFiles} name="Given" run=${run} db=${db} />` : null}
      ${run.origin_run_id && !plain ? html`<${OriginLine} run=${run} db=${db} />` : null}
    </div>
    <section class="answer">
      <header>
        <span class="component">${printable(nameOf(run, names))}</span>
        ${plain ? html`<${PlainStatus} run=${run} />` : html`<${Status} run=${run} />
          <span class="dim">${formatDuration(tookMilliseconds(run, now))}</span>
          ${run.first_token_at ? html`<span class="dim wide-only">first token ${formatFirstToken(run)}</span>` : null}`}
        ${tokens && !plain ? html`<span class="dim">${[many(tokens, "token"), costOf(run)].filter(Boolean).join(" · ")}</span>` : null}
        <span class="tools">
          ${live ? html`<${CancelButton} run=${run} setRun=${setRun} plain=${plain} />` : null}
          ${plain ? null : html`<a href=${toHash(["runs", run.run_id, "timeline"], { db })}>Timeline</a>
            <${RunMenu} run=${run} db=${db} onJson=${() => setJson(true)} />`}
        </span>
      </header>
      <${Items} items=${items} run=${run} runs=${runs} names=${names} db=${db} now=${now} opened=${opened} plain=${plain}
        approvals=${run.approvals} onAll=${loadAll} />
      <${Waits} run=${run} db=${db} now=${now} onDecided=${decided} inPlace=${plain ? nameOf(run, names) || "The agent" : ""} />
      ${live && !isPaused(run) ? html`<${Silence} run=${run} runs=${runs} idle=${!items.length} now=${now} plain=${plain} />` : null}
      ${run.error ? html`<${Failure} run=${run} db=${db} plain=${plain} />` : null}
      ${plain && !hasOpenWork(run) ? null : html`<${Facts} run=${run} />`}
    </section>
    ${json
      ? html`<${JsonDialog} title=${`Run ${run.run_id}`} value=${run} load=${loadRecord}
          onClose=${() => setJson(false)} />`
      : null}
  </article>`;
}

/** Return the time of day at the place of the reader. */
const formatLocal = (time) => new Date(time).toLocaleTimeString([], { hour: "numeric", minute: "2-digit" });

const PLAIN_STATES = {
  queued: "in line", running: "working…", paused: "waiting for approval", stopping: "stopping…", stopped: "stopped", failed: "failed",
};

/** The state of a run for people who only read its answer: nothing once it is there. */
function PlainStatus({ run }) {
  const { name, warning } = phaseOf(run);
  if (name === "completed" && !warning) return null;
  const isForMe = (run.approvals || []).some((each) => each.status === "pending" && mayDecide(each, run));
  const words = name === "paused" && isForMe ? "waiting for you" : PLAIN_STATES[name] ?? name;
  return html`<${Glyph} look=${LOOKS[name]}>${words}<//>${
    warning ? html` <span class="status yellow nowrap">! ${warning}</span>` : null}`;
}

/** Return true if work of a run continues after its end, or a cancel is under way. */
const hasOpenWork = (run) => Boolean(phaseOf(run).warning || run.late_result) || phaseOf(run).name === "stopping";

function Silence({ run, runs, idle, now, plain }) {
  const phase = phaseOf(run);
  if (phase.name === "queued" && phase.sentence) return html`<p class="dim">◌ ${phase.sentence}</p>`;
  if (!runs) return plain ? null : html`<p class="dim">● waiting for its events</p>`;
  const { progress, started_at: began } = runs.get(run.run_id) || run;
  if (progress?.text || progress?.fraction != null) {
    const part = progress.fraction == null ? "" : `${Math.round(progress.fraction * 100)}%`;
    return html`<p class="dim">● ${[cut(progress.text, 200), part].filter(Boolean).join(" · ")}</p>`;
  }
  const waited = now - Date.parse(began || run.created_at);
  if (!idle || waited < 1000) return null;
  return html`<p class="dim">● ${plain ? "Thinking…" : `waiting ${formatDuration(waited)} for the first token`}</p>`;
}

function Failure({ run, db, plain }) {
  const { error, request_id: request } = run;
  const causes = useResource(can("runs", "debug") && !plain ? withQuery(path`/runs/${run.run_id}/causes`, { db_id: db }) : null);
  if (plain) {
    return html`<div class="bar red"><p>Something went wrong, and the answer is not complete. You can send your message again.</p>
      <details><summary>Details for your administrator</summary>
        <p><code>${printable(error.code)}</code> ${printable(error.detail)}${request ? html` · request <code>${printable(request)}</code>` : null}</p></details></div>`;
  }
  return html`<div class="bar red"><b>${printable(error.code)}</b> ${printable(error.detail)}
    ${request ? html` · <span class="nowrap">request <${Copy} text=${request} label=${shortId(request)} /></span>` : null}
    ${(causes.data?.causes || []).filter((each) => each.run_id === run.run_id).map((each) => html`<p class="cause">
      <code>${printable(each.type)}: ${printable(each.message)}</code>
      <span class="dim">${printable(each.place ?? (each.type === "ModelFailure" ? "the response of the model provider" : "the place is not known"))}${each.tool_name ? ` · tool ${printable(each.tool_name)}` : ""}</span></p>`)}</div>`;
}

/** Both facts about a cancel: the request, and the end of the work. */
export function Facts({ run }) {
  const { name, warning, sentence } = phaseOf(run);
  if (run.cancel_requested_at == null && !warning && !run.late_result) return null;
  // The panel of a failure has its code and its text.
  const text = run.error ? sentence.replace(`${run.error.code}: ${run.error.detail}; `, "") : sentence;
  return html`<div class=${warning || name === "stopping" ? "strip yellow-soft" : "strip"} role="status" data-facts>
    <span>${warning ? "! " : ""}${printable(text.charAt(0).toUpperCase() + text.slice(1))}</span>
    ${run.cancel_reason ? html`<span class="dim">Reason: ${printable(run.cancel_reason)}</span>` : null}
  </div>`;
}

/** The button of a cancel, which asks for a reason first; `plain` stops at once. */
function CancelButton({ run, setRun, plain }) {
  const [asking, setAsking] = useState(false);
  const refusal = refusalOf(run);
  const cancel = async (reason) => {
    const answer = await cancelRun(run, { reason });
    setAsking(false);
    const fields = ["status", "cancel_requested_at", "cancel_requested_by", "finished_at", "stopped_at", "holding", "phase"];
    const given = fields.filter((field) => field in answer).map((field) => [field, answer[field]]);
    setRun((old) => ({ ...old, ...Object.fromEntries(given), cancel_reason: answer.reason }));
  };
  const [stop, failure] = useAction(() => cancel());
  if (run.cancel_requested_at != null) return null;
  if (plain) {
    return html`<${ErrorText} error=${failure} />
      <button type="button" data-cancel disabled=${Boolean(refusal)} onClick=${stop}><span aria-hidden="true">■</span> Stop</button>`;
  }
  return html`<button type="button" data-cancel disabled=${Boolean(refusal)} title=${refusal}
      onClick=${() => setAsking(true)}>Cancel</button>
    ${asking ? html`<${Later} load=${loadDialogs} name="AskCancel" title=${`Cancel run ${shortId(run.run_id)}?`} runs=${[run]}
      work=${cancel} onClose=${() => setAsking(false)} />` : null}`;
}

/** What one seldom does with a run. The dialogs of retry and fork are fetched when they are opened. */
function RunMenu({ run, db, onJson }) {
  const [repeat, setRepeat] = useState("");
  const traceUrl = useCaller().me?.trace_url;
  const refusal = refusalOf(run);
  const action = (verb, label) => html`<button type="button" disabled=${Boolean(refusal)} title=${refusal}
    onClick=${() => setRepeat(verb)}>${label}</button>`;

  return html`<${Menu} label=${`More actions of run ${shortId(run.run_id)}`} class="link">
      ${isFinal(run) ? html`${action("retry", "Retry…")}${action("fork", "Fork…")}<hr />` : null}
      ${run.trace_id && traceUrl ? html`<a href=${traceUrl.replaceAll("{trace_id}", run.trace_id)} rel="noreferrer" target="_blank" data-trace>Trace</a>` : null}
      <button type="button" onClick=${onJson}>Show as JSON</button>
      <button type="button" onClick=${() => navigator.clipboard.writeText(run.run_id).catch(() => null)}>Copy the run id</button>
      ${run.version ? html`<hr /><p class="dim">Version ${printable(run.version)}</p>` : null}
    <//>
    ${repeat ? html`<${Later} load=${loadDialogs} name="RepeatDialog" verb=${repeat} run=${run} db=${db} onClose=${() => setRepeat("")} />` : null}`;
}

function OriginLine({ run, db }) {
  const part = kindOf(run) === "workflow" ? "step" : "message";
  return html`<span class="by" data-origin>${cut(run.origin_kind, 20)} of
    ${" "}<a href=${toHash(["runs", run.origin_run_id, "timeline"], { db })}>${shortId(run.origin_run_id)}</a>
    ${run.origin_at ? ` after its ${part} ${run.origin_at}` : " from the beginning"}</span>`;
}

function Items({ items, opened, onAll, ...shared }) {
  const decided = (shared.approvals || []).filter((each) => each.run_id === shared.run.run_id && each.status !== "pending");
  const calls = new Set(items.map((item) => item.tool_call_id));
  const lines = (found) => found.map((each) => html`<${DecidedLine} key=${each.approval_id} approval=${each} />`);
  // Prompts are not part of a conversation, except for messages that were sent while the run works.
  const shown = items.filter((item) => item.type !== "prompt" || item.message_id).map((item, at) => {
    if (item.type === "prompt") return html`<div key=${item.message_id} class="asked" data-sent><div class="bubble" dir="auto"><${Long} text=${item.text} /></div></div>`;
    if (item.type === "text") {
      return html`<div key=${at}><${Still} view=${Answer} text=${item.text} /><${Rest} item=${item} onAll=${onAll} /></div>`;
    }
    if (item.file) return html`<${Later} key=${item.file.file_id} load=${loadFiles} name="FileLine" file=${item.file} run=${shared.run} db=${shared.db} />`;
    if (["compacted", "notice"].includes(item.type)) return html`<p key=${at} class="dim">${printable(item.text)}</p>`;
    if (item.type === "thinking") return html`<${Thinking} key=${at} text=${item.text} />`;
    if (item.type === "tool_call") {
      if (shared.plain) {
        return html`<${Fragment} key=${item.tool_call_id}><${PlainCall} item=${item} onAll=${onAll} />
          ${lines(decided.filter((each) => each.tool_call_id === item.tool_call_id))}<//>`;
      }
      return html`<${Fragment} key=${item.tool_call_id}>
        <${ToolLine} item=${item} run=${shared.run} db=${shared.db} now=${shared.now} opened=${opened} onAll=${onAll} />
        ${lines(decided.filter((each) => each.tool_call_id === item.tool_call_id))}<//>`;
    }
    return html`<${Fragment} key=${item.run_id || at}>
      ${item.type === "step" ? html`<h2 class="dim">Step ${printable(item.name)}</h2>` : null}
      ${item.run_id ? html`<${MemberLine} item=${item} opened=${opened} ...${shared} />` : null}
    <//>`;
  });
  return [...lines(decided.filter((each) => !calls.has(each.tool_call_id))), ...shown];
}

let markdown = null;

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
  return View ? html`<${View} text=${shown} />` : html`<pre class="plain" dir="auto">${shown}</pre>`;
}

function Thinking({ text }) {
  return html`<details class="fold"><summary class="dim">thinking, ${formatSize(text.length)}</summary>
    <div class="inside"><${Long} text=${text} /></div></details>`;
}

/** The button that fetches a text that the server has cut. */
function Rest({ item, onAll }) {
  if (!item.truncated) return null;
  return html`<button type="button" class="link" onClick=${() => onAll().catch(() => null)}>show all, ${formatSize(item.truncated.characters)}</button>`;
}

/** A text that is cut until someone asks for the rest. */
function Long({ text }) {
  const [all, set] = useState(false);
  const shown = printable(all ? text : String(text ?? "").slice(0, MAXIMUM_SHOWN));
  return html`${shown}${!all && text && text.length > MAXIMUM_SHOWN
    ? html` <button type="button" class="link" onClick=${() => set(true)}>show all, ${formatSize(text.length)}</button>`
    : null}`;
}

const PLAIN_CALLS = {
  running: ["Using", "blue"], done: ["Used", "dim"], failed: ["Could not use", "red"], cancelled: ["Stopped using", "dim"],
};

/** A call of a tool for people who read no code: its name in words, and its values when they ask for them. */
function PlainCall({ item, onAll }) {
  // The question below has the words of a call that waits.
  if (item.status === "waiting") return null;
  const [verb, color] = PLAIN_CALLS[item.status] || PLAIN_CALLS.cancelled;
  const result = textOf(item.result);
  const values = item.tool_args || {};
  return html`<details class="fold plain-call"><summary><span class=${color}>${verb}</span> ${wordsOf(item.tool_name)}</summary>
    <div class="inside">
      ${Object.keys(values).length ? html`<${PlainFacts} values=${values} />` : null}
      ${result ? html`<p class="caption">Result</p><${PlainResult} text=${result} />` : null}
      <${Rest} item=${item} onAll=${onAll} />
    </div></details>`;
}

function PlainResult({ text }) {
  try {
    const value = readExact(text);
    if (value && typeof value === "object") return html`<${PlainValue} value=${value} />`;
  } catch {
    // It is a text, or only its beginning was read.
  }
  return html`<p class="plain" dir="auto"><${Long} text=${text} /></p>`;
}

function ToolLine({ item, run, db, now, opened, onAll }) {
  const [open, setOpen] = useState(false);
  const [json, setJson] = useState(false);
  useEffect(() => setOpen(Boolean(opened)), [opened]);
  const result = textOf(item.result);
  const size = item.truncated?.characters || result.length;
  const args = Object.entries(item.tool_args || {}).map(([key, value]) => `${key}=${writeExact(value)}`);
  const short = cut(args.join(", "), 160);
  const [glyph, color, words] = CALLS[item.status] || CALLS.cancelled;
  const running = item.status === "running";
  const end = item.finished_at ? Date.parse(item.finished_at) : running ? now : NaN;
  const load = () => call("GET", withQuery(
    placeOfRun(run) + path`/tools/${item.tool_call_id}`, { session_id: run.session_id }));
  return html`<div class="fold">
    <button type="button" class="line" aria-expanded=${open} onClick=${() => setOpen(!open)}>
      <span class="call mono">ƒ ${cut(item.tool_name, 64)}${item.tool_args == null ? "" : `(${short})`}${
        !running && result && result.length <= 80 ? html` <span class="dim">${cut(result, 80)}</span>` : null}</span>
      <span class="end">${size > 80 ? `${formatSize(size)} ` : ""}<span class=${color} title=${words}>${glyph}</span>
        <span class="hidden">${words}</span> ${formatDuration(end - Date.parse(item.started_at))}</span>
    </button>
    ${open
      ? html`<div class="inside">
          <p class="caption">Arguments <button type="button" class="link" aria-label="Tool call as JSON" onClick=${() => setJson(true)}>JSON</button>
            ${" "}<a href=${toHash(["runs", run.run_id, "timeline"], { db, call: `${run.run_id}/${item.tool_call_id}` })}>Timeline</a></p>
          <pre class="json" tabindex="0"><${Long} text=${writeExact(item.tool_args ?? {}, 2)} /></pre>
          <p class="caption">Result ${result ? html`<${Copy} text=${result} />` : null}</p>
          <pre class="json" tabindex="0">${result ? html`<${Long} text=${result} />` : words}</pre>
          <${Rest} item=${item} onAll=${onAll} />
        </div>`
      : null}
    ${json
      ? html`<${JsonDialog} title=${`Tool call ${cut(item.tool_name, 64)}`} value=${item} load=${load}
          onClose=${() => setJson(false)} />`
      : null}
  </div>`;
}

/** The run of a member, a step or background work; its items are fetched when it is opened. */
function MemberLine({ item, run: parent, runs, names, db, now, opened, approvals, plain, depth = 0 }) {
  const [stored, setStored] = useState(null);
  const [missing, setMissing] = useState(false);
  const [open, setOpen] = useState(null);
  useEffect(() => setOpen(opened === undefined ? null : Boolean(opened)), [opened]);
  const session = parent.session_id;
  const place = path`/sessions/${session}/runs/${item.run_id}`;
  const load = async (cut) => setStored(await call("GET", withQuery(place, { db_id: db, view: "items", cut })));
  const live = runs?.get(item.run_id);
  const run = live || stored || item.run || {};
  const failed = run.status === "ERROR";
  const shown = depth < 4 && (open ?? (failed || (live && !isFinal(run))));
  const unread = shown && !live && !stored;
  useEffect(() => {
    if (unread) load(CUT).catch(() => setMissing(true));
  }, [unread]);
  const name = nameOf(run, names) || "member";
  const label = item.type === "background" ? `${item.name} · ` : "";
  const task = item.task ?? item.run?.input;
  const time = run.started_at && (run.finished_at || live) ? tookMilliseconds(run, now) : null;
  const tokens = tokensOf(run);
  return html`<div class="fold" data-member=${item.run_id}>
    <button type="button" class="line" aria-expanded=${Boolean(shown)} onClick=${() => setOpen(!shown)}>
      <span class="call">${cut(label, 60)}<b>${cut(name, 60)}</b>${task ? `: ${cut(task, 160)}` : ""}</span>
      <span class="end">${run.status ? html`<${Status} run=${run} />` : ""}
        ${failed && run.error && !plain ? ` ${run.error.code}` : ""}
        ${time == null || plain ? "" : ` · ${formatDuration(time)}`}${tokens && !plain ? ` · ${many(tokens, "token")}` : ""}${
          run.tool_calls && !plain ? ` · ${run.tool_calls} ƒ` : ""}</span>
    </button>
    ${shown
      ? html`<div class="inside">
          ${run.error ? html`<${Failure} run=${run} db=${db} plain=${plain} />` : null}
          ${unread && missing ? html`<p class="dim">not available</p>` : null}
          <${Items} items=${run.items || []} run=${{ ...run, session_id: session }} runs=${runs}
            names=${names} db=${db} now=${now} opened=${opened} approvals=${approvals} plain=${plain} onAll=${() => load()} depth=${depth + 1} />
        </div>`
      : null}
  </div>`;
}

export function JsonDialog({ title, value, load, onClose }) {
  const [shown, setShown] = useState(value);
  useEffect(() => {
    load?.().then(setShown, () => null);
  }, []);
  const text = writeExact(shown, 2);
  return html`<${Dialog} title=${title} onClose=${onClose} wide=${true}>
    <pre class="json" tabindex="0"><${Long} text=${text} /></pre>
    <div class="buttons">
      <${Copy} text=${text} small=${false} />
      <button type="button" onClick=${onClose}>Close</button>
    </div>
  <//>`;
}

export class Still extends Component {
  shouldComponentUpdate(next) {
    return Object.keys({ ...this.props, ...next }).some((name) => this.props[name] !== next[name]);
  }

  render({ view: View, ...props }) {
    return html`<${View} ...${props} />`;
  }
}

const SILENCE_LIMIT = 45_000;

/** Follow a run to its end.
 *
 * Calls `onChanges` with lists of changes (docs/contract.md "Items"). Raises ApiError if the server
 * refuses the stream. A stream also ends when its run pauses: `isSettled` reads whether it has.
 */
async function follow(run, { onChanges, isSettled, signal }) {
  let last = -1;
  let failures = 0;
  for (;;) {
    let ended = false;
    let pause = 0;
    try {
      await readOnce(run, last, signal, (events) => {
        failures = 0;
        last = events.at(-1).id;
        const changes = events.flatMap((event) => event.changes);
        ended ||= changes.some((each) => each.run_id === run.run_id && each.run && isFinal(each.run));
        onChanges(changes);
      });
      if (!ended && !signal.aborted) ended = await isSettled();
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && !error.temporary) throw error;
      pause = (error.retryAfter || 0) * 1000;
    }
    if (signal.aborted || ended) return;
    failures += 1;
    await sleep(Math.max(pause, Math.min(10_000, 250 * 2 ** failures)), signal);
  }
}

async function readOnce(run, last, signal, onEvents) {
  const given = new AbortController();
  const stop = () => given.abort();
  signal.addEventListener("abort", stop);
  let timer = setTimeout(stop, SILENCE_LIMIT);
  try {
    const [method, place] = eventsOf(run);
    const response = await send(method, withQuery(place, { session_id: run.session_id, view: "items" }), {
      accept: "text/event-stream",
      headers: last >= 0 ? { "Last-Event-ID": String(last) } : {},
      signal: given.signal,
    });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(stop, SILENCE_LIMIT);
      const blocks = (rest + value).split("\n\n");
      rest = blocks.pop();
      const events = blocks.map(parseEvent).filter(Boolean);
      if (events.length) onEvents(events);
    }
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", stop);
    given.abort();
  }
}

function parseEvent(block) {
  const fields = {};
  for (const line of block.split("\n")) {
    const colon = line.indexOf(": ");
    if (colon > 0) fields[line.slice(0, colon)] = line.slice(colon + 2);
  }
  if (fields.event !== "ItemsChanged") return null;
  try {
    return { id: Number(fields.id), ...readExact(fields.data) };
  } catch {
    return null;
  }
}

function sleep(milliseconds, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()));
  });
}
