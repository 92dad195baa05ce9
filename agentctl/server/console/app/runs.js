// The table of runs, and failed runs in groups, with their exceptions for callers that may read them.

import { call, can, componentOf, isFinal, kindOf, tokensOf, withQuery } from "./api.js";
import {
  cut, formatAge, formatNumber, formatShort, formatSpan, formatTotal, html, LongTable, phaseOf,
  printable, shortId, Snippet, Status, toHash, tookMilliseconds, twoLines, useEffect, useNames, useNow,
  useState,
} from "./ui.js";

const PAGE_ROWS = 100;

/** Return the causes of the failed runs of a list by their ids; null for one without a cause.
 *
 * `filters` are those of the list of runs. Callers without `runs:debug` have none.
 */
export function useCauses(rows, filters) {
  const [causes, set] = useState(new Map());
  const failed = can("runs", "debug") ? rows.filter((run) => run.status === "ERROR") : [];
  const missing = failed.map((run) => run.run_id).filter((id) => !causes.has(id));
  const key = missing.join();
  useEffect(() => {
    if (!key) return;
    let gone = false;
    const load = async () => {
      const { status, live, view, ...others } = filters;
      const found = new Map();
      let cursor = "";
      // The failed runs of these rows are on as many pages, or fewer.
      for (let left = 1 + Math.ceil(rows.length / PAGE_ROWS); left && cursor !== null; left -= 1) {
        const page = await call("GET", withQuery("/failures", { ...others, limit: PAGE_ROWS, cursor }));
        for (const each of page.data) found.set(each.run_id, each.cause);
        cursor = missing.every((id) => found.has(id)) ? null : page.meta.next_cursor;
      }
      const unknown = missing.filter((id) => !found.has(id)).map((id) => [id, null]);
      if (!gone) set((old) => new Map([...old, ...found, ...unknown]));
    };
    load().catch(() => null);
    return () => {
      gone = true;
    };
  }, [key]);
  return causes;
}

export const describeCause = ({ type, message }) => (message ? `${type}: ${message.split("\n", 1)[0]}` : type);

/** A table of runs. With `onMark`, live runs can be marked and cancelled.
 *
 * `causes` are those of `useCauses`. `alone` is true for the runs of one component.
 */
export function RunTable({ rows, db, marked, onMark, onCancel, causes = new Map(), alone = false }) {
  const names = useNames();
  const now = useNow(1000);
  const mark = onMark && rows.some((run) => !isFinal(run)) ? onMark : null;
  const row = (run, at) => html`<${Row} key=${run.run_id} run=${run} at=${at} now=${now} db=${db}
    names=${names} marked=${marked?.has(run.run_id)} onMark=${mark} onCancel=${onCancel} cause=${causes.get(run.run_id)} alone=${alone} />`;
  return html`<${LongTable} rows=${rows} row=${row} columns=${html`${mark ? html`<col class="mid w-mark" />` : null}
      <col class="w-id w-name" /><col class="w-status" />${alone ? null : html`<col class="full w-part" />`}<col class="opt w-part" />
      <col class="far w-component" /><col class=${mark ? "mid w-age" : "mid w-short"} /><col class="full w-number" /><col class="full" />
      ${mark ? html`<col class="w-action" />` : null}`}>
    ${mark ? html`<th class="mid"><span class="hidden">Mark</span></th>` : null}
    <th>Run</th><th>Status</th>${alone ? null : html`<th class="full">Component</th>`}<th class="opt">User</th><th class="far">Session</th>
    <th class="mid right">Age</th><th class="full right">Tokens</th><th class="full">Detail</th>
    ${mark ? html`<th><span class="hidden">Cancel</span></th>` : null}
  <//>`;
}

function Row({ run, at, now, db, names, marked, onMark, onCancel, cause, alone }) {
  const phase = phaseOf(run);
  const kind = kindOf(run);
  const name = names.get(`${kind}:${componentOf(run)}`) || componentOf(run);
  const href = toHash(["sessions", run.session_id], { run: run.parent_run_id ? "" : run.run_id, db });
  const live = !isFinal(run);
  const allowed = can(`${kind}s`, "run", componentOf(run));
  const color = run.match ? "dim" : phase.warning || phase.name === "paused" ? "yellow" : phase.name === "failed" ? "red" : "dim";
  const detail = run.match ? html`<${Snippet} match=${run.match} />` : cut(cause ? describeCause(cause) : phase.sentence || run.input, 140);
  return html`<tr aria-rowindex=${at + 2} data-run=${run.run_id} class=${run.depth ? "member" : ""}>
    ${onMark ? html`<td class="mid">${live ? html`<input type="checkbox" checked=${marked} disabled=${!allowed}
      aria-label=${`Mark run ${shortId(run.run_id)}`} onChange=${() => onMark(run.run_id)} />` : null}</td>` : null}
    <td class="name"><a data-row href=${href} title=${run.run_id}><span class="full mono">${run.depth ? "└ " : ""}${shortId(run.run_id)}</span>
      <span class="compact">${run.depth ? "└ " : ""}${alone ? shortId(run.run_id) : cut(name, 60)}</span>
      <span class="sub"><span class=${color}>${detail}${alone ? "" : ` · ${shortId(run.run_id)}`}</span></span></a></td>
    <td class="state"><${Status} run=${run} /></td>
    ${alone ? null : html`<td class="full" dir="auto">${twoLines(cut(name, 60), kind === "agent" ? null : html` <span class="dim">${kind}</span>`)}</td>`}
    <td class="opt" dir="auto">${twoLines(printable(run.user_id ?? "–"))}</td>
    <td class="far mono" title=${run.session_id}>${twoLines(cut(run.session_id, 40))}</td>
    <td class="mid right nowrap" title=${run.created_at}>${live ? formatSpan(tookMilliseconds(run, now) / 1000) : formatAge(run.finished_at, now)}</td>
    <td class="full right" title=${formatNumber(tokensOf(run))}>${formatShort(tokensOf(run))}</td>
    <td class="full" dir="auto"><div class=${`two ${color}`} title=${cause ? phase.sentence : phase.sentence || null}>${detail}</div></td>
    ${onMark ? html`<td class="right">${live && run.cancel_requested_at == null
      ? html`<button type="button" disabled=${!allowed} title=${allowed ? null : `needs ${kind}s:${componentOf(run)}:run`}
          aria-label=${`Cancel run ${shortId(run.run_id)}`} onClick=${() => onCancel(run)}>Cancel</button>` : null}</td>` : null}
  </tr>`;
}

const BARS = 24;

/** Return groups of failed runs, the largest first. Runs with equal place and type of their exception are a group. */
function groupFailures(rows, causes) {
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

function Bars({ runs, span: [from, to] }) {
  const counts = new Array(BARS).fill(0);
  for (const run of runs) counts[Math.max(0, Math.min(BARS - 1, Math.floor((BARS * (Date.parse(run.finished_at) - from)) / (to - from || 1))))] += 1;
  const most = Math.max(...counts);
  const path = counts.map((count, at) => (count ? `M${at * 5} 24h4v${-Math.max(2, (22 * count) / most)}h-4z` : "")).join("");
  return html`<svg width=${BARS * 5} height="24" aria-hidden="true"><path d=${path} fill="var(--red)" /><path d=${`M0 23.5h${BARS * 5}`} stroke="var(--line)" /></svg>`;
}
