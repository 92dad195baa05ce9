// The runs of a session as a conversation: loaded from the end, followed while they work, and the box
// of the next message.

import { call, can, componentOf, isFinal, isPaused, kindOf, mayCall, path, postOnce, withQuery } from "./api.js";
import { CUT, Still, Turn } from "./conversation.js";
import { writeExact } from "./exact.js";
import {
  cut, ErrorText, Guard, html, Later, many, phaseOf, printable, setQuery, useAction, useCallback,
  useCaller, useEffect, useEvery, useLayoutEffect, useRef, useState,
} from "./ui.js";

// Fetched while the runs load; answers are plain text until it is there.
import("./markdown.js").catch(() => null);

const EVERY = 2000;
const EVERY_SENT = 700;
const NEAR = 600;
const FIRST = 10;
const PAGE = 50;
const MAXIMUM_RUNS = 2000;
const COUNTED = ["failed", "queued", "running", "paused", "stopping"];

/** The runs of a session, newest last: the last ten, or those around the run of a link.
 *
 * `earlier` and `later` are true if there are more; without later ones they are followed.
 */
function useRuns(id, db) {
  const place = path`/sessions/${id}/runs`;
  const [found, set] = useState({ runs: null, earlier: false, later: false, busy: false, error: null });
  const load = async (limit, more) => {
    const runs = await call("GET", withQuery(place, { db_id: db, parent: "none", view: "items", cut: CUT, limit, ...more }));
    return { full: runs.length === limit, runs: runs.filter((run) => run.parent_run_id == null && run.purpose == null).sort(byId) };
  };
  const attempt = async (work) => {
    if (found.busy) return;
    set((old) => ({ ...old, busy: true }));
    try {
      const changes = await work();
      set((old) => ({ ...old, ...changes(old), busy: false, error: null }));
    } catch (error) {
      set((old) => ({ ...old, busy: false, error }));
    }
  };
  const first = (wanted) => attempt(async () => {
    const last = await load(FIRST, { order: "desc" });
    if (!wanted || !last.full || last.runs[0]?.run_id <= wanted) return () => ({ runs: last.runs, earlier: last.full, later: false });
    const before = await load(FIRST / 2, { order: "desc", before: wanted });
    const after = await load(FIRST, before.runs.length ? { after: before.runs.at(-1).run_id } : {});
    return () => ({ runs: before.runs.concat(after.runs), earlier: before.full, later: after.full });
  });
  const loadEarlier = () => attempt(async () => {
    const page = await load(PAGE, { order: "desc", before: found.runs[0].run_id });
    return (old) => ({ runs: merge(page.runs, old.runs), earlier: page.full });
  });
  const loadLater = () => attempt(async () => {
    const page = await load(PAGE, { after: found.runs.at(-1).run_id });
    return (old) => ({ ...forget({ ...old, runs: merge(old.runs, page.runs) }), later: page.full });
  });
  const loadNew = async () => {
    const last = found.runs.at(-1);
    const { runs } = await load(PAGE, last ? { after: last.run_id } : {});
    if (runs.length) set((old) => forget({ ...old, runs: merge(old.runs, runs) }));
  };
  const add = (run) => (found.later ? first() : set((old) => ({ ...old, runs: merge(old.runs || [], [run]) })));
  const replace = useCallback(
    (run) =>
      set((old) => ({ ...old, runs: old.runs.map((each) => (each.run_id === run.run_id ? run : each)) })),
    [],
  );
  return { ...found, first, loadEarlier, loadLater, loadNew, add, replace };
}

const byId = (a, b) => (a.run_id < b.run_id ? -1 : 1);

/** Drop the oldest runs of a very long transcript; they can be loaded again. */
function forget(found) {
  if (found.runs.length <= MAXIMUM_RUNS) return found;
  return { ...found, runs: found.runs.slice(found.runs.length - MAXIMUM_RUNS + PAGE), earlier: true };
}

function merge(runs, more) {
  const known = new Set(runs.map((run) => run.run_id));
  return runs.concat(more.filter((run) => !known.has(run.run_id))).sort(byId);
}

export function countPhases({ runs, earlier, later }) {
  const counts = { loaded: runs.length, all: !earlier && !later };
  for (const name of COUNTED) counts[name] = runs.filter((run) => phaseOf(run).name === name).length;
  return counts;
}

/** Return `3 runs · 1 failed · 1 running`, or `1,000 runs · of 10 shown: 1 failed`. */
export function describeCounts(counts, { turn_count: total = 0 }) {
  // The record is a moment older than the runs when one begins.
  const runs = counts.all ? counts.loaded : Math.max(total, counts.loaded);
  const parts = COUNTED.filter((name) => counts[name]).map((name) => `${counts[name]} ${name}`);
  if (!counts.all && parts.length) parts[0] = `of ${counts.loaded} shown: ${parts[0]}`;
  return [many(runs, "run"), ...parts].join(" · ");
}

/** A conversation that is read and followed: its runs, the current one, and how one moves in it. */
export function useThread(id, query, following, setFollowing) {
  const runs = useRuns(id, query.db);
  const [unseen, setUnseen] = useState(0);
  const { me, generation } = useCaller();
  const content = useRef(null);
  const count = runs.runs?.length || 0;
  const current = query.run || runs.runs?.[count - 1]?.run_id;
  useEvery(EVERY, runs.runs !== null && !runs.later && me !== null, () => runs.loadNew().catch(() => null));
  useEffect(() => {
    if (runs.runs === null && me) runs.first(query.run);
  }, [id, generation, me === null]);
  // The run that stays at the top while the texts around it are laid out.
  const pinned = useRef(query.run);
  useFollowing(content, runs.runs !== null, following, setFollowing, pinned, () => runs.earlier && runs.error === null && runs.loadEarlier());
  const seen = useRef(0);
  useLayoutEffect(() => {
    const added = count - seen.current;
    if (seen.current && added > 0 && !following) setUnseen((old) => old + added);
    if (!seen.current && query.run) show(query.run);
    seen.current = count;
  }, [count]);
  useEffect(() => following && setUnseen(0), [following]);
  const select = useCallback((run) => {
    setQuery({ run });
    setFollowing(false);
    pinned.current = run;
    show(run);
  }, []);
  const step = (by) => {
    const at = (runs.runs || []).findIndex((run) => run.run_id === current);
    const next = runs.runs?.[at + by];
    if (next) select(next.run_id);
  };
  const toEnd = () => (runs.later && runs.first(), setFollowing(true));
  const started = (run) => (runs.add(run), setFollowing(true));
  const reload = () => runs.first(query.run);
  return { runs, count, content, current, unseen, following, select, step, toEnd, started, reload };
}

/** The runs of a thread; `children` is the box of the next message. */
export function Runs({ thread, db, isOpen, children, ...shared }) {
  const { runs, count, current, unseen, following } = thread;
  return html`
    ${runs.earlier ? html`<${More} label="↑ Earlier runs" runs=${runs} onClick=${runs.loadEarlier} />` : null}
    ${runs.runs.map((run) => html`<${Guard} key=${run.run_id}><${Still} view=${Turn} initial=${run} db=${db}
      current=${run.run_id === current} onChange=${runs.replace} opened=${isOpen?.(run.run_id)} ...${shared} /><//>`)}
    ${runs.later ? html`<${More} label="↓ Later runs" runs=${runs} onClick=${runs.loadLater} />` : null}
    ${following || !count ? null : html`<div class="jump">
      <button type="button" class="primary" onClick=${thread.toEnd}>
        ${unseen ? `${unseen} new ↓` : "Follow ↓"}</button></div>`}
    ${children}`;
}

function More({ label, runs, onClick }) {
  return html`<div class="more row"><button type="button" disabled=${runs.busy} onClick=${onClick}>${label}</button>
    <${ErrorText} error=${runs.error} /></div>`;
}

function show(run) {
  document.getElementById(`run-${run}`)?.scrollIntoView({ block: "start" });
}

/** Keep the end of the conversation in view until someone scrolls up; load more at the top. */
function useFollowing(content, ready, following, setFollowing, pinned, onTop) {
  const top = useRef(null);
  top.current = onTop;
  useEffect(() => {
    const scroller = document.getElementById("main");
    if (!content.current) return undefined;
    let before = 0;
    const stick = () => {
      if (following) scroller.scrollTo(0, scroller.scrollHeight);
      else if (pinned.current) show(pinned.current);
      before = scroller.scrollTop;
    };
    const resized = new ResizeObserver(stick);
    resized.observe(content.current);
    stick();
    const scrolled = () => {
      const end = scroller.scrollHeight - scroller.clientHeight - scroller.scrollTop < 60;
      if (scroller.scrollTop < before - 4 && !end) setFollowing(false);
      else if (end && scroller.scrollTop > before) setFollowing(true);
      if (scroller.scrollTop < before && scroller.scrollTop < NEAR) top.current();
      before = scroller.scrollTop;
    };
    const release = () => (pinned.current = null);
    const inputs = ["wheel", "pointerdown", "keydown", "touchmove"];
    inputs.forEach((name) => addEventListener(name, release, { capture: true, passive: true }));
    scroller.addEventListener("scroll", scrolled, { passive: true });
    return () => {
      inputs.forEach((name) => removeEventListener(name, release, { capture: true }));
      resized.disconnect();
      scroller.removeEventListener("scroll", scrolled);
    };
  }, [following, ready]);
}

export const targetOf = (record) => ({ kind: kindOf(record), id: componentOf(record) });

/** The files of the next message: `{attach, ids, ready, clear}`. `attach` is in the box of the message. */
export function useFiles(to, user) {
  const [files, setFiles] = useState([]);
  const attach = mayCall("upload_file")
    ? html`<${Later} load=${() => import("./files.js")} name="Attach" to=${to} user=${user} files=${files} setFiles=${setFiles} />` : null;
  const ids = files.length ? files.map((each) => each.record?.file_id) : undefined;
  const canSend = (text) => files.every((each) => each.record) && Boolean(text.trim() || ids);
  return { attach, ids, canSend, clear: () => setFiles([]) };
}

/** The messages that were sent from a box to a run that works: `[send, lines]`.
 *
 * A line is shown until the message is part of the conversation: as a message to the run, or as the
 * question of its next run. That of a refused message stays until the next one is sent.
 */
function useSent(last) {
  const [sent, setSent] = useState([]);
  const isRead = ({ status, message_id: id }) => status === "delivered" || (status === "next_run" && last?.run_id >= id);
  const shown = sent.filter((each) => !isRead(each));
  const waiting = shown.filter((each) => each.status === "waiting");
  const look = async () => {
    const { messages } = await call("GET", path`/runs/${waiting[0].run_id}/messages`);
    const found = new Map(messages.map((each) => [each.message_id, each]));
    setSent((old) => old.map((each) => found.get(each.message_id) || each));
  };
  useEvery(EVERY_SENT, waiting.length > 0, () => look().catch(() => null));
  const send = async (message) => {
    const record = await postOnce(path`/runs/${last.run_id}/messages`, writeExact({ message }));
    setSent((old) => [...old.filter((each) => each.status !== "refused"), record]);
  };
  const waits = Boolean(last) && isPaused(last);
  const lines = shown.length ? html`<div class="sent" role="status">${shown.map((each) => html`<p key=${each.message_id} data-fate=${each.status}>
    <span dir="auto">${cut(each.content, 120)}</span> <span class=${each.status === "refused" ? "red" : "dim"}>${describeFate(each, waits)}</span></p>`)}</div>` : null;
  return [send, lines];
}

function describeFate({ status, reason }, waits) {
  if (status === "waiting") return waits ? "→ will be read after the decision" : "→ will be read before the next step";
  if (status === "next_run") return `→ will be answered next. ${printable(reason)}`;
  return `✗ was not read. ${printable(reason)}`;
}

/** What becomes of a message while a run of the conversation waits for a decision. */
const WITH_DECISION = {
  allow: "This message starts another run, and the decision stays open.",
  enqueue: "This message is answered after the run that waits for the decision.",
  reject: "No other message is taken before it.",
  steer: "The run reads this message when it continues after the decision, or it is answered next.",
};

/** The `on_busy` of a component; undefined if the caller cannot read it. */
async function readOnBusy({ kind, id }) {
  if (!can(`${kind}s`, "read", id)) return undefined;
  const component = await call("GET", path`/${kind}s/${id}`).catch(() => null);
  return component?.on_busy;
}

/** The box of a message to a component, which starts a run; `children` is in the box.
 *
 * `last` is the last run of the conversation. While it works, a message is sent to it. While it waits
 * for a decision, the box says first what becomes of a message, and asks.
 */
export function Compose({ to, name, last, session, user, onStarted, children }) {
  const [text, setText] = useState("");
  const [asks, setAsks] = useState(false);
  const [onBusy, setOnBusy] = useState();
  const waits = Boolean(last) && isPaused(last);
  const { kind, id } = to || {};
  const allowed = Boolean(id) && can(`${kind}s`, "run", id);
  const files = useFiles(to, user);
  const ready = allowed && files.canSend(text);
  // Files, and what a caller could not see afterwards, are for a run of its own.
  const takes = Boolean(last) && !isFinal(last) && last.cancel_requested_at == null && componentOf(last) === id
    && !files.ids && can("sessions", "read", last.session_id);
  const works = takes && (!waits || onBusy === "steer");
  // A message with files waits in the queue.
  const fate = onBusy === "steer" && files.ids ? "enqueue" : onBusy;
  const [sendToRun, sentLines] = useSent(last);
  const [submit, failure, busy] = useAction(async () => {
    if (!ready) return;
    if (waits && !asks) {
      setOnBusy(await readOnBusy(to));
      setAsks(true);
      return;
    }
    setAsks(false);
    if (works) {
      await sendToRun(text);
      setText("");
      return;
    }
    const started = await postOnce(path`/${kind}s/${id}/runs`, { message: text, session_id: session, files: files.ids });
    setText("");
    files.clear();
    onStarted(started);
  });
  const key = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && submit(event);
  return html`<form class="compose" onSubmit=${submit}>
    ${failure ? html`<p class="bar red" role="alert">${printable(failure.message)}</p>` : null}
    ${waits && asks ? html`<p class="bar yellow" role="alert" data-open>A decision is open above. ${WITH_DECISION[fate] ?? "This message does not answer it."}
      <button type="submit" class="link">Send anyway</button>
      <button type="button" class="link" onClick=${() => setAsks(false)}>Keep writing</button></p>` : null}
    ${sentLines}
    <div class="box">
      <textarea data-message rows="1" class="grow" dir="auto" aria-label="Message" value=${text} disabled=${!allowed}
        title=${allowed ? "Enter sends, Shift+Enter begins a new line" : null}
        placeholder=${allowed ? `Message ${cut(name || id, 40)}…` : `Sending needs ${kind || "agent"}s:${id || "…"}:run`}
        onInput=${(event) => setText(event.target.value)} onKeyDown=${key}></textarea>
      ${allowed ? files.attach : null} ${children}
      <button type="submit" class="primary" disabled=${!ready || busy}>Send</button>
    </div>
  </form>`;
}
