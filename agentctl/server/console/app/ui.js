// What the pages share: formats, resources that are fetched and polled, states, tables, dialogs.

import { Component, Fragment, h } from "../vendor/preact.mjs";
import {
  useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState,
} from "../vendor/hooks.mjs";
import htm from "../vendor/htm.mjs";
import {
  ApiError, call, isFinal, known, loadComponents, send, state, subscribe, withQuery,
} from "./api.js";
import { readExact } from "./exact.js";

/** True on the page of the chat, whose readers are users and not operators. */
export const isChat = location.pathname.endsWith("/chat");

const RETRY_SECONDS = 5;
const PAGE_ROWS = 100;
const OVERSCAN = 2;

export const html = htm.bind(h);
export { Component, Fragment, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState };

const CONTROLS = "[\\u0000-\\u0008\\u000b-\\u001f\\u007f-\\u009f\\u00ad\\u061c\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb]";
// Joiners belong to words and emoji, and hide something elsewhere.
const JOINERS = "[\\u200c\\u200d]";
const BEFORE = "[\\p{L}\\p{M}\\p{Extended_Pictographic}\\p{Emoji_Modifier}]";
const AFTER = "[\\p{L}\\p{Extended_Pictographic}]";
const HIDDEN = new RegExp(`${CONTROLS}|(?<!${BEFORE})${JOINERS}|${JOINERS}(?!${AFTER})`, "gu");
const graphemes = new Intl.Segmenter();

/** Return a text with control and direction characters written out, and loose joiners. */
export function printable(text) {
  return String(text ?? "").replace(
    HIDDEN,
    (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

/** Return a text of one line with at most `length` characters. */
export function cut(text, length = 200) {
  const line = printable(String(text ?? "").slice(0, length * 4).replace(/\s+/g, " ").trim());
  if (line.length <= length) return line;
  return `${line.slice(0, graphemes.segment(line).containing(length - 1).index)}…`;
}

const numbers = new Intl.NumberFormat("en");
const dollars = new Intl.NumberFormat("en", { style: "currency", currency: "USD", maximumFractionDigits: 6 });
export const formatCost = (cost) => dollars.format(cost);
/** Return the cost of a run or a session, a lower bound if some of its tokens have no known price; "" for none. */
export const costOf = ({ cost, unpriced_tokens: unpriced }) => (cost ? `${unpriced ? "≥ " : ""}${formatCost(cost)}` : "");
const shortDollars = new Intl.NumberFormat("en", { style: "currency", currency: "USD", maximumSignificantDigits: 2 });
/** Return `costOf` for a column: two digits of an amount below a dollar. */
export function shortCostOf({ cost, unpriced_tokens: unpriced }) {
  if (!cost) return "";
  if (cost < 0.0001) return "< $0.0001";
  return `${unpriced ? "≥ " : ""}${cost < 1 ? shortDollars.format(cost) : `$${cost.toFixed(2)}`}`;
}
export const formatNumber = (value) => numbers.format(Number(value || 0));
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
export const formatShort = (value) => compact.format(Number(value || 0));
/** Return the total of a list: `120`, `1 run`, or `10,000+ runs` if it is counted up to there. */
export function formatTotal({ total_count: count, total_is_capped: capped }, noun = "") {
  return `${formatNumber(count)}${capped ? "+" : ""}${noun && ` ${noun}${count === 1 ? "" : "s"}`}`;
}

export const many = (count, noun) => formatTotal({ total_count: count }, noun);

/** A text in up to two lines. An address is broken before its `@`. */
export function twoLines(text, more = null) {
  if (!more && text.length <= 12) return text;
  const at = text.indexOf("@");
  const shown = at > 0 ? html`${text.slice(0, at)}<wbr />${text.slice(at)}` : text;
  return html`<div class="two" title=${text}>${shown}${more}</div>`;
}

export const shortId = (id) => String(id || "").slice(0, 13);
export const formatClock = (time) => new Date(time).toISOString().slice(11, 19);

export function formatSize(size) {
  if (size < 1024) return `${size} B`;
  const kilobytes = size / 1024;
  return kilobytes < 1024 ? `${Math.round(kilobytes)} KB` : `${(kilobytes / 1024).toFixed(1)} MB`;
}

/** Return `1.2 s`, `340 ms` or `3 min 4 s`. */
export function formatDuration(milliseconds) {
  if (milliseconds == null || Number.isNaN(milliseconds)) return "";
  if (milliseconds < 1000) return `${Math.max(0, Math.round(milliseconds))} ms`;
  const seconds = milliseconds / 1000;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** Return seconds in one or two units: `45 s`, `12 min`, `3 h 5 min`, `9 d`. */
export function formatSpan(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.round(minutes / 60);
  if (minutes < 1440) return joinUnits(Math.floor(minutes / 60), "h", minutes % 60, "min");
  return joinUnits(Math.floor(hours / 24), "d", hours % 24, "h");
}

function joinUnits(large, name, small, smallName) {
  return small ? `${large} ${name} ${small} ${smallName}` : `${large} ${name}`;
}

/** Return `now`, `12 min`, `3 h`, or the month of a time that is older than 99 days. */
export function formatAge(time, now = Date.now()) {
  const seconds = (now - Date.parse(time)) / 1000;
  if (Number.isNaN(seconds)) return "";
  if (seconds < 5) return "now";
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  if (seconds < 100 * 86400) return `${Math.floor(seconds / 86400)} d`;
  return new Date(time).toISOString().slice(0, 7);
}

/** Return `just now`, `12 min ago`, or the month of a time that is older than 99 days. */
export function formatAgo(time, now = Date.now()) {
  const age = formatAge(time, now);
  if (age === "now") return "just now";
  return /^\d+ /.test(age) ? `${age} ago` : age;
}

export const describeHold = ({ held_at: since, held_by: by, reason }) => printable(`held since ${since.slice(0, 10)} by ${by}: ${reason}`);

/** Return the time from the start of a run to the first part of its answer; "" if it is not known. */
export function formatFirstToken(run) {
  if (!run.first_token_at) return "";
  return formatDuration(Date.parse(run.first_token_at) - Date.parse(run.started_at || run.created_at));
}

export function tookMilliseconds(run, now = Date.now()) {
  const end = run.finished_at ? Date.parse(run.finished_at) : now;
  return end - Date.parse(run.started_at || run.created_at);
}

// Places: the hash is `#/page/…?filter=value`

export function readHash() {
  const [place, query] = location.hash.replace(/^#\/?/, "").split("?");
  let parts = [];
  try {
    parts = place.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    // A hash that is not encoded correctly leads to the first page.
  }
  return { parts, query: Object.fromEntries(new URLSearchParams(query || "")) };
}

export const toHash = (parts, query = {}) => withQuery(`#/${parts.map(encodeURIComponent).join("/")}`, query);

/** Change filters of the current place without a new entry in the history. */
export function setQuery(changes) {
  const { parts, query } = readHash();
  history.replaceState(null, "", toHash(parts, { ...query, ...changes }));
  dispatchEvent(new HashChangeEvent("hashchange"));
}

export function useCaller() {
  const [current, set] = useState(state);
  useEffect(() => subscribe(set), []);
  return current;
}

/** Return the time, and render again every `milliseconds` while the page is visible. */
export function useNow(milliseconds = 1000) {
  const [now, set] = useState(Date.now());
  useEvery(milliseconds, milliseconds > 0, () => set(Date.now()));
  return milliseconds ? Math.max(now, state.answeredAt) : Date.now();
}

/** Call a function every `milliseconds` while `on` is true and the page is visible. */
export function useEvery(milliseconds, on, work) {
  const current = useRef(null);
  current.current = work;
  useEffect(() => {
    if (!on) return;
    const timer = setInterval(() => document.hidden || current.current(), milliseconds);
    return () => clearInterval(timer);
  }, [milliseconds, on]);
}

/** Fetch a document, and again every `every` milliseconds while the page is visible.
 *
 * The result has `data`, `error`, `retryAt` (ms, of a temporary error) and `reload()`. Data stays
 * when a later request fails. A place of null fetches nothing. `parse` reads the text of a response.
 */
export function useResource(place, { every = 0 } = {}) {
  const { generation, me, info } = useCaller();
  const [result, set] = useState({ place, data: undefined, error: null, retryAt: 0 });
  const reload = useRef(() => {});
  const ready = place !== null && (me !== null || info === null);
  useEffect(() => {
    if (!ready) return;
    const control = new AbortController();
    let timer = null;
    let due = Infinity;
    let etag = null;
    let latest = 0;
    const load = async () => {
      const turn = (latest += 1);
      clearTimeout(timer);
      due = Infinity;
      let wait = every;
      try {
        const headers = etag ? { "If-None-Match": etag } : {};
        const response = await send("GET", place, { headers, signal: control.signal });
        const data = response.status === 304 ? undefined : readExact(await response.text());
        if (turn !== latest) return;
        etag = response.headers.get("etag");
        set((old) => ({
          place,
          data: data === undefined ? old.data : data,
          error: null,
          retryAt: 0,
        }));
      } catch (error) {
        if (control.signal.aborted || turn !== latest) return;
        const known = error instanceof ApiError ? error : new ApiError(0);
        wait = known.temporary ? (known.retryAfter || RETRY_SECONDS) * 1000 : 0;
        const retryAt = wait ? Date.now() + wait : 0;
        set((old) => ({
          place,
          data: old.place === place ? old.data : undefined,
          error: known,
          retryAt,
        }));
      }
      due = wait ? Date.now() + wait : Infinity;
      if (wait) timer = setTimeout(() => document.hidden || load(), wait);
    };
    // Nothing is fetched while the page is hidden; what is overdue follows when it appears.
    const appear = () => document.hidden || Date.now() < due || load();
    reload.current = load;
    document.addEventListener("visibilitychange", appear, control);
    load();
    return () => {
      control.abort();
      clearTimeout(timer);
    };
  }, [place, every, generation, ready]);
  const shown = result.place === place ? result : { data: undefined, error: null, retryAt: 0 };
  return { ...shown, reload: () => reload.current() };
}

/** Fetch a list: its first page, and again every `every` milliseconds; more pages on demand.
 *
 * The result has `resource` (of the first page), `rows` without duplicates by `key`, and `more` for
 * `LoadMore`. Later pages stay as they were read; with `live` they are read again.
 */
export function usePages(name, filters, { every, key, live = false }) {
  const place = withQuery(name, { ...filters, limit: PAGE_ROWS });
  const resource = useResource(place, { every });
  const nothing = { place, rows: [], cursor: null, pages: 0, busy: false, error: null };
  const [older, set] = useState(nothing);
  const shown = older.place === place ? older : nothing;
  const cursor = shown.cursor ?? resource.data?.meta.next_cursor;
  const rows = unique((resource.data?.data || []).concat(shown.rows), key);
  const load = async () => {
    if (shown.busy) return;
    set({ ...shown, busy: true, error: null });
    try {
      const page = await call("GET", withQuery(name, { ...filters, limit: PAGE_ROWS, cursor }));
      // Rows that leave the first page are between it and the second one.
      const kept = live ? shown.rows : rows;
      const next = page.meta.next_cursor ?? "";
      const until = page.meta.searched_until;
      set({ ...nothing, rows: kept.concat(page.data), cursor: next, pages: shown.pages + 1, until });
    } catch (error) {
      set({ ...shown, busy: false, error });
    }
  };
  const refresh = async () => {
    if (shown.busy || !resource.data) return;
    let next = resource.data.meta.next_cursor ?? "";
    let found = [];
    for (let page = 0; page < shown.pages && next; page += 1) {
      const read = await call("GET", withQuery(name, { ...filters, limit: PAGE_ROWS, cursor: next }));
      found = found.concat(read.data);
      next = read.meta.next_cursor ?? "";
    }
    set((old) => (old === shown ? { ...shown, rows: found, cursor: next } : old));
  };
  useEvery(5 * every, live && shown.pages > 0, () => refresh().catch(() => null));
  const until = shown.pages ? shown.until : resource.data?.meta.searched_until;
  return { resource, rows, more: { available: Boolean(cursor), load, ...shown, until } };
}

function unique(rows, key) {
  const seen = new Set();
  return rows.filter((row) => !seen.has(row[key]) && seen.add(row[key]));
}

export function LoadMore({ more }) {
  const end = useRef(null);
  const load = useRef(null);
  load.current = more.load;
  const ready = more.available && !more.busy && more.error === null;
  useEffect(() => {
    if (!ready) return;
    const watch = new IntersectionObserver((seen) => {
      if (seen.some((each) => each.isIntersecting)) load.current();
    });
    watch.observe(end.current);
    return () => watch.disconnect();
  }, [ready, more.cursor]);
  if (!more.available) return null;
  return html`<div class="more row" ref=${end}>
    <${ErrorText} error=${more.error} />
    ${more.until ? html`<span class="dim">searched until ${more.until.slice(0, 10)}</span>` : null}
    <button type="button" disabled=${more.busy} onClick=${more.load}>Load ${PAGE_ROWS} more</button>
  </div>`;
}

const BEFORE_HIT = 14;

/** The text that a search found. It is never parsed as HTML. */
export function Snippet({ match }) {
  // The highlights are in characters, not in the units of UTF-16.
  const letters = Array.from(match.snippet);
  let end = Math.max(0, (match.highlights[0]?.[0] ?? 0) - BEFORE_HIT);
  const parts = end ? ["…"] : [];
  for (const [from, to] of match.highlights) {
    parts.push(printable(letters.slice(end, from).join("")));
    parts.push(html`<mark>${printable(letters.slice(from, to).join(""))}</mark>`);
    end = to;
  }
  return html`${parts}${printable(letters.slice(end).join(""))}`;
}

export function useComponents() {
  const { generation } = useCaller();
  const [found, set] = useState(known);
  useEffect(() => {
    let gone = false;
    loadComponents().then((loaded) => gone || set(loaded));
    return () => {
      gone = true;
    };
  }, [generation]);
  return found;
}

/** Return `[marked, mark, unmark]` of a list: ids of rows. */
export function useMarks() {
  const [marked, set] = useState(new Set());
  const mark = (id) => {
    const next = new Set(marked);
    if (!next.delete(id)) next.add(id);
    set(next);
  };
  return [marked, mark, () => set(new Set())];
}

export function useNames() {
  return useComponents().names;
}

/** Call functions for keys while a component is shown: `{c: collapse, Escape: close}`. */
export function useKeys(keys) {
  const current = useRef(keys);
  current.current = keys;
  // Before the browser paints, so that its keys work at once.
  useLayoutEffect(() => {
    const listen = (event) => {
      const action = current.current[event.detail];
      if (action) {
        event.preventDefault();
        action();
      }
    };
    addEventListener("console-key", listen);
    return () => removeEventListener("console-key", listen);
  }, []);
}

export const LOOKS = {
  queued: ["◌", "dim"],
  running: ["●", "blue"],
  paused: ["‖", "yellow"],
  stopping: ["◐", "yellow"],
  stopped: ["■", "grey"],
  completed: ["✓", "green"],
  failed: ["✗", "red"],
  unknown: ["?", "dim"],
};

export const describeCause = ({ type, message }) => (message ? `${type}: ${message.split("\n", 1)[0]}` : type);

/** Return the exception that ended a run; null for a failed call of a model, whose text of the run says more.
 *
 * The response of a provider often has the id of the request, so it makes no groups either.
 */
export const exceptionOf = (cause) => (cause && cause.type !== "ModelFailure" ? cause : null);

export const STATUSES = {
  RUNNING: "running", PENDING: "queued", PAUSED: "paused", COMPLETED: "completed", ERROR: "failed",
  CANCELLED: "stopped",
};

/** Return the phase of a run, by its status for records without one: sessions, answers to a cancel. */
export function phaseOf(run) {
  if (run.phase) return run.phase;
  const requested = run.cancel_requested_at;
  const name = requested && !isFinal(run) ? "stopping" : STATUSES[run.status] || "unknown";
  const by = run.cancel_requested_by ? ` by ${run.cancel_requested_by}` : "";
  return { name, words: name, warning: "", sentence: requested ? `cancel requested ${formatClock(requested)}${by}` : "" };
}

export const Glyph = ({ look: [glyph, color] = ["?", "dim"], title, children }) =>
  html`<span class=${`status ${color}`} title=${title || null}><span aria-hidden="true">${glyph}</span> ${children}</span>`;

export const Json = ({ text, ...more }) => html`<pre class="json" tabindex="0" ...${more}>${printable(text)}</pre>`;

export function Status({ run }) {
  const phase = phaseOf(run);
  return html`<${Glyph} look=${LOOKS[phase.name]} title=${phase.sentence}>${phase.words}<//>${phase.warning ? html` <span class="status yellow nowrap">! ${phase.warning}</span>` : null}`;
}

export function Skeleton({ rows = 8 }) {
  return html`<div class="skeleton" role="status">
    <span class="hidden">Loading</span>
    ${Array.from({ length: rows }, (_, at) => html`<div key=${at}></div>`)}
  </div>`;
}

/** A list without rows; a button clears its `filters`. */
export function Empty({ children, filters = [], query, none }) {
  const given = filters.filter((name) => query[name]);
  const clear = () => given.forEach((name) => setQuery({ [name]: "" }));
  const hint = query?.search ? html` Runs that ended before search was enabled are found after <code>agentctl db index</code>.` : null;
  return html`<div class="empty">${given.length
    ? html`${none}${hint}<button type="button" onClick=${clear}>Clear filters</button>` : children}</div>`;
}

/** A view of a module that is fetched when it is shown; `before` is shown until then, `failed` without it. */
export function Later({ load, name = "default", before = null, failed = null, ...props }) {
  const [View, set] = useState(null);
  // Before the browser paints: a module that was fetched is there at once.
  useLayoutEffect(() => void load().then((loaded) => set(() => loaded[name]), () => set(() => () => failed)), []);
  return View ? html`<${View} ...${props} />` : before;
}

/** A button with a dialog that is fetched when it is opened. */
export function DialogButton({ label, onClose, ...dialog }) {
  const [open, setOpen] = useState(false);
  return html`<button type="button" onClick=${() => setOpen(true)}>${label}</button>
    ${open ? html`<${Later} ...${dialog} onClose=${() => (setOpen(false), onClose?.())} />` : null}`;
}

/** A button with a list of actions, which a choice, Escape and a click elsewhere close.
 *
 * `label` names the button, unless it has a `text` of its own. `children` are buttons and links.
 */
export function Menu({ label, text = "⋯", children, ...look }) {
  const button = useRef(null);
  const list = useRef(null);
  const [open, setOpen] = useState(false);

  useLayoutEffect(() => {
    if (!open) return undefined;
    placeBelow(list.current, button.current);
    itemsOf(list.current)[0]?.focus();

    // The list is in the top layer, and would stay where it is while its button moves away.
    const hide = () => list.current?.hidePopover();
    const close = (event) => list.current?.contains(event.target) || hide();
    document.addEventListener("scroll", close, true);
    addEventListener("resize", hide);
    return () => {
      document.removeEventListener("scroll", close, true);
      removeEventListener("resize", hide);
    };
  }, [open]);

  const press = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && open) {
      const items = itemsOf(list.current);
      items.at((items.indexOf(document.activeElement) + step) % items.length)?.focus();
      event.preventDefault();
    } else if (event.key === "Escape" && open) {
      list.current.hidePopover();
    } else {
      return;
    }
    // The page has other uses for these keys.
    event.stopPropagation();
  };
  const choose = (event) => event.target.closest("button, a") && list.current.hidePopover();
  const toggle = () => list.current.togglePopover();

  return html`<span class="menu-of" onKeyDown=${press}>
    <button type="button" ref=${button} data-menu=${label} aria-label=${text === "⋯" ? label : null} aria-expanded=${open} title=${label}
      onClick=${toggle} ...${look}>${text}</button>
    <div class="menu-list" popover="auto" ref=${list} onToggle=${(event) => setOpen(event.newState === "open")} onClick=${choose}>
      ${open ? children : null}</div>
  </span>`;
}

const itemsOf = (list) => [...list.querySelectorAll("a[href], button:not(:disabled), select")];

/** Show a list at the right end of its button: below it, or above it if there is more room. */
function placeBelow(list, button) {
  const box = button.getBoundingClientRect();
  const fits = box.bottom + list.offsetHeight + 12 < innerHeight;
  const top = fits ? box.bottom + 4 : box.top - list.offsetHeight - 4;
  const left = box.right - list.offsetWidth;
  list.style.top = `${Math.max(8, top)}px`;
  list.style.left = `${Math.max(8, left)}px`;
}

export function Copy({ text, label = "Copy", small = true }) {
  const [done, set] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      return;
    }
    set(true);
    setTimeout(() => set(false), 1500);
  };
  return html`<button type="button" class=${small ? "link" : ""} onClick=${copy}>
    ${done ? "Copied" : label}
  </button>`;
}

export const Toggle = ({ label, on, onClick }) =>
  html`<button type="button" aria-pressed=${on} onClick=${onClick}>${label}: ${on ? "on" : "off"}</button>`;

export function saveFile(name, blob) {
  const url = URL.createObjectURL(blob);
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
}

export function Command({ text }) {
  return html`<div class="command"><code>${text}</code><${Copy} text=${text} /></div>`;
}

/** Return `[start, failure, busy]` of an action of the user. */
export function useAction(work) {
  const [{ failure, busy }, set] = useState({});
  const start = async (event) => {
    event?.preventDefault?.();
    if (busy) return;
    set({ busy: true });
    set({ failure: await work(event).then(() => null, (error) => error) });
  };
  return [start, failure, busy];
}

export const ErrorText = ({ error }) => (error ? html`<span class="error" role="alert">${printable(error.message)}</span>` : null);

export function Problem({ error, place = "", reload }) {
  const { me } = useCaller();
  const at = place.split("?")[0];
  const panel = (title, body) => html`<div class="panel problem" role="alert"><h2>${title}</h2>${body}</div>`;
  if (error.status === 401) return html`<${Empty}>Sign in to see this.<//>`;
  if (error.status === 403) {
    const held = me?.scopes.join(", ");
    const needed = error.scopes.at(-1) ?? "the admin scope";
    return panel("Not allowed", html`
      <p>This needs <code>${needed}</code>; your token has <code>${printable(held || "no scopes")}</code>.</p>
      ${held ? null : html`<p class="dim">${printable(error.message)}</p>`}
      ${at ? html`<${Command} text=${`agentctl auth explain GET ${at}`} />` : null}`);
  }
  if (error.status === 404) {
    // A page with its own way back, such as "‹ Agents", needs no second one.
    return panel("Not found, or you have no access", html`
      <p>Check the address, or ask an administrator for access.</p>
      ${isChat ? html`<p><a href="#/">Start a new chat</a></p>` : null}`);
  }
  if (error.status === 400 && error.message.startsWith("Search is not enabled")) {
    return panel("This server does not search for words", html`
      <p>Full-text search is off: it needs <code>enabled = true</code> in <code>[search]</code> of the configuration.</p>
      <p>Filters work without it, such as <code>status:</code> and <code>user:</code>.
        <button type="button" class="link" onClick=${() => setQuery({ search: "" })}>Remove the words</button></p>`);
  }
  return panel(error.status ? "The server reported an error" : "No answer from the server", html`
    <p>${printable(error.message)}</p>
    ${error.requestId
      ? html`<p class="dim">request <code>${error.requestId}</code> <${Copy} text=${error.requestId} /></p>`
      : null}
    ${reload ? html`<button type="button" onClick=${reload}>Try again</button>` : null}`);
}

/** The data of a resource, or its state. `children` is a function of the data. */
export function Loaded({ resource, place, rows, children }) {
  const now = useNow(resource.retryAt ? 1000 : 0);
  const [late, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), 150);
    return () => clearTimeout(timer);
  }, []);
  const { data, error, retryAt, reload } = resource;
  if (data === undefined && !error) return late ? html`<${Skeleton} rows=${rows} />` : null;
  // What a caller may no longer see, or what is gone, does not stay on the page.
  const refused = error && !error.temporary && error.status !== 401;
  const retry = error && retryAt
    ? html`<div class="bar yellow" role="status" data-retry>
        ${describeOutage(error)} · trying again in ${Math.max(0, Math.ceil((retryAt - now) / 1000))} s
        ${" "}<button type="button" class="link" onClick=${reload}>Try now</button>
      </div>`
    : null;
  if (data === undefined || refused) {
    return html`${retry}<${Problem} error=${error} place=${place} reload=${retry ? null : reload} />`;
  }
  return html`${retry}<div class=${error ? "stale" : ""}>${children(data)}</div>`;
}

export function describeOutage(error) {
  if (error.status === 429) return "Too many requests";
  if (error.status === 503) return "The server is not available";
  if (error.status) return `The server reported an error (${error.status})`;
  return `No answer since ${formatClock(state.offlineSince || Date.now())}`;
}

export class Guard extends Component {
  componentDidCatch(error) {
    this.setState({ error });
    console.warn("a part of the page failed:", error.message);
  }

  render({ children }) {
    if (!this.state.error) return children;
    return html`<div class="panel problem" role="alert">
      <h2>This part of the page failed</h2>
      <p>The rest of the page still works.</p>
      <button type="button" onClick=${() => this.setState({ error: null })}>Try again</button>
    </div>`;
  }
}

/** A page with its head. With `reading` the head stays in view while its text is scrolled. */
export function Page({ title, back, aside, children, wide, reading }) {
  useEffect(() => {
    const name = state.info?.name || "agentctl";
    document.title = `${cut(title, 60)} · ${name}`;
    return () => void (document.title = name);
  }, [title]);
  const head = useRef(null);
  useEffect(() => {
    // The element that had the focus is gone with the page before.
    if (document.activeElement === document.body) head.current.focus({ preventScroll: true });
  }, []);
  return html`<div class=${`page${wide ? " wide" : ""}${reading ? " reading" : ""}`}>
    <div class="head">
      ${back ? html`<a class="back" href=${back.href}>‹ ${back.label}</a>` : null}
      <h1 tabindex="-1" ref=${head} dir="auto">${cut(title, 120)}</h1>
      <div class="aside">${aside}</div>
    </div>
    ${children}
  </div>`;
}

/** A modal dialog; Escape closes it, and the focus returns to where it was. */
export function Dialog({ title, onClose, children, wide }) {
  const element = useRef(null);
  const before = useRef(document.activeElement);
  // Before the browser paints: a visible dialog has the focus and the keys.
  useLayoutEffect(() => {
    element.current.showModal();
    return () => before.current?.isConnected && before.current.focus();
  }, []);
  const cancel = (event) => {
    event.preventDefault();
    onClose();
  };
  return html`<dialog ref=${element} class=${wide ? "wide" : ""} onCancel=${cancel} aria-label=${title}>
    <h2>${title}</h2>
    ${children}
  </dialog>`;
}

/** A table of many rows. `children` are the cells of its head, `row` draws one: `(each, at) => …`. */
export function LongTable({ rows, columns, row, children }) {
  const body = useRef(null);
  const { from, to, before, after } = useWindow(rows.length, body);
  useReturn(body);
  return html`<div class="table"><table aria-rowcount=${rows.length + 1}>
    <colgroup>${columns}</colgroup><thead><tr>${children}</tr></thead>
    <tbody ref=${body}><${Space} height=${before} />${rows.slice(from, to).map((each, at) => row(each, from + at))}<${Space} height=${after} /></tbody>
  </table></div>`;
}

/** Rows of one height; only those near the visible part are in the document.
 *
 * The heights and the width are those of app.css: a narrow list has rows of two lines.
 */
function useWindow(count, body) {
  const [first, set] = useState(0);
  const [height, setHeight] = useState(rowHeight);
  useEffect(() => {
    const resized = new ResizeObserver(() => setHeight(rowHeight()));
    resized.observe(document.getElementById("main"));
    return () => resized.disconnect();
  }, []);
  const visible = document.getElementById("main")?.clientHeight || innerHeight;
  const shown = Math.ceil(visible / height) + 2 * OVERSCAN;
  useEffect(() => {
    if (count <= shown) return;
    const scroller = document.getElementById("main");
    const measure = () => {
      if (!body.current) return;
      const above = scroller.getBoundingClientRect().top - body.current.getBoundingClientRect().top;
      set(Math.max(0, Math.min(Math.floor(above / height) - OVERSCAN, count - shown)));
    };
    scroller.addEventListener("scroll", measure, { passive: true });
    measure();
    return () => scroller.removeEventListener("scroll", measure);
  }, [count, height, shown]);
  const from = count <= shown ? 0 : Math.min(first, count - shown);
  const to = Math.min(count, from + shown);
  return { from, to, before: from * height, after: (count - to) * height };
}

function rowHeight() {
  return (document.getElementById("main")?.clientWidth ?? innerWidth) < 860 ? 57 : 45;
}

function Space({ height }) {
  // A colspan would count columns that a narrow page hides, and give them a width.
  return height ? html`<tr class="space"><td style=${{ height: `${height}px` }}></td></tr>` : null;
}

/** Focus the row of a list whose page was left with Escape or `back`. */
function useReturn(body) {
  useEffect(() => {
    const rows = body.current.querySelectorAll("[data-row]");
    const link = left && [...rows].find((each) => each.hash.split("?")[0] === left);
    left = "";
    if (link && document.activeElement?.matches("h1, body")) link.focus();
  }, []);
}

let left = "";

/** Keep the place that is left, so that the list it came from can focus its row. */
export function leave(hash) {
  left = hash.split("?")[0];
}
