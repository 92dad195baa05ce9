// Failed runs in groups of one exception: its first line, how many, when, and the last one.

import { componentOf, isFinal, kindOf } from "./api.js";
import { describeCause, RunTable } from "./runs.js";
import {
  cut, formatAge, formatNumber, formatTotal, html, phaseOf, toHash, twoLines, useNames, useNow, useState,
} from "./ui.js";

const BARS = 24;

/** Return groups of failed runs, the largest first. Runs with equal place and type of their exception are a group. */
export function groupFailures(rows, causes) {
  const groups = new Map();
  for (const run of rows.filter(isFinal)) {
    const cause = causes.get(run.run_id);
    const words = cause ? describeCause(cause) : phaseOf(run).sentence;
    const key = cause ? `${cause.type} ${cause.place ?? cause.message}` : words;
    if (!groups.has(key)) groups.set(key, { key, words, place: cause?.place ?? "", runs: [] });
    groups.get(key).runs.push(run);
  }
  return [...groups.values()].sort((one, other) => other.runs.length - one.runs.length);
}

/** The failed runs that are loaded, in groups, and the runs of the chosen group. */
export function FailureGroups({ rows, causes, meta, more, db }) {
  const [chosen, choose] = useState("");
  const names = useNames();
  const now = useNow(10_000);
  const groups = groupFailures(rows, causes);
  const times = rows.map((run) => Date.parse(run.finished_at)).filter((time) => time);
  const span = [Math.min(...times), now];
  const group = groups.find((each) => each.key === chosen);
  return html`<p class="row spread dim"><span role="status">${formatNumber(groups.length)} ${groups.length === 1 ? "group" : "groups"} of
      ${rows.length < meta.total_count ? ` the newest ${formatNumber(rows.length)} of` : ""} ${formatTotal(meta, "failure")}</span>
      ${more.available ? html`<button type="button" class="link" disabled=${more.busy} onClick=${more.load}>Load 100 more</button>` : null}</p>
    <div class="table"><table>
      <colgroup><col class="w-name" /><col class="full w-part" /><col class="w-number" /><col class="mid w-bars" /><col class="mid w-short" /></colgroup>
      <thead><tr><th>Exception</th><th class="full">Component</th><th class="right">Runs</th><th class="mid">${formatAge(new Date(span[0]).toISOString(), now)} to now</th><th class="mid right">Last</th></tr></thead>
      <tbody>${groups.map((each) => {
        const [last] = each.runs;
        const found = [...new Set(each.runs.map((run) => names.get(`${kindOf(run)}:${componentOf(run)}`) || componentOf(run)))].join(", ");
        return html`<tr key=${each.key} data-group>
          <td class="name" dir="auto"><a data-row href=${toHash(["sessions", last.session_id], { run: last.parent_run_id ? "" : last.run_id, db })} title=${each.place}><div class="two red">${cut(each.words, 140)}</div>
            <span class="sub">${cut(found, 60)}<span class="phone"> · ${formatAge(last.finished_at, now)}</span></span></a></td>
          <td class="full">${twoLines(cut(found, 60))}</td>
          <td class="right"><button type="button" class="link" aria-expanded=${chosen === each.key} aria-label=${`Show the runs: ${each.runs.length}`}
            onClick=${() => choose(chosen === each.key ? "" : each.key)}>${formatNumber(each.runs.length)}</button></td>
          <td class="mid"><${Bars} runs=${each.runs} span=${span} /></td>
          <td class="mid right" title=${last.finished_at}>${formatAge(last.finished_at, now)}</td></tr>`;
      })}</tbody></table></div>
    ${group ? html`<section><h2 class="group">${cut(group.words, 100)}</h2><${RunTable} rows=${group.runs} db=${db} causes=${causes} /></section>` : null}`;
}

/** The number of runs over the time of all groups. */
function Bars({ runs, span: [from, to] }) {
  const counts = new Array(BARS).fill(0);
  for (const run of runs) counts[Math.max(0, Math.min(BARS - 1, Math.floor((BARS * (Date.parse(run.finished_at) - from)) / (to - from || 1))))] += 1;
  const most = Math.max(...counts);
  const path = counts.map((count, at) => (count ? `M${at * 5} 24h4v${-Math.max(2, (22 * count) / most)}h-4z` : "")).join("");
  return html`<svg width=${BARS * 5} height="24" aria-hidden="true"><path d=${path} fill="var(--red)" /><path d=${`M0 23.5h${BARS * 5}`} stroke="var(--line)" /></svg>`;
}
