// The console: its navigation and its pages, which are loaded when they are opened.

import { isNotifying, notifyOf } from "./notify.js";
import { render } from "../vendor/preact.mjs";
import { call, canList, chatUrl, mayCall } from "./api.js";
import { Above, KEYBOARD, listen, LOGO, Warnings, Top, useShell } from "./shell.js";
import { formatTotal, Guard, html, Later, Skeleton, useCaller, useEffect, useState } from "./ui.js";

const PAGES = [
  ["overview", "Overview", "o", "M5 20v-6M10 20V9M15 20v-8M20 20V5"],
  ["sessions", "Sessions", "s", "M4 5h16v11H9l-5 4z"],
  ["runs", "Runs", "r", "M7 5l12 7-12 7z"],
  ["approvals", "Approvals", "p", "M5 12l4 4 10-10M20 12v7H4V5h9"],
  ["agents", "Agents", "a", "M12 4v3M6 8h12v10H6zM9.5 12v2M14.5 12v2M3 12v3M21 12v3"],
  ["webhooks", "Webhooks", "h", "M9 8a4 4 0 1 1 5 4l3 5M8 11a4 4 0 1 0 4 5h6M18 13a4 4 0 1 1-2 7"],
  ["operate", "Operate", "e", "M3 12h4l3-7 4 14 3-7h4"],
  ["audit", "Audit", "u", "M6 3h9l4 4v14H6zM9 11h7M9 15h7"],
  ["access", "Access", "w", "M8 15a4 4 0 1 1 3.5-2H21v4h-3v-2"],
];
const FIRST = "overview";
/** The operation that a page needs; the other pages have something for every caller. */
const NEEDS = { approvals: "get_approvals", webhooks: "get_webhooks", audit: "get_audit" };

/** Return true if a caller can see something on a page. The address of each page works all the same. */
const isOpenTo = (me, id) => me === null || !NEEDS[id] || mayCall(NEEDS[id]);

const modules = {
  overview: () => import("../pages/overview.js"),
  sessions: () => import("../pages/sessions.js"),
  transcript: () => import("../pages/transcript.js"),
  runs: () => import("../pages/runs.js"),
  timeline: () => import("../pages/timeline.js"),
  approvals: () => import("../pages/approvals.js"),
  agents: () => import("../pages/agents.js"),
  webhooks: () => import("../pages/webhooks.js"),
  operate: () => import("../pages/operate.js"),
  audit: () => import("../pages/audit.js"),
  access: () => import("../pages/access.js"),
};

/** Return the name of the module of a place. */
function moduleOf(parts) {
  const [first = FIRST, id, third] = parts;
  if (first === "sessions" && id) return "transcript";
  if (first === "runs" && id && third === "timeline") return "timeline";
  return PAGES.some(([name]) => name === first) ? first : FIRST;
}

const BEFORE = html`<div class="page"><${Skeleton} /></div>`;
const FAILED = html`<div class="page"><div class="panel problem" role="alert">
    <h2>This page could not be loaded</h2>
    <p>The server may have been updated or is not reachable. Load it again.</p>
    <button type="button" onClick=${() => location.reload()}>Reload</button>
  </div></div>`;

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
    let newest = null;
    const load = async () => {
      clearTimeout(timer);
      const found = document.hidden && !isNotifying() ? null : await call("GET", "/approvals?status=pending&limit=1").catch(() => null);
      if (control.signal.aborted) return;
      pause = found && found.meta.total_count !== last ? SOONEST : Math.min(isNotifying() ? 2 * SOONEST : LATEST, 2 * pause);
      if (found) {
        last = found.meta.total_count;
        set(found.meta);
        newest = notifyOf(found.data, newest);
      }
      timer = setTimeout(load, pause);
    };
    const again = () => {
      pause = SOONEST / 2;
      clearTimeout(timer);
      if (!document.hidden || isNotifying()) timer = setTimeout(load, 300);
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

function App() {
  const shell = useShell();
  const { caller, place } = shell;
  const waiting = useWaiting();
  const name = moduleOf(place.parts);
  // While someone signs in, the page loads.
  useEffect(() => void modules[name]().catch(() => null), [name]);
  const key = place.parts.join("/");
  useEffect(() => {
    document.getElementById("main")?.scrollTo(0, 0);
    document.querySelector("main h1")?.focus({ preventScroll: true });
    // On a phone the pages are a row that scrolls.
    document.querySelector(".rail [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [key]);
  return html`<div class="shell" inert=${shell.needsToken}>
      <${Warnings} caller=${caller} />
      <nav class="rail" aria-label="Pages">
        <div class="brand">${LOGO} agentctl</div>
        ${PAGES.filter(([id]) => isOpenTo(caller.me, id)).map(
          ([id, label, , icon]) =>
            html`<a key=${id} href=${`#/${id}`} aria-current=${(place.parts[0] ?? FIRST) === id ? "page" : null}
              ><svg viewBox="0 0 24 24" aria-hidden="true"><path d=${icon} /></svg>
              <span>${label}</span>${id === "approvals" && waiting?.total_count ? html`<b class="count" data-waiting>${formatTotal(waiting)}<span class="hidden"> waiting</span></b>` : null}</a
            >`,
        )}
        ${chatUrl ? html`<a class="end" href=${chatUrl}><svg viewBox="0 0 24 24" aria-hidden="true"><path d="M4 12a8 8 0 1 1 4 7l-4 1 1-4a8 8 0 0 1-1-4zM9 11h6M9 14h4" /></svg> <span>Chat</span></a>` : null}
        <button type="button" class="quiet" onClick=${() => shell.setHelp(true)}>
          ${KEYBOARD} <span>Shortcuts</span> <kbd>?</kbd>
        </button>
      </nav>
      <${Top} shell=${shell} />
      <main id="main" tabindex="-1">
        ${shell.isShown
          ? html`<${Guard} key=${`${name}/${key}`}
              ><${Later} load=${modules[name]} before=${BEFORE} failed=${FAILED} parts=${place.parts} query=${place.query}
            /><//>`
          : null}
      </main>
    </div>
    <${Above} shell=${shell} keys=${KEYS} />`;
}

const KEYS = [
  ...PAGES.map(([, label, key]) => [`g ${key}`, label]),
  ["/", "filter"],
  ["j · k · Enter", "next row, previous row, open"],
  ["Space", "mark the row"],
  ["[ · ]", "run before, run after; call before, call after"],
  ["o · O", "open or close all tools of a run, of all runs"],
  ["t", "timeline of the run"],
  ["f", "follow"],
  ["x", "cancel the run"],
  ["n", "message"],
  ["c", "collapse idle time of a timeline"],
  ["y", "copy the id"],
  ["Esc", "close, back"],
];

listen(PAGES);
render(html`<${App} />`, document.getElementById("app"));
