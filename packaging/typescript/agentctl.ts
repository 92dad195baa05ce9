/**
 * A client of agentctl servers: one module without dependencies, over `fetch`, for browsers and for
 * Node 18 or later. docs/client.md describes it.
 *
 * Records, bodies and query parameters have the names and types of the HTTP API; the types are
 * generated from its OpenAPI document. Times in options are milliseconds.
 */

import type { ApprovalRecord, CancelRecord, paths, RunEvent, RunRecord } from "./api.js";

export type * from "./api.js";

const KINDS = ["agent", "team", "workflow"] as const;

export type Kind = (typeof KINDS)[number];

/** A bearer token, or a function that returns one: before each request, and again after a 401. */
export type Token = string | (() => string | Promise<string>);

export interface ClientOptions {
  token?: Token | undefined;
  /** Time until a response is complete, 30,000 ms; a run in the foreground has no limit. */
  timeout?: number;
  /** Time without a byte until a stream is resumed, 60,000 ms; the server sends one every 15 s. */
  idleTimeout?: number;
  /** Number of times that a request is repeated if that is safe, 3. */
  retries?: number;
  /** Number of times in a row that a stream is resumed without a further event, 20. */
  resumes?: number;
  /** Pause before the first repeat, 500 ms; each further one is twice as long, at most 8 s. */
  retryDelay?: number;
  /** Send the token over plain http to another machine. */
  allowInsecure?: boolean;
  /** Replaces `globalThis.fetch`. */
  fetch?: typeof globalThis.fetch;
}

export interface CallOptions {
  /** Ends the request, or the reading of a stream. It does not cancel a run: see `cancel`. */
  signal?: AbortSignal | undefined;
}

export interface StartOptions extends CallOptions {
  /**
   * Names the request for 24 hours: a repeat returns the same run. By default each call has a new
   * key. Without one (null) a lost response is an error, and a disconnect can cancel the run.
   */
  idempotencyKey?: string | null;
}

/** The base of the errors of this module. */
export class AgentctlError extends Error {
  override name = "AgentctlError";
}

/** An error response of the server: decide by `status` and `errorCode`, `detail` is for people. */
export class ApiError extends AgentctlError {
  override name = "ApiError";
  readonly status: number;
  /** Such as `NOT_FOUND` (docs/reference/errors.md); null if a proxy sent the response. */
  readonly errorCode: string | null;
  readonly detail: string;
  /** The id of the request in the log of the server. */
  readonly requestId: string | null;
  /** Seconds after which a repeat may succeed; null if none is known. */
  readonly retryAfter: number | null;
  /** The body, with further members such as `required_scopes` and `plan`; null without JSON. */
  readonly body: Record<string, unknown> | null;

  constructor(response: Response, body: Record<string, unknown> | null) {
    const { error_code: code, detail } = body ?? {};
    const errorCode = typeof code === "string" ? code : null;
    const text = typeof detail === "string" ? detail : "no error of this interface";
    super(`${response.status}${errorCode === null ? "" : ` ${errorCode}`}: ${text}`);
    const seconds = Number.parseInt(response.headers.get("retry-after") ?? "", 10);
    this.status = response.status;
    this.errorCode = errorCode;
    this.detail = text;
    this.requestId = response.headers.get("x-request-id");
    this.retryAfter = Number.isNaN(seconds) ? null : seconds;
    this.body = body;
  }
}

/** No complete response: the connection failed, or the server was silent; see `cause`. */
export class ConnectionError extends AgentctlError {
  override name = "ConnectionError";
}

/** A response that does not follow the interface: the URL may be that of another server. */
export class InvalidResponseError extends AgentctlError {
  override name = "InvalidResponseError";
}

/** A value that is JSON, as the type of each operation says. */
type Json = any;
type Method = "GET" | "POST" | "PATCH" | "DELETE";
type Operation<M extends Method, P extends keyof paths> = paths[P][Lowercase<M> & keyof paths[P]];
type JsonOf<T> = T extends { content: { "application/json": infer Body } } ? Body : never;

/** The paths that have an operation of a method. */
export type PathOf<M extends Method> = {
  [P in keyof paths]: Operation<M, P> extends { responses: unknown } ? P : never;
}[keyof paths];

/** The result of an operation; undefined if its response has no body. */
export type Result<M extends Method, P extends keyof paths> =
  Operation<M, P> extends { responses: infer Responses }
    ? { [S in keyof Responses]: Responses[S] extends { content: infer Content }
        ? Content extends { "application/json": infer Body } ? Body : undefined
        : undefined }[keyof Responses]
    : never;

/** The JSON body of an operation. */
export type Body<M extends Method, P extends keyof paths> =
  Operation<M, P> extends { requestBody?: infer Given } ? JsonOf<NonNullable<Given>> : never;

/** The parts of a request, of one operation after the other: the union of all is too large. */
type Given<O> = O extends unknown
  ? (O extends { parameters: { path: infer T } } ? { path: T } : object)
    & (O extends { parameters: { query: infer T } } ? { query: T }
      : O extends { parameters: { query?: infer T } } ? { query?: T | undefined } : object)
    & (O extends { requestBody: infer T } ? { body: JsonOf<T> }
      : O extends { requestBody?: infer T } ? { body?: JsonOf<NonNullable<T>> } : object)
  : never;

/** The parameters and the body of an operation. */
export type RequestParameters<M extends Method, P extends keyof paths> =
  Given<Operation<M, P>> & StartOptions;

type Arguments<M extends Method, P extends keyof paths> =
  object extends Given<Operation<M, P>>
    ? [given?: RequestParameters<M, P>]
    : [given: RequestParameters<M, P>];

type ItemOf<Page> = Page extends { data: (infer Item)[] } ? Item : never;

type Run = "/agents/{agent_id}/runs/{run_id}";

/** The body of a start. The method decides about `stream` and `background`. */
export type StartBody = Omit<Body<"POST", "/agents/{agent_id}/runs">, "stream" | "background">;
export type RetryBody = Omit<Body<"POST", `${Run}/retry`>, "stream" | "background">;
export type ForkBody = Omit<Body<"POST", `${Run}/fork`>, "stream" | "background">;
export type ContinueBody = Omit<Body<"POST", `${Run}/continue`>, "stream" | "background">;
export type Decision = Body<"POST", "/agents/{agent_id}/approvals/{approval_id}/decide">;

/** The fields of an approval that name it and the call that a person was shown. */
export type ShownApproval =
  Pick<ApprovalRecord, "component_type" | "component_id" | "approval_id" | "arguments_hash">;

const LARGEST_EVENT = 134_217_728;
const LONGEST_PAUSE = 30_000;
const CANCEL_WAIT = 10;
const STARTS = /\/(runs|continue|retry|fork|decide)$/;
const REPEATABLE = /\/(cancel|resume)$/;
const LAST_EVENTS = /^(Run|TeamRun|Workflow)(Completed|Cancelled|Error|Paused)$/;
const AT_REST = ["COMPLETED", "ERROR", "CANCELLED", "PAUSED"];

/** A request, with the path already filled in. */
interface Sent {
  method: Method;
  path: string;
  query?: Record<string, Json> | undefined;
  body?: Json;
  accept?: string;
  key?: string | null | undefined;
  timeout?: number | undefined;
  signal?: AbortSignal | undefined;
}

/** A request in progress: it ends with `close`, and fails `limit` ms after the last `touch`. */
class Exchange {
  readonly #controller = new AbortController();
  readonly #limit: number;
  readonly #signal: AbortSignal | undefined;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #isLate = false;

  constructor(limit: number, signal: AbortSignal | undefined) {
    signal?.throwIfAborted();
    this.#limit = limit;
    this.#signal = signal;
    signal?.addEventListener("abort", this.#abort);
    this.touch();
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Begin the time limit again. */
  touch(): void {
    clearTimeout(this.#timer);
    if (this.#limit === Infinity) return;
    this.#timer = setTimeout(() => {
      this.#isLate = true;
      this.#abort();
    }, this.#limit);
  }

  close(): void {
    clearTimeout(this.#timer);
    this.#signal?.removeEventListener("abort", this.#abort);
    this.#abort();
  }

  /** Return the error of this module, or that of the caller's signal, for a failure of `fetch`. */
  explain(failure: unknown): unknown {
    if (this.#signal?.aborted) return this.#signal.reason;
    if (failure instanceof AgentctlError) return failure;
    const text = this.#isLate
      ? "The server did not respond in time"
      : "The connection to the server failed, or a browser refused it (server.cors_origins)";
    return new ConnectionError(text, { cause: failure });
  }

  /** End the time limit; the signal of the caller still ends the request. */
  release(): void {
    clearTimeout(this.#timer);
  }

  readonly #abort = (): void => this.#controller.abort();
}

/** The HTTP side: it sends requests to one server, and repeats them if that is safe. */
class Connection {
  readonly #base: string;
  readonly #token: Token | undefined;
  readonly #fetch: typeof globalThis.fetch;
  readonly #timeout: number;
  readonly idleTimeout: number;
  readonly retries: number;
  readonly resumes: number;
  readonly #retryDelay: number;

  constructor(url: string, options: ClientOptions) {
    const parsed = new URL(url, (globalThis as { location?: { href: string } }).location?.href);
    const isPlain = /^https?:$/.test(parsed.protocol) && !parsed.username && !parsed.password;
    if (!isPlain || parsed.search || parsed.hash) {
      throw new AgentctlError("The URL of a server is http or https, without user name and query");
    }
    const isLocal = /^(localhost|.*\.localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(parsed.hostname);
    const isSecret = parsed.protocol === "https:" || isLocal || options.allowInsecure === true;
    if (options.token !== undefined && !isSecret) {
      throw new AgentctlError(
        "A token is not sent over plain http to another machine: use https, or allowInsecure",
      );
    }
    this.#base = parsed.origin + parsed.pathname.replace(/\/+$/, "");
    this.#token = options.token;
    // Browsers refuse a call of `fetch` as the method of another object.
    const given = options.fetch;
    this.#fetch = (input, init) => (given ?? globalThis.fetch)(input, init);
    this.#timeout = options.timeout ?? 30_000;
    this.idleTimeout = options.idleTimeout ?? 60_000;
    this.retries = options.retries ?? 3;
    this.resumes = options.resumes ?? 20;
    this.#retryDelay = options.retryDelay ?? 500;
  }

  /** Send a request, and repeat it if that is safe; return the JSON of its response. */
  async call(sent: Sent): Promise<Json> {
    return this.repeat(sent, async () => {
      const [exchange, response] = await this.open(sent);
      try {
        const text = await response.text();
        return response.status === 204 ? undefined : JSON.parse(text);
      } catch (failure) {
        if (failure instanceof SyntaxError) throw refuse("it is not JSON");
        throw exchange.explain(failure);
      } finally {
        exchange.close();
      }
    });
  }

  /** Execute `attempt`, and repeat it after a failure that a safe repeat can mend. */
  async repeat<T>(sent: Sent, attempt: () => Promise<T>): Promise<T> {
    for (let failures = 0; ; failures++) {
      const began = Date.now();
      try {
        return await attempt();
      } catch (failure) {
        // Proxies end long requests: those of a run in the foreground are no repeated failures.
        if (sent.timeout === Infinity && Date.now() - began > LONGEST_PAUSE) failures = 0;
        await this.pause(failure, sent, failures, this.retries);
      }
    }
  }

  /** Wait before a repeat, or throw the failure if a repeat is not safe, or of no use. */
  async pause(failure: unknown, sent: Sent, failures: number, limit: number): Promise<void> {
    const isSafe = sent.method === "GET" || Boolean(sent.key) || REPEATABLE.test(sent.path);
    let delay = Math.min(this.#retryDelay * 2 ** failures, 8_000) * (0.5 + Math.random() / 2);
    let isUseful = failure instanceof ConnectionError && isSafe;
    if (failure instanceof ApiError) {
      // The server has executed nothing of a 429. After a 502 to 504 it may have.
      const { status, retryAfter } = failure;
      isUseful = status === 429 ? retryAfter !== null : isSafe && status > 501 && status < 505;
      delay = Math.max(delay, (retryAfter ?? 0) * 1000);
    }
    if (!isUseful || failures >= limit || delay > LONGEST_PAUSE) throw failure;
    await sleep(delay, sent.signal);
  }

  /** Send one request and return its exchange and its response, with a status below 300. */
  async open(sent: Sent): Promise<[Exchange, Response]> {
    const token = await this.#readToken();
    try {
      return await this.#openWith(sent, token);
    } catch (failure) {
      if (!(failure instanceof ApiError) || failure.status !== 401) throw failure;
      // The server has executed nothing, so the same request may be sent with another token.
      const renewed = await this.#readToken();
      if (renewed === token) throw failure;
      return this.#openWith(sent, renewed);
    }
  }

  async #openWith(sent: Sent, token: string | undefined): Promise<[Exchange, Response]> {
    const exchange = new Exchange(sent.timeout ?? this.#timeout, sent.signal);
    try {
      const response = await this.#send(sent, token, exchange.signal);
      if (!response.ok) throw await buildError(response);
      return [exchange, response];
    } catch (failure) {
      exchange.close();
      throw exchange.explain(failure);
    }
  }

  /** Send a request and yield the events of its stream, each with its number. */
  async *read(sent: Sent): AsyncGenerator<[number | null, RunEvent]> {
    const timeout = this.idleTimeout;
    const [exchange, response] = await this.open({ accept: "text/event-stream", ...sent, timeout });
    const reader = response.body?.getReader();
    try {
      if (!/^text\/event-stream/i.test(response.headers.get("content-type") ?? "") || !reader) {
        throw refuse("it has no events");
      }
      const parser = new EventParser();
      for (;;) {
        const { value, done } = await reader.read();
        if (done) return;
        exchange.touch();
        yield* parser.feed(value);
      }
    } catch (failure) {
      throw exchange.explain(failure);
    } finally {
      exchange.close();
    }
  }

  async #send(sent: Sent, token: string | undefined, signal: AbortSignal): Promise<Response> {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(sent.query ?? {})) {
      for (const each of Array.isArray(value) ? value : [value]) {
        if (each !== undefined && each !== null) query.append(name, String(each));
      }
    }
    const headers: Record<string, string> = {
      "Accept": sent.accept ?? "application/json",
      "Agentctl-Interface": "contract",
    };
    if (token !== undefined) headers["Authorization"] = `Bearer ${token}`;
    if (sent.body !== undefined) headers["Content-Type"] = "application/json";
    if (sent.key) headers["Idempotency-Key"] = sent.key;
    const url = `${this.#base}${sent.path}?${query}`.replace(/\?$/, "");
    const response = await this.#fetch(url, {
      method: sent.method,
      headers,
      body: sent.body === undefined ? null : JSON.stringify(sent.body),
      // A redirect could take the token to another server.
      redirect: "manual",
      credentials: "omit",
      cache: "no-store",
      signal,
    });
    if (response.type === "opaqueredirect" || (response.status >= 300 && response.status < 400)) {
      throw refuse("it is a redirect, which is not followed");
    }
    return response;
  }

  async #readToken(): Promise<string | undefined> {
    const token = typeof this.#token === "function" ? await this.#token() : this.#token;
    if (token !== undefined && !/^[\x21-\x7e]+$/.test(token)) {
      throw new AgentctlError("A token is one line of ASCII without white space");
    }
    return token;
  }
}

/** Parses server-sent events (WHATWG HTML 9.2.6) from chunks that are cut at any byte. */
class EventParser {
  readonly #decoder = new TextDecoder();
  #rest = "";
  #isAfterReturn = false;
  #id: number | null = null;
  #data: string[] = [];
  #size = 0;

  /** Return the events that a chunk completes, each with its number. */
  feed(chunk: Uint8Array): [number | null, RunEvent][] {
    let text = this.#decoder.decode(chunk, { stream: true });
    // The second half of a CRLF that the last chunk has cut.
    if (this.#isAfterReturn && text.startsWith("\n")) text = text.slice(1);
    else if (!text) return [];
    this.#isAfterReturn = text.endsWith("\r");
    this.#rest += text;
    this.#size += text.length;
    if (this.#size > LARGEST_EVENT) throw refuse("an event is larger than 128 MB");
    if (!/[\n\r]/.test(text)) return [];
    const lines = this.#rest.split(/\r\n|\n|\r/);
    this.#rest = lines.pop() ?? "";
    const events: [number | null, RunEvent][] = [];
    for (const line of lines) {
      const [field, value] = line.split(/: ?(.*)/su, 2) as [string, string | undefined];
      if (field === "data") this.#data.push(value ?? "");
      else if (field === "id") this.#id = /^\d+$/.test(value ?? "") ? Number(value) : null;
      else if (line === "") {
        if (this.#data.length) events.push([this.#id, this.#parse()]);
        this.#data = [];
        this.#size = this.#rest.length;
      }
    }
    return events;
  }

  #parse(): RunEvent {
    try {
      return JSON.parse(this.#data.join("\n"));
    } catch {
      throw refuse("the data of an event is not JSON");
    }
  }
}

/** The place of the runs of a component, such as `/agents/writer/runs`, and a run of it. */
interface Source {
  place: string;
  runId: string;
  sessionId: string | undefined;
}

/**
 * The events of a run up to its end or its pause, each once and in order: a connection that breaks
 * is resumed after the last event. Iterate it once. Leaving the loop, or an abort of the signal,
 * ends the reading and not the run; `cancel` ends the run.
 */
export class RunStream implements AsyncIterable<RunEvent> {
  readonly #connection: Connection;
  readonly #first: Sent;
  readonly #canRun: boolean;
  #source: Source | undefined;
  #last: number;
  #state: "new" | "read" | "ended" = "new";
  #waiting: (() => void)[] = [];

  /** @internal Without a source the first event names the run. */
  constructor(connection: Connection, first: Sent, canRun: boolean, source?: Source, after = -1) {
    this.#connection = connection;
    this.#first = first;
    this.#canRun = canRun;
    this.#source = source;
    this.#last = after;
  }

  /** The id of the run; undefined before the first event of a start. */
  get runId(): string | undefined {
    return this.#source?.runId;
  }

  get sessionId(): string | undefined {
    return this.#source?.sessionId;
  }

  /** The number of the last event, for `follow`; -1 before the first one. */
  get lastEventIndex(): number {
    return this.#last;
  }

  [Symbol.asyncIterator](): AsyncIterator<RunEvent> {
    if (this.#state !== "new") throw new AgentctlError("A stream is read once: use follow");
    this.#state = "read";
    return this.#read();
  }

  /** Cancel the run and wait until it has stopped. Before the first event it waits for that. */
  async cancel(options: CancelOptions = {}): Promise<CancelRecord> {
    while (!this.#source) {
      if (this.#state !== "read") throw new AgentctlError("The stream has no run: read it first");
      await new Promise<void>((resolve) => this.#waiting.push(resolve));
    }
    return cancel(this.#connection, this.#source, options);
  }

  /**
   * Decide what the paused run waits for, as its user, and return the stream of the events that
   * follow. It has none if the run still waits for other decisions.
   */
  async continue(
    decisions: ContinueBody["decisions"], options: StartOptions = {},
  ): Promise<RunStream> {
    if (!this.#source) throw new AgentctlError("The stream has no run: read it first");
    const body = { decisions, stream: false, background: true };
    await this.#connection.call(post(this.#source, "continue", body, options));
    const first = follow(this.#source, this.#last, this.#canRun, options.signal);
    return new RunStream(this.#connection, first, this.#canRun, this.#source, this.#last);
  }

  async *#read(): AsyncGenerator<RunEvent> {
    let sent = this.#first;
    let hasEvents = false;
    let isAtRest = false;
    try {
      for (let failures = 0; ; failures++) {
        let failure: unknown = new ConnectionError("The stream ended before the run did");
        try {
          for await (const [number, event] of this.#connection.read(sent)) {
            const index = number ?? this.#last + 1;
            if (index <= this.#last) continue;
            this.#last = index;
            this.#note(event);
            hasEvents = true;
            failures = 0;
            yield event;
            if (event.run_id === this.runId && LAST_EVENTS.test(event.event)) return;
          }
          // A server that stops ends its streams, too. A run at rest has no further events.
          if (isAtRest) return;
          if (!hasEvents && this.#source) isAtRest = await this.#readState(this.#source);
          if (isAtRest) continue;
        } catch (caught) {
          failure = caught;
        }
        const { retries, resumes } = this.#connection;
        if (this.#source) sent = follow(this.#source, this.#last, this.#canRun, sent.signal);
        await this.#connection.pause(failure, sent, failures, this.#source ? resumes : retries);
      }
    } finally {
      this.#state = "ended";
      this.#wake();
    }
  }

  /** Read the ids of the run from its first event. */
  #note(event: RunEvent): void {
    if (this.#source || event.parent_run_id) return;
    const kind = KINDS.find((each) => event[`${each}_id`]) ?? "agent";
    const place = fill(`/${kind}s/{id}/runs`, { id: event[`${kind}_id`] });
    this.#source = { place, runId: event.run_id, sessionId: event.session_id };
    this.#wake();
  }

  #wake(): void {
    for (const resolve of this.#waiting.splice(0)) resolve();
  }

  /** Return true if the run has ended or is paused, or if the caller may not read its state. */
  async #readState({ place, runId, sessionId }: Source): Promise<boolean> {
    const query = { session_id: sessionId, view: "summary" };
    const { signal } = this.#first;
    const sent: Sent = { method: "GET", path: `${place}/${encodeId(runId)}`, query, signal };
    try {
      return AT_REST.includes((await this.#connection.call(sent)).status);
    } catch (failure) {
      if (failure instanceof ApiError && failure.status === 403) return true;
      throw failure;
    }
  }
}

export interface CancelOptions extends CallOptions {
  reason?: string;
  /** Time to wait for the run to stop, 120,000 ms. */
  timeout?: number;
}

/** The run of a call. Callers that are not administrators name its session. */
export interface RunOptions {
  session_id?: string;
}

/** The runs of agents, of teams or of workflows. */
export class Components {
  readonly #connection: Connection;
  readonly #kind: Kind;

  constructor(connection: Connection, kind: Kind) {
    this.#connection = connection;
    this.#kind = kind;
  }

  /** Start a run and wait until it has ended or paused. */
  run(id: string, body: StartBody, options: StartOptions = {}): Promise<RunRecord> {
    return this.#connection.call(this.#start(id, { ...body, stream: false }, options));
  }

  /** Start a run and return its record at once. */
  start(id: string, body: StartBody, options: StartOptions = {}): Promise<RunRecord> {
    const sent = this.#start(id, { ...body, stream: false, background: true }, options);
    return this.#connection.call({ ...sent, timeout: undefined });
  }

  /** Start a run when the stream is read, and read its events. */
  stream(id: string, body: StartBody, options: StartOptions = {}): RunStream {
    return this.#stream(this.#start(id, { ...body, stream: true }, options));
  }

  /** Read the events of a run after the number `after`, by default all of them. */
  follow(
    id: string, runId: string, options: CallOptions & RunOptions & { after?: number } = {},
  ): RunStream {
    const source = this.#source(id, runId, options.session_id);
    const after = options.after ?? -1;
    const first = follow(source, after, false, options.signal);
    return new RunStream(this.#connection, first, false, source, after);
  }

  /** Cancel a run and wait until it has stopped: `cancel` is `stopped` or `already_final`. */
  cancel(
    id: string, runId: string, options: CancelOptions & RunOptions = {},
  ): Promise<CancelRecord> {
    return cancel(this.#connection, this.#source(id, runId, options.session_id), options);
  }

  /** Decide what a paused run waits for, as its user, and wait until it ends or pauses again. */
  continue(
    id: string, runId: string, body: ContinueBody, options: StartOptions = {},
  ): Promise<RunRecord> {
    return this.#repeat("continue", id, runId, body, options);
  }

  /**
   * Start a run that has ended again. A 409 with a `plan` in its body needs the `confirm` of the
   * plan in the body of the next call.
   */
  retry(
    id: string, runId: string, body: RetryBody = {}, options: StartOptions = {},
  ): Promise<RunRecord> {
    return this.#repeat("retry", id, runId, body, options);
  }

  streamRetry(
    id: string, runId: string, body: RetryBody = {}, options: StartOptions = {},
  ): RunStream {
    return this.#stream(post(this.#source(id, runId), "retry", { ...body, stream: true }, options));
  }

  /** Start a run from the first messages of one that has ended; see `retry`. */
  fork(id: string, runId: string, body: ForkBody, options: StartOptions = {}): Promise<RunRecord> {
    return this.#repeat("fork", id, runId, body, options);
  }

  streamFork(id: string, runId: string, body: ForkBody, options: StartOptions = {}): RunStream {
    return this.#stream(post(this.#source(id, runId), "fork", { ...body, stream: true }, options));
  }

  #start(id: string, body: Json, options: StartOptions): Sent {
    const path = this.#source(id, "-").place;
    const { signal, idempotencyKey = createKey() } = options;
    return { method: "POST", path, body, key: idempotencyKey, timeout: Infinity, signal };
  }

  #repeat(
    action: string, id: string, runId: string, body: Json, options: StartOptions,
  ): Promise<RunRecord> {
    const sent = post(this.#source(id, runId), action, { ...body, stream: false }, options);
    return this.#connection.call({ ...sent, timeout: Infinity });
  }

  #stream(sent: Sent): RunStream {
    return new RunStream(this.#connection, { ...sent, timeout: undefined }, true);
  }

  #source(id: string, runId: string, sessionId?: string): Source {
    return { place: fill(`/${this.#kind}s/{id}/runs`, { id }), runId, sessionId };
  }
}

/**
 * A client of one server.
 *
 *     const client = new Client("http://127.0.0.1:7777", { token });
 *     for await (const event of client.agents.stream("echo", { message: "hello" })) {
 *       if (event.event === "RunContent") show(event.content);
 *     }
 */
export class Client {
  readonly #connection: Connection;
  readonly agents: Components;
  readonly teams: Components;
  readonly workflows: Components;

  /** @param url with the path under which the server is mounted; a page can leave out the host. */
  constructor(url: string, options: ClientOptions = {}) {
    this.#connection = new Connection(url, options);
    this.agents = new Components(this.#connection, "agent");
    this.teams = new Components(this.#connection, "team");
    this.workflows = new Components(this.#connection, "workflow");
  }

  /**
   * Execute any operation: `request("GET", "/sessions/{session_id}", { path: { session_id } })`.
   * Reads, and the operations that take an idempotency key, are repeated after a lost response.
   */
  request<M extends Method, P extends PathOf<M>>(
    method: M, path: P, ...given: Arguments<M, P>
  ): Promise<Result<M, P>>;
  request(method: Method, path: string, given?: Json): Promise<Json> {
    return this.#connection.call(buildRequest(method, path, given));
  }

  /** Read the items of all pages of a list: `items("/sessions", { query: { type: "agent" } })`. */
  items<P extends PathOf<"GET">>(
    path: P, ...given: Arguments<"GET", P>
  ): AsyncGenerator<ItemOf<Result<"GET", P>>>;
  async *items(path: string, given?: Json): AsyncGenerator<Json> {
    const sent = buildRequest("GET", path, given);
    for (;;) {
      const page = await this.#connection.call(sent);
      yield* page.data;
      const cursor = page.meta.next_cursor;
      if (cursor === null) return;
      sent.query = { ...sent.query, cursor };
    }
  }

  /** Export a session with all its runs; read the `body` of the response as it arrives. */
  async export(
    sessionId: string, options: CallOptions & { format?: "jsonl" | "json" | "markdown" } = {},
  ): Promise<Response> {
    const path = fill("/sessions/{id}/export", { id: sessionId });
    const query = { format: options.format };
    const sent: Sent = { method: "GET", path, query, accept: "*/*", signal: options.signal };
    const connection = this.#connection;
    const [exchange, response] = await connection.repeat(sent, () => connection.open(sent));
    exchange.release();
    return response;
  }

  /**
   * Decide about an approval. The decision counts for the call that `approval` shows: its hash is
   * sent with it.
   */
  decide(
    approval: ShownApproval, decision: Decision, options: StartOptions = {},
  ): Promise<ApprovalRecord> {
    const { component_type, component_id, approval_id, arguments_hash } = approval;
    const ids = { component_id, approval_id };
    const path = fill(`/${component_type}s/{component_id}/approvals/{approval_id}/decide`, ids);
    const body = ["approve", "retry"].includes(decision.decision)
      ? { arguments_hash, ...decision }
      : decision;
    const { signal, idempotencyKey = createKey() } = options;
    return this.#connection.call({ method: "POST", path, body, key: idempotencyKey, signal });
  }
}

function buildRequest(method: Method, template: string, given: Json = {}): Sent {
  const { path: ids, query, body, signal, idempotencyKey } = given;
  const path = fill(template, ids ?? {});
  const key = idempotencyKey === undefined && STARTS.test(path) && method === "POST"
    ? createKey()
    : idempotencyKey;
  return { method, path, query, body, key, signal };
}

function post(source: Source, action: string, body: Json, options: StartOptions): Sent {
  const { signal, idempotencyKey = createKey() } = options;
  const path = `${source.place}/${encodeId(source.runId)}/${action}`;
  return { method: "POST", path, body, key: idempotencyKey, signal };
}

/** Build the request of the events after a number, for callers that can run or only read. */
function follow(source: Source, after: number, canRun: boolean, signal?: AbortSignal): Sent {
  const [method, action] = canRun ? (["POST", "resume"] as const) : (["GET", "events"] as const);
  const path = `${source.place}/${encodeId(source.runId)}/${action}`;
  const query = { session_id: source.sessionId, last_event_index: after < 0 ? undefined : after };
  return { method, path, query, signal };
}

async function cancel(
  connection: Connection, source: Source, options: CancelOptions,
): Promise<CancelRecord> {
  const { reason, signal, timeout = 120_000 } = options;
  const path = `${source.place}/${encodeId(source.runId)}/cancel`;
  const query = { session_id: source.sessionId, reason, wait: CANCEL_WAIT };
  const end = Date.now() + timeout;
  do {
    const record: CancelRecord = await connection.call({ method: "POST", path, query, signal });
    if (record.cancel !== "requested") return record;
  } while (Date.now() < end);
  throw new AgentctlError(`The run was cancelled, and has not stopped within ${timeout} ms`);
}

/** Build a path from a template with `{names}`. Clients remove dot segments, so no id is one. */
function fill(template: string, ids: Record<string, Json>): string {
  return template.replace(/\{(\w+)\}/g, (_, name: string) => encodeId(ids[name]));
}

function encodeId(id: unknown): string {
  if (typeof id !== "string" || ["", ".", ".."].includes(id)) {
    throw new AgentctlError("An id in a path is a text that is not empty, `.` or `..`");
  }
  return encodeURIComponent(id);
}

async function buildError(response: Response): Promise<ApiError> {
  const text = await response.text();
  let body: unknown = null;
  try {
    body = JSON.parse(text);
  } catch {
    // A proxy has sent a page.
  }
  return new ApiError(response, typeof body === "object" ? (body as ApiError["body"]) : null);
}

function refuse(reason: string): InvalidResponseError {
  return new InvalidResponseError(`The response is not what agentctl expects: ${reason}`);
}

/** Create a key of 128 random bits; `randomUUID` is missing in pages without https. */
function createKey(): string {
  const source = globalThis.crypto as Crypto | undefined;
  const bytes = source?.getRandomValues(new Uint8Array(16))
    // Node 18 has none. A key has to be unique, and is no secret.
    ?? Uint8Array.from({ length: 16 }, () => Math.random() * 256);
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function sleep(delay: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    const end = (): void => {
      clearTimeout(timer);
      signal?.removeEventListener("abort", end);
      signal?.aborted ? reject(signal.reason) : resolve();
    };
    const timer = setTimeout(end, delay);
    signal?.addEventListener("abort", end);
    if (signal?.aborted) end();
  });
}
