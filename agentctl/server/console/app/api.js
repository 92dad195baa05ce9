// Requests to the server. The token is a variable of this module. It is not part of a URL, and it is
// dropped after a 401, a sign-out and 30 minutes in the background. For a reload the server keeps it
// in a cookie that no script can read, encrypted with a key that only this tab has. A refresh token is
// in this cookie only.

import { readExact, writeExact } from "./exact.js";

const BASE = new URL(".", document.baseURI);
const HIDDEN_LIMIT = 30 * 60 * 1000;
const KEPT = "/console/sign-in/token";

let token = null;
let renewAt = 0;
let hiddenSince = null;
const listeners = new Set();

/** The caller, the server and the connection. Changed with `update` only. */
export let state = {
  info: null,
  me: null,
  claims: null,
  generation: 0,
  signInReason: null,
  offlineSince: null,
  answeredAt: 0,
};

function update(changes) {
  state = { ...state, ...changes };
  for (const listener of listeners) listener(state);
}

/** Call a function after each change of `state`; return the function that ends this. */
export function subscribe(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

/** An error response, or no response (status 0). */
export class ApiError extends Error {
  constructor(status, body = {}, headers = new Headers()) {
    super(body.detail || (status ? `Status ${status}` : "No answer from the server"));
    this.status = status;
    this.code = body.error_code || "";
    this.scopes = body.required_scopes || [];
    this.plan = body.plan || null;
    this.requestId = headers.get("x-request-id") || "";
    this.retryAfter = Number(headers.get("retry-after")) || 0;
  }

  /** True if the same request can succeed later. */
  get temporary() {
    return [0, 429, 500, 502, 503, 504].includes(this.status);
  }
}

/** Return a path with encoded parameters: path`/sessions/${id}`. */
export function path(texts, ...values) {
  return texts.reduce((all, text, at) => all + encodeURIComponent(values[at - 1]) + text);
}

/** Return a path with the parameters that have a value. */
export function withQuery(place, query) {
  const given = Object.entries(query).filter(([, value]) => value != null && value !== "");
  return given.length ? `${place}?${new URLSearchParams(given)}` : place;
}

/** Send a request by fetch, or by `using`; return the response. A body that is a text is JSON. Raises ApiError. */
export async function send(method, place, options = {}) {
  const { body, headers, signal, accept, credentials = "omit", again, using = fetch } = options;
  const sent = token;
  const fields = {
    Accept: accept || "application/json",
    "Agentctl-Interface": "contract",
    ...headers,
  };
  if (sent !== null) fields.Authorization = `Bearer ${sent}`;
  // The server finds the type of a file in its bytes.
  const raw = typeof body === "string" || body instanceof Blob;
  if (body !== undefined) fields["Content-Type"] = body instanceof Blob ? "application/octet-stream" : "application/json";
  let response;
  try {
    response = await using(new URL(place.replace(/^\//, ""), BASE), {
      method,
      signal,
      headers: fields,
      body: raw ? body : writeExact(body),
      cache: "no-store",
      credentials,
      redirect: "error",
      referrerPolicy: "no-referrer",
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    if (state.offlineSince === null) update({ offlineSince: Date.now() });
    throw new ApiError(0);
  }
  state.answeredAt = Date.now();
  if (state.offlineSince !== null) update({ offlineSince: null });
  if (response.ok || response.status === 304) return response;
  const failure = new ApiError(
    response.status,
    await response.json().catch(() => ({})),
    response.headers,
  );
  if (failure.status === 401 && state.me !== null) {
    if (!again && (sent !== token || (await renew()))) return send(method, place, { ...options, again: true });
    if (sent === token) dropToken("The server did not accept the token any more: it has expired or was revoked.");
  }
  throw failure;
}

export async function call(method, place, options) {
  const response = await send(method, place, options);
  return response.status === 204 ? null : readExact(await response.text());
}

/** Return the claims of a JWT, not verified; null for another token. */
export function readClaims(text) {
  try {
    const [, payload] = text.trim().split(".");
    const bytes = atob(payload.replace(/-/g, "+").replace(/_/g, "/"));
    const claims = JSON.parse(
      new TextDecoder().decode(Uint8Array.from(bytes, (each) => each.charCodeAt(0))),
    );
    return claims && typeof claims === "object" ? claims : null;
  } catch {
    return null;
  }
}

/** Read the server's name and sign in without a token if it asks for none. */
export async function connect() {
  const info = await call("GET", "/info");
  if (info.auth_mode === "none") update({ me: await call("GET", "/auth/me") });
  else if (state.me === null) await (linkCode ? useLink() : returned === null ? restore() : finishSignIn());
  update({ info });
}

function readTab() {
  try {
    return JSON.parse(sessionStorage.getItem("console")) || {};
  } catch {
    return {};
  }
}

/** Store something for this tab; without a storage a reload asks for the token. */
function writeTab(changes) {
  try {
    if (changes) sessionStorage.setItem("console", JSON.stringify({ ...readTab(), ...changes }));
    else sessionStorage.removeItem("console");
  } catch {
  }
}

/** The provider at which one signs in; empty for a sign-in with a token only. */
export const issuer = document.querySelector("meta[name=issuer]").content;

/** The page of the chat, relative to this one; empty if the server has none. */
export const chatUrl = document.querySelector("meta[name=chat]").content;

/** The response of the provider, which leaves the URL at once. */
const search = new URLSearchParams(location.search);
let returned = search.has("state") ? search : null;
if (returned) history.replaceState(null, "", location.pathname + location.hash);

/** The code of a link that signs in once. It is in the fragment, which no server and no log gets. */
let linkCode = /^#link=([\w-]{20,})$/.exec(location.hash)?.[1] ?? "";
if (linkCode) history.replaceState(null, "", location.pathname + location.search);

/** Sign in with the code of a link, which works once. */
async function useLink() {
  const code = linkCode;
  linkCode = "";
  try {
    await signIn(await keep("/console/sign-in/link", { code }), true);
  } catch (error) {
    update({ signInReason: error.message });
  }
}

const pageUrl = () => location.origin + location.pathname;

/** Leave the page for the provider. Its response returns to this page and this place. */
export async function startSignIn() {
  const { url, ...secrets } = await call("POST", "/console/sign-in/start", { body: { redirect_uri: pageUrl() } });
  writeTab({ sent: { ...secrets, place: location.hash } });
  location.assign(url);
}

/** Sign in with the response of the provider, if this tab has asked for it. */
async function finishSignIn() {
  const given = returned;
  returned = null;
  const { sent } = readTab();
  writeTab({ sent: undefined });
  try {
    if (!sent || sent.state !== given.get("state")) throw new ApiError(400, { detail: "This tab has not asked for the sign-in" });
    if (!given.get("code")) throw new ApiError(400, { detail: `The provider refused the sign-in: ${given.get("error") || "no code"}` });
    history.replaceState(null, "", location.pathname + sent.place);
    dispatchEvent(new HashChangeEvent("hashchange"));
    const body = { code: given.get("code"), issuer: given.get("iss") || "", redirect_uri: pageUrl(), nonce: sent.nonce, code_verifier: sent.code_verifier };
    await signIn(await keep("/console/sign-in/finish", body), true);
  } catch (error) {
    update({ signInReason: error.message });
  }
}

/** Send a request about the kept token. Tabs with one key take turns. */
const kept = (method, key, place = KEPT, body) => {
  const work = () => call(method, place, { body, headers: { "Agentctl-Console-Key": key }, credentials: "same-origin", again: true });
  return navigator.locks ? navigator.locks.request("console-token", work) : work();
};

async function renew() {
  if (!renewAt) return false;
  const before = token;
  renewAt = Date.now() + 5000;
  try {
    const found = await kept("GET", readTab().key);
    if (token === before) use(found);
    update({ claims: readClaims(token) });
  } catch (error) {
    if (error.temporary) throw error;
  }
  return token && token !== before;
}

function use(found) {
  ({ token } = found);
  // Without encryption a page has no locks, and renews nothing.
  renewAt = navigator.locks && found.renew_in ? Date.now() + 1000 * found.renew_in : 0;
}

export function checkToken(left) {
  if (renewAt) Date.now() < renewAt || renew().catch(() => null);
  else if (left !== null && left <= 0) dropToken("The token has expired.");
}

async function keep(place, body) {
  const key = newKey(32);
  const found = await kept("POST", key, place, body);
  writeTab({ key });
  return found;
}

async function restore() {
  const { key, hidden } = readTab();
  if (!key) return;
  if (hidden && Date.now() - hidden > HIDDEN_LIMIT) return forget();
  try {
    await signIn(await kept("GET", key), true);
  } catch (error) {
    if (!error.temporary) forget();
  }
}

function forget() {
  const { key } = readTab();
  writeTab(null);
  if (key) kept("DELETE", key).catch(() => null);
}

/** Use a token from now on. Raises ApiError and keeps nothing if the server rejects it. */
export async function signIn(found, isKept = false) {
  const before = [token, renewAt];
  use(found);
  try {
    const me = await call("GET", "/auth/me");
    const claims = readClaims(token);
    // If it is not kept, a reload asks for the token.
    if (!isKept) await keep().catch(() => null);
    update({ me, claims, generation: state.generation + 1, signInReason: null });
  } catch (error) {
    [token, renewAt] = before;
    throw error;
  }
}

/** Forget the token. With a reason the page stays; the next sign-in fetches it again. */
export function dropToken(reason = null) {
  token = null;
  renewAt = 0;
  forget();
  update({ me: null, claims: null, generation: state.generation + 1, signInReason: reason });
}

/** Return true if the scopes of the caller allow an action on a resource, by id if given. */
export function can(resource, action, id) {
  const { me } = state;
  if (me === null) return false;
  if (me.admin) return true;
  const forms = [`${resource}:${action}`, `${resource}:*:${action}`];
  if (id !== undefined) forms.push(`${resource}:${id}:${action}`);
  return me.scopes.some((scope) => forms.includes(scope));
}

export const mayCall = (operation) => Boolean(state.me?.operations?.includes(operation));

export function canList(resource) {
  return can(resource, "read") || hasSingle(resource);
}

/** The components that the caller can read, with their names by `kind:id`. */
export let known = { generation: -1, names: new Map(), components: [] };
let loading = null;

/** Fetch the components that the caller can read, once for each sign-in. */
export async function loadComponents() {
  const { generation } = state;
  if (known.generation === generation) return known;
  loading ??= (async () => {
    const names = new Map();
    const components = [];
    for (const kind of ["agent", "team", "workflow"]) {
      const list = canList(`${kind}s`) ? await call("GET", `/${kind}s`).catch(() => []) : [];
      for (const each of list) {
        names.set(`${kind}:${each.id}`, each.name || each.id);
        components.push({ ...each, kind });
      }
    }
    known = { generation, names, components };
    return known;
  })().finally(() => (loading = null));
  return loading;
}

function hasSingle(resource) {
  const form = new RegExp(`^${resource}:[^:]+:read$`);
  return (state.me?.scopes || []).some((scope) => form.test(scope));
}

/** Return random bytes in base64url. `crypto.randomUUID` needs HTTPS; this does not. */
export function newKey(length = 16) {
  const bytes = crypto.getRandomValues(new Uint8Array(length));
  return btoa(String.fromCharCode(...bytes)).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");
}

/** Send a request, again with the same key if no answer arrives. A body that is no text starts a run in the background. */
export async function postOnce(place, given) {
  const headers = { "Idempotency-Key": newKey() };
  const body = typeof given === "string" ? given : { ...given, stream: false, background: true };
  for (let attempt = 1; ; attempt++) {
    try {
      return await call("POST", place, { headers, body });
    } catch (error) {
      if (error.status !== 0 || attempt === 3) throw error;
      await new Promise((resolve) => setTimeout(resolve, 1000 * attempt));
    }
  }
}

export async function cancelRun(run, { reason, wait = 0 } = {}) {
  const query = { session_id: run.session_id, wait, reason };
  return { ...(await call("POST", withQuery(`${placeOfRun(run)}/cancel`, query))), phase: null };
}

export function isFinal(run) {
  return ["COMPLETED", "ERROR", "CANCELLED"].includes(run.status);
}

export function isPaused(run) {
  return run.status === "PAUSED";
}

export function isAtRest(run) {
  return isFinal(run) && run.stopped_at != null;
}

export function kindOf(record) {
  if (record.team_id) return "team";
  return record.workflow_id ? "workflow" : "agent";
}

export function componentOf(record) {
  return record.agent_id || record.team_id || record.workflow_id || "";
}

export const nameOf = (record, names) => names.get(`${kindOf(record)}:${componentOf(record)}`) || componentOf(record);

/** Return the database of a component that the caller can list: its sessions are read with it. */
export const databaseOf = (kind, id) => known.components.find((each) => each.kind === kind && each.id === id)?.db_id;

export const placeOfRun = (run) => path`/${kindOf(run)}s/${componentOf(run)}/runs/${run.run_id}`;

export const mayRun = (run) => can(`${kindOf(run)}s`, "run", componentOf(run));

export const refusalOf = (run) => (mayRun(run) ? null : `needs ${kindOf(run)}s:${componentOf(run)}:run`);

// Readers follow the events, callers that can only run resume the stream.
export const eventsOf = (run) => (mayRun(run) ? ["POST", `${placeOfRun(run)}/resume`] : ["GET", `${placeOfRun(run)}/events`]);

/** Return the tokens of a run with those of its members, or its own while these are not known. */
export function tokensOf(run) {
  return run.total_tokens ?? run.metrics?.total_tokens;
}

document.addEventListener("visibilitychange", () => {
  dropHidden();
  // A page is also hidden when it ends, which is no later beginning.
  hiddenSince = document.hidden ? (hiddenSince ?? Date.now()) : null;
  if (readTab().key) writeTab({ hidden: hiddenSince });
});
setInterval(dropHidden, 60 * 1000);

function dropHidden() {
  const long = hiddenSince !== null && Date.now() - hiddenSince > HIDDEN_LIMIT;
  if (long && token !== null) dropToken("The page was in the background for 30 minutes.");
}
