// The shell: navigation, sign-in over the page, keys, theme. Pages are loaded when they are opened.

import { render } from "../vendor/preact.mjs";
import { call, canList, checkToken, connect, dropToken } from "./api.js";
import {
  Component, Dialog, formatClock, formatSpan, formatTotal, Guard, html, leave, printable, readHash,
  Skeleton, useCaller, useEffect, useNow, useState,
} from "./ui.js";

const PAGES = [
  ["overview", "Overview", "o", "M5 20v-6M10 20V9M15 20v-8M20 20V5"],
  ["sessions", "Sessions", "s", "M4 5h16v11H9l-5 4z"],
  ["runs", "Runs", "r", "M7 5l12 7-12 7z"],
  ["approvals", "Approvals", "p", "M5 12l4 4 10-10M20 12v7H4V5h9"],
  ["agents", "Agents", "a", "M12 4v3M6 8h12v10H6zM9.5 12v2M14.5 12v2M3 12v3M21 12v3"],
  ["webhooks", "Webhooks", "h", "M9 8a4 4 0 1 1 5 4l3 5M8 11a4 4 0 1 0 4 5h6M18 13a4 4 0 1 1-2 7"],
  ["audit", "Audit", "u", "M6 3h9l4 4v14H6zM9 11h7M9 15h7"],
  ["access", "Access", "w", "M8 15a4 4 0 1 1 3.5-2H21v4h-3v-2"],
];
const FIRST = "overview";
const LOGO = html`<svg viewBox="0 0 32 32" aria-hidden="true">
  <rect width="32" height="32" rx="8" fill="#2f5bd8" stroke="none" />
  <path d="M9 10l6 6-6 6M17 22h7" fill="none" stroke="#fff" stroke-width="3" stroke-linecap="round" />
</svg>`;

const modules = {
  overview: () => import("../pages/overview.js"),
  sessions: () => import("../pages/sessions.js"),
  transcript: () => import("../pages/transcript.js"),
  runs: () => import("../pages/runs.js"),
  timeline: () => import("../pages/timeline.js"),
  approvals: () => import("../pages/approvals.js"),
  agents: () => import("../pages/agents.js"),
  component: () => import("../pages/component.js"),
  webhooks: () => import("../pages/webhooks.js"),
  audit: () => import("../pages/audit.js"),
  access: () => import("../pages/access.js"),
  signin: () => import("../pages/signin.js"),
};

/** Return the name of the module of a place. */
function moduleOf(parts) {
  const [first = FIRST, id, third] = parts;
  if (first === "sessions" && id) return "transcript";
  if (first === "runs" && id && third === "timeline") return "timeline";
  if (first === "agents" && id) return "component";
  return PAGES.some(([name]) => name === first) ? first : FIRST;
}

const SOONEST = 5000;
const LATEST = 60_000;

/** Return the total of the pending approvals that the caller sees; null without the right.
 *
 * The pauses between its requests grow to a minute while nothing changes.
 */
function useWaiting() {
  const { me, generation } = useCaller();
  const [meta, set] = useState(null);
  const ready = me !== null && canList("approvals");
  useEffect(() => {
    set(null);
    if (!ready) return;
    const control = new AbortController();
    let timer = null;
    let pause = SOONEST;
    let last = null;
    const load = async () => {
      clearTimeout(timer);
      const found = document.hidden ? null : await call("GET", "/approvals?status=pending&limit=1").catch(() => null);
      if (control.signal.aborted) return;
      pause = found && found.meta.total_count !== last ? SOONEST : Math.min(LATEST, 2 * pause);
      if (found) {
        last = found.meta.total_count;
        set(found.meta);
      }
      timer = setTimeout(load, pause);
    };
    const again = () => {
      pause = SOONEST / 2;
      clearTimeout(timer);
      if (!document.hidden) timer = setTimeout(load, 300);
    };
    load();
    addEventListener("console-decided", again, control);
    document.addEventListener("visibilitychange", again, control);
    return () => {
      control.abort();
      clearTimeout(timer);
    };
  }, [ready, generation]);
  return ready ? meta : null;
}

class Lazy extends Component {
  componentDidMount() {
    this.load();
  }

  componentDidUpdate(before) {
    if (before.name !== this.props.name) this.load();
  }

  async load() {
    const { name } = this.props;
    try {
      const loaded = await modules[name]();
      this.setState({ name, view: loaded.default, failed: false });
    } catch {
      this.setState({ name, view: null, failed: true });
    }
  }

  render({ name, ...props }) {
    const { view: View, name: loaded, failed } = this.state;
    if (loaded === name && failed) {
      return html`<div class="page"><div class="panel problem" role="alert">
        <h2>This page could not be loaded</h2>
        <p>The server may have been updated or is not reachable. Load the console again.</p>
        <button type="button" onClick=${() => location.reload()}>Reload</button>
      </div></div>`;
    }
    if (!View || loaded !== name) return html`<div class="page"><${Skeleton} /></div>`;
    return html`<${View} ...${props} />`;
  }
}

function App() {
  const caller = useCaller();
  const [place, setPlace] = useState(readHash);
  const [help, setHelp] = useState(false);
  const [failed, setFailed] = useState(null);
  const signedIn = caller.me !== null;
  const waiting = useWaiting();
  useEffect(() => {
    const change = (event) => {
      if (event.oldURL) leave(new URL(event.oldURL).hash);
      setPlace(readHash());
    };
    const showHelp = () => setHelp(true);
    const control = new AbortController();
    addEventListener("hashchange", change, control);
    addEventListener("console-help", showHelp, control);
    return () => control.abort();
  }, []);
  useEffect(() => {
    let timer = null;
    const begin = () =>
      connect().then(
        () => setFailed(null),
        (error) => {
          setFailed(error);
          timer = setTimeout(begin, 3000);
        },
      );
    begin();
    return () => clearTimeout(timer);
  }, []);
  const name = moduleOf(place.parts);
  // While someone signs in, the page loads.
  useEffect(() => void modules[name]().catch(() => null), [name]);
  const key = place.parts.join("/");
  useEffect(() => {
    document.getElementById("main")?.scrollTo(0, 0);
    document.querySelector("main h1")?.focus({ preventScroll: true });
  }, [key]);
  const needsToken = caller.info !== null && caller.info.auth_mode !== "none" && !signedIn;
  // An expired token keeps what the user has typed, a sign-out nothing.
  const keepsPage = caller.generation > 0 && caller.signInReason !== null;
  return html`<div class="shell" inert=${needsToken}>
      ${caller.info?.auth_mode === "none"
        ? html`<div class="banner" role="alert">
            Authorization is off: everybody who reaches this server is an administrator
          </div>`
        : null}
      <nav class="rail" aria-label="Pages">
        <div class="brand">${LOGO} agentctl</div>
        ${PAGES.map(
          ([id, label, , icon]) =>
            html`<a key=${id} href=${`#/${id}`} aria-current=${(place.parts[0] ?? FIRST) === id ? "page" : null}
              ><svg viewBox="0 0 24 24" aria-hidden="true"><path d=${icon} /></svg>
              <span>${label}</span>${id === "approvals" && waiting?.total_count ? html`<b class="count" data-waiting>${formatTotal(waiting)}<span class="hidden"> waiting</span></b>` : null}</a
            >`,
        )}
        <button type="button" class="quiet end" onClick=${() => setHelp(true)}>
          Keys <kbd>?</kbd>
        </button>
      </nav>
      <${Top} caller=${caller} failed=${failed} />
      <main id="main" tabindex="-1">
        ${signedIn || keepsPage
          ? html`<${Guard} key=${`${name}/${key}`}
              ><${Lazy} name=${name} parts=${place.parts} query=${place.query}
            /><//>`
          : null}
      </main>
    </div>
    ${needsToken
      ? html`<${Lazy} name="signin" over=${keepsPage} logo=${LOGO} />`
      : null}
    ${help ? html`<${Help} onClose=${() => setHelp(false)} />` : null}`;
}

function Top({ caller, failed }) {
  const now = useNow(1000);
  const { info, me, claims, offlineSince } = caller;
  const left = claims?.exp ? claims.exp - now / 1000 : null;
  useEffect(() => void (me && checkToken(left)), [now]);
  const offline = offlineSince !== null || failed !== null;
  const age = Math.max(0, Math.round((now - caller.answeredAt) / 1000));
  return html`<header class="top">
    <span class="server">${printable(info?.name || "agentctl")}</span>
    <span class=${offline ? "dot off" : "dot"} role="status">
      ${offline
        ? `no answer since ${formatClock(offlineSince || Date.now())}`
        : age < 5
          ? "live"
          : `${formatSpan(age)} ago`}
    </span>
    <span class="who">
      ${me
        ? html`<span class="name" title=${printable(me.principal)}
              ><b>${printable(me.principal)}</b>${me.admin ? " · admin" : ""}</span
            >
            ${left !== null
              ? html`<span class=${left < 300 ? "yellow nowrap" : "dim nowrap"}
                  >${formatSpan(Math.max(0, left))} left</span
                >`
              : null}`
        : null}
      <${Theme} />
      ${me && info?.auth_mode !== "none"
        ? html`<button type="button" onClick=${() => dropToken()}>Sign out</button>`
        : null}
    </span>
  </header>`;
}

function Theme() {
  const [theme, set] = useState(document.documentElement.dataset.theme || "");
  const choose = (event) => {
    const { value } = event.target;
    if (value) document.documentElement.dataset.theme = value;
    else delete document.documentElement.dataset.theme;
    set(value);
  };
  return html`<select class="wide-only" aria-label="Color theme" value=${theme} onChange=${choose}>
    <option value="">System</option>
    <option value="light">Light</option>
    <option value="dark">Dark</option>
  </select>`;
}

const KEYS = [
  ["g o · g s · g r · g p · g a · g h · g u · g w", "overview, sessions, runs, approvals, agents, webhooks, audit, access"],
  ["/", "filter"],
  ["j · k · Enter", "next row, previous row, open"],
  ["Space", "mark the row"],
  ["[ · ]", "run before, run after"],
  ["o · O", "open or close all tools of a run, of all runs"],
  ["t", "timeline of the run"],
  ["f", "follow"],
  ["x", "cancel the run"],
  ["n", "message"],
  ["c", "collapse idle time of a timeline"],
  ["y", "copy the id"],
  ["Esc", "close, back"],
];

let letters = true;

function Help({ onClose }) {
  const [on, set] = useState(letters);
  const change = () => {
    letters = !letters;
    set(letters);
  };
  return html`<${Dialog} title="Keys" onClose=${onClose}>
    <dl class="facts">
      ${KEYS.map(([keys, text]) => html`<dt key=${keys}><kbd>${keys}</kbd></dt><dd>${text}</dd>`)}
    </dl>
    <p class="row"><label><input type="checkbox" checked=${on} onChange=${change} /> Single-letter keys</label></p>
    <div class="buttons"><button type="button" onClick=${onClose}>Close</button></div>
  <//>`;
}

let prefix = 0;

function onKey(event) {
  const typing = event.target.closest?.("input, textarea, select, [contenteditable]");
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (typing) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const single = event.key.length === 1;
  if (single && !letters) return;
  if (Date.now() - prefix < 1500) {
    prefix = 0;
    const page = PAGES.find(([, , key]) => key === event.key);
    if (page) {
      location.hash = `#/${page[0]}`;
      event.preventDefault();
    }
    return;
  }
  if (event.key === "g") prefix = Date.now();
  else if (event.key === "?") dispatchEvent(new Event("console-help"));
  else if (event.key === "/") focusFirst(event, "[data-main=true], .filters input");
  else if (event.key === "j" || event.key === "k") moveFocus(event, event.key === "j" ? 1 : -1);
  else if (event.key === " ") markFocused(event);
  else if (event.key === "Escape") document.querySelector("main .back")?.click();
  else if (single) {
    const sent = new CustomEvent("console-key", { detail: event.key, cancelable: true });
    dispatchEvent(sent);
  }
}

function focusFirst(event, selector) {
  const found = document.querySelector(selector);
  if (!found) return;
  event.preventDefault();
  found.focus();
}

function markFocused(event) {
  const mark = document.activeElement?.closest("tr")?.querySelector("input[type=checkbox]");
  if (!mark || document.activeElement.matches("button")) return;
  event.preventDefault();
  mark.click();
}

function moveFocus(event, step) {
  const links = [...document.querySelectorAll("main [data-row]")];
  if (!links.length) return;
  const at = links.findIndex((each) => each.contains(document.activeElement));
  const next = at < 0 ? (step > 0 ? 0 : links.length - 1) : at + step;
  links[Math.max(0, Math.min(links.length - 1, next))].focus();
  event.preventDefault();
}

addEventListener("keydown", onKey);
addEventListener("unhandledrejection", (event) => {
  // A request that was abandoned is no failure.
  if (event.reason?.name === "AbortError") event.preventDefault();
});
render(html`<${App} />`, document.getElementById("app"));
