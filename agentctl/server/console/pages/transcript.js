// The transcript of a session: its runs from old to new, live ones as they work, and a message box.

import { can, componentOf, kindOf, path, postOnce, tokensOf, withQuery } from "../app/api.js";
import { Still, Turn } from "../app/conversation.js";
import { countPhases, describeCounts, SessionActions, useRuns } from "../app/session.js";
import {
  cut, describeHold, Empty, ErrorText, FollowButton, formatClock, formatNumber, Guard, html, Loaded,
  LOOKS, Page, phaseOf, printable, setQuery, useAction, useCallback, useCaller, useEffect, useKeys,
  useLayoutEffect, useNames, useRef, useResource, useState,
} from "../app/ui.js";

const EVERY = 2000;
const NEAR = 600;

// Fetched beside the runs; answers are plain text until it is there.
import("../app/markdown.js").catch(() => null);

export default function Transcript({ parts, query }) {
  const id = parts[1];
  // Without its history: this is read again when a run begins and when it ends.
  const place = withQuery(path`/sessions/${id}`, { db_id: query.db, view: "summary" });
  const session = useResource(place);
  const [following, setFollowing] = useState(!query.run);
  const [counts, setCounts] = useState(null);
  const showCounts = useCallback((found) => {
    setCounts((old) => {
      // A run that begins or ends changes the totals of the session.
      if (old) session.reload();
      return found;
    });
  }, []);
  const title = session.data ? session.data.session_name || id : id;
  return html`<${Page} title=${title} back=${{ href: "#/sessions", label: "Sessions" }}
    aside=${session.data ? html`<span data-counts>${counts && describeCounts(counts, session.data)}</span>
      <${SessionActions} session=${session.data} id=${id} query=${query} reload=${session.reload}>
        <${FollowButton} on=${following} onClick=${() => setFollowing(!following)} /><//>` : null}>
    <${Loaded} resource=${session} place=${path`/sessions/${id}`} rows=${4}>
      ${(data) => html`${data.hold ? html`<p class="bar yellow" title=${data.hold.held_at} data-hold>This session is ${describeHold(data.hold)}</p>` : null}
        <${Guard}><${Conversation} key=${id} session=${data} id=${id} query=${query}
        following=${following} setFollowing=${setFollowing} onCounts=${showCounts} /><//>`}
    <//>
  <//>`;
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
  const counts = runs.runs && countPhases(runs);
  useEffect(() => counts && onCounts(counts), [JSON.stringify(counts)]);
  const poll = useRef(null);
  poll.current = () => !document.hidden && runs.runs && !runs.later && me && runs.loadNew().catch(() => null);
  useEffect(() => {
    if (runs.runs === null && me) runs.first(query.run);
  }, [id, generation, me === null]);
  useEffect(() => {
    const timer = setInterval(() => poll.current(), EVERY);
    return () => clearInterval(timer);
  }, [id]);
  // The run that stays at the top while the texts around it are laid out.
  const pinned = useRef(query.run);
  useFollowing(content, runs.runs !== null, following, setFollowing, pinned, () => runs.earlier && runs.error === null && runs.loadEarlier());
  // Their place in the session, if the last one is loaded and they are counted.
  const total = session.turn_count ?? 0;
  const offset = runs.later || total < count ? null : total - count;
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
    pinned.current = run;
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
  const toEnd = () => (runs.later && runs.first(), setFollowing(true));
  if (runs.runs === null) return html`<${Loaded} resource=${{ data: undefined, error: runs.error, reload: () => runs.first(query.run) }} />`;
  return html`<div class="transcript">
      <${Index} runs=${runs.runs} offset=${offset} current=${current} onSelect=${select} session=${session} />
      <div ref=${content}>
        ${runs.earlier ? html`<${More} label="↑ Earlier runs" runs=${runs} onClick=${runs.loadEarlier} />` : null}
        ${count ? null : html`<${Empty}>No runs yet. Send the first message below.<//>`}
        ${runs.runs.map((run) => html`<${Guard} key=${run.run_id}><${Still} view=${Turn} initial=${run} names=${names}
          db=${query.db} current=${run.run_id === current} onChange=${runs.replace} opened=${isOpen(folds, run.run_id)} /><//>`)}
        ${runs.later ? html`<${More} label="↓ Later runs" runs=${runs} onClick=${runs.loadLater} />` : null}
        ${following || !count ? null : html`<div class="jump">
          <button type="button" class="primary" onClick=${toEnd}>
            ${unseen ? `${unseen} new ↓` : "Follow ↓"}</button></div>`}
        <${Compose} session=${session} id=${id} onStarted=${(run) => (runs.add(run), setFollowing(true))} />
      </div>
    </div>`;
}

function More({ label, runs, onClick }) {
  return html`<div class="more row"><button type="button" disabled=${runs.busy} onClick=${onClick}>${label}</button>
    <${ErrorText} error=${runs.error} /></div>`;
}

/** Return true or false if the reader has opened or closed the tools of a run, else undefined. */
function isOpen(folds, run) {
  return folds.runs[run] ?? folds.all;
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

function Index({ runs, offset, current, onSelect, session }) {
  return html`<nav class="index" aria-label="Runs of the session">
    <ol>${runs.map((run, at) => html`<${Still} key=${run.run_id} view=${Entry} run=${run} number=${offset === null ? "" : offset + at + 1}
      current=${run.run_id === current} onSelect=${onSelect} />`)}</ol>
    ${[["metadata", session.metadata], ["state", session.session_state]].map(([label, value]) => value && Object.keys(value).length
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
    <span class="dim">${number && formatNumber(number)}</span>
    <span class=${color}><span aria-hidden="true">${glyph}</span><span class="hidden">${phase.words}</span></span>
    ${formatClock(run.created_at).slice(0, 5)} <span>${formatNumber(tokensOf(run))}</span></a></li>`;
}

function Compose({ session, id, onStarted }) {
  const [text, setText] = useState("");
  const kind = kindOf(session);
  const component = componentOf(session);
  const allowed = component && can(`${kind}s`, "run", component);
  const [submit, failure, busy] = useAction(async () => {
    if (!text.trim()) return;
    onStarted(await postOnce(path`/${kind}s/${component}/runs`, { message: text, session_id: id }));
    setText("");
  });
  const key = (event) => event.key === "Enter" && !event.shiftKey && !event.isComposing && submit(event);
  return html`<form class="compose" onSubmit=${submit}>
    ${failure ? html`<p class="bar red" role="alert">${printable(failure.message)}</p>` : null}
    <div class="box">
      <textarea data-message rows="1" class="grow" dir="auto" aria-label="Message" value=${text} disabled=${!allowed}
        placeholder=${allowed ? `Message ${component}…  (Enter sends, Shift+Enter for a new line)` : `Sending needs ${kind}s:${component || "…"}:run`}
        onInput=${(event) => setText(event.target.value)} onKeyDown=${key}></textarea>
      <button type="submit" class="primary" disabled=${!allowed || busy || !text.trim()}>Send</button>
    </div>
  </form>`;
}
