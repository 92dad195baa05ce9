// The list of sessions: filters in the hash, pages by cursor, deletion of marked ones.

import { call, can, componentOf, kindOf, mayCall, withQuery } from "../app/api.js";
import { Filters } from "../app/filters.js";
import {
  cut, describeHold, Dialog, DialogButton, Empty, formatAge, formatNumber, formatShort, formatTotal,
  html, Loaded, LoadMore, LongTable, Page, printable, Snippet, Status, STATUSES, toHash, twoLines,
  useAction, useEffect, useNow, usePages, useRef, useState,
} from "../app/ui.js";

const EVERY = 5000;
const KEYS = [
  { key: "status", about: "of the newest run", values: Object.entries(STATUSES).map(([value, word]) => [word, value]) },
  { key: "user", about: "the user of the session" },
  { key: "component", about: "id of an agent, team or workflow" },
  { key: "type", about: "kind of component", values: ["agent", "team", "workflow"].map((kind) => [kind, kind]) },
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
  const [marked, setMarked] = useState(new Set());
  const [asking, setAsking] = useState(false);
  const mark = (id) => {
    const next = new Set(marked);
    if (!next.delete(id)) next.add(id);
    setMarked(next);
  };
  const meta = resource.data?.meta;
  return html`<${Page} title="Sessions" aside=${html`${meta && formatTotal(meta, "session")}
    ${mayCall("get_files") ? html`<${DialogButton} label="Files" load=${() => import("../app/files.js")} name="FilesDialog" db=${query.db} />` : null}`}>
    <${Filters} page="sessions" keys=${KEYS} words=${{ name: "search" }} query=${query} />
    <${Loaded} resource=${resource} place="/sessions">
      ${() => {
        if (!rows.length && !more.available) return html`<${Nothing} query=${query} />`;
        return html`<${Table} rows=${rows} query=${query} marked=${marked} onMark=${mark} />
          <${LoadMore} more=${more} />
          ${marked.size
            ? html`<div class="more">
                <button type="button" class="danger" disabled=${!can("sessions", "delete")}
                  title=${can("sessions", "delete") ? null : "needs sessions:delete"}
                  onClick=${() => setAsking(true)}>
                  Delete ${marked.size} ${marked.size === 1 ? "session" : "sessions"}…
                </button>
              </div>`
            : null}
          ${asking
            ? html`<${DeleteDialog} sessions=${rows.filter((row) => marked.has(row.session_id))}
                db=${query.db}
                onDone=${() => (setAsking(false), setMarked(new Set()), resource.reload())}
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
  const now = useNow(10_000);
  const row = (each, at) => html`<${Row} key=${each.session_id} row=${each} at=${at} now=${now} db=${query.db}
    marked=${marked.has(each.session_id)} onMark=${onMark} />`;
  return html`<${LongTable} rows=${rows} row=${row} columns=${html`<col class="mid w-mark" /><col class="w-name" /><col class="w-status" /><col class="full w-component" />
      <col class="full w-number" /><col class="full w-number" /><col class="full w-user" /><col class="mid w-age" />`}>
    <th class="mid"><span class="hidden">Mark</span></th><th>Name</th><th>Status</th><th class="full">Component</th>
    <th class="full right">Runs</th><th class="full right">Tokens</th><th class="full">User</th><th class="mid">Last used</th>
  <//>`;
}

function Row({ row, at, now, db, marked, onMark }) {
  const name = cut(row.session_name, 120) || printable(row.session_id);
  const href = toHash(["sessions", row.session_id], { db });
  return html`<tr aria-rowindex=${at + 2}>
    <td class="mid">
      <input type="checkbox" checked=${marked} aria-label=${`Mark ${name}`}
        onChange=${() => onMark(row.session_id)} />
    </td>
    <td class="name" dir="auto"><a data-row href=${href} title=${row.session_id}>${row.hold ? html`<bdi class="chip" title=${describeHold(row.hold)}>held</bdi> ` : null}${name}
      ${row.match ? html`<span class="found"><${Snippet} match=${row.match} /></span>` : null}
      <span class="sub">${printable(componentOf(row))}<span class="phone"> · ${formatAge(row.updated_at, now)}</span></span></a></td>
    <td class="state">${row.last_run ? html`<${Status} run=${row.last_run} />` : html`<span class="dim">no runs</span>`}</td>
    <td class="full">${twoLines(printable(componentOf(row)), kindOf(row) === "agent" ? null : html` <span class="dim">${kindOf(row)}</span>`)}</td>
    <td class="full right">${formatNumber(row.run_count)}</td>
    <td class="full right" title=${formatNumber(row.total_tokens)}>${formatShort(row.total_tokens)}</td>
    <td class="full" dir="auto">${twoLines(printable(row.user_id ?? "–"))}</td>
    <td class="mid" title=${row.updated_at}>${formatAge(row.updated_at, now)}</td>
  </tr>`;
}

function DeleteDialog({ sessions, db, onDone, onClose }) {
  const keep = useRef(null);
  useEffect(() => keep.current.focus(), []);
  const [remove, failure] = useAction(async () => {
    for (let at = 0; at < sessions.length; at += 100) {
      const ids = sessions.slice(at, at + 100).map((each) => each.session_id);
      await call("DELETE", withQuery("/sessions", { db_id: db }), { body: { session_ids: ids } });
    }
    onDone();
  });
  const count = `${sessions.length} ${sessions.length === 1 ? "session" : "sessions"}`;
  return html`<${Dialog} title=${`Delete ${count}?`} onClose=${onClose}>
    <ul>
      ${sessions.slice(0, 10).map((each) => html`<li>${cut(each.session_name, 80) || each.session_id}</li>`)}
      ${sessions.length > 10 ? html`<li>and ${sessions.length - 10} more</li>` : null}
    </ul>
    <p>Their runs and messages are deleted with them. This cannot be undone.</p>
    ${failure ? html`<p class="error" role="alert">${printable(failure.message)}
      ${failure.code === "HELD" ? ". An administrator can release it on its page." : null}</p>` : null}
    <div class="buttons">
      <button type="button" ref=${keep} onClick=${onClose}>Keep</button>
      <button type="button" class="danger" onClick=${remove}>Delete ${count}</button>
    </div>
  <//>`;
}
