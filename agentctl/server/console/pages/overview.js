// The overview: sums of ended runs by hour or day, what failed and what waits, with ways to the runs.

import { can, canList, withQuery } from "../app/api.js";
import { describeSpan, endOf, Figure, Patterns, UNITS, useBrush } from "../app/chart.js";
import { COMPONENT, Filters, TYPE } from "../app/filters.js";
import {
  cut, describeCause, Empty, exceptionOf, formatAgo, formatCost, formatDuration, formatNumber, formatShort, html, Later, Loaded, many, Page, printable, setQuery,
  toHash, useCaller, useComponents, useMemo, useNow, useResource,
} from "../app/ui.js";
import { writeExact } from "../app/exact.js";

const PLACE = "/usage/overview";
const EVERY = 15_000;
/** Name, label, step, and the number of steps if it is not the default of the server. */
const PERIODS = [["", "24 h", "hour", 0], ["7d", "7 d", "hour", 168], ["30d", "30 d", "day", 0], ["90d", "90 d", "day", 90]];
const GROUPS = { component: "Component", model: "Model", user: "User", version: "Version" };
const KEYS = [
  COMPONENT,
  TYPE,
  { key: "model", about: "the first model of a run" },
  { key: "user", about: "the user of a run" },
  { key: "version", about: "version of the component" },
];
const FILTERS = KEYS.map(({ key }) => key);
const ENDS = [["completed", "COMPLETED", "solid"], ["failed", "ERROR", "hatched"], ["cancelled", "CANCELLED", "lined"]];
const PERCENTILES = [["p50", "circle"], ["p95", "triangle"], ["p99", "square"]];
/** Points that a picture shows at least. */
const LEAST_POINTS = 12;
const NOTHING = { points: [], data: [], groups: 0, total: null, waiting: null };

const formatTime = (seconds) => formatDuration(seconds * 1000);
/** Return a power of ten of seconds in one unit: an axis has no room for two. */
const formatTick = (seconds) => (seconds < 1 ? formatTime(seconds) : `${formatNumber(seconds)} s`);

/** Return the cost of counts in words: a lower bound if some tokens have no known price. */
const costOf = (counts) => (counts.cost === null ? "not known" : `${counts.unpriced_tokens ? "≥ " : ""}${formatCost(counts.cost)}`);

export default function Overview({ query }) {
  const { me } = useCaller();
  const [, , step, count] = PERIODS.find(([name]) => name === (query.period || "")) || PERIODS[0];
  const by = Object.hasOwn(GROUPS, query.by) ? query.by : "component";
  const first = Math.floor(useNow(60_000) / UNITS[step]) - count + 1;
  const allowed = me === null || can("usage", "read");
  const place = withQuery(PLACE, {
    step, by, since: count ? new Date(first * UNITS[step]).toISOString() : "", component_id: query.component,
    component_type: query.type, model: query.model, user_id: query.user, version: query.version, db_id: query.db,
  });
  const resource = useResource(allowed ? place : null, { every: EVERY });
  // The pictures of a period that nobody has chosen begin with its first run.
  const overview = useMemo(() => (query.period ? resource.data : dropEmptyBeginning(resource.data)), [resource.data, query.period]);
  if (!allowed || resource.error?.status === 403) return html`<${Instead} query=${query} />`;
  // Until the answer is here, a text of the same width keeps its place.
  const aside = overview ? describeSpan(overview.since, overview.points.at(-1).at, step)
    : html`<span style=${{ visibility: "hidden" }}>${describeSpan(...[24, 1].map((each) => new Date((first + count - each) * UNITS[step]).toISOString()), step)}</span>`;
  return html`<${Page} title="Overview" wide=${true} aside=${aside}>
    <${Filters} page="overview" keys=${KEYS} query=${query}>
      <div class="segment" role="group" aria-label="Period">
        ${PERIODS.map(([name, label]) => html`<button key=${label} type="button" aria-pressed=${(query.period || "") === name}
          onClick=${() => setQuery({ period: name })}>${label}</button>`)}
      </div>
      <label class="filter"><span>Group by</span>
        <select value=${by} onChange=${({ target }) => setQuery({ by: target.value })}>${Object.keys(GROUPS).map((name) => html`<option key=${name}>${name}</option>`)}</select></label>
    <//>
    ${overview || resource.error
      ? html`<${Loaded} resource=${resource} place=${PLACE}>${() => html`<${Shown} overview=${overview} step=${step} by=${by} query=${query} />`}<//>`
      : html`<${Shown} overview=${NOTHING} step=${step} by=${by} query=${query} />`}
  <//>`;
}

/** Return an overview whose points begin with the first that has runs; the last ones always stay. */
function dropEmptyBeginning(overview) {
  const { points } = overview ?? NOTHING;
  const first = points.findIndex((point) => point.runs || point.member_runs);
  const from = Math.min(first, points.length - LEAST_POINTS);
  return from > 0 ? { ...overview, points: points.slice(from) } : overview;
}

/** The list of sessions, for callers who may not read sums. */
function Instead({ query }) {
  const { me } = useCaller();
  return html`<div class="notice"><div class="bar yellow" role="status">
      The overview needs <code>usage:read</code>; your token has <code>${printable(me?.scopes.join(", ") || "no scopes")}</code>.
    </div></div>
    <${Later} load=${() => import("./sessions.js")} query=${query} />`;
}

/** Return the place of the runs that ended in a period and match the filters of the overview. */
const toRuns = (query, since, before, more = {}) => toHash(["runs"], {
  all: 1, parent: "none", since, before, ...Object.fromEntries([...FILTERS, "db"].map((name) => [name, query[name]])), ...more,
});

/** Return the sums of some points: runs, failed ones with their causes, tokens and cost. */
function sumOf(points) {
  const sum = { runs: 0, failed: 0, total_tokens: 0, unpriced_tokens: 0, cost: 0 };
  const causes = new Map();
  for (const point of points) {
    for (const name of Object.keys(sum)) sum[name] += point[name] ?? 0;
    for (const { error_code: code, runs } of point.failures) causes.set(code, (causes.get(code) || 0) + runs);
  }
  if (sum.unpriced_tokens && sum.unpriced_tokens === sum.total_tokens) sum.cost = null;
  const failures = [...causes].map(([error_code, runs]) => ({ error_code, runs })).sort((one, other) => other.runs - one.runs);
  return { ...sum, failures };
}

function Shown({ overview, step, by, query }) {
  const { total, points } = overview;
  const brush = useBrush(points, step);
  const { first, last, held } = brush;
  const span = useMemo(() => (first === null ? null : sumOf(points.slice(first, last + 1))), [points, first, last]);
  const words = span && describeSpan(points[first].at, points[last].at, step);
  const place = (point, more) => toRuns(query, point.at || overview.since, point.at ? endOf(point.at, step) : overview.before, more);
  const ofSpan = (more) => toRuns(query, points[first].at, endOf(points[last].at, step), more);
  const describe = () => `${words}: ${many(span.runs, "run")}, ${formatNumber(span.failed)} failed, ${many(span.total_tokens, "token")}, cost ${costOf(span)}`;
  const shared = { brush, total, describe, open: () => (location.hash = ofSpan()) };
  const nothing = total && !total.runs && !total.member_runs;
  const causes = useFailureWords(query, held ? points[first].at : overview.since, held ? endOf(points[last].at, step) : overview.before);
  return html`<${Tiles} overview=${overview} place=${place} query=${query} />
    ${nothing ? html`<${Empty} filters=${FILTERS} query=${query} none="No runs match these filters in this period.">
      No runs ended in this period. <a href="#/agents">Start a run</a><//>` : html`<${Patterns} />
    <div class="split figures">
      <${Figure} title="Runs" note="by outcome" ...${shared} series=${ENDS.map(([name, status, look]) => ({
          name, look, value: (point) => point[name], href: (point) => place(point, { status }) }))}
        more=${[{ name: "runs", value: (point) => point.runs, href: place }, { name: "of members", value: (point) => point.member_runs }]} />
      <${Figure} title="Failures by cause" note=${held ? words : ""} brush=${brush}>
        <${Causes} failures=${(held ? span : total)?.failures || []} href=${(more) => (held ? ofSpan(more) : place(total, more))}
          words=${causes} /><//>
      <${Times} title="Time to first token" name="first_token" shared=${shared} />
      <${Times} title="Duration" name="duration" shared=${shared} />
      <${Figure} title="Tokens" ...${shared} short=${formatShort} series=${[
          { name: "in", look: "plain", value: (point) => point.input_tokens }, { name: "out", look: "dotted", value: (point) => point.output_tokens }]}
        more=${[{ name: "total", value: (point) => point.total_tokens }, { name: "cached", value: (point) => point.cache_read_tokens },
          { name: "model calls", value: (point) => point.model_calls }]} />
      <${Figure} title="Cost" note="US dollars" ...${shared} remark=${total?.unpriced_tokens ? `${many(total.unpriced_tokens, "token")} not priced` : ""} format=${formatCost} series=${[{ name: "cost", look: "plain", value: (point) => point.cost }]}
        more=${[{ name: "tokens without a price", value: (point) => formatNumber(point.unpriced_tokens) }]} />
    </div>
    <div class=${`strip row brushed ${span ? "over" : ""}`} data-brushed>
      ${span
        ? html`<b>${words}</b> <span class="mid">${formatNumber(span.failed)} failed · ${many(span.total_tokens, "token")} · ${costOf(span)}</span>${" "}
            ${held
              ? html`<a href=${ofSpan()}>Show ${many(span.runs, "run")}</a>
                  ${span.failed ? html`<a href=${ofSpan({ status: "ERROR" })}>Show failed ones</a>` : null}
                  <button type="button" class="link" onClick=${brush.clear}>Clear</button>`
              : html`<span>${many(span.runs, "run")}</span>`}`
        : html`<span class="dim">Drag across a chart to select ${step}s, then press Enter to see those runs. In a chart, the arrow keys select, too.</span>`}
    </div>
    <${Groups} overview=${overview} by=${by} query=${query} place=${place} />`}`;
}

function Tiles({ overview, place, query }) {
  const { total, waiting } = overview;
  const share = total?.runs ? `${Math.round((1000 * total.failed) / total.runs) / 10}% of the runs` : "";
  const link = (count, href) => (count ? html`<a href=${href()}>${formatNumber(count)}</a>` : "0");
  const tiles = [
    ["Runs", total && link(total.runs, () => place(total)), total?.unreported_runs ? `${many(total.unreported_runs, "run")} reported no tokens` : ""],
    ["Failed", total && link(total.failed, () => place(total, { status: "ERROR" })), share],
    ["Tokens", total && formatNumber(total.total_tokens), total ? many(total.model_calls, "model call") : ""],
    ["Cost", total && costOf(total),
      total?.cost != null && total.unpriced_tokens ? "some tokens not priced" : ""],
    ["Waiting for approval", waiting && (canList("approvals")
      ? link(waiting.approvals, () => toHash(["approvals"], { db: query.db })) : formatNumber(waiting.approvals)),
      waiting?.oldest_at ? `oldest ${formatAgo(waiting.oldest_at)}` : ""],
  ];
  return html`<dl class="tiles">${tiles.map(([name, value, note]) => html`<div key=${name} data-tile=${name}><dt>${name}</dt>
    <dd><b>${value ?? "–"}</b> <span class="dim">${note}</span></dd></div>`)}</dl>`;
}

function Times({ title, name, shared }) {
  // An agent in code has no call of a model, and so no first token.
  const [timed, ended] = [shared.total?.[name].count, shared.total?.duration.count];
  const remark = timed < ended ? `measured in ${formatNumber(timed)} of ${many(ended, "run")}` : "";
  return html`<${Figure} title=${title} note="logarithmic" ...${shared} remark=${remark} lines=${true} format=${formatTime} short=${formatTick}
    series=${PERCENTILES.map(([percentile, look]) => ({ name: percentile, look, value: (point) => point[name][percentile] }))}
    more=${[{ name: "runs", value: (point) => formatNumber(point[name].count) }]} />`;
}

const Bar = ({ part, look = "solid" }) => html`<td class="share" aria-hidden="true"><svg width="100%" height="12">
  <rect y="1" height="10" width=${`${Math.max(part ? 1 : 0, 100 * part)}%`} fill=${look === "solid" ? "var(--accent)" : "url(#hatched)"} /></svg></td>`;

/** Return the most frequent words for each code of the newest failures; without `runs:debug` none. */
function useFailureWords(query, since, before) {
  const allowed = since && can("runs", "debug");
  const { data } = useResource(allowed ? withQuery("/failures", {
    parent: "none", limit: 100, finished_after: since, finished_before: before, component_id: query.component,
    component_type: query.type, model: query.model, user_id: query.user, version: query.version, db_id: query.db,
  }) : null);
  return useMemo(() => {
    const counts = new Map();
    for (const { error, cause } of data?.data ?? []) {
      const exception = exceptionOf(cause);
      const words = exception ? describeCause(exception) : error.detail;
      if (!counts.has(error.code)) counts.set(error.code, new Map());
      const ofCode = counts.get(error.code);
      ofCode.set(words, (ofCode.get(words) || 0) + 1);
    }
    return new Map([...counts].map(([code, found]) => {
      const [[words], ...others] = [...found].sort(([, one], [, other]) => other - one);
      return [code, others.length ? `${words} (and ${many(others.length, "other cause")})` : words];
    }));
  }, [data]);
}

function Causes({ failures, href, words }) {
  if (!failures.length) return html`<p class="dim causes">No run failed.</p>`;
  return html`<div class="scroll causes" tabindex="0" role="region" aria-label="Table: Failures by cause"><table>
    <thead><tr><th scope="col">Cause</th><th scope="col" class="right">Runs</th><th class="share"><span class="hidden">Share</span></th></tr></thead>
    <tbody>${failures.map(({ error_code: code, runs }) => html`<tr key=${code}><th scope="row"><code>${printable(code)}</code>${words.has(code) ? html`<div class="two dim" title=${printable(words.get(code))}>${cut(words.get(code), 200)}</div>` : null}</th>
      <td class="right"><a href=${href({ status: "ERROR", error: code })}>${formatNumber(runs)}</a></td><${Bar} part=${runs / failures[0].runs} look="hatched" /></tr>`)}</tbody>
  </table></div>`;
}

/** The largest components, models, users or versions, with ways to their runs and to their overview. */
function Groups({ overview, by, query, place }) {
  const { names } = useComponents();
  const { data, groups } = overview;
  const most = Math.max(1, ...data.map((group) => group.runs));
  const keyOf = (group) => (by === "component" ? { component: group.component_id, type: group.component_type } : { [by]: group[by === "user" ? "user_id" : by] });
  const nameOf = (group) => {
    if (by !== "component") return group[by === "user" ? "user_id" : by];
    return names.get(`${group.component_type}:${group.component_id}`) || group.component_id;
  };
  const count = (group, number, more) => (nameOf(group) === null || !number ? formatNumber(number) : html`<a href=${place({}, { ...keyOf(group), ...more })}>${formatNumber(number)}</a>`);
  const times = (found) => PERCENTILES.map(([name]) => (found.count ? formatTime(found[name]) : "–")).join(" · ");
  return html`<section><h2 class="group">${GROUPS[by]}s</h2>
    ${groups > data.length ? html`<p class="dim">The ${data.length} largest of ${formatNumber(groups)}</p>` : null}
    <div class="scroll" tabindex="0" role="region" aria-label=${`Table: ${GROUPS[by]}s`} data-groups><table>
      <thead><tr><th scope="col">${GROUPS[by]}</th><th scope="col" class="right">Runs</th><th class="share"><span class="hidden">Share</span></th>
        <th scope="col" class="right">Failed</th><th scope="col" class="right">First token p50 · p95 · p99</th>
        <th scope="col" class="right">Duration p50 · p95 · p99</th><th scope="col" class="right">Tokens</th><th scope="col" class="right">Cost</th></tr></thead>
      <tbody>${data.map((group) => {
        const name = nameOf(group);
        return html`<tr key=${writeExact(keyOf(group))}><th scope="row" dir="auto">${name === null
            ? html`<span class="dim">none</span>`
            : html`<a href=${toHash(["overview"], { ...query, ...keyOf(group) })}>${cut(name, 60)}${(group.component_type ?? "agent") === "agent" ? "" : html` <span class="dim">${group.component_type}</span>`}</a>`}</th>
          <td class="right">${count(group, group.runs)}</td><${Bar} part=${group.runs / most} />
          <td class="right">${count(group, group.failed, { status: "ERROR" })}</td><td class="right">${times(group.first_token)}</td>
          <td class="right">${times(group.duration)}</td><td class="right">${formatNumber(group.total_tokens)}</td><td class="right">${costOf(group)}</td></tr>`;
      })}</tbody>
    </table></div></section>`;
}
