// Webhooks: the endpoints of the configuration, and the deliveries to them.

import { call, can } from "../app/api.js";
import { Filters, same } from "../app/filters.js";
import {
  cut, Empty, formatAge, Glyph, html, Loaded, LoadMore, many, Page, printable, shortId, toHash,
  useNow, usePages, useResource, useState,
} from "../app/ui.js";

const STATES = { waiting: ["…", "yellow"], delivered: ["✓", "green"], dead: ["✗", "red"] };
const EVERY = 5000;
/** Time after which a waiting delivery shows that the endpoint does not answer, in ms. */
const LATE = 60_000;

export default function Webhooks({ query }) {
  const endpoints = useResource("/webhooks", { every: EVERY });
  const filters = { state: query.state, webhook_id: query.webhook, run_id: query.run };
  const { resource, rows, more } = usePages("/webhooks/deliveries", filters, { every: EVERY, key: "delivery_id" });
  return html`<${Page} title="Webhooks" wide=${true}>
    <${Loaded} resource=${endpoints} place="/webhooks">
      ${(found) => found.length
        ? html`<${Endpoints} rows=${found} />`
        : html`<${Empty}><span>No webhooks are configured.</span>
            <span>A webhook sends the events of runs to a URL of yours: add a <code>[[webhooks]]</code> table to the configuration.</span><//>`}
    <//>
    <${Filters} page="webhooks" query=${query} keys=${[
      { key: "state", about: "of a delivery", values: same(...Object.keys(STATES)) },
      { key: "webhook", about: "id of a webhook", suggest: (endpoints.data || []).map((each) => each.webhook_id) },
      { key: "run", about: "id of a run" },
    ]} />
    <${Loaded} resource=${resource} place="/webhooks/deliveries">
      ${() => rows.length
        ? html`<${Deliveries} rows=${rows} /><${LoadMore} more=${more} />`
        : html`<${Empty} filters=${["state", "webhook", "run"]} query=${query} none="No deliveries match.">No deliveries yet.<//>`}
    <//>
  <//>`;
}

function Endpoints({ rows }) {
  return html`<div class="table"><table>
    <colgroup><col class="w-name" /><col class="w-outcome" /><col class="full" /><col class="mid w-age" />
      <col class="mid w-age" /><col class="w-action" /></colgroup>
    <thead><tr><th>Webhook</th><th>State</th><th class="full">Events</th><th class="mid right">Waiting</th>
      <th class="mid right">Dead</th><th><span class="hidden">Actions</span></th></tr></thead>
    <tbody>${rows.map((row) => html`<${Endpoint} key=${row.webhook_id} row=${row} />`)}</tbody></table></div>`;
}

function Endpoint({ row }) {
  const [said, say] = useState("");
  const disabled = row.state === "disabled";
  const { oldest_waiting_at: since } = row;
  const late = !disabled && since && Date.now() - Date.parse(since) > LATE;
  const look = late ? ["!", "yellow"] : STATES[disabled ? "dead" : "delivered"];
  const send = async (action) => {
    say("…");
    try {
      const answer = await call("POST", `/webhooks/${encodeURIComponent(row.webhook_id)}/${action}`);
      say(action === "enable" ? "enabled" : answer.delivered ? `accepted (${answer.status})` : answer.error);
    } catch (error) {
      say(error.message);
    }
  };
  const writes = can("webhooks", "write");
  return html`<tr data-webhook=${row.webhook_id}>
    <td class="name" title=${printable(row.origin)}><b>${printable(row.webhook_id)}</b> <span class="dim">${cut(row.origin, 80)}</span>
      <span class="sub">${row.waiting} waiting · ${row.dead} dead</span></td>
    <td><${Glyph} look=${look} title=${printable(late ? `events wait since ${since}` : row.reason)}>${late ? "failing" : row.state}<//></td>
    <td class="full"><div class="two" role="status">${cut(said || row.events.join(", "), 140)}</div></td>
    <td class="mid right">${row.waiting}</td>
    <td class="mid right">${row.dead}</td>
    <td class="right">${writes
      ? html`<button type="button" onClick=${() => send("test")}>Test</button>
          ${disabled ? html` <button type="button" onClick=${() => send("enable")}>Enable</button>` : null}`
      : null}
      <span class="sub" role="status">${cut(said, 80)}</span></td>
  </tr>`;
}

function Deliveries({ rows }) {
  const now = useNow(5000);
  return html`<div class="table"><table>
    <colgroup><col class="w-time" /><col class="w-outcome" /><col class="full w-component" /><col /><col class="full" />
      <col class="mid w-action" /></colgroup>
    <thead><tr><th>Age</th><th>State</th><th class="full">Webhook</th><th>Event</th><th class="full">Last error</th>
      <th class="mid"><span class="hidden">Actions</span></th></tr></thead>
    <tbody>${rows.map((row) => html`<${Delivery} key=${row.delivery_id} row=${row} now=${now} />`)}</tbody></table></div>`;
}

function Delivery({ row, now }) {
  const [said, say] = useState("");
  const again = () =>
    call("POST", `/webhooks/deliveries/${encodeURIComponent(row.delivery_id)}/redeliver`).then(
      () => say("sent again"),
      (error) => say(error.message),
    );
  return html`<tr data-delivery=${row.delivery_id}>
    <td title=${row.created_at}>${formatAge(row.created_at, now)}</td>
    <td><${Glyph} look=${STATES[row.state]}>${row.state}<//></td>
    <td class="full">${printable(row.webhook_id)}</td>
    <td class="operation"><a href=${toHash(["runs", row.run_id, "timeline"])} title=${row.run_id}>${printable(row.type)} ${shortId(row.run_id)}</a>
      <span class="sub">${cut([row.webhook_id, row.last_error].filter(Boolean).join(" · "), 140)}</span></td>
    <td class="full"><div class="two">${many(row.attempts, "attempt")}${row.last_error ? `: ${cut(row.last_error, 120)}` : ""}</div></td>
    <td class="mid right">${row.state !== "waiting" && can("webhooks", "write")
      ? html`<button type="button" onClick=${again}>Redeliver</button>`
      : null} <span class="sub" role="status">${cut(said, 80)}</span></td>
  </tr>`;
}
