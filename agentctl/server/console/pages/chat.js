// The chat, for the people who use the agents: their conversations, and one of them.

import { render } from "../vendor/preact.mjs";
import { can, canList, databaseOf, isFinal, mayRun, nameOf, path, state, withQuery } from "../app/api.js";
import { Turn } from "../app/conversation.js";
import { Above, listen, LOGO, Warnings, Top, useShell } from "../app/shell.js";
import { Compose, Runs, targetOf, useThread } from "../app/thread.js";
import {
  cut, Empty, formatAgo, Guard, html, Loaded, LoadMore, LOOKS, Page, phaseOf, printable, setQuery,
  toHash, useComponents, useEffect, useKeys, useNames, useNow, usePages, useResource, useState,
} from "../app/ui.js";

const EVERY = 5000;
/** Agents that the start page shows as cards. With more of them, a list in the box has all. */
const CARDS = 12;
const KEYS = [
  ["n", "message"],
  ["x", "stop the answer"],
  ["c", "new chat"],
  ["j · k · Enter", "next chat, previous chat, open"],
  ["f", "follow the answer"],
  ["Esc", "leave the message, close"],
];

const click = (selector) => document.querySelector(selector)?.click();

function Chat() {
  const shell = useShell();
  const { parts, query } = shell.place;
  const id = parts[0] === "sessions" ? parts[1] : undefined;
  const [open, setOpen] = useState(false);
  const reads = shell.caller.me !== null && can("sessions", "read");
  useEffect(() => setOpen(false), [id]);
  useKeys({
    n: () => document.querySelector("[data-message]")?.focus(),
    x: () => click("[data-cancel]"),
    c: () => click(".threads .new"),
  });
  return html`<div class="shell chat" inert=${shell.needsToken}>
      <${Warnings} caller=${shell.caller} />
      <nav class=${open ? "threads open" : "threads"} id="threads" aria-label="Chats"
        onKeyDown=${(event) => event.key === "Escape" && setOpen(false)}>
        <div class="brand">${LOGO} ${printable(shell.caller.info?.name || "agentctl")}</div>
        <a class="new" href=${toHash([], { db: query.db })}>New chat</a>
        ${reads ? html`<${Threads} key=${shell.caller.generation} id=${id} db=${query.db} />` : html`<span class="grow"></span>`}
        <button type="button" class="quiet" onClick=${() => shell.setHelp(true)}><span>Shortcuts</span> <kbd>?</kbd></button>
        <a href="console">Console</a>
      </nav>
      <${Top} shell=${shell}>
        <button type="button" class="menu" aria-expanded=${open} aria-controls="threads" onClick=${() => setOpen(!open)}>Chats</button>
      <//>
      <main id="main" tabindex="-1" onClick=${() => setOpen(false)}>
        ${shell.isShown
          ? html`<${Guard} key=${id}>${id ? html`<${Thread} key=${id} id=${id} query=${query} />` : html`<${NewChat} query=${query} />`}<//>`
          : null}
      </main>
    </div>
    <${Above} shell=${shell} keys=${KEYS} />`;
}

/** The sessions of the caller in the database of the shown chat, the last used one first. */
function Threads({ id, db }) {
  const now = useNow(10_000);
  // Administrators read the sessions of everybody; a caller without a name has those without one.
  const user = state.me.admin && state.me.principal !== "anonymous" ? state.me.principal : undefined;
  const { resource, rows, more } = usePages("/sessions", { user_id: user, db_id: db, sort_by: "updated_at" }, { every: EVERY, key: "session_id" });
  // One that has just begun is not in the list yet.
  useEffect(() => void (id && resource.data && rows.every((row) => row.session_id !== id) && resource.reload()), [id]);
  return html`<div class="list grow"><${Loaded} resource=${resource} place="/sessions" rows=${4}>${() => html`
    ${rows.length ? null : html`<p class="dim">No chats yet.</p>`}
    ${rows.map((row) => {
      const phase = row.last_run && phaseOf(row.last_run);
      const [glyph, color] = phase ? LOOKS[phase.name] : ["", ""];
      const name = cut(row.session_name, 80) || printable(row.session_id);
      return html`<a key=${row.session_id} data-row href=${toHash(["sessions", row.session_id], { db })} aria-current=${row.session_id === id ? "page" : null}>
        <span class="name" dir="auto">${name}</span>
        <span class="about">${phase ? html`<span class=${color} aria-hidden="true">${glyph}</span><span class="hidden">${phase.words}</span>` : null}
          ${formatAgo(row.updated_at, now)}</span></a>`;
    })}
    <${LoadMore} more=${more} />`}<//></div>`;
}

function Thread({ id, query }) {
  const place = withQuery(path`/sessions/${id}`, { db_id: query.db, view: "summary" });
  const session = useResource(place);
  const names = useNames();
  const to = session.data && targetOf(session.data);
  const name = to && nameOf(session.data, names);
  return html`<${Page} title=${session.data?.session_name || "Chat"} aside=${to ? html`<span>with ${printable(name)}</span>` : null}>
    <${Loaded} resource=${session} place=${place} rows=${4}>
      ${(data) => html`<${Guard}><${Talk} id=${id} to=${to} user=${data.user_id} query=${query} names=${names} /><//>`}
    <//>
  <//>`;
}

function Talk({ id, to, user, query, names }) {
  const [following, setFollowing] = useState(!query.run);
  const thread = useThread(id, query, following, setFollowing);
  const { runs } = thread;
  useKeys({ f: () => setFollowing((old) => !old) });
  if (runs.runs === null) return html`<${Loaded} resource=${{ data: undefined, error: runs.error, reload: thread.reload }} />`;
  return html`<div class="talk" ref=${thread.content}>
    <${Runs} thread=${thread} names=${names} db=${query.db} plain=${true}>
      <${Box} to=${to} name=${names.get(`${to.kind}:${to.id}`)} session=${id} user=${user} last=${runs.runs.at(-1)} onStarted=${thread.started} />
    <//></div>`;
}

/** The box of a message, with the stop of the last run. */
function Box({ children, ...compose }) {
  const { last } = compose;
  useEffect(() => {
    // On a touch screen the focus opens the keyboard.
    if (matchMedia("(pointer: fine)").matches) document.querySelector("[data-message]")?.focus();
  }, []);
  const stops = last && !isFinal(last) && last.cancel_requested_at == null && mayRun(last);
  return html`<${Compose} ...${compose}>${children}
    ${stops ? html`<button type="button" class="danger" onClick=${() => click(`#run-${CSS.escape(last.run_id)} [data-cancel]`)}>
      <span aria-hidden="true">■</span> Stop</button>` : null}<//>`;
}

/** A chat that has no message yet. Callers that cannot read sessions see its answers here only. */
function NewChat({ query }) {
  const { components, names } = useComponents();
  const [runs, setRuns] = useState([]);
  const choices = components.filter((each) => can(`${each.kind}s`, "run", each.id));
  const wanted = query.with || (choices.length ? keyOf(choices[0]) : "");
  const [kind, id] = split(wanted);
  const chosen = choices.find((each) => keyOf(each) === wanted);
  const started = (run) => {
    // A caller that cannot list the agents knows the database from a link only.
    const db = databaseOf(kind, id) || query.db;
    if (can("sessions", "read", run.session_id)) location.hash = toHash(["sessions", run.session_id], { db });
    else setRuns((old) => old.concat(run));
  };
  const choose = (key) => setQuery({ with: key, db: databaseOf(...split(key)) });
  const change = (run) => setRuns((old) => old.map((each) => (each.run_id === run.run_id ? run : each)));
  return html`<${Page} title="New chat"><div class="talk">
    ${runs.length
      ? runs.map((run) => html`<${Turn} key=${run.run_id} initial=${run} names=${names} onChange=${change} plain=${true} />`)
      : choices.length > 1 ? html`<${Cards} choices=${choices.slice(0, CARDS)} wanted=${wanted} onChoose=${choose} />`
      : html`<${Empty}>${chosen
          ? html`<b dir="auto">${cut(chosen.name || id, 80)}</b>${chosen.description ? html`<span dir="auto">${cut(chosen.description, 300)}</span>` : null}`
          : html`<span>${id ? `The ${kind} ${cut(id, 64)}` : canList("agents") ? "You have no agents yet. Ask your administrator for access." : "Your token may not list the agents: it needs agents:read."}</span>`}<//>`}
    <${Box} to=${{ kind: kind || "agent", id }} name=${chosen?.name} session=${runs.at(-1)?.session_id} last=${runs.at(-1)} onStarted=${started}>
      ${choices.length > CARDS && !runs.length ? html`<select aria-label="Who answers" value=${wanted} onChange=${(event) => choose(event.target.value)}>
        ${chosen || !wanted ? null : html`<option value=${wanted}>${cut(id, 40)}</option>`}
        ${choices.map((each) => html`<option key=${keyOf(each)} value=${keyOf(each)}>${cut(each.name || each.id, 40)}</option>`)}
      </select>` : null}
    <//>
  </div><//>`;
}

/** The agents to start a chat with: a name, and what it is for. */
function Cards({ choices, wanted, onChoose }) {
  const choose = (key) => {
    onChoose(key);
    document.querySelector("[data-message]")?.focus();
  };
  return html`<div class="choice-of"><p class="question">Who should answer?</p>
  <div class="cards" role="group" aria-label="Agents">${choices.map((each) => html`<button key=${keyOf(each)} type="button" class="card"
    aria-pressed=${keyOf(each) === wanted} onClick=${() => choose(keyOf(each))}>
    <b dir="auto">${cut(each.name || each.id, 60)}</b>${each.description ? html`<span class="dim" dir="auto">${cut(each.description, 140)}</span>` : null}</button>`)}</div></div>`;
}

const keyOf = ({ kind, id }) => `${kind}:${id}`;

/** Return the kind and the id of a component: `agent:echo`; nothing for another text. */
function split(key) {
  const [, kind, id] = /^(agent|team|workflow):(.+)$/.exec(key) || [];
  return [kind, id];
}

listen([]);
render(html`<${Chat} />`, document.getElementById("app"));
