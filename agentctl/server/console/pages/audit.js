// The audit log: entries with filters in the hash, new ones as they come, an explanation of denials.

import { call, withQuery } from "../app/api.js";
import { Filters, same, useAgo } from "../app/filters.js";
import {
  Copy, cut, Empty, formatClock, Glyph, html, Loaded, LoadMore, LongTable, Page,
  printable, saveFile, setQuery, shortId, toHash, Toggle, useKeys, useNow, usePages, useState,
} from "../app/ui.js";
import { writeExact } from "../app/exact.js";

const LOOKS = { allowed: ["✓", "green"], denied: ["✗", "red"], failed: ["!", "yellow"] };

const KEYS = [
  { key: "principal", about: "who asked" },
  { key: "operation", about: "name of an operation, such as create_agent_run" },
  { key: "outcome", about: "what the server did", values: same(...Object.keys(LOOKS)) },
  { key: "since", about: "the last hour, day or week", values: [["1h", "3600"], ["1d", "86400"], ["7d", "604800"]] },
];

const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}$/;

export default function Audit({ query }) {
  const following = query.follow !== "0";
  const since = useAgo(query.since);
  const filters = { principal: query.principal, operation: query.operation, outcome: query.outcome, since };
  const every = following ? 2000 : 0;
  const { resource, rows, more } = usePages("/audit", filters, { every, key: "seq" });
  const follow = () => setQuery({ follow: following ? "0" : "" });
  useKeys({ f: follow });
  const aside = html`
    <${Toggle} label="Follow" on=${following} onClick=${follow} />
    <${Export} filters=${filters} />`;
  return html`<${Page} title="Audit" wide=${true} aside=${aside}>
    <${Filters} page="audit" keys=${KEYS} query=${query} />
    <${Loaded} resource=${resource} place="/audit">
      ${() => {
        if (!rows.length) {
          return html`<${Empty} filters=${Object.keys(filters)} query=${query} none="No entries match.">No entries yet. Changes and denials are recorded here.<//>`;
        }
        return html`<${Table} rows=${rows} />
          <${LoadMore} more=${more} />`;
      }}
    <//>
  <//>`;
}

function Table({ rows }) {
  useNow(30_000);
  return html`<${LongTable} rows=${rows} row=${(each, at) => html`<${Row} key=${each.seq} row=${each} at=${at} />`}
    columns=${html`<col class="w-time" /><col class="full w-component" /><col class="w-outcome" /><col class="w-operation" />
      <col class="full" /><col class="opt w-id" /><col class="mid w-action" />`}>
    <th>Time<span class="full"> (UTC)</span></th><th class="full">Principal</th><th>Outcome</th><th>Operation</th>
    <th class="full">Resource</th><th class="opt">Request</th><th class="mid"><span class="hidden">Explain</span></th>
  <//>`;
}

function Row({ row, at }) {
  const today = new Date().toISOString().slice(0, 10);
  const day = row.at.slice(0, 10);
  const reason = row.reason ? `: ${row.reason}` : "";
  const found = /session:([^,]+)/.exec(row.resource || "")?.[1];
  const ids = (row.resource || "").split(",").map((part) => part.replace(/^[a-z_]+:/, ""));
  const resource = cut(ids.map((id) => (UUID.test(id) ? shortId(id) : id)).join(" · "), 140);
  return html`<tr aria-rowindex=${at + 2}>
    <td class="state" title=${row.at}>${day === today ? "" : html`<span class="dim">${day.slice(5)}</span> `}${formatClock(row.at)}</td>
    <td class="full" dir="auto" title=${printable(row.principal)}>${cut(row.principal, 60)}</td>
    <td><${Glyph} look=${LOOKS[row.outcome]}>${printable(row.outcome)}<//></td>
    <td class="operation" title=${printable(row.operation + reason)}>${printable(row.operation)}${row.count > 1 ? html` <span class="chip">×${row.count}</span>` : null}<span class="dim">${cut(reason, 80)}</span>
      <span class="sub">${cut([row.principal, resource].filter(Boolean).join(" · "), 140)}</span></td>
    <td class="full" title=${printable(row.resource || "")}><div class="two">${found ? html`<a href=${toHash(["sessions", found])}>${resource}</a>` : resource}</div></td>
    <td class="opt">${row.request_id ? html`<${Copy} text=${row.request_id} label=${shortId(row.request_id)} />` : ""}</td>
    <td class="mid right">${row.outcome === "denied" ? html`<a href=${explainPlace(row)}>Explain</a>` : null}</td>
  </tr>`;
}

/** Return the place that explains a denied call, as far as the entry names its request. */
function explainPlace(row) {
  const ids = Object.fromEntries((row.resource || "").split(",").map((part) => part.split(/:(.*)/s)));
  const [, action, kind] = /^(get|create|list|cancel|resume|update|delete)_(agent|team|workflow|session|memory)/.exec(row.operation) || [];
  const plural = kind === "memory" ? "memories" : `${kind}s`;
  const one = kind && ids[kind] ? `/${plural}/${ids[kind]}` : kind ? `/${plural}` : `/${row.operation.replace(/^get_/, "")}`;
  const run = /_run/.test(row.operation) && kind ? `/runs${ids.run ? `/${ids.run}` : ""}` : "";
  const methods = { create: "POST", cancel: "POST", resume: "POST", update: "PATCH", delete: "DELETE" };
  const tail = action === "cancel" ? "/cancel" : action === "resume" ? "/resume" : "";
  return toHash(["access"], { method: methods[action] || "GET", path: one + run + tail });
}

function Export({ filters }) {
  const [done, setDone] = useState(null);
  const save = async () => {
    const lines = [];
    let cursor = "";
    setDone(0);
    do {
      const page = await call("GET", withQuery("/audit", { ...filters, limit: 100, cursor }));
      for (const row of page.data) lines.push(writeExact(row));
      cursor = page.meta.next_cursor;
      setDone(lines.length);
    } while (cursor);
    saveFile("audit.jsonl", new Blob([lines.join("\n"), "\n"], { type: "application/jsonl" }));
    setDone(null);
  };
  return html`<button type="button" disabled=${done !== null} onClick=${() => save().catch(() => setDone(null))}>
    ${done === null ? "Export JSONL" : `${done} entries…`}</button>`;
}
