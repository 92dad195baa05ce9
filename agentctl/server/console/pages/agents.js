// Agents, teams and workflows as cards, with the number of their live runs.

import { can, componentOf, kindOf } from "../app/api.js";
import {
  cut, Empty, formatNumber, html, Loaded, Page, printable, Problem, toHash, useCaller, useResource,
} from "../app/ui.js";

const KINDS = [["agent", "Agents"], ["team", "Teams"], ["workflow", "Workflows"]];

export default function Agents() {
  const { me, info } = useCaller();
  const mayListRuns = me !== null && can("sessions", "read");
  const live = useResource(mayListRuns ? "/runs?live=true&limit=100&view=summary" : null, { every: 2000 });
  // The newest 100 live runs: with more, each count is a least one.
  const counts = new Map([["more", live.data && live.data.meta.total_count > live.data.data.length ? "+" : ""]]);
  for (const run of live.data?.data || []) {
    const key = `${kindOf(run)}:${componentOf(run)}`;
    counts.set(key, (counts.get(key) || 0) + 1);
  }
  const lists = KINDS.map(([kind]) => useResource(`/${kind}s`));
  const refused = lists.filter((list) => list.error?.status === 403);
  const empty = lists.every((list) => list.data?.length === 0);
  return html`<${Page} title="Agents">
    ${info?.left_out_count
      ? html`<p class="bar yellow" role="status">Left out, because their code cannot be loaded: ${info.left_out_count}.
          The log of the server has the reasons.</p>`
      : null}
    ${refused.length === lists.length
      ? html`<${Problem} error=${lists[0].error} place="/agents" />
          <${ByName} />`
      : empty
        ? html`<${Empty}>No agents are configured. Add an entry to the configuration of the server.<//>`
        : KINDS.map(([kind, label], at) => lists[at].error?.status === 403
            ? null
            : html`<${Group} key=${kind} kind=${kind} label=${label} resource=${lists[at]} counts=${counts} />`)}
    ${refused.length && refused.length < lists.length
      ? html`<p class="dim">Not shown: ${KINDS.filter((_, at) => lists[at].error?.status === 403).map(([, label]) => label.toLowerCase()).join(" and ")}.
          Your token may not read them: <a href="#/access">Access</a></p>`
      : null}
  <//>`;
}

function Group({ kind, label, resource, counts }) {
  return html`<section>
    <${Loaded} resource=${resource} place=${`/${kind}s`} rows=${3}>
      ${(list) => list.length
        ? html`<h2 class="group">${label} <span class="dim">${list.length}</span></h2>
            <div class="cards">${list.map((each) => html`<${Card} key=${each.id} kind=${kind} each=${each}
              live=${counts.get(`${kind}:${each.id}`) || 0} more=${counts.get("more")} />`)}</div>`
        : null}
    <//>
  </section>`;
}

function Card({ kind, each, live, more }) {
  const parts = {
    agent: () => [each.model?.name || "in code", count(each.tools, "tool")],
    team: () => [each.mode, count(each.members, "member")],
    workflow: () => [count(each.steps, "step")],
  }[kind]();
  return html`<a class="card" data-row href=${toHash(["agents", `${kind}s`, each.id])}>
    <span class="row"><b class="grow" dir="auto">${cut(each.name || each.id, 80)}</b>
      ${live ? html`<span class="status blue"><span aria-hidden="true">●</span> ${formatNumber(live)}${more} live</span>` : null}</span>
    <code class="dim">${printable(each.id)}</code>
    ${each.description ? html`<span dir="auto">${cut(each.description, 160)}</span>` : null}
    <span class="dim">${printable(parts.filter(Boolean).join(" · "))}</span>
  </a>`;
}

function count(list, noun) {
  return list?.length ? `${list.length} ${noun}${list.length === 1 ? "" : "s"}` : "";
}

/** A way to a component that the caller may run and not read. */
function ByName() {
  const { me } = useCaller();
  if (!me || !me.scopes.some((scope) => scope.endsWith(":run"))) return null;
  const open = (event) => {
    event.preventDefault();
    const form = new FormData(event.target);
    location.hash = toHash(["agents", form.get("kind"), form.get("id").trim()]);
  };
  return html`<section class="panel"><h2>Run a component by its id</h2>
    <form class="row" onSubmit=${open}>
      <select name="kind" aria-label="Kind">${KINDS.map(([kind]) => html`<option key=${kind} value=${`${kind}s`}>${kind}</option>`)}</select>
      <input name="id" required pattern="[A-Za-z0-9][A-Za-z0-9._\\-]{0,63}" placeholder="id" aria-label="Id" />
      <button type="submit" class="primary">Open</button>
    </form></section>`;
}
