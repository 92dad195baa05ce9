// Runs across sessions: live ones every second, all of them by pages, and the cancel of marked ones.

import { call, isFinal, withQuery } from "../app/api.js";
import { CancelDialog, FailureGroups, RunTable, useCancels, useCauses } from "../app/runs.js";
import { COMPONENT, Filters, RUN_STATUS, TYPE, useAgo } from "../app/filters.js";
import {
  Empty, formatNumber, formatTotal, html, Loaded, LoadMore, many, Page, phaseOf, setQuery,
  STATUSES, useCaller, useEffect, useKeys, useMarks, usePages, useState,
} from "../app/ui.js";

const RECENT = 5 * 60 * 1000;
const ENDED = [["COMPLETED", "green"], ["ERROR", "red"], ["CANCELLED", "grey"]];
const EVERY_ENDED = 12_000;
const AGES = [["1min", "60"], ["10min", "600"], ["1h", "3600"], ["1d", "86400"]];
const ENDED_ONLY = { all: "1" };
/** Filters that only the list of all runs has: the names of these parameters in requests. */
const OF_ALL = { since: "finished_after", before: "finished_before", type: "component_type", model: "model", version: "version", error: "error_code", parent: "parent", search: "search" };
const KEYS = [
  { key: "status", about: "the state or the outcome", values: RUN_STATUS, more: ENDED_ONLY },
  COMPONENT,
  { key: "user", about: "the user of the run" },
  { key: "session", about: "id of a session" },
  { key: "tag", about: "a tag of the run" },
  { key: "older", about: "started before that time", values: AGES },
  { key: "error", about: "code of the failure", more: ENDED_ONLY },
  { ...TYPE, more: ENDED_ONLY },
  { key: "model", about: "the first model; needs a time or a session", more: ENDED_ONLY },
  { key: "version", about: "version of the component; needs a time or a session", more: ENDED_ONLY },
  { key: "parent", about: "none leaves out runs of members", values: [["none", "none"]], more: ENDED_ONLY },
  { key: "ended-since", name: "since", about: "a time in RFC 3339", more: ENDED_ONLY },
  { key: "ended-before", name: "before", about: "a time in RFC 3339", more: ENDED_ONLY },
];

const WORDS = { name: "search", more: ENDED_ONLY };

export default function Runs({ query }) {
  const all = query.all === "1";
  const paused = query.all === "paused";
  const grouped = all && query.status === "ERROR" && query.group === "1";
  const before = useAgo(query.older);
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
    ...(all ? Object.fromEntries(Object.entries(OF_ALL).map(([name, filter]) => [filter, query[name]])) : {}),
  };
  // With the four requests for ended runs every 12 seconds, this makes one a second.
  const every = all ? 5000 : 1500;
  const found = usePages("/runs", filters, { every, key: "run_id", live: !all });
  const { resource, more } = found;
  const [marked, mark, unmark] = useMarks();
  const [asked, setAsked] = useState(null);
  const cancels = useCancels(query.db);
  const rows = arrange(found.rows);
  const causes = useCauses(rows, filters);
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
  return html`<${Page} title="Runs" wide=${true} aside=${html`<span role="status">${aside}</span>`}>
    <${Filters} page="runs" keys=${KEYS} words=${WORDS} query=${query}>
      <div class="segment">
        ${[["", "Live"], ["paused", "Paused"], ["1", "All"]].map(([value, label]) => html`<button key=${label} type="button"
          aria-pressed=${!grouped && (query.all || "") === value} onClick=${() => setQuery({ all: value, group: "" })}>${label}</button>`)}
        <button type="button" aria-pressed=${grouped} onClick=${() => setQuery({ all: "1", status: "ERROR", group: "1" })}>Failures</button>
      </div>
    <//>
    <${Loaded} resource=${resource} place="/runs">
      ${() => html`
          ${grouped && rows.length ? html`<${FailureGroups} rows=${found.rows} causes=${causes} meta=${meta} more=${more} db=${query.db} />`
            : rows.length || more.available
            ? html`<${RunTable} rows=${rows} db=${query.db} causes=${causes} isLive=${!all} marked=${marked} onMark=${mark} onCancel=${(run) => setAsked([run])} />`
            : html`<${Empty} filters=${[...KEYS, WORDS].map((each) => each.name ?? each.key)} query=${query} none="No runs match.">
                ${paused ? "No run is waiting for approval." : all ? "No runs yet." : "Nothing is running."}
                <a href="#/agents">Start a run</a><//>`}
          ${grouped ? null : html`<${LoadMore} more=${more} />`}`}
    <//>
    ${chosen.length || cancels.sent
      ? html`<div class=${chosen.length ? "selection" : "more row"} data-selection>
          ${chosen.length ? html`<span role="status">${formatNumber(chosen.length)} selected</span>
            <button type="button" class="danger" onClick=${() => setAsked(chosen)}>
              Cancel ${many(chosen.length, "run")}…</button>
            <button type="button" class="link" onClick=${unmark}>Clear</button>` : null}
          ${cancels.sent ? html`<span class="dim" role="status">last action: ${cancels.requested} requested · ${cancels.stopped} stopped</span>` : null}
        </div>`
      : null}
    ${all || paused ? null : html`<${Ended} filters=${{ ...filters, live: "", created_before: "" }} db=${query.db} />`}
    ${asked ? html`<${CancelDialog} runs=${asked} cancels=${cancels} live=${rows}
      onClose=${() => (setAsked(null), unmark())} />` : null}
  <//>`;
}

/** Return the runs with members below the run that started them. */
function arrange(rows) {
  const known = new Set(rows.map((run) => run.run_id));
  const below = new Map();
  for (const run of rows) {
    const parent = known.has(run.parent_run_id) ? run.parent_run_id : null;
    below.set(parent, [...(below.get(parent) || []), run]);
  }
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

/** Return the counts of the live runs, and of what they are a part if not all are loaded. */
function describeLive(rows, meta) {
  const counts = { running: 0, stopping: 0, queued: 0 };
  for (const run of rows) counts[phaseOf(run).name] += 1;
  const given = Object.entries(counts).filter(([name, count]) => count || name === "running");
  const text = given.map(([name, count]) => `${formatNumber(count)} ${name}`).join(" · ");
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
  const causes = useCauses(rows || [], { ...filters, finished_after: ended?.since });
  if (!ended) return null;
  const { atWork, totals, since } = ended;
  const total = totals.reduce((sum, meta) => sum + meta.total_count, 0);
  if (!total && !atWork.total_count) return null;
  const toggle = () => (rows ? setRows(null) : call("GET", withQuery("/runs", { ...filters, finished_after: since, limit: 100 }))
    .then((page) => setRows(page.data), () => null));
  return html`<section>
    <div class="row" style=${{ margin: "18px 0 10px" }}>
      <span data-ended>Last 5 minutes: ${ENDED.map(([status, color], at) => html`${at ? ", " : ""}<span key=${status}
        class=${totals[at].total_count ? color : "dim"}>${formatTotal(totals[at])} ${STATUSES[status]}</span>`)}
        ${atWork.total_count ? html` · <span class="yellow">${formatTotal(atWork)} ended, but work continues</span>` : null}</span>
      <button type="button" class="link" aria-expanded=${rows !== null} onClick=${toggle}>${rows ? "Hide" : "Show"}</button>
      ${rows && rows.length < total ? html`<span class="dim">the newest ${rows.length} of ${formatNumber(total)}</span>` : null}
    </div>
    ${rows ? html`<${RunTable} rows=${rows} db=${db} causes=${causes} />` : null}
  </section>`;
}
