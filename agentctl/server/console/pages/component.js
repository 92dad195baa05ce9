// One agent, team or workflow: what it is, a box to start a run, and its last runs.

import { can, path, postOnce, withQuery } from "../app/api.js";
import { Turn } from "../app/conversation.js";
import { RunTable, useCauses } from "../app/runs.js";
import { useFiles } from "../app/thread.js";
import {
  Command, Copy, cut, Empty, formatTotal, html, Loaded, Page, printable, Problem, shortId, toHash,
  useAction, useCaller, useComponents, useNames, useResource, useState,
} from "../app/ui.js";

const KINDS = { agents: "agent", teams: "team", workflows: "workflow" };

export default function ComponentPage({ parts, query }) {
  const [, plural, id = ""] = parts;
  const kind = KINDS[plural];
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
  const working = live.data?.meta.total_count;
  const total = runs.data && formatTotal(runs.data.meta, "run");
  const about = [kind, record?.model?.name && `model ${record.model.name}`, record?.mode && `mode ${record.mode}`, record?.db_id && `database ${record.db_id}`];
  return html`<${Page} title=${record?.name || id} back=${back}
    aside=${html`<span>${printable(about.filter(Boolean).join(" · "))}</span><span>${working ? `${formatTotal(live.data.meta)} live · ` : ""}${total}</span>`}>
    <div class="split">
      ${readable
        ? html`<${Loaded} resource=${resource} place=${place} rows=${4}>${(found) => html`<${About} kind=${kind} record=${found} />`}<//>`
        : html`<div class="panel"><h2>About</h2><p>Reading this needs <code>${printable(plural)}:${printable(id)}:read</code>.</p></div>`}
      <${Start} kind=${kind} plural=${plural} id=${id} onStarted=${runs.reload} />
    </div>
    ${readable
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
    <span>A place of a component names its kind: agents, teams or workflows.</span>
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
    ${kind === "agent" && !record.tools?.length ? html`<p class="dim">It has no tools.</p>` : null}
    <${Configuration} place=${path`/${`${kind}s`}/${record.id}`} />
  </div>`;
}

/** What decides how the newest version answers: instructions, model, gated tools, limits. */
function Configuration({ place }) {
  const versions = useResource(withQuery(`${place}/versions`, { limit: 1 }));
  const [newest] = versions.data?.data || [];
  if (!newest) return null;
  const { instructions, tools, members, steps, code, ...others } = newest.configuration;
  const words = (value) => (value instanceof Object && !Array.isArray(value)
    ? Object.entries(value).filter(([name]) => name !== "endpoint").map(([name, each]) => `${name} ${words(each)}`).join(" · ") : typeof value === "string" ? value : JSON.stringify(value));
  return html`<h3 class="caption">Configuration of version ${newest.version}</h3>
    ${instructions ? html`<pre class="json" tabindex="0" data-instructions>${printable(instructions)}</pre>` : null}
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
      <pre class="json" tabindex="0">${printable(JSON.stringify(tool.parameters, null, 2))}</pre>
    </div></details>`;
}

function Start({ kind, plural, id, onStarted }) {
  const names = useNames();
  const [text, setText] = useState("");
  const [session, setSession] = useState("");
  const [own, setOwn] = useState(false);
  const [apart, setApart] = useState(false);
  const [run, setRun] = useState(null);
  const allowed = can(plural, "run", id);
  const files = useFiles({ kind, id });
  const [submit, failure, busy] = useAction(async () => {
    if (!files.ready || !text.trim()) return;
    const body = { message: text, files: files.ids, session_id: own && session.trim() ? session.trim() : undefined };
    const started = await postOnce(path`/${kind}s/${id}/runs`, body);
    if (!apart && can("sessions", "read", started.session_id)) {
      location.hash = toHash(["sessions", started.session_id]);
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
        <span class="dim grow">${apart ? "Stays on this page." : "Opens the transcript."}</span>
        <button type="submit" class="primary" disabled=${!allowed || !files.ready || busy || !text.trim()}>Start</button>
      </div>
    </form>
    <details><summary>As agentctl</summary>
      <${Command} text=${`agentctl runs start --${kind} ${id} --message ${quote(message)} --url ${location.origin}`} /></details>
    <details><summary>As curl</summary>
      <${Command} text=${`curl -N ${new URL(`${plural}/${id}/runs`, document.baseURI)} -H "Authorization: Bearer $AGENTCTL_TOKEN" -H 'Content-Type: application/json' -d ${quote(JSON.stringify({ message }))}`} /></details>
    ${run?.apart ? html`<p role="status">Started run ${can("sessions", "read", run.session_id)
      ? html`<a href=${toHash(["sessions", run.session_id], { run: run.run_id })}>${shortId(run.run_id)}</a>` : html`<${Copy} text=${run.run_id} />`}</p>`
    : run ? html`<${Turn} key=${run.run_id} initial=${run} names=${names} />` : null}
  </div>`;
}

function quote(text) {
  return `'${printable(text).replace(/'/g, `'\\''`)}'`;
}
