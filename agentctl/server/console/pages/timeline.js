// The timeline of a run: bars of model calls, tools, members and steps, and the marks of a cancel.

import { call, componentOf, isAtRest, isFinal, isPaused, kindOf, path, withQuery } from "../app/api.js";
import { Facts, JsonDialog } from "../app/conversation.js";
import { CUT, Sent } from "../app/sent.js";
import { addPauses, Decided, Waits } from "../app/waits.js";
import {
  cut, Dialog, Empty, formatDuration, formatNumber, html, Loaded, Page, printable, setQuery,
  shortId, Status, toHash, useEffect, useKeys, useNames, useNow, useRef, useResource, useState,
} from "../app/ui.js";

const DEPTH = 5;
const IDLE = 0.04;
const GLYPHS = { model: "◇", tool: "ƒ", member: "→", step: "▸", pause: "‖" };

export default function Timeline({ parts, query }) {
  const place = placeOf(parts[1], query.db);
  const [live, setLive] = useState(1000);
  const resource = useResource(place, { every: live });
  const names = useNames();
  const run = resource.data;
  useEffect(() => setLive(run && isAtRest(run) ? 0 : run && isPaused(run) ? 2000 : 1000), [run]);
  const name = run ? nameOf(run, names) : shortId(parts[1]);
  const back = run
    ? { href: toHash(["sessions", run.session_id], { run: run.run_id, db: query.db }), label: "Transcript" }
    : { href: "#/runs", label: "Runs" };
  return html`<${Page} title=${`${name} · timeline`} back=${back} wide=${true}
    aside=${run ? html`<${Status} run=${run} /><code>${shortId(run.run_id)}</code>` : null}>
    <${Loaded} resource=${resource} place=${path`/runs/${parts[1]}`}>
      ${(found) => html`<${Chart} key=${found.run_id} run=${found} names=${names} query=${query} reload=${resource.reload} />`}
    <//>
  <//>`;
}

// Bars need no texts; those of one are fetched when it is opened.
const placeOf = (run, db, cut = 1) => withQuery(path`/runs/${run}`, { db_id: db, view: "items", cut });

/** Fetch the runs of members, so that their spans stand below the member. */
function useMembers(run, db) {
  const [members, setMembers] = useState(new Map());
  const open = !isAtRest(run);
  const known = useRef(new Map());
  const stamp = JSON.stringify([run.member_runs, run.finished_at]);
  useEffect(() => {
    let gone = false;
    const load = async (ids, depth) => {
      for (const id of ids) {
        if (gone || depth > DEPTH) return;
        let member = known.current.get(id);
        if (!member || !isAtRest(member)) {
          member = await call("GET", placeOf(id, db)).catch(() => null);
          if (member === null) continue;
          known.current.set(id, member);
        }
        await load(member.member_runs || [], depth + 1);
      }
      if (!gone && depth === 1) setMembers(new Map(known.current));
    };
    load(run.member_runs || [], 1);
    const timer = open ? setInterval(() => load(run.member_runs || [], 1), 1500) : null;
    return () => {
      gone = true;
      clearInterval(timer);
    };
  }, [stamp, open]);
  return members;
}

/** Return the rows of a run: spans in the order of their starts, those of members below them. */
function rowsOf(run, members, names, now, depth = 0) {
  const rows = [];
  const end = isFinal(run) ? Date.parse(run.finished_at) : now;
  const tools = new Map(run.items.map((item) => [item.tool_call_id, item]));
  const told = new Set();
  const spans = [...(run.spans || [])].sort((a, b) => (a.started_at < b.started_at ? -1 : 1));
  const steps = new Set(spans.filter((span) => span.kind === "step").map((span) => span.id));
  for (const span of spans) {
    const tool = tools.get(span.id);
    const member = span.kind === "member" ? members.get(span.member_run_id) : null;
    // The call of a tool that delegates and the member have the same times.
    if (span.kind === "tool" && span.member_run_id) continue;
    if (span.kind === "member") told.add(span.member_run_id);
    const below = steps.has(span.parent) ? 1 : 0;
    rows.push({
      key: `${run.run_id}/${span.id}`, kind: span.kind, depth: depth + below, span, tool, run: member || run,
      name: member ? nameOf(member, names) : span.name, failed: span.status === "failed",
      start: Date.parse(span.started_at), first: span.first_token_at ? Date.parse(span.first_token_at) : null,
      end: span.finished_at ? Date.parse(span.finished_at) : end, open: !span.finished_at && !isFinal(run),
    });
    if (member && depth < DEPTH) rows.push(...rowsOf(member, members, names, now, depth + below + 1));
  }
  addPauses(rows, run, depth, end);
  for (const id of run.member_runs || []) {
    const member = members.get(id);
    if (!member || told.has(id)) continue;
    rows.push({
      key: id, kind: "member", depth, run: member, name: nameOf(member, names), failed: member.status === "ERROR",
      start: Date.parse(member.started_at || member.created_at), first: null,
      end: member.finished_at ? Date.parse(member.finished_at) : now, open: !isFinal(member),
    });
    if (depth < DEPTH) rows.push(...rowsOf(member, members, names, now, depth + 1));
  }
  return rows;
}

const nameOf = (run, names) => names.get(`${kindOf(run)}:${componentOf(run)}`) || componentOf(run);
const textOf = (run) => run.items.filter((item) => item.type === "text").map((item) => item.text).join("\n\n");

/** Return merged intervals of rows, and their total length. */
function union(rows) {
  const merged = [];
  for (const { start, end } of [...rows].sort((a, b) => a.start - b.start)) {
    const last = merged.at(-1);
    if (last && start <= last[1]) last[1] = Math.max(last[1], end);
    else merged.push([start, end]);
  }
  return { merged, total: merged.reduce((sum, [start, end]) => sum + end - start, 0) };
}

/** Return a function from a time to a part of the width, with long idle times cut out if asked. */
function scaleOf(from, to, rows, collapsed) {
  const whole = Math.max(1, to - from);
  if (!collapsed) return (time) => Math.min(1, Math.max(0, (time - from) / whole));
  const busy = union(rows.filter((row) => row.kind !== "member" && row.kind !== "step")).merged;
  const cuts = [];
  let at = from;
  for (const [start, end] of [...busy, [to, to]]) {
    if (start - at > whole * IDLE) cuts.push([at, start]);
    at = Math.max(at, end);
  }
  const kept = whole - cuts.reduce((sum, [start, end]) => sum + (end - start) * 0.9, 0);
  return (time) => {
    let moved = Math.min(to, Math.max(from, time)) - from;
    for (const [start, end] of cuts) moved -= Math.max(0, Math.min(time, end) - start) * 0.9;
    return Math.min(1, Math.max(0, moved / kept));
  };
}

function Chart({ run, names, query, reload }) {
  const now = useNow(isAtRest(run) ? 0 : 500);
  const members = useMembers(run, query.db);
  const [zoom, setZoom] = useState(null);
  const [chosen, setChosen] = useState(null);
  const [json, setJson] = useState(false);
  const collapsed = query.collapse === "1";
  const collapse = () => setQuery({ collapse: collapsed ? "" : "1" });
  useKeys({ c: collapse, y: () => navigator.clipboard.writeText(run.run_id).catch(() => null) });
  const start = Date.parse(run.started_at || run.created_at);
  const finish = run.finished_at ? Date.parse(run.finished_at) : now;
  const end = Math.max(finish, run.stopped_at ? Date.parse(run.stopped_at) : finish, start + 1);
  const rows = rowsOf(run, members, names, now);
  const [from, to] = zoom || [start, end];
  const scale = scaleOf(from, to, rows, collapsed && !zoom);
  const marks = [["cancel requested", run.cancel_requested_at], ["stopped", run.cancel_requested_at && run.stopped_at]].filter(([, time]) => time);
  const model = union(rows.filter((row) => row.kind === "model")).total;
  const tool = union(rows.filter((row) => row.kind === "tool")).total;
  const whole = Math.max(1, finish - start);
  const percent = (part) => `${Math.min(100, Math.round((100 * part) / whole))} %`;
  const busy = union(rows.filter((row) => row.kind === "model" || row.kind === "tool")).total;
  return html`<div class="panel">
    <div class="row spread">
      <b>${formatDuration(finish - start)}</b>
      ${busy ? html`<span class="dim">model ${percent(model)} · tools ${percent(tool)} · wait ${percent(whole - busy)}</span>` : null}
      <span class="grow"></span>
      ${zoom ? html`<button type="button" onClick=${() => setZoom(null)}>Show all</button>` : null}
      <button type="button" aria-pressed=${collapsed} onClick=${collapse}>${collapsed ? "Show idle time" : "Collapse idle time"}</button>
      <button type="button" class="link" aria-label="Run as JSON" onClick=${() => setJson(true)}>{ }</button>
    </div>
    ${rows.length
      ? html`<div class="bars">
          <${Ruler} from=${from} to=${to} start=${start} scale=${scale} onZoom=${setZoom} plain=${!collapsed || zoom} />
          ${rows.map((row) => html`<${Lane} key=${row.key} row=${row} scale=${scale} marks=${marks} onChoose=${() => setChosen(row)} />`)}
        </div>`
      : html`<${Empty}>This run has no recorded spans. <//>`}
    ${marks.length ? html`<p class="row dim">${marks.map(([label, time]) => html`<span key=${label}><span class="red">┃</span> ${label} ${printable(time).slice(11, 22)}</span>`)}</p>` : null}
    <${Facts} run=${run} />
    <${Waits} run=${run} db=${query.db} now=${now} onDecided=${reload} />
    ${chosen ? html`<${Detail} row=${chosen} db=${query.db} onClose=${() => setChosen(null)} />` : null}
    ${json ? html`<${JsonDialog} title=${`Run ${run.run_id}`} value=${run} onClose=${() => setJson(false)}
      load=${() => call("GET", withQuery(path`/runs/${run.run_id}`, { db_id: query.db }))} />` : null}
  </div>`;
}

function Ruler({ from, to, start, scale, onZoom, plain }) {
  const [drag, setDrag] = useState(null);
  const at = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    return from + ((event.clientX - box.left) / box.width) * (to - from);
  };
  const begin = (event) => {
    event.currentTarget.setPointerCapture(event.pointerId);
    setDrag([at(event), at(event)]);
  };
  const move = (event) => drag && setDrag([drag[0], at(event)]);
  const finish = () => {
    const [low, high] = [...drag].sort((a, b) => a - b);
    setDrag(null);
    if (high - low > (to - from) / 100) onZoom([low, high]);
  };
  const ticks = [0, 0.25, 0.5, 0.75, 1].map((part) => from + part * (to - from));
  const chosen = drag && [...drag].sort((a, b) => a - b).map(scale);
  return html`<div class="lane ruler"><span class="label dim">${plain ? "drag to zoom" : "without idle time"}</span>
    <span class="track" onPointerDown=${plain ? begin : null} onPointerMove=${move} onPointerUp=${drag ? finish : null}>
      ${ticks.map((time, at) => html`<span key=${at} style=${{ left: `${scale(time) * 100}%` }}>${formatDuration(time - start)}</span>`)}
      ${chosen ? html`<i style=${{ left: `${chosen[0] * 100}%`, width: `${(chosen[1] - chosen[0]) * 100}%` }}></i>` : null}
    </span><span></span></div>`;
}

function Lane({ row, scale, marks, onChoose }) {
  const bar = (start, end, kind) => html`<i class=${`${kind}${row.failed ? " failed" : ""}`}
    style=${{ left: `${scale(start) * 100}%`, width: `${(scale(end) - scale(start)) * 100}%` }}></i>`;
  const { span } = row;
  const tokens = span?.input_tokens != null ? `${formatNumber(span.input_tokens)} in ${formatNumber(span.output_tokens)} out` : "";
  return html`<button type="button" class="lane" data-row data-span=${row.kind} onClick=${onChoose}>
    <span class="label" style=${{ paddingLeft: `${row.depth * 16}px` }}><span aria-hidden="true">${GLYPHS[row.kind] || "·"}</span>
      <span class="hidden">${row.kind}</span> ${cut(row.name, 60)} ${row.failed ? html`<span class="red">✗<span class="hidden"> failed</span></span>` : null}
      ${tokens ? html`<span class="dim"> ${tokens}</span>` : null}</span>
    <span class="track" aria-hidden="true">
      ${row.first ? html`${bar(row.start, row.first, `${row.kind} wait`)}${bar(row.first, row.end, row.kind)}` : bar(row.start, row.end, row.kind)}
      ${marks.map(([label, time]) => html`<u key=${label} style=${{ left: `${scale(Date.parse(time)) * 100}%` }}></u>`)}
    </span>
    <span class="right dim">${row.open ? "● " : ""}${formatDuration(row.end - row.start)}</span>
  </button>`;
}

function Detail({ row, db, onClose }) {
  const { span } = row;
  const [run, setRun] = useState(row.run);
  useEffect(() => void call("GET", placeOf(run.run_id, db, CUT)).then(setRun, () => null), []);
  const tool = row.tool && (run.items.find((item) => item.tool_call_id === row.tool.tool_call_id) || row.tool);
  const facts = [
    ["started", new Date(row.start).toISOString()],
    row.approval?.note && ["note", row.approval.note],
    ["took", row.open ? (row.approval ? "waits" : "running") : formatDuration(row.end - row.start)],
    row.first && ["first token", `after ${formatDuration(row.first - row.start)}`],
    span?.input_tokens != null && ["tokens", `${formatNumber(span.input_tokens)} in, ${formatNumber(span.output_tokens)} out`],
    span?.status && ["status", span.status],
    run.error && row.kind === "member" && ["error", `${run.error.code}: ${run.error.detail}`],
  ].filter(Boolean);
  return html`<${Dialog} title=${`${row.kind} ${cut(row.name, 80)}`} onClose=${onClose} wide=${true}>
    <dl class="facts">${facts.map(([label, value]) => html`<dt key=${label}>${label}</dt><dd>${printable(value)}</dd>`)}</dl>
    ${row.approval ? html`<p><${Decided} approval=${row.approval} /></p>` : null}
    ${tool ? html`<h3 class="caption">Arguments</h3><pre class="json" tabindex="0">${printable(JSON.stringify(tool.tool_args, null, 2)).slice(0, CUT)}</pre>
      <h3 class="caption">Result</h3><pre class="json" tabindex="0">${printable(tool.result ?? "no result")}</pre>` : null}
    ${row.kind === "model" ? html`<${Sent} run=${run} id=${span.id} db=${db} />` : null}
    ${row.kind === "member" ? html`<h3 class="caption">Answer</h3><pre class="json" tabindex="0">${printable(textOf(run)).slice(0, CUT)}</pre>
      <p><a href=${toHash(["runs", run.run_id, "timeline"], { db })} onClick=${onClose}>Its timeline</a></p>` : null}
    <div class="buttons"><button type="button" onClick=${onClose}>Close</button></div>
  <//>`;
}
