// The transcript of a session: its runs from old to new, live ones as they work, and a message box.

import { call, can, componentOf, kindOf, path, startRun, withQuery } from "../app/api.js";
import { CUT, Turn } from "../app/conversation.js";
import { describeCounts, SessionActions } from "../app/session.js";
import {
  cut, Empty, FollowButton, formatClock, formatNumber, Guard, html, Loaded, LOOKS, Page, phaseOf,
  printable, setQuery, Still, useCallback, useCaller, useEffect, useKeys, useLayoutEffect, useNames, useRef,
  useResource, useState,
} from "../app/ui.js";

const PAGE = 50;
const EVERY = 2000;
const MAXIMUM_RUNS = 2000;

// Fetched beside the runs; answers are plain text until it is there.
import("../app/markdown.js").catch(() => null);

export default function Transcript({ parts, query }) {
  const id = parts[1];
  const place = withQuery(path`/sessions/${id}`, { db_id: query.db });
  const session = useResource(place);
  const [following, setFollowing] = useState(true);
  const [counts, setCounts] = useState("");
  const showCounts = (text) => {
    setCounts(text);
    // A run that begins or ends changes the tokens of the session.
    if (counts) session.reload();
  };
  const title = session.data ? session.data.session_name || id : id;
  return html`<${Page} title=${title} back=${{ href: "#/sessions", label: "Sessions" }}
    aside=${session.data ? html`<span data-counts>${counts}</span>
      <${SessionActions} session=${session.data} id=${id} query=${query} reload=${session.reload}>
        <${FollowButton} on=${following} onClick=${() => setFollowing(!following)} /><//>` : null}>
    <${Loaded} resource=${session} place=${path`/sessions/${id}`} rows=${4}>
      ${(data) => html`<${Guard}><${Conversation} key=${id} session=${data} id=${id} query=${query}
        following=${following} setFollowing=${setFollowing} onCounts=${showCounts} /><//>`}
    <//>
  <//>`;
}

/** The runs of a session, newest last: loaded from the end, followed while the page is open. */
function useRuns(id, db) {
  const place = path`/sessions/${id}/runs`;
  const [found, set] = useState({ runs: null, earlier: false, error: null });
  const load = (more) => call("GET", withQuery(place, { db_id: db, parent: "none", view: "items", cut: CUT, limit: PAGE, ...more }));
  const topLevel = (runs) => runs.filter((run) => run.parent_run_id == null && run.purpose == null);
  const sorted = (runs) => runs.sort((a, b) => (a.run_id < b.run_id ? -1 : 1));
  const first = async () => {
    try {
      const runs = await load({ order: "desc" });
      set({ runs: sorted(topLevel(runs)), earlier: runs.length === PAGE, error: null });
    } catch (error) {
      set((old) => ({ ...old, error }));
    }
  };
  const loadEarlier = async () => {
    try {
      const runs = await load({ order: "desc", before: found.runs[0].run_id });
      const all = (old) => sorted(merge(topLevel(runs), old.runs));
      set((old) => ({ runs: all(old), earlier: runs.length === PAGE, error: null }));
    } catch (error) {
      set((old) => ({ ...old, error }));
    }
  };
  const loadNew = async () => {
    const last = found.runs[found.runs.length - 1];
    const runs = topLevel(await load(last ? { after: last.run_id } : {}));
    if (runs.length) set((old) => forget({ ...old, runs: sorted(merge(old.runs, runs)) }));
  };
  const add = (run) => set((old) => ({ ...old, runs: merge(old.runs || [], [run]) }));
  const replace = useCallback(
    (run) =>
      set((old) => ({ ...old, runs: old.runs.map((each) => (each.run_id === run.run_id ? run : each)) })),
    [],
  );
  return { ...found, first, loadEarlier, loadNew, add, replace };
}

/** Drop the oldest runs of a very long transcript; they can be loaded again. */
function forget(found) {
  if (found.runs.length <= MAXIMUM_RUNS) return found;
  return { ...found, runs: found.runs.slice(found.runs.length - MAXIMUM_RUNS + PAGE), earlier: true };
}

function merge(runs, more) {
  const known = new Set(runs.map((run) => run.run_id));
  return runs.concat(more.filter((run) => !known.has(run.run_id)));
}

function Conversation({ session, id, query, following, setFollowing, onCounts }) {
  const names = useNames();
  const runs = useRuns(id, query.db);
  const [unseen, setUnseen] = useState(0);
  const { me, generation } = useCaller();
  const [folds, setFolds] = useState({ all: undefined, runs: {} });
  const content = useRef(null);
  const count = runs.runs?.length || 0;
  const current = query.run || runs.runs?.[count - 1]?.run_id;
  const counts = runs.runs ? describeCounts(runs) : "";
  useEffect(() => onCounts(counts), [counts]);
  const poll = useRef(null);
  poll.current = () => !document.hidden && runs.runs && me && runs.loadNew().catch(() => null);
  useEffect(() => {
    if (runs.runs === null && me) runs.first();
  }, [id, generation, me === null]);
  useEffect(() => {
    const timer = setInterval(() => poll.current(), EVERY);
    return () => clearInterval(timer);
  }, [id]);
  useFollowing(content, runs.runs !== null, following, setFollowing);
  const seen = useRef(0);
  useLayoutEffect(() => {
    const added = count - seen.current;
    if (seen.current && added > 0 && !following) setUnseen((old) => old + added);
    if (!seen.current && query.run) show(query.run);
    seen.current = count;
  }, [count]);
  useEffect(() => following && setUnseen(0), [following]);
  const step = (by) => {
    const at = (runs.runs || []).findIndex((run) => run.run_id === current);
    const next = runs.runs?.[at + by];
    if (next) select(next.run_id);
  };
  const select = useCallback((run) => {
    setQuery({ run });
    setFollowing(false);
    show(run);
  }, []);
  useKeys({
    "[": () => step(-1),
    "]": () => step(1),
    o: () => current && setFolds((old) => ({ ...old, runs: { ...old.runs, [current]: !isOpen(old, current) } })),
    O: () => setFolds((old) => ({ all: !old.all, runs: {} })),
    t: () => current && (location.hash = `#/runs/${current}/timeline`),
    f: () => setFollowing((old) => !old),
    x: () => document.querySelector("[data-cancel]")?.click(),
    n: () => document.querySelector("[data-message]")?.focus(),
    y: () => current && navigator.clipboard.writeText(current).catch(() => null),
  });
  if (runs.runs === null) return html`<${Loaded} resource=${{ data: undefined, error: runs.error, reload: runs.first }} />`;
  return html`<div class="transcript">
      <${Index} runs=${runs.runs} current=${current} onSelect=${select} session=${session} />
      <div ref=${content}>
        ${runs.earlier ? html`<div class="more"><button type="button" onClick=${runs.loadEarlier}>↑ Earlier runs</button>
          ${runs.error ? html`<span class="error" role="alert">${printable(runs.error.message)}</span>` : null}</div>` : null}
        ${count ? null : html`<${Empty}>No runs yet. Send the first message below.<//>`}
        ${runs.runs.map((run) => html`<${Guard} key=${run.run_id}><${Still} view=${Turn} initial=${run} names=${names}
          db=${query.db} current=${run.run_id === current} onChange=${runs.replace} opened=${isOpen(folds, run.run_id)} /><//>`)}
        ${following || !count ? null : html`<div class="jump">
          <button type="button" class="primary" onClick=${() => setFollowing(true)}>
            ${unseen ? `${unseen} new ↓` : "Follow ↓"}</button></div>`}
        <${Compose} session=${session} id=${id} onStarted=${(run) => (runs.add(run), setFollowing(true))} />
      </div>
    </div>`;
}

/** Return true or false if the reader has opened or closed the tools of a run, else undefined. */
function isOpen(folds, run) {
  return folds.runs[run] ?? folds.all;
}

function show(run) {
  document.getElementById(`run-${run}`)?.scrollIntoView({ block: "start" });
}

/** Keep the end of the conversation in view until someone scrolls up. */
function useFollowing(content, ready, following, setFollowing) {
  useEffect(() => {
    const scroller = document.getElementById("main");
    if (!content.current) return undefined;
    let before = 0;
    const stick = () => {
      if (following) scroller.scrollTo(0, scroller.scrollHeight);
      before = scroller.scrollTop;
    };
    const resized = new ResizeObserver(stick);
    resized.observe(content.current);
    stick();
    const scrolled = () => {
      const end = scroller.scrollHeight - scroller.clientHeight - scroller.scrollTop < 60;
      if (scroller.scrollTop < before - 4 && !end) setFollowing(false);
      else if (end && scroller.scrollTop > before) setFollowing(true);
      before = scroller.scrollTop;
    };
    scroller.addEventListener("scroll", scrolled, { passive: true });
    return () => {
      resized.disconnect();
      scroller.removeEventListener("scroll", scrolled);
    };
  }, [following, ready]);
}

function Index({ runs, current, onSelect, session }) {
  const state = session.session_state ?? session.session_data?.session_state;
  return html`<nav class="index" aria-label="Runs of the session">
    <ol>${runs.map((run, at) => html`<${Still} key=${run.run_id} view=${Entry} run=${run} number=${at + 1}
      current=${run.run_id === current} onSelect=${onSelect} />`)}</ol>
    ${[["metadata", session.metadata], ["state", state]].map(([label, value]) => value && Object.keys(value).length
      ? html`<details key=${label}><summary>${label}</summary><pre class="json">${printable(JSON.stringify(value, null, 2))}</pre></details>`
      : null)}
  </nav>`;
}

function Entry({ run, number, current, onSelect }) {
  const phase = phaseOf(run);
  const [glyph, color] = LOOKS[phase.name];
  const choose = (event) => (event.preventDefault(), onSelect(run.run_id));
  return html`<li><a href=${`#run-${run.run_id}`} onClick=${choose} aria-current=${current ? "true" : null}
    title=${cut(run.input, 80)}>
    <span class="dim">${number}</span>
    <span class=${color}><span aria-hidden="true">${glyph}</span><span class="hidden">${phase.words}</span></span>
    ${formatClock(run.created_at).slice(0, 5)} <span>${formatNumber(run.metrics?.total_tokens)}</span></a></li>`;
}

function Compose({ session, id, onStarted }) {
  const [text, setText] = useState("");
  const [busy, setBusy] = useState(false);
  const [failure, setFailure] = useState(null);
  const kind = kindOf(session);
  const component = componentOf(session);
  const allowed = component && can(`${kind}s`, "run", component);
  const submit = async (event) => {
    event.preventDefault();
    if (!text.trim() || busy) return;
    setBusy(true);
    setFailure(null);
    try {
      onStarted(await startRun(kind, component, { message: text, session_id: id }));
      setText("");
    } catch (error) {
      setFailure(error);
    }
    setBusy(false);
  };
  const key = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && submit(event);
  return html`<form class="compose" onSubmit=${submit}>
    ${failure ? html`<p class="bar red" role="alert">${printable(failure.message)}</p>` : null}
    <div class="box">
      <textarea data-message rows="1" class="grow" aria-label="Message" value=${text} disabled=${!allowed}
        placeholder=${allowed ? `Message ${component}…  (Enter sends, Shift+Enter for a new line)` : `Sending needs ${kind}s:${component || "…"}:run`}
        onInput=${(event) => setText(event.target.value)} onKeyDown=${key}></textarea>
      <button type="submit" class="primary" disabled=${!allowed || busy || !text.trim()}>Send</button>
    </div>
  </form>`;
}
