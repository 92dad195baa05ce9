// What the console and the chat share: the connection, the sign-in over the page, the bar at the top,
// keys, theme.

import {
  ApiError, chatUrl, checkToken, connect, dropToken, issuer, mayCall, readClaims, signIn, startSignIn, state,
} from "./api.js";
import {
  Command, cut, Dialog, formatClock, formatSpan, html, isChat, leave, many, Menu, printable, readHash, useAction, useCaller,
  useEffect, useNow, useRef, useResource, useState,
} from "./ui.js";

export const LOGO = html`<svg viewBox="0 0 32 32" aria-hidden="true">
  <rect width="32" height="32" rx="8" fill="#2f5bd8" stroke="none" />
  <path d="M9 10l6 6-6 6M17 22h7" fill="none" stroke="#fff" stroke-width="3" stroke-linecap="round" />
</svg>`;

export const KEYBOARD = html`<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M3 7h18v10H3zM7 10.5h.01M11 10.5h.01M15 10.5h.01M8 14h8" /></svg>`;

const PERSON = html`<svg viewBox="0 0 24 24" aria-hidden="true"><path d="M12 12a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM4 21c1-5 15-5 16 0" /></svg>`;

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

export function Above({ shell, keys }) {
  return html`${shell.needsToken
      ? html`<${SignIn} over=${shell.keepsPage} />`
      : null}
    ${shell.help ? html`<${Help} keys=${keys} onClose=${() => shell.setHelp(false)} />` : null}`;
}

const HALTS_MILLISECONDS = 10000;

/** What concerns every page: halts, with who, when and why, and a server without authorization. */
export function Warnings({ caller }) {
  const place = mayCall("get_halts") ? "/halts?state=active&limit=3" : null;
  const halts = useResource(place, { every: HALTS_MILLISECONDS });
  const lines = (halts.data?.data ?? []).map(describeHalt);
  const others = (halts.data?.meta?.total_count ?? lines.length) - lines.length;
  if (others > 0) lines.push(`and ${many(others, "other halt")}`);
  if (caller.info?.auth_mode === "none") {
    lines.push("Authorization is off: everybody who reaches this server is an administrator");
  }
  if (!lines.length) return null;
  return html`<div class="banner" role="alert">${lines.map((line) => html`<div key=${line}>${line}</div>`)}</div>`;
}

const formatMinute = (time) => `${new Date(time).toISOString().slice(0, 16).replace("T", " ")}Z`;

function describeHalt(halt) {
  const subject = halt.scope === "all" ? "Everything" : `${halt.scope} ${printable(halt.scope_id)}`;
  const until = halt.until ? ` until ${formatMinute(halt.until)}` : "";
  const by = printable(halt.created_by || "unknown");
  return `Halted: ${subject}, by ${by} at ${formatMinute(halt.created_at)}${until}: ${printable(halt.reason)}`;
}

/** A token is pasted or dropped, its claims are shown, and the server checks it. */
function SignIn({ over }) {
  const [token, setToken] = useState("");
  const field = useRef(null);
  useEffect(() => field.current.focus(), []);

  const [submit, error, busy] = useAction(async (event) => {
    if (event.type === "click") return startSignIn();
    if (!token.trim()) throw new ApiError(401, { detail: "Paste a token first" });
    await signIn({ token: token.trim() });
    return setToken("");
  });
  const drop = async (event) => {
    event.preventDefault();
    const [file] = event.dataTransfer.files;
    setToken(file ? (await file.slice(0, 65536).text()).trim() : event.dataTransfer.getData("text"));
  };

  return html`<div class=${over ? "signin over" : "signin"}>
    <form onSubmit=${submit} onDragOver=${(event) => event.preventDefault()} onDrop=${drop}
      aria-label="Sign in">
      <h1>${LOGO} ${printable(state.info?.name || "agentctl")}</h1>
      ${state.signInReason ? html`<p class="bar yellow" role="status">${printable(state.signInReason)}</p>` : null}
      ${issuer ? html`<button type="button" class="primary" disabled=${busy} onClick=${submit}>Sign in with ${issuer}</button>` : null}
      <label class="field">
        <b>${issuer ? "Or a token" : "Token"}</b>
        <textarea ref=${field} name="token" value=${token} placeholder="paste, or drop a file"
          autocomplete="off" spellcheck="false" autocapitalize="off"
          onInput=${(event) => setToken(event.target.value)}
          onKeyDown=${(event) => event.key === "Enter" && submit(event)}></textarea>
      </label>
      <${Claims} token=${token} />
      ${error ? html`<${Rejected} error=${error} />` : null}
      <button type="submit" class=${issuer ? "" : "primary"} disabled=${busy}>Sign in</button>
      ${isChat ? html`<p class="dim">Your administrator gives you a token, or a link that signs you in.</p>`
        : html`<p class="dim">The token stays in this tab: in its memory and, for a reload, in a cookie that no script
            can read. This command opens a link that signs you in:</p>
          <${Command} text="agentctl console" />`}
    </form>
  </div>`;
}

function Claims({ token }) {
  if (!token.trim()) return null;
  const claims = readClaims(token);
  if (claims === null) {
    const account = /^[a-z][a-z0-9]*_pat_\w+$/.test(token.trim());
    return html`<p class="dim">${account ? "The token of a service account" : "This is not a JWT"}</p>`;
  }
  const left = typeof claims.exp === "number" ? claims.exp - Date.now() / 1000 : null;
  const scopes = Array.isArray(claims.scopes) ? claims.scopes : [];
  return html`<div role="status">
    <p>
      <b>${cut(claims.sub ?? "no subject", 80)}</b> ·${" "}
      ${left === null
        ? "never expires"
        : left > 0
          ? `expires in ${formatSpan(left)}`
          : html`<span class="error">expired ${formatSpan(-left)} ago</span>`}
    </p>
    <p class="chips">
      ${scopes.length
        ? scopes.slice(0, 30).map((each) => html`<span class="chip">${cut(each, 80)}</span>`)
        : html`<span class="yellow">no claim scopes: others count only if the server reads them</span>`}
    </p>
  </div>`;
}

function Rejected({ error }) {
  return html`<div class="bar red" role="alert">
    <p>${error.status ? `${error.status}: ` : ""}${printable(error.message)}</p>
    ${error.status === 401
      ? html`<${Command} text="agentctl auth explain GET /auth/me --token-file FILE" />`
      : null}
  </div>`;
}

const SOON = 300;

/** The bar at the top: the server, the connection, and the menu of the caller. */
export function Top({ shell, children }) {
  const now = useNow(1000);
  const { caller, failed } = shell;
  const { info, me, claims, offlineSince } = caller;
  const left = claims?.exp ? claims.exp - now / 1000 : null;
  useEffect(() => void (me && checkToken(left)), [now]);
  const offline = offlineSince !== null || failed !== null;

  return html`<header class="top">
    ${children}
    <span class="server">${printable(info?.name || "agentctl")}</span>
    <span class=${offline ? "dot off" : "dot"} role="status">${offline
      ? `No answer since ${formatClock(offlineSince || Date.now())}`
      : describeAnswer(now - caller.answeredAt)}</span>
    <span class="who">
      ${left !== null && left < SOON
        ? html`<span class="yellow nowrap" role="status">Session expires in ${formatSpan(Math.max(0, left))}</span>`
        : null}
      <${Account} caller=${caller} left=${left} />
    </span>
  </header>`;
}

/** Return `Connected`, or the time since the last answer of a server that has been silent. */
function describeAnswer(milliseconds) {
  const seconds = Math.max(0, Math.round(milliseconds / 1000));
  return seconds < 30 ? "Connected" : `Last answer ${formatSpan(seconds)} ago`;
}

/** Who is signed in, and what concerns the whole page. */
function Account({ caller, left }) {
  const { info, me } = caller;
  const name = me && html`<span class="name" title=${printable(me.principal)}
    ><b>${printable(me.principal)}</b>${me.admin ? " · admin" : ""}</span>`;

  return html`<${Menu} label="Account and settings" class="quiet account" text=${html`${PERSON} <span class="hidden">Account</span> ${name} <span aria-hidden="true">▾</span>`}>
    ${left === null ? null : html`<p class="dim">Session expires in ${formatSpan(Math.max(0, left))}</p>`}
    <${Theme} />
    ${isChat ? html`<a href="console">Open the console</a>` : chatUrl ? html`<a href=${chatUrl}>Open the chat</a>` : null}
    <button type="button" onClick=${() => dispatchEvent(new Event("console-help"))}>Keyboard shortcuts <kbd>?</kbd></button>
    ${me && info?.auth_mode !== "none" ? html`<button type="button" onClick=${() => dropToken()}>Sign out</button>` : null}
  <//>`;
}

function Theme() {
  const [theme, set] = useState(document.documentElement.dataset.theme || "");
  const choose = (event) => {
    const { value } = event.target;
    if (value) document.documentElement.dataset.theme = value;
    else delete document.documentElement.dataset.theme;
    set(value);
  };
  return html`<label class="filter">Theme <select aria-label="Color theme" value=${theme} onChange=${choose}>
    <option value="">System</option>
    <option value="light">Light</option>
    <option value="dark">Dark</option>
  </select></label>`;
}

let letters = true;

function Help({ keys, onClose }) {
  const [on, set] = useState(letters);
  const change = () => {
    letters = !letters;
    set(letters);
  };
  return html`<${Dialog} title="Keyboard shortcuts" onClose=${onClose}>
    <dl class="facts keys">
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
