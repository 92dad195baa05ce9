// The list of sessions: filters in the hash, pages by cursor, deletion of marked ones.

import { call, can, chatUrl, kindOf, mayCall, nameOf, withQuery } from "../app/api.js";
import { COMPONENT, Filters, RUN_STATUS, TYPE } from "../app/filters.js";
import {
  costOf, cut, describeHold, DialogButton, Empty, formatAgo, formatNumber, formatShort, formatTotal,
  html, Later, Loaded, LoadMore, LongTable, many, Page, printable, shortCostOf, Snippet, Status, toHash, twoLines,
  useMarks, useNames, useNow, usePages, useState,
} from "../app/ui.js";

const EVERY = 5000;
const KEYS = [
  { key: "status", about: "of the newest run", values: RUN_STATUS },
  { key: "user", about: "the user of the session" },
  COMPONENT,
  TYPE,
  { key: "name", about: "beginning of the name" },
  { key: "tag", about: "a tag of the session" },
  { key: "id", about: "beginning of the id, at least 8 characters" },
  { key: "sort", about: "order of the list", values: [["created", "created_at"]] },
];
const FILTERS = ["search", "db", ...KEYS.map(({ key }) => key)];

export default function Sessions({ query }) {
  const filters = {
    search: query.search,
    session_name: query.name,
    id_prefix: query.id,
    type: query.type,
    component_id: query.component,
    user_id: query.user,
    db_id: query.db,
    status: query.status,
    tag: query.tag,
    sort_by: query.search ? "created_at" : query.sort || "updated_at",
  };
  const { resource, rows, more } = usePages("/sessions", filters, { every: EVERY, key: "session_id" });
  const [marked, mark, unmark] = useMarks();
  const [asking, setAsking] = useState(false);
  const meta = resource.data?.meta;
  const aside = html`${meta && formatTotal(meta, "session")}
    ${mayCall("get_files") ? html`<${DialogButton} label="Files" load=${() => import("../app/files.js")} name="FilesDialog" db=${query.db} />` : null}
    ${chatUrl ? html`<a class="button primary" href=${chatUrl}>New chat</a>` : null}`;
  return html`<${Page} title="Sessions" wide=${true} aside=${aside}>
    <${Filters} page="sessions" keys=${KEYS} words=${{ name: "search" }} query=${query} />
    <${Loaded} resource=${resource} place="/sessions">
      ${() => {
        if (!rows.length && !more.available) return html`<${Nothing} query=${query} />`;
        return html`<${Table} rows=${rows} query=${query} marked=${marked} onMark=${mark} />
          <${LoadMore} more=${more} />
          ${marked.size
            ? html`<div class="selection" role="region" aria-label="Selection" data-selection>
                <span role="status">${formatNumber(marked.size)} selected</span>
                <button type="button" class="danger" disabled=${!can("sessions", "delete")}
                  title=${can("sessions", "delete") ? null : "needs sessions:delete"}
                  onClick=${() => setAsking(true)}>
                  Delete ${many(marked.size, "session")}…
                </button>
                <button type="button" class="link" onClick=${unmark}>Clear</button>
              </div>`
            : null}
          ${asking
            ? html`<${DeleteDialog} sessions=${rows.filter((row) => marked.has(row.session_id))}
                db=${query.db}
                onDone=${() => (setAsking(false), unmark(), resource.reload())}
                onClose=${() => setAsking(false)} />`
            : null}`;
      }}
    <//>
  <//>`;
}

function Nothing({ query }) {
  return html`<${Empty} filters=${FILTERS} query=${query} none="No sessions match.">No sessions yet. <a href="#/agents">Start a run</a><//>`;
}

function Table({ rows, query, marked, onMark }) {
  const names = useNames();
  const now = useNow(10_000);
  const row = (each, at) => html`<${Row} key=${each.session_id} row=${each} at=${at} now=${now} db=${query.db} names=${names}
    marked=${marked.has(each.session_id)} onMark=${onMark} />`;
  return html`<${LongTable} rows=${rows} row=${row} columns=${html`<col class="mid w-mark" /><col class="w-name" /><col class="w-status" /><col class="full w-component" />
      <col class="full w-number" /><col class="full w-number" /><col class="full w-cost" /><col class="full w-user" /><col class="mid w-ago" />`}>
    <th class="mid"><span class="hidden">Mark</span></th><th>Name</th><th>Status</th><th class="full">Component</th>
    <th class="full right">Runs</th><th class="full right">Tokens</th><th class="full right">Cost</th><th class="full">User</th><th class="mid">Last used</th>
  <//>`;
}

function Row({ row, at, now, db, names, marked, onMark }) {
  const component = cut(nameOf(row, names), 60);
  const name = cut(row.session_name, 120) || printable(row.session_id);
  const href = toHash(["sessions", row.session_id], { db });
  return html`<tr aria-rowindex=${at + 2}>
    <td class="mid">
      <input type="checkbox" checked=${marked} aria-label=${`Mark ${name}`}
        onChange=${() => onMark(row.session_id)} />
    </td>
    <td class="name" dir="auto"><a data-row href=${href} title=${row.session_id}>${row.hold ? html`<bdi class="chip" title=${describeHold(row.hold)}>held</bdi> ` : null}${name}
      ${row.match ? html`<span class="found"><${Snippet} match=${row.match} /></span>` : null}
      <span class="sub">${component}<span class="phone"> · ${formatAgo(row.updated_at, now)}</span></span></a></td>
    <td class="state">${row.last_run ? html`<${Status} run=${row.last_run} />` : html`<span class="dim">no runs</span>`}</td>
    <td class="full">${twoLines(component, kindOf(row) === "agent" ? null : html` <span class="dim">${kindOf(row)}</span>`)}</td>
    <td class="full right">${formatNumber(row.run_count)}</td>
    <td class="full right" title=${formatNumber(row.total_tokens)}>${formatShort(row.total_tokens)}</td>
    <td class="full right" title=${costOf(row)}>${shortCostOf(row)}</td>
    <td class="full" dir="auto">${twoLines(printable(row.user_id ?? "–"))}</td>
    <td class="mid nowrap" title=${row.updated_at}>${formatAgo(row.updated_at, now)}</td>
  </tr>`;
}

function DeleteDialog({ sessions, db, onDone, onClose }) {
  const count = many(sessions.length, "session");
  const remove = async () => {
    for (let at = 0; at < sessions.length; at += 100) {
      const ids = sessions.slice(at, at + 100).map((each) => each.session_id);
      await call("DELETE", withQuery("/sessions", { db_id: db }), { body: { session_ids: ids } }).catch((error) => {
        if (error.code === "HELD") error.message += ". An administrator can release it on its page.";
        throw error;
      });
    }
    onDone();
  };
  return html`<${Later} load=${() => import("../app/runs.js")} name="Ask" title=${`Delete ${count}?`} close="Keep" verb=${`Delete ${count}`} work=${remove} onClose=${onClose}>
    <ul>
      ${sessions.slice(0, 10).map((each) => html`<li>${cut(each.session_name, 80) || each.session_id}</li>`)}
      ${sessions.length > 10 ? html`<li>and ${sessions.length - 10} more</li>` : null}
    </ul>
    <p>Their runs and messages are deleted with them. This cannot be undone.</p>
  <//>`;
}
