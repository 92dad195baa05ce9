// The messages that a model call was sent.

import { path, withQuery } from "./api.js";
import { formatNumber, html, Loaded, printable, useResource } from "./ui.js";

/** Characters of one text on a page. */
export const CUT = 20_000;
const SENT = 100;
const STATES = { complete: "", incomplete: "(some of it is missing)", unknown: "(not recorded)" };

/** The model that answered, and the messages that it was sent, as text. */
export function Sent({ run, id, db }) {
  const place = withQuery(path`/runs/${run.run_id}/model-calls/${id}`, { db_id: db, cut: CUT });
  const resource = useResource(place);
  return html`<${Loaded} resource=${resource} place=${place}>${(found) => {
    const left = found.omissions.map((each) => `${each.count} ${each.kind}`).join(", ");
    const first = Math.max(0, found.messages.length - SENT);
    return html`<dl class="facts">
        <dt>answered by</dt><dd>${printable(found.response_model ?? found.requested_model ?? "not known")}</dd>
        ${left ? html`<dt>left out</dt><dd>${printable(left)}</dd>` : null}
      </dl>
      <h3 class="caption">Sent ${STATES[found.state]}</h3>
      ${first ? html`<p class="dim">${formatNumber(first)} earlier messages are not shown.</p>` : null}
      ${found.messages.slice(first).map((each, at) => html`<p key=${at} class="caption">${each.role} ${printable(each.tool_name)}</p>
        <pre class="json" tabindex="0">${printable(each.content ?? "missing")}${each.tool_calls
          ? printable(JSON.stringify(each.tool_calls, null, 2)).slice(0, CUT) : null}</pre>`)}`;
  }}<//>`;
}
