// Runs across sessions: live ones every second, all of them by pages, and the cancel of marked ones.

import { call, can, componentOf, isFinal, kindOf, tokensOf, withQuery } from "../app/api.js";
import { CancelDialog, useCancels } from "../app/cancel.js";
import {
  cut, Empty, Filter, formatAge, formatDuration, formatNumber, formatTotal, html, Loaded, LoadMore, Page,
  phaseOf, printable, Search, setQuery, shortId, Space, Status, STATUSES, toHash, tookMilliseconds, useCaller,
  useComponents, useEffect, useKeys, useMemo, useNames, useNow, usePages, useRef, useReturn, useState, useWindow,
} from "../app/ui.js";

const RECENT = 5 * 60 * 1000;
const ENDED = [["COMPLETED", "✓", "green"], ["ERROR", "✗", "red"], ["CANCELLED", "■", "grey"]];
const EVERY_ENDED = 12_000;
/** The filters of the ways from the overview, and their words. */
const OF_OVERVIEW = [["since", "finished_after", "ended since"], ["before", "finished_before", "ended before"], ["type", "component_type", "type"],
  ["model", "model", "model"], ["version", "version", "version"], ["error", "error_code", "error"], ["parent", "parent", "parent run"]];
const AGES = [["60", "1 min"], ["600", "10 min"], ["3600", "1 h"], ["86400", "1 d"]];

export default function Runs({ query }) {
  const all = query.all === "1";
  const paused = query.all === "paused";
  const before = useMemo(() => {
    const limit = Number(query.older);
    return limit ? new Date(Date.now() - limit * 1000).toISOString() : "";
  }, [query.older]);
  const filters = {
    live: all || paused ? "" : "true",
    status: paused ? "PAUSED" : all ? query.status : "",
    component_id: query.component,
    user_id: query.user,
    session_id: query.session,
    db_id: query.db,
    created_before: before,
    tag: query.tag,
    view: "phase",
    ...(all ? Object.fromEntries(OF_OVERVIEW.map(([name, filter]) => [filter, query[name]])) : {}),
  };
  // With the four requests for ended runs every 12 seconds, this makes one a second.
  const every = all ? 5000 : 1500;
  const found = usePages("/runs", filters, { every, key: "run_id", live: !all });
  const { resource, more } = found;
  const { components } = useComponents();
  const [marked, setMarked] = useState(new Set());
  const [asked, setAsked] = useState(null);
  const cancels = useCancels(query.db);
  const mark = (id) => {
    const next = new Set(marked);
    if (!next.delete(id)) next.add(id);
    setMarked(next);
  };
  const rows = arrange(found.rows);
  const chosen = rows.filter((run) => marked.has(run.run_id) && !isFinal(run));
  useKeys({
    x: () => {
      const focused = document.activeElement?.closest("tr")?.dataset.run;
      const one = rows.find((run) => run.run_id === focused && !isFinal(run));
      if (chosen.length) setAsked(chosen);
      else if (one) setAsked([one]);
    },
    y: () => {
      const focused = document.activeElement?.closest("tr")?.dataset.run;
      if (focused) navigator.clipboard.writeText(focused).catch(() => null);
    },
  });
  const meta = resource.data?.meta;
  const aside = meta && (all || paused ? formatTotal(meta, paused ? "paused run" : "run") : describeLive(rows, meta));
  const given = all ? OF_OVERVIEW.filter(([name]) => query[name]) : [];
  const reset = Object.fromEntries(OF_OVERVIEW.map(([name]) => [name, ""]));
  return html`<${Page} title="Runs" wide=${true} aside=${html`<span role="status">${aside}</span>`}>
    <div class="filters">
      <div class="segment">
        ${[["", "Live"], ["paused", "Paused"], ["1", "All"]].map(([value, label]) => html`<button key=${label} type="button"
          aria-pressed=${(query.all || "") === value} onClick=${() => setQuery({ all: value })}>${label}</button>`)}
      </div>
      <${Search} name="component" label="Component" query=${query} main=${true} options=${components.map((each) => each.id)} />
      <${Search} name="user" label="User" query=${query} />
      <${Search} name="session" label="Session" query=${query} />
      <${Search} name="tag" label="Tag" query=${query} />
      ${all ? html`<${Filter} name="status" label="Status" query=${query}
        options=${Object.entries(STATUSES)} />` : null}
      <${Filter} name="older" label="Older than" query=${query} options=${AGES} all="any age" />
    </div>
    ${given.length ? html`<p class="chips spread" data-given>${given.map(([name, , words]) => html`<span key=${name} class="chip">${words} ${cut(query[name], 60)}</span>`)}
      <button type="button" class="link" onClick=${() => setQuery(reset)}>Remove these filters</button></p>` : null}
    <${Loaded} resource=${resource} place="/runs">
      ${() => html`
          ${rows.length || more.available
            ? html`<${RunTable} rows=${rows} db=${query.db} marked=${marked} onMark=${mark} onCancel=${(run) => setAsked([run])} />`
            : html`<${Empty} filters=${["component", "user", "status", "older", "session", "tag", ...given.map(([name]) => name)]} query=${query} none="No runs match.">
                ${paused ? "No run waits for a decision." : all ? "No runs yet." : "Nothing is running."}
                <a href="#/agents">Start a run</a><//>`}
          <${LoadMore} more=${more} />`}
    <//>
    ${chosen.length || cancels.sent
      ? html`<div class="more row">
          ${chosen.length ? html`<span>${chosen.length} marked</span>
            <button type="button" class="danger" onClick=${() => setAsked(chosen)}>
              Cancel ${chosen.length} ${chosen.length === 1 ? "run" : "runs"}…</button>` : null}
          ${cancels.sent ? html`<span class="dim" role="status">last action: ${cancels.requested} requested · ${cancels.stopped} stopped</span>` : null}
        </div>`
      : null}
    ${all || paused ? null : html`<${Ended} filters=${{ ...filters, live: "", created_before: "" }} db=${query.db} />`}
    ${asked ? html`<${CancelDialog} runs=${asked} cancels=${cancels} live=${rows}
      onClose=${() => (setAsked(null), setMarked(new Set()))} />` : null}
  <//>`;
}

/** Return the runs with members below the run that started them. */
function arrange(rows) {
  const known = new Set(rows.map((run) => run.run_id));
  const below = Map.groupBy
    ? Map.groupBy(rows, (run) => (known.has(run.parent_run_id) ? run.parent_run_id : null))
    : group(rows, known);
  const arranged = [];
  const add = (parent, depth) => {
    for (const run of below.get(parent) || []) {
      arranged.push(depth ? { ...run, depth } : run);
      add(run.run_id, depth + 1);
    }
  };
  add(null, 0);
  return arranged;
}

function group(rows, known) {
  const groups = new Map();
  for (const run of rows) {
    const parent = known.has(run.parent_run_id) ? run.parent_run_id : null;
    groups.set(parent, [...(groups.get(parent) || []), run]);
  }
  return groups;
}

/** Return the counts of the live runs, and of what they are a part if not all are loaded. */
function describeLive(rows, meta) {
  const counts = { running: 0, stopping: 0, queued: 0 };
  for (const run of rows) counts[phaseOf(run).name] += 1;
  const text = Object.entries(counts).map(([name, count]) => `${count} ${name}`).join(" · ");
  return rows.length < meta.total_count ? `${formatTotal(meta)} live, of the newest ${rows.length}: ${text}` : text;
}

/** Read the totals of the runs that ended in the last five minutes, and of those at work. */
function useEnded(filters) {
  const { me, generation } = useCaller();
  const [found, set] = useState(null);
  const key = withQuery("/runs", filters);
  useEffect(() => {
    let gone = me === null;
    const load = async () => {
      if (gone || document.hidden) return;
      const since = new Date(Date.now() - RECENT).toISOString();
      const total = async (query) => (await call("GET", withQuery("/runs", { ...filters, ...query, limit: 1 }))).meta;
      const [atWork, ...totals] = await Promise.all([
        total({ at_work: "true" }),
        ...ENDED.map(([status]) => total({ status, finished_after: since })),
      ]);
      if (!gone) set({ key, since, atWork, totals });
    };
    const again = () => load().catch(() => null);
    again();
    const timer = setInterval(again, EVERY_ENDED);
    return () => {
      gone = true;
      clearInterval(timer);
    };
  }, [key, generation, me === null]);
  return found?.key === key ? found : null;
}

/** The runs that ended in the last five minutes, as numbers and, opened, as a table. */
function Ended({ filters, db }) {
  const ended = useEnded(filters);
  const [rows, setRows] = useState(null);
  if (!ended) return null;
  const { atWork, totals, since } = ended;
  const total = totals.reduce((sum, meta) => sum + meta.total_count, 0);
  if (!total && !atWork.total_count) return null;
  const toggle = () => (rows ? setRows(null) : call("GET", withQuery("/runs", { ...filters, finished_after: since, limit: 100 }))
    .then((page) => setRows(page.data), () => null));
  return html`<section>
    <div class="row" style=${{ margin: "18px 0 10px" }}>
      <span data-ended>Ended in the last 5 min: ${ENDED.map(([status, glyph, color], at) => html`<span key=${status} class=${color}
        title=${STATUSES[status]}>${formatTotal(totals[at])} ${glyph}</span> `)}
        ${atWork.total_count ? html`<span class="yellow">(${formatTotal(atWork)} ended with work going on)</span>` : null}</span>
      <button type="button" class="link" aria-expanded=${rows !== null} onClick=${toggle}>${rows ? "hide" : "show"}</button>
      ${rows && rows.length < total ? html`<span class="dim">the newest ${rows.length} of ${formatNumber(total)}</span>` : null}
    </div>
    ${rows ? html`<${RunTable} rows=${rows} db=${db} />` : null}
  </section>`;
}

/** A table of runs. With `onMark`, live runs can be marked and cancelled. */
export function RunTable({ rows, db, marked, onMark, onCancel }) {
  const body = useRef(null);
  const names = useNames();
  const now = useNow(1000);
  const { from, to, before, after } = useWindow(rows.length, body);
  useReturn(body);
  return html`<div class="table">
    <table aria-rowcount=${rows.length + 1}>
      <colgroup>
        ${onMark ? html`<col class="mid w-mark" />` : null}
        <col class="w-id w-name" /><col class="w-status" /><col class="full w-component" /><col class="opt w-user" />
        <col class="far w-component" /><col class="mid w-age" /><col class="full w-number" /><col class="full" />
        ${onMark ? html`<col class="w-action" />` : null}
      </colgroup>
      <thead><tr>
        ${onMark ? html`<th class="mid"><span class="hidden">Mark</span></th>` : null}
        <th>Run</th><th>Status</th><th class="full">Component</th><th class="opt">User</th><th class="far">Session</th>
        <th class="mid right">Age</th><th class="full right">Tokens</th><th class="full">Detail</th>
        ${onMark ? html`<th><span class="hidden">Cancel</span></th>` : null}
      </tr></thead>
      <tbody ref=${body}>
        <${Space} height=${before} />
        ${rows.slice(from, to).map((run, at) => html`<${Row} key=${run.run_id} run=${run} at=${from + at} now=${now} db=${db}
          names=${names} marked=${marked?.has(run.run_id)} onMark=${onMark} onCancel=${onCancel} />`)}
        <${Space} height=${after} />
      </tbody>
    </table>
  </div>`;
}

function Row({ run, at, now, db, names, marked, onMark, onCancel }) {
  const phase = phaseOf(run);
  const kind = kindOf(run);
  const name = names.get(`${kind}:${componentOf(run)}`) || componentOf(run);
  const href = toHash(["sessions", run.session_id], { run: run.parent_run_id ? "" : run.run_id, db });
  const live = !isFinal(run);
  const allowed = can(`${kind}s`, "run", componentOf(run));
  const color = phase.warning || phase.name === "paused" ? "yellow" : phase.name === "failed" ? "red" : "dim";
  const detail = cut(phase.sentence || run.input, 140);
  return html`<tr aria-rowindex=${at + 2} data-run=${run.run_id} class=${run.depth ? "member" : ""}>
    ${onMark ? html`<td class="mid">${live ? html`<input type="checkbox" checked=${marked} disabled=${!allowed}
      aria-label=${`Mark run ${shortId(run.run_id)}`} onChange=${() => onMark(run.run_id)} />` : null}</td>` : null}
    <td class="name"><a data-row href=${href} title=${run.run_id}><span class="full mono">${run.depth ? "└ " : ""}${shortId(run.run_id)}</span>
      <span class="compact">${run.depth ? "└ " : ""}${cut(name, 60)}</span>
      <span class="sub"><span class=${color}>${shortId(run.run_id)} · ${detail}</span></span></a></td>
    <td class="state"><${Status} run=${run} /></td>
    <td class="full" dir="auto">${cut(name, 60)}${kind === "agent" ? "" : html` <span class="dim">${kind}</span>`}</td>
    <td class="opt" dir="auto">${printable(run.user_id ?? "–")}</td>
    <td class="far mono" title=${run.session_id}>${cut(run.session_id, 40)}</td>
    <td class="mid right" title=${run.created_at}>${live ? formatDuration(tookMilliseconds(run, now)) : formatAge(run.finished_at, now)}</td>
    <td class="full right">${formatNumber(tokensOf(run))}</td>
    <td class="full" dir="auto"><span class=${color} title=${phase.sentence || null}>${detail}</span></td>
    ${onMark ? html`<td class="right">${live && run.cancel_requested_at == null
      ? html`<button type="button" disabled=${!allowed} title=${allowed ? null : `needs ${kind}s:${componentOf(run)}:run`}
          aria-label=${`Cancel run ${shortId(run.run_id)}`} onClick=${() => onCancel(run)}>Cancel</button>` : null}</td>` : null}
  </tr>`;
}
