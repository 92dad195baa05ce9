// What the console and the chat share: the connection, the sign-in over the page, the bar at the top,
// keys, theme.

import { checkToken, connect, dropToken } from "./api.js";
import {
  Component, Dialog, formatClock, formatSpan, html, leave, printable, readHash, Skeleton, useCaller,
  useEffect, useNow, useState,
} from "./ui.js";

export const LOGO = html`<svg viewBox="0 0 32 32" aria-hidden="true">
  <rect width="32" height="32" rx="8" fill="#2f5bd8" stroke="none" />
  <path d="M9 10l6 6-6 6M17 22h7" fill="none" stroke="#fff" stroke-width="3" stroke-linecap="round" />
</svg>`;

/** Connect to the server, and follow the hash.
 *
 * The result has `caller`, `place`, `failed`, `needsToken`, `isShown` (something is shown below the
 * sign-in), and `help` with `setHelp`.
 */
export function useShell() {
  const caller = useCaller();
  const [place, setPlace] = useState(readHash);
  const [help, setHelp] = useState(false);
  const [failed, setFailed] = useState(null);
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
  const needsToken = caller.info !== null && caller.info.auth_mode !== "none" && caller.me === null;
  // An expired token keeps what the user has typed, a sign-out nothing.
  const keepsPage = caller.generation > 0 && caller.signInReason !== null;
  return { caller, place, failed, needsToken, keepsPage, isShown: caller.me !== null || keepsPage, help, setHelp };
}

const signIn = { signin: () => import("../pages/signin.js") };

export function Above({ shell, keys }) {
  return html`${shell.needsToken
      ? html`<${Lazy} modules=${signIn} name="signin" over=${shell.keepsPage} logo=${LOGO} />`
      : null}
    ${shell.help ? html`<${Help} keys=${keys} onClose=${() => shell.setHelp(false)} />` : null}`;
}

export function OpenServer({ caller }) {
  if (caller.info?.auth_mode !== "none") return null;
  return html`<div class="banner" role="alert">
    Authorization is off: everybody who reaches this server is an administrator
  </div>`;
}

/** A view of a module that is loaded when it is opened. */
export class Lazy extends Component {
  componentDidMount() {
    this.load();
  }

  componentDidUpdate(before) {
    if (before.name !== this.props.name) this.load();
  }

  async load() {
    const { name, modules } = this.props;
    try {
      const loaded = await modules[name]();
      this.setState({ name, view: loaded.default, failed: false });
    } catch {
      this.setState({ name, view: null, failed: true });
    }
  }

  render({ name, modules, ...props }) {
    const { view: View, name: loaded, failed } = this.state;
    if (loaded === name && failed) {
      return html`<div class="page"><div class="panel problem" role="alert">
        <h2>This page could not be loaded</h2>
        <p>The server may have been updated or is not reachable. Load it again.</p>
        <button type="button" onClick=${() => location.reload()}>Reload</button>
      </div></div>`;
    }
    if (!View || loaded !== name) return html`<div class="page"><${Skeleton} /></div>`;
    return html`<${View} ...${props} />`;
  }
}

export function Top({ shell, children }) {
  const now = useNow(1000);
  const { caller, failed } = shell;
  const { info, me, claims, offlineSince } = caller;
  const left = claims?.exp ? claims.exp - now / 1000 : null;
  useEffect(() => void (me && checkToken(left)), [now]);
  const offline = offlineSince !== null || failed !== null;
  const age = Math.max(0, Math.round((now - caller.answeredAt) / 1000));
  return html`<header class="top">
    ${children}
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

let letters = true;

function Help({ keys, onClose }) {
  const [on, set] = useState(letters);
  const change = () => {
    letters = !letters;
    set(letters);
  };
  return html`<${Dialog} title="Keys" onClose=${onClose}>
    <dl class="facts">
      ${keys.map(([each, text]) => html`<dt key=${each}><kbd>${each}</kbd></dt><dd>${text}</dd>`)}
    </dl>
    <p class="row"><label><input type="checkbox" checked=${on} onChange=${change} /> Single-letter keys</label></p>
    <div class="buttons"><button type="button" onClick=${onClose}>Close</button></div>
  <//>`;
}

let prefix = 0;

/** Listen to the keys of a page; `g` and the third field of one of `pages` open it. */
export function listen(pages) {
  addEventListener("keydown", (event) => onKey(event, pages));
  addEventListener("unhandledrejection", (event) => {
    // A request that was abandoned is no failure.
    if (event.reason?.name === "AbortError") event.preventDefault();
  });
}

function onKey(event, pages) {
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
    const page = pages.find(([, , key]) => key === event.key);
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
  const links = [...document.querySelectorAll("[data-row]")];
  if (!links.length) return;
  const at = links.findIndex((each) => each.contains(document.activeElement));
  const next = at < 0 ? (step > 0 ? 0 : links.length - 1) : at + step;
  links[Math.max(0, Math.min(links.length - 1, next))].focus();
  event.preventDefault();
}
