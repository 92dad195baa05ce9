// The table of runs, with the exceptions of failed ones for callers that may read them.

import { call, can, componentOf, isFinal, kindOf, tokensOf, withQuery } from "./api.js";
import {
  cut, formatAge, formatNumber, formatShort, formatSpan, html, phaseOf, printable, shortId, Space, Status,
  toHash, tookMilliseconds, twoLines, useEffect, useNames, useNow, useRef, useReturn, useState, useWindow,
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

/** Return the words of a cause: the exception, and the first line of its message. */
export const describeCause = ({ type, message }) => (message ? `${type}: ${message.split("\n", 1)[0]}` : type);

/** A table of runs. With `onMark`, live runs can be marked and cancelled.
 *
 * `causes` are those of `useCauses`. `alone` is true for the runs of one component.
 */
export function RunTable({ rows, db, marked, onMark, onCancel, causes = new Map(), alone = false }) {
  const body = useRef(null);
  const names = useNames();
  const now = useNow(1000);
  const { from, to, before, after } = useWindow(rows.length, body);
  useReturn(body);
  const mark = onMark && rows.some((run) => !isFinal(run)) ? onMark : null;
  return html`<div class="table">
    <table aria-rowcount=${rows.length + 1}>
      <colgroup>
        ${mark ? html`<col class="mid w-mark" />` : null}
        <col class="w-id w-name" /><col class="w-status" />${alone ? null : html`<col class="full w-part" />`}<col class="opt w-part" />
        <col class="far w-component" /><col class=${mark ? "mid w-age" : "mid w-short"} /><col class="full w-number" /><col class="full" />
        ${mark ? html`<col class="w-action" />` : null}
      </colgroup>
      <thead><tr>
        ${mark ? html`<th class="mid"><span class="hidden">Mark</span></th>` : null}
        <th>Run</th><th>Status</th>${alone ? null : html`<th class="full">Component</th>`}<th class="opt">User</th><th class="far">Session</th>
        <th class="mid right">Age</th><th class="full right">Tokens</th><th class="full">Detail</th>
        ${mark ? html`<th><span class="hidden">Cancel</span></th>` : null}
      </tr></thead>
      <tbody ref=${body}>
        <${Space} height=${before} />
        ${rows.slice(from, to).map((run, at) => html`<${Row} key=${run.run_id} run=${run} at=${from + at} now=${now} db=${db}
          names=${names} marked=${marked?.has(run.run_id)} onMark=${mark} onCancel=${onCancel} cause=${causes.get(run.run_id)} alone=${alone} />`)}
        <${Space} height=${after} />
      </tbody>
    </table>
  </div>`;
}

function Row({ run, at, now, db, names, marked, onMark, onCancel, cause, alone }) {
  const phase = phaseOf(run);
  const kind = kindOf(run);
  const name = names.get(`${kind}:${componentOf(run)}`) || componentOf(run);
  const href = toHash(["sessions", run.session_id], { run: run.parent_run_id ? "" : run.run_id, db });
  const live = !isFinal(run);
  const allowed = can(`${kind}s`, "run", componentOf(run));
  const color = phase.warning || phase.name === "paused" ? "yellow" : phase.name === "failed" ? "red" : "dim";
  const detail = cut(cause ? describeCause(cause) : phase.sentence || run.input, 140);
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
