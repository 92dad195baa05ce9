// A run in two panes: the tree of its calls with their times, and the chosen one: the conversation of
// a run, the messages of a model call, the arguments and the result of a tool.

import { call, isAtRest, isFinal, isPaused, nameOf, path, withQuery } from "../app/api.js";
import { Facts, JsonDialog, Turn } from "../app/conversation.js";
import { placeOf, rowsOf, scaleOf, union, useMembers } from "../app/spans.js";
import { Compose, targetOf } from "../app/thread.js";
import { Decided, Waits } from "../app/waits.js";
import {
  cut, Empty, formatCost, formatDuration, formatNumber, html, Json, Loaded, Page, printable, setQuery, shortId, Status,
  toHash, useEffect, useKeys, useNames, useNow, useRef, useResource, useState,
} from "../app/ui.js";
import { writeExact } from "../app/exact.js";

const CUT = 20_000;
const GLYPHS = { run: "●", model: "◇", tool: "ƒ", member: "→", step: "▸", pause: "‖" };

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

function Chart({ run, names, query, reload }) {
  const now = useNow(isAtRest(run) ? 0 : 500);
  const members = useMembers(run, query.db);
  const [zoom, setZoom] = useState(null);
  const [json, setJson] = useState(false);
  const collapsed = query.collapse === "1";
  const collapse = () => setQuery({ collapse: collapsed ? "" : "1" });
  useKeys({ "[": () => step(-1), "]": () => step(1), c: collapse, y: () => navigator.clipboard.writeText(run.run_id).catch(() => null) });
  const start = Date.parse(run.started_at || run.created_at);
  const finish = run.finished_at ? Date.parse(run.finished_at) : now;
  const end = Math.max(finish, run.stopped_at ? Date.parse(run.stopped_at) : finish, start + 1);
  const rows = rowsOf(run, members, names, now);
  const whole = { key: run.run_id, kind: "run", depth: 0, run, name: nameOf(run, names), start, end: finish, open: !isFinal(run), failed: run.status === "ERROR" };
  const tree = [whole, ...rows];
  // The texts of a live run are read when someone asks for them.
  const chosen = tree.find((row) => row.key === query.call) || (isFinal(run) ? whole : null);
  // Its pane is another one when the call has ended, and reads the result.
  const paneKey = chosen && `${chosen.key} ${chosen.open}`;
  const choose = (row) => setQuery({ call: row.key });
  const step = (by) => choose(tree[Math.max(0, Math.min(tree.length - 1, tree.indexOf(chosen) + by))]);
  const [from, to] = zoom || [start, end];
  const scale = scaleOf(from, to, rows, collapsed && !zoom);
  const marks = [["cancel requested", run.cancel_requested_at], ["stopped", run.cancel_requested_at && run.stopped_at]].filter(([, time]) => time);
  const model = union(rows.filter((row) => row.kind === "model")).total;
  const tool = union(rows.filter((row) => row.kind === "tool")).total;
  const length = Math.max(1, finish - start);
  const percent = (part) => `${Math.min(100, Math.round((100 * part) / length))}%`;
  const busy = union(rows.filter((row) => row.kind === "model" || row.kind === "tool")).total;
  return html`<div class="panes"><div class="panel">
    <div class="row spread">
      <b>${formatDuration(finish - start)}</b>
      ${busy ? html`<span class="dim">model ${percent(model)} · tools ${percent(tool)} · wait ${percent(length - busy)}</span>` : null}
      <span class="grow"></span>
      ${zoom ? html`<button type="button" onClick=${() => setZoom(null)}>Show all</button>` : null}
      <button type="button" aria-pressed=${collapsed} onClick=${collapse}>${collapsed ? "Show idle time" : "Collapse idle time"}</button>
      <button type="button" class="link" aria-label="Run as JSON" onClick=${() => setJson(true)}>JSON</button>
    </div>
    <div class="bars">
      <${Ruler} from=${from} to=${to} start=${start} scale=${scale} onZoom=${setZoom} plain=${!collapsed || zoom} />
      ${tree.map((row) => html`<${Lane} key=${row.key} row=${row} scale=${scale} marks=${marks} chosen=${row === chosen} onChoose=${() => choose(row)} />`)}
    </div>
    ${rows.length ? null : html`<${Empty}>This run has no recorded spans. <//>`}
    ${marks.length ? html`<p class="row dim">${marks.map(([label, time]) => html`<span key=${label}><span class="red">┃</span> ${label} ${printable(time).slice(11, 22)}</span>`)}</p>` : null}
    ${chosen === whole ? null : html`<${Facts} run=${run} />
      <${Waits} run=${run} db=${query.db} now=${now} onDecided=${reload} />`}
    ${isFinal(run) || isPaused(run) || run.parent_run_id ? null
      : html`<${Compose} to=${targetOf(run)} name=${nameOf(run, names)} last=${run} session=${run.session_id} user=${run.user_id} onStarted=${reload} />`}
    ${json ? html`<${JsonDialog} title=${`Run ${run.run_id}`} value=${run} onClose=${() => setJson(false)}
      load=${() => call("GET", withQuery(path`/runs/${run.run_id}`, { db_id: query.db }))} />` : null}
    </div>
    ${chosen ? html`<${Detail} key=${paneKey} row=${chosen} names=${names} db=${query.db} asked=${query.call} />`
      : html`<p class="dim">Choose a call to see its messages, arguments and result.</p>`}
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

function Lane({ row, scale, marks, chosen, onChoose }) {
  const bar = (start, end, kind) => html`<i class=${`${kind}${row.failed ? " failed" : ""}`}
    style=${{ left: `${scale(start) * 100}%`, width: `${(scale(end) - scale(start)) * 100}%` }}></i>`;
  const { span } = row;
  const tokens = span?.input_tokens != null ? `${formatNumber(span.input_tokens)} in ${formatNumber(span.output_tokens)} out` : "";
  return html`<button type="button" class="lane" data-row data-span=${row.kind} aria-current=${chosen ? "true" : null} onClick=${onChoose}>
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

/** What the chosen row is about. `asked` is its key if someone has chosen it. */
function Detail({ row, names, db, asked }) {
  const { span } = row;
  const pane = useRef(null);
  const place = placeOf(row.run.run_id, db, CUT);
  const resource = useResource(place);
  // On a narrow page it is below the tree.
  useEffect(() => {
    const narrow = pane.current.getBoundingClientRect().top > innerHeight / 2;
    if (asked && narrow) pane.current.scrollIntoView({ block: "start" });
  }, []);
  const facts = [
    ["started", new Date(row.start).toISOString()],
    row.approval?.note && ["note", row.approval.note],
    ["took", row.open ? (row.approval ? "waits" : "running") : formatDuration(row.end - row.start)],
    row.first && ["first token", `after ${formatDuration(row.first - row.start)}`],
    span?.input_tokens != null && ["tokens", `${formatNumber(span.input_tokens)} in, ${formatNumber(span.output_tokens)} out`],
    span?.status && ["status", span.status],
  ].filter(Boolean);
  const isRun = row.kind === "run" || row.kind === "member";
  const label = `${row.kind} ${cut(row.name, 80)}`;
  return html`<section class="panel chosen" ref=${pane} tabindex="0" aria-label=${label} data-chosen=${row.kind}>
    <h2>${label}</h2>
    ${row.kind === "run" ? null : html`<dl class="facts">${facts.map(([name, value]) => html`<dt key=${name}>${name}</dt><dd>${printable(value)}</dd>`)}</dl>`}
    ${row.approval ? html`<p><${Decided} approval=${row.approval} /></p>` : null}
    <${Loaded} resource=${resource} place=${place} rows=${3}>${(run) => html`
      ${row.tool ? html`<${Tool} item=${run.items.find((item) => item.tool_call_id === row.tool.tool_call_id) || row.tool} />` : null}
      ${isRun ? html`<${Turn} key=${run.run_id} initial=${run} names=${names} db=${db} />` : null}`}<//>
    ${row.kind === "model" ? html`<${Sent} run=${row.run} id=${span.id} db=${db} />` : null}
  </section>`;
}

function Tool({ item }) {
  return html`<h3 class="caption">Arguments</h3><${Json} text=${writeExact(item.tool_args ?? {}, 2).slice(0, CUT)} />
    <h3 class="caption">Result</h3><${Json} text=${item.result ?? "no result"} />`;
}

const SENT = 100;
const STATES = { complete: "", incomplete: "(some of it is missing)", unknown: "(not recorded)" };

/** The model that answered, and the messages that it was sent, as text. */
function Sent({ run, id, db }) {
  const place = withQuery(path`/runs/${run.run_id}/model-calls/${id}`, { db_id: db, cut: CUT });
  const resource = useResource(place);
  return html`<${Loaded} resource=${resource} place=${place}>${(found) => {
    const left = found.omissions.map((each) => `${each.count} ${each.kind}`).join(", ");
    const first = Math.max(0, found.messages.length - SENT);
    return html`<dl class="facts">
        <dt>answered by</dt><dd>${printable(found.response_model ?? found.requested_model ?? "not known")}</dd>
        ${found.input_tokens === null ? null : html`<dt>cost</dt><dd>${found.cost === null ? "not known" : formatCost(found.cost)}</dd>`}
        ${left ? html`<dt>left out</dt><dd>${printable(left)}</dd>` : null}
      </dl>
      <h3 class="caption">Sent ${STATES[found.state]}</h3>
      ${first ? html`<p class="dim">${formatNumber(first)} earlier messages are not shown.</p>` : null}
      ${found.messages.slice(first).map((each, at) => html`<p key=${at} class="caption">${each.role} ${printable(each.tool_name)}</p>
        <pre class="json" tabindex="0">${printable(each.content ?? "missing")}${each.tool_calls
          ? printable(writeExact(each.tool_calls, 2)).slice(0, CUT) : null}</pre>`)}`;
  }}<//>`;
}
