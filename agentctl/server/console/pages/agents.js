// Agents, teams and workflows: cards with the number of their live runs; one of them, with what it is,
// a box to start a run, and its last runs.

import { can, componentOf, kindOf, path, postOnce, withQuery } from "../app/api.js";
import { Turn } from "../app/conversation.js";
import { RunTable, useCauses } from "../app/runs.js";
import { useFiles } from "../app/thread.js";
import {
  Command, Copy, cut, Empty, formatNumber, formatTotal, Glyph, html, Json, Loaded, LOOKS, many, Page, printable, Problem, shortId,
  toHash, useAction, useCaller, useComponents, useNames, useResource, useState,
} from "../app/ui.js";
import { writeExact } from "../app/exact.js";

const KINDS = [["agent", "Agents"], ["team", "Teams"], ["workflow", "Workflows"]];

export default ({ parts }) => (parts[1] ? html`<${One} parts=${parts} />` : html`<${List} />`);

function List() {
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
      ${live ? html`<${Glyph} look=${LOOKS.running}>${formatNumber(live)}${more} live<//>` : null}</span>
    <code class="dim">${printable(each.id)}</code>
    ${each.description ? html`<span dir="auto">${cut(each.description, 160)}</span>` : null}
    <span class="dim">${printable(parts.filter(Boolean).join(" · "))}</span>
  </a>`;
}

const count = (list, noun) => list?.length && many(list.length, noun);

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

function One({ parts }) {
  const [, plural, id = ""] = parts;
  const kind = KINDS.find(([each]) => `${each}s` === plural)?.[0];
  useCaller();
  const back = { href: "#/agents", label: "Agents" };
  const readable = kind !== undefined && can(plural, "read", id);
  const place = path`/${plural}/${id}`;
  const resource = useResource(readable ? place : null);
  const [runs, live] = [{ limit: 20, view: "phase" }, { limit: 1, live: "true", view: "phase" }].map((query) =>
    useResource(readable ? withQuery(`${place}/runs`, query) : null, { every: 3000 }));
  const causes = useCauses(runs.data?.data || [], { component_type: kind, component_id: id, db_id: resource.data?.db_id });
  if (kind === undefined) return html`<${Page} title=${plural} back=${back}><${WithoutKind} id=${plural} /><//>`;
  const record = resource.data;
  const isMissing = record === undefined && resource.error?.status === 404;
  const working = live.data?.meta.total_count;
  const total = runs.data && formatTotal(runs.data.meta, "run");
  const about = [kind, record?.model?.name && `model ${record.model.name}`, record?.mode && `mode ${record.mode}`, record?.db_id && `database ${record.db_id}`];
  return html`<${Page} title=${record?.name || id} back=${back}
    aside=${html`<span>${printable(about.filter(Boolean).join(" · "))}</span><span>${working ? `${formatTotal(live.data.meta)} live · ` : ""}${total}</span>`}>
    <div class="split">
      ${isMissing
        ? html`<${Problem} error=${resource.error} place=${place} />`
        : readable
        ? html`<${Loaded} resource=${resource} place=${place} rows=${4}>${(found) => html`<${About} kind=${kind} record=${found} />`}<//>`
        : html`<div class="panel"><h2>About</h2><p>Reading this needs <code>${printable(plural)}:${printable(id)}:read</code>.</p></div>`}
      ${isMissing ? null : html`<${Start} kind=${kind} plural=${plural} id=${id} db=${record?.db_id} onStarted=${runs.reload} />`}
    </div>
    ${readable && !isMissing
      ? html`<section><h2 class="group">Last runs</h2>
          <${Loaded} resource=${runs} place=${`${place}/runs`} rows=${5}>
            ${(page) => page.data.length ? html`<${RunTable} rows=${page.data} db=${record?.db_id} causes=${causes} alone=${true} />` : html`<${Empty}>No runs yet.<//>`}
          <//></section>`
      : null}
  <//>`;
}

/** A place without a kind: the components with this id, or the way to all. */
function WithoutKind({ id }) {
  const found = useComponents().components.filter((each) => each.id === id);
  return html`<${Empty}>
    <span>The URL must name the kind: agents, teams, or workflows.</span>
    ${found.length
      ? found.map(({ kind }) => html`<a key=${kind} href=${toHash(["agents", `${kind}s`, id])}>The ${kind} ${printable(id)}</a>`)
      : html`<span>No component that you can see has the id ${printable(id)}.</span>`}
  <//>`;
}

function About({ kind, record }) {
  return html`<div class="panel">
    <h2>About</h2>
    ${record.description ? html`<p dir="auto">${printable(record.description)}</p>` : null}
    ${kind === "team" ? html`<h3 class="caption">Members</h3><${Members} members=${record.members} />` : null}
    ${kind === "workflow" ? html`<h3 class="caption">Steps</h3>
      <ol>${record.steps.map((step) => html`<li key=${step.name}>${printable(step.name)} <span class="dim">→</span>
        ${" "}<a href=${toHash(["agents", step.agent_id ? "agents" : "teams", step.agent_id || step.team_id])}>${printable(step.agent_id || step.team_id)}</a></li>`)}</ol>` : null}
    ${record.tools?.length ? html`<h3 class="caption">Tools</h3>${record.tools.map((tool) => html`<${Tool} key=${tool.name} tool=${tool} />`)}` : null}
    ${kind === "agent" && !record.tools?.length ? html`<p class="dim">No tools.</p>` : null}
    <${Configuration} place=${path`/${kind}s/${record.id}`} />
  </div>`;
}

/** What decides how the newest version answers: instructions, model, gated tools, limits. */
function Configuration({ place }) {
  const versions = useResource(withQuery(`${place}/versions`, { limit: 1 }));
  const [newest] = versions.data?.data || [];
  if (!newest) return null;
  const { instructions, tools, members, steps, code, ...others } = newest.configuration;
  const words = (value) => (value instanceof Object && !Array.isArray(value)
    ? Object.entries(value).filter(([name]) => name !== "endpoint").map(([name, each]) => `${name} ${words(each)}`).join(" · ") : typeof value === "string" ? value : writeExact(value));
  return html`<h3 class="caption">Configuration of version ${newest.version}</h3>
    ${instructions ? html`<${Json} text=${instructions} data-instructions=${true} />` : null}
    <dl class="facts" data-configuration>${Object.entries(others).map(([name, value]) => html`<dt key=${name}>${printable(name)}</dt><dd dir="auto">${printable(words(value))}</dd>`)}</dl>`;
}

function Members({ members, depth = 0 }) {
  if (depth > 6) return null;
  return html`<ul>${(members || []).map((each) => {
    const id = each.agent_id || each.team_id;
    return html`<li key=${id}><a href=${toHash(["agents", each.agent_id ? "agents" : "teams", id])}>${cut(each.name || id, 80)}</a>
      ${each.mode ? html` <span class="dim">team, ${printable(each.mode)}</span>` : null}
      ${each.members ? html`<${Members} members=${each.members} depth=${depth + 1} />` : null}</li>`;
  })}</ul>`;
}

function Tool({ tool }) {
  const names = Object.keys(tool.parameters?.properties || {}).join(", ");
  return html`<details class="fold"><summary><code>${cut(tool.name, 80)}(${cut(names, 120)})</code></summary>
    <div class="inside">
      ${tool.description ? html`<p dir="auto">${printable(tool.description)}</p>` : null}
      <${Json} text=${writeExact(tool.parameters, 2)} />
    </div></details>`;
}

function Start({ kind, plural, id, db, onStarted }) {
  const names = useNames();
  const [text, setText] = useState("");
  const [session, setSession] = useState("");
  const [own, setOwn] = useState(false);
  const [apart, setApart] = useState(false);
  const [run, setRun] = useState(null);
  const allowed = can(plural, "run", id);
  const files = useFiles({ kind, id });
  const ready = allowed && files.canSend(text);
  const [submit, failure, busy] = useAction(async () => {
    if (!ready) return;
    const body = { message: text, files: files.ids, session_id: own && session.trim() ? session.trim() : undefined };
    const started = await postOnce(path`/${kind}s/${id}/runs`, body);
    if (!apart && can("sessions", "read", started.session_id)) {
      location.hash = toHash(["sessions", started.session_id], { db });
    } else {
      setRun({ ...started, apart });
      setText("");
      files.clear();
      onStarted();
    }
  });
  const keys = (event) => event.key === "Enter" && (event.metaKey || event.ctrlKey) && submit(event);
  const message = text.trim() || "hello";
  return html`<div class="panel">
    <h2>Start a run</h2>
    <form class="field" onSubmit=${submit}>
      <textarea data-message rows="4" dir="auto" aria-label="Message" placeholder="Message…" value=${text} disabled=${!allowed}
        onInput=${(event) => setText(event.target.value)} onKeyDown=${keys}></textarea>
      <div class="row" role="radiogroup" aria-label="Session">
        <span class="dim">Session</span>
        <label><input type="radio" name="session" checked=${!own} onChange=${() => setOwn(false)} /> new</label>
        <label><input type="radio" name="session" checked=${own} onChange=${() => setOwn(true)} /> id</label>
        ${own ? html`<input class="grow" aria-label="Session id" value=${session} pattern="[A-Za-z0-9._~@\\-]{1,128}"
          onInput=${(event) => setSession(event.target.value)} />` : null}
      </div>
      ${allowed ? null : html`<p class="yellow">Starting needs <code>${printable(plural)}:${printable(id)}:run</code>.</p>`}
      ${failure ? html`<${Problem} error=${failure} />` : null}
      ${allowed ? html`<div class="row">${files.attach}</div>` : null}
      <div class="row">
        <label><input type="checkbox" checked=${apart} onChange=${() => setApart(!apart)} /> in the background</label>
        <span class="dim grow">${apart ? "You stay on this page." : "Opens the session."}</span>
        <button type="submit" class="primary" disabled=${!ready || busy}>Start</button>
      </div>
    </form>
    <details><summary>As agentctl</summary>
      <${Command} text=${`agentctl runs start --${kind} ${id} --message ${quote(message)} --url ${location.origin}`} /></details>
    <details><summary>As curl</summary>
      <${Command} text=${`curl -N ${new URL(`${plural}/${id}/runs`, document.baseURI)} -H "Authorization: Bearer $AGENTCTL_TOKEN" -H 'Content-Type: application/json' -d ${quote(writeExact({ message }))}`} /></details>
    ${run?.apart ? html`<p role="status">Started run ${can("sessions", "read", run.session_id)
      ? html`<a href=${toHash(["sessions", run.session_id], { run: run.run_id, db })}>${shortId(run.run_id)}</a>` : html`<${Copy} text=${run.run_id} />`}</p>`
    : run ? html`<${Turn} key=${run.run_id} initial=${run} names=${names} />` : null}
  </div>`;
}

function quote(text) {
  return `'${printable(text).replace(/'/g, `'\\''`)}'`;
}
