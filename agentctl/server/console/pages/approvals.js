// The approvals that people wait for, and those that were decided; one of them with its decision.

import { can, path, withQuery } from "../app/api.js";
import { Asked, Decision, formatMoment, placeOf } from "../app/approvals.js";
import { COMPONENT, Filters, same, useAgo } from "../app/filters.js";
import { NotifyButton } from "../app/notify.js";
import { describeRequest } from "../app/plain.js";
import { ApprovalStatus, waitedSeconds } from "../app/waits.js";
import {
  Copy, cut, Empty, formatAgo, formatSpan, formatTotal, html, Json, Loaded, LoadMore, LongTable, Page,
  printable, setQuery, shortId, toHash, twoLines, useKeys, useNames, useNow, usePages,
  useResource,
} from "../app/ui.js";
import { writeExact } from "../app/exact.js";

const EVERY = 3000;
const KEYS = [
  { key: "tool", about: "name of the tool" },
  COMPONENT,
  { key: "user", about: "the user of the run" },
  { key: "kind", about: "what is needed", values: same("approval", "input", "external", "outcome") },
  { key: "older", about: "waiting for longer", values: [["10min", "600"], ["1h", "3600"], ["1d", "86400"], ["7d", "604800"]] },
  { key: "status", about: "the decision", more: { all: "1" },
    values: [["waiting", "pending"], ...same("approved", "rejected", "answered", "expired", "cancelled")] },
];
const POLICIES = {
  user: "the user of the run, or an approver",
  other: "an approver who is not the user of the run (four eyes)",
};

export default function Approvals({ parts, query }) {
  if (parts.length === 4) return html`<${One} key=${parts[3]} parts=${parts} query=${query} />`;
  return html`<${List} query=${query} />`;
}

function List({ query }) {
  const all = query.all === "1";
  const before = useAgo(query.older);
  const filters = {
    status: all ? query.status : "pending",
    kind: query.kind,
    component_id: query.component,
    user_id: query.user,
    tool_name: query.tool,
    created_before: before,
    db_id: query.db,
  };
  const { resource, rows, more } = usePages("/approvals", filters, { every: EVERY, key: "approval_id", live: !all });
  const meta = resource.data?.meta;
  return html`<${Page} title="Approvals" wide=${true} aside=${meta && html`<span role="status">${formatTotal(meta, "approval")}</span><${NotifyButton} />`}>
    <${Filters} page="approvals" keys=${KEYS} query=${query}>
      <div class="segment">
        ${[["", "Waiting"], ["1", "All"]].map(([value, label]) => html`<button key=${label} type="button"
          aria-pressed=${all === Boolean(value)} onClick=${() => setQuery({ all: value, status: "" })}>${label}</button>`)}
      </div>
    <//>
    <${Loaded} resource=${resource} place="/approvals">
      ${() => rows.length
        ? html`<${Table} rows=${rows} db=${query.db} /><${LoadMore} more=${more} />`
        : html`<${Empty} filters=${KEYS.map(({ key }) => key)} query=${query} none="No approvals match.">${all ? "No approvals yet." : "Nothing is waiting for approval."}<//>`}
    <//>
  <//>`;
}

function Table({ rows, db }) {
  const names = useNames();
  const now = useNow(1000);
  const row = (each, at) => html`<${Row} key=${each.approval_id} row=${each} at=${at} now=${now} db=${db} names=${names} />`;
  return html`<${LongTable} rows=${rows} row=${row} columns=${html`<col class="w-name" /><col class="w-decision" />
      <col class="full w-component" /><col class="opt w-user" /><col class="mid w-ago" />`}>
    <th>Request</th><th>Status</th><th class="full">Component</th>
    <th class="opt">User</th><th class="mid right">Age</th>
  <//>`;
}

const nameOfAsker = (approval, names) => names.get(`${approval.component_type}:${approval.component_id}`) || approval.component_id;

function Row({ row, at, now, db, names }) {
  const name = nameOfAsker(row, names);
  const user = printable(row.user_id ?? "–");
  const { sentence } = describeRequest(row, name);
  const call = describeCall(row);
  const age = row.status === "pending" ? formatSpan(waitedSeconds(row, now)) : formatAgo(row.decided_at, now);
  return html`<tr aria-rowindex=${at + 2} data-approval=${row.approval_id}>
    <td class="name" dir="auto"><a data-row href=${toHash(["approvals", row.component_type, row.component_id, row.approval_id], { db })} title=${row.approval_id}
      ><span class="found message">${cut(sentence, 140)}</span>
      <span class="found" title=${call}><span class="phone">${age} · </span>${row.policy === "other" ? html`<span class="chip" title=${POLICIES.other}>needs a second person</span> ` : null}${call}</span></a></td>
    <td class="state"><${ApprovalStatus} approval=${row} /></td>
    <td class="full" dir="auto">${twoLines(cut(name, 60))}</td>
    <td class="opt" dir="auto">${twoLines(user)}</td>
    <td class="mid right nowrap" title=${row.created_at}>${age}</td>
  </tr>`;
}

/** Return the call of an approval as code, and who has decided about it. */
function describeCall({ tool_name: tool, arguments: values, status, decided_by: by }) {
  const given = Object.entries(values || {}).map(([name, value]) => `${name}=${writeExact(value)}`);
  const decided = status !== "pending" && by ? `by ${by} · ` : "";
  return cut(`${decided}${tool}(${given.join(", ")})`, 200);
}

function One({ parts, query }) {
  const [, kind, component, id] = parts;
  const place = placeOf({ component_type: kind, component_id: component, approval_id: id });
  const resource = useResource(place, { every: EVERY });
  const names = useNames();
  const approval = resource.data;
  useKeys({ y: () => navigator.clipboard.writeText(id).catch(() => null) });
  const title = approval ? cut(describeRequest(approval, nameOfAsker(approval, names)).sentence, 120) : shortId(id);
  return html`<${Page} title=${title} back=${{ href: toHash(["approvals"], { db: query.db }), label: "Approvals" }}
    aside=${approval ? html`<${ApprovalStatus} approval=${approval} />` : null}>
    <${Loaded} resource=${resource} place=${place}>
      ${(found) => html`<div class="approval">
        <section class="panel"><h2>${REQUESTS[found.kind] || REQUESTS.approval}</h2>
          <${Turn} approval=${found} db=${query.db} />
          <${Asked} approval=${found} />
          <${Outcome} approval=${found} />
          <${Decision} approval=${found} db=${query.db} onDecided=${resource.reload} onStale=${resource.reload} /></section>
        <section class="panel"><h2>Details</h2><${Origin} approval=${found} names=${names} db=${query.db} /></section>
      </div>`}
    <//>
  <//>`;
}

const REQUESTS = { approval: "Call to approve", input: "Question", external: "Call to make", outcome: "Call without a known result" };

/** The message and the last text before the call, for callers that may read the run. */
function Turn({ approval, db }) {
  const { run_id: run, session_id: session, tool_call_id: call, user_id: user } = approval;
  const place = can("sessions", "read", session) ? withQuery(path`/runs/${run}`, { db_id: db, view: "items", cut: 500 }) : null;
  const found = useResource(place).data;
  if (!found) return null;
  const before = found.items.slice(0, found.items.findIndex((item) => item.tool_call_id === call));
  const said = before.findLast((item) => item.type === "text");
  return html`<dl class="facts" data-turn><dt>${printable(user ?? "message")}</dt><dd dir="auto">${cut(found.input, 500)}</dd>
    ${said ? html`<dt>answer</dt><dd dir="auto">${cut(said.text, 500)}</dd>` : null}</dl>`;
}

function Outcome({ approval }) {
  const { answer, result, kind, status, executed_at: at } = approval;
  return html`
    ${status === "answered" && kind === "input" ? html`<h3 class="caption">Answer</h3>
      <${Json} text=${writeExact(answer, 2)} />` : null}
    ${result == null ? null : html`<h3 class="caption">Result${at ? ` ${printable(at).slice(11, 19)}` : ""}</h3>
      <${Json} text=${typeof result === "string" ? result : writeExact(result, 2)} />`}`;
}

function Origin({ approval, names, db }) {
  const { component_type: kind, component_id: component, session_id: session, root_run_id: root, request_id: request } = approval;
  const readable = can("sessions", "read", session);
  const facts = [
    [kind, `${names.get(`${kind}:${component}`) || component}`],
    ["user", approval.user_id ?? "anonymous"],
    ["session", readable ? html`<a href=${toHash(["sessions", session], { run: root, db })}>${cut(session, 60)}</a>` : session],
    ["run", readable ? html`<a href=${toHash(["runs", root, "timeline"], { db })}>${shortId(root)}</a>` : shortId(root)],
    ["who may decide", POLICIES[approval.policy]],
    ["tool", html`<code>${printable(approval.tool_name)}</code>`],
    ["requested", html`<span title=${approval.created_at}>${formatMoment(approval.created_at)}</span>`],
    ["expires", approval.expires_at ? formatMoment(approval.expires_at) : "never"],
    ["hash", html`<code class="hash">${printable(approval.arguments_hash)}</code>`],
    ["call", html`<code>${printable(approval.tool_call_id)}</code>`],
    ["approval", html`<${Copy} text=${approval.approval_id} label=${shortId(approval.approval_id)} />`],
    request && ["request", html`<${Copy} text=${request} label=${shortId(request)} />`],
  ].filter(Boolean);
  return html`<dl class="facts">${facts.map(([label, value]) => html`<dt key=${label}>${label}</dt><dd>${typeof value === "string" ? printable(value) : value}</dd>`)}</dl>
    ${approval.schema ? html`<details><summary>${approval.kind === "input" ? "schema of the answer" : "schema of the arguments"}</summary>
      <${Json} text=${writeExact(approval.schema, 2)} /></details>` : null}`;
}
