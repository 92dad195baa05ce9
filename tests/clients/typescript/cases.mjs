// The operations of the TypeScript client, in Node and in a page; see test_typescript.py.
//   execute(WORK) returns the failure of each case, or null.
// WORK: url and site of the server and of this file, tokens by name, plans (messages of models).

import { AgentctlError, ApiError, Client, ConnectionError, InvalidResponseError } from "./agentctl.js";

const PATIENCE = 60_000;

let work;

const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const connect = (options = {}) => new Client(work.url, { token: work.tokens.me, ...options });
const createId = () => `ts-${Math.random().toString(36).slice(2)}`;

function equal(found, wanted) {
  const [left, right] = [JSON.stringify(found), JSON.stringify(wanted)];
  if (left !== right) throw new Error(`${left} is not ${right}`);
}

async function fail(promise, type, properties = {}) {
  const error = await promise.then(() => null, (failure) => failure);
  if (!(error instanceof type)) throw new Error(`not ${type.name}: ${error}`);
  for (const [name, value] of Object.entries(properties)) equal(error[name], value);
  return error;
}

async function waitForOpen(count) {
  const deadline = Date.now() + PATIENCE;
  for (;;) {
    const open = Number(await (await fetch(`${work.site}/open`)).text());
    if (open === count) return;
    if (Date.now() > deadline) throw new Error(`${open} calls are open, not ${count}`);
    await sleep(20);
  }
}

/** Read a stream; its numbers have to follow each other. */
async function readAll(stream, { signal } = {}) {
  const events = [];
  let next = stream.lastEventIndex + 1;
  for await (const event of stream) {
    equal(stream.lastEventIndex, next++);
    events.push(event);
    signal?.throwIfAborted();
  }
  return events;
}

const textOf = (events) => events.filter((each) => each.event === "RunContent")
  .map((each) => each.content).join("");
const namesOf = (events) => events.map((each) => each.event);

/** A `fetch` that answers with the next of some responses, and records the requests. */
function script(...responses) {
  const requests = [];
  const answer = async (url, init) => {
    requests.push({ url: String(url), ...init });
    const next = responses.shift();
    if (next === undefined) throw new Error("there are no further responses");
    const found = typeof next === "function" ? await next(url, init) : next;
    return found;
  };
  answer.requests = requests;
  return answer;
}

const lose = () => Promise.reject(new TypeError("lost"));

function streamOf(text, { size = text.length, isOpen = false } = {}) {
  const bytes = new TextEncoder().encode(text);
  const body = (init) => new ReadableStream({
    start(controller) {
      for (let at = 0; at < bytes.length; at += size) controller.enqueue(bytes.slice(at, at + size));
      if (!isOpen) controller.close();
      init?.signal?.addEventListener("abort", () => controller.error(new Error("aborted")));
    },
  });
  const headers = { "content-type": "text/event-stream; charset=utf-8" };
  return (_, init) => new Response(body(init), { headers });
}

const json = (body, status = 200, headers = {}) =>
  new Response(JSON.stringify(body), { status, headers: { "content-type": "application/json", ...headers } });

const eventOf = (index, event, fields = {}) => `event: ${event}\nid: ${index}\ndata: ${JSON.stringify({
  event, run_id: "r1", session_id: "s1", agent_id: "echo", ...fields })}\n\n`;

const STARTED = eventOf(0, "RunStarted");
const CONTENT = eventOf(1, "RunContent", { content: "grüße\u2028 🙂" });
const COMPLETED = eventOf(2, "RunCompleted");

const cases = {
  async conversation() {
    const client = connect();
    const session_id = createId();
    const first = await client.agents.run("history", { message: "one", session_id });
    equal([first.status, first.session_id, first.input], ["COMPLETED", session_id, "one"]);
    const stream = client.agents.stream("history", { message: "two", session_id });
    equal([stream.runId, stream.lastEventIndex], [undefined, -1]);
    const events = await readAll(stream);
    equal([stream.runId, stream.sessionId], [events[0].run_id, session_id]);
    equal(JSON.parse(events.at(-1).content).map(([, text]) => text).slice(-3), ["one", first.content, "two"]);
    const session = await client.request("GET", "/sessions/{session_id}", { path: { session_id } });
    equal(session.chat_history.filter((each) => each.role === "user").map((each) => each.content), ["one", "two"]);
    await client.request("PATCH", "/sessions/{session_id}", { path: { session_id }, body: { session_name: "Näme" } });
    const found = [];
    const query = { session_name: "Näme", limit: 1 };
    for await (const each of client.items("/sessions", { query })) found.push(each.session_id);
    equal(found.includes(session_id), true);
    const exported = await (await client.export(session_id, { format: "markdown" })).text();
    equal(exported.includes("Näme"), true);
    const record = await client.agents.start("echo", { message: "three", session_id });
    equal(textOf(await readAll(client.agents.follow("echo", record.run_id, { session_id }))), "three");
    equal(await client.request("DELETE", "/sessions/{session_id}", { path: { session_id } }), undefined);
  },

  async teams_and_workflows() {
    const client = connect();
    const team = await readAll(client.teams.stream("crew", { message: "ask echo" }));
    equal(namesOf(team).slice(-1), ["TeamRunCompleted"]);
    equal(namesOf(team).includes("RunCompleted"), true);
    const stream = client.workflows.stream("line", { message: "hello" });
    equal(namesOf(await readAll(stream)).slice(-1), ["WorkflowCompleted"]);
    const { runId, sessionId: session_id } = stream;
    const again = client.workflows.follow("line", runId, { session_id, after: stream.lastEventIndex - 1 });
    equal(namesOf(await readAll(again)), ["WorkflowCompleted"]);
    const ended = client.workflows.follow("line", runId, { session_id, after: stream.lastEventIndex });
    equal(await readAll(ended), []);
  },

  async cancel_waits_for_stopped() {
    await waitForOpen(0);
    const client = connect();
    const run = await client.agents.start("hang", { message: "x" });
    await waitForOpen(1);
    const options = { session_id: run.session_id, reason: "enough" };
    const record = await client.agents.cancel("hang", run.run_id, options);
    equal([record.cancel, record.status, record.reason, record.holding], ["stopped", "CANCELLED", "enough", []]);
    await waitForOpen(0);
    equal((await client.agents.cancel("hang", run.run_id, options)).cancel, "already_final");
    await fail(client.agents.cancel("echo", run.run_id, options), ApiError, { status: 404, errorCode: "NOT_FOUND" });
  },

  async cancel_of_a_stream() {
    const client = connect();
    const stream = client.agents.stream("hang", { message: "x" });
    await fail(stream.cancel(), AgentctlError);
    const reading = readAll(stream);
    const record = await stream.cancel();
    equal([record.cancel, record.run_id], ["stopped", stream.runId]);
    equal(namesOf(await reading), ["RunStarted", "RunCancelled"]);
    await waitForOpen(0);
    const refused = client.agents.stream("none", { message: "x" });
    const failed = fail(readAll(refused), ApiError, { status: 404 });
    await fail(refused.cancel(), AgentctlError);
    await failed;
  },

  async requested_cancels_are_repeated() {
    const record = { cancel: "requested", status: "RUNNING" };
    const fetch = script(json(record), lose, json(record), json({ ...record, cancel: "stopped" }));
    const client = connect({ fetch, retryDelay: 1 });
    equal((await client.agents.cancel("echo", "r1", { session_id: "s1" })).cancel, "stopped");
    equal(fetch.requests.map(({ method, url }) => [method, new URL(url).search]),
      Array(4).fill(["POST", "?session_id=s1&wait=10"]));
    const slow = connect({ fetch: script(json(record), json(record)) });
    await fail(slow.agents.cancel("echo", "r1", { timeout: 0 }), AgentctlError);
  },

  async approval_by_the_user() {
    const client = connect();
    const stream = client.agents.stream("payer", { message: work.plans.two_calls });
    const events = await readAll(stream);
    equal(namesOf(events).at(-1), "RunPaused");
    const decisions = events.at(-1).approvals.map(({ approval_id, arguments_hash }) =>
      ({ approval_id, arguments_hash, decision: "approve" }));
    equal(decisions.length, 2);
    const wrong = [{ ...decisions[0], arguments_hash: `sha256:${"0".repeat(64)}` }];
    await fail(stream.continue(wrong), ApiError, { status: 409, errorCode: "CONFLICT" });
    const waiting = await stream.continue([decisions[0]]);
    equal(await readAll(waiting), []);
    const rest = await stream.continue([{ ...decisions[1], decision: "reject", note: "no" }]);
    equal(rest.runId, stream.runId);
    const further = await readAll(rest);
    equal([namesOf(further)[0], namesOf(further).at(-1)], ["RunContinued", "RunCompleted"]);
    const again = client.agents.stream("payer", { message: work.plans.one_call });
    const [asked] = (await readAll(again)).at(-1).approvals;
    const record = await client.agents.continue("payer", again.runId, {
      decisions: [{ approval_id: asked.approval_id, arguments_hash: asked.arguments_hash, decision: "approve" }],
    });
    equal([record.status, record.content], ["COMPLETED", "3"]);
  },

  async approval_by_another_person() {
    const client = connect();
    const stream = client.agents.stream("careful", { message: work.plans.one_call });
    const [own] = (await readAll(stream)).at(-1).approvals;
    await fail(stream.continue([{ ...own, decision: "approve" }].map(({ approval_id, arguments_hash }) =>
      ({ approval_id, arguments_hash, decision: "approve" }))), ApiError, { errorCode: "FOUR_EYES" });
    const boss = connect({ token: work.tokens.boss });
    const shown = [];
    for await (const each of boss.items("/approvals", { query: { status: "pending" } })) {
      if (each.run_id === stream.runId) shown.push(each);
    }
    const further = client.agents.follow("careful", stream.runId, {
      session_id: stream.sessionId, after: stream.lastEventIndex,
    });
    const decided = await boss.decide(shown[0], { decision: "approve", note: "fine" });
    equal([decided.status, decided.decided_by], ["approved", "boss"]);
    equal(textOf(await readAll(further)), "3");
    await fail(boss.decide(shown[0], { decision: "approve" }), ApiError, { status: 409 });
  },

  async lost_responses_start_one_run() {
    for (const method of ["run", "start", "stream"]) {
      const session_id = createId();
      const given = globalThis.fetch;
      const executed = async (url, init) => {
        await (await given(url, init)).text();
        throw new TypeError("the response is lost");
      };
      const fetch = script(executed, executed, (url, init) => given(url, init));
      const client = connect({ fetch, retryDelay: 1 });
      const started = client.agents[method]("echo", { message: "once", session_id });
      if (method === "stream") equal(textOf(await readAll(started)), "once");
      await started;
      const keys = fetch.requests.map((each) => each.headers["Idempotency-Key"]);
      equal([keys.length, new Set(keys).size, keys[0].length], [3, 1, 32]);
      const path = { session_id };
      equal((await connect().request("GET", "/sessions/{session_id}/runs", { path })).length, 1);
    }
    const unsafe = script(lose, lose);
    const client = connect({ fetch: unsafe, retryDelay: 1 });
    const options = { idempotencyKey: null };
    await fail(client.agents.run("echo", { message: "x" }, options), ConnectionError);
    await fail(readAll(client.agents.stream("echo", { message: "x" }, { ...options })), ConnectionError);
    equal(unsafe.requests.map((each) => "Idempotency-Key" in each.headers), [false, false]);
  },

  async only_safe_requests_are_repeated() {
    const path = { session_id: "s1" };
    const place = "/sessions/{session_id}";
    const patch = script(lose);
    const body = { session_name: "x" };
    await fail(connect({ fetch: patch }).request("PATCH", place, { path, body }), ConnectionError);
    const busy = script(json({ error_code: "RATE_LIMITED" }, 429, { "retry-after": "0" }), json({ done: 1 }));
    equal(await connect({ fetch: busy, retryDelay: 1 }).request("PATCH", place, { path, body }), { done: 1 });
    const full = script(json({ error_code: "QUOTA_EXCEEDED" }, 429));
    await fail(connect({ fetch: full }).request("GET", place, { path }), ApiError, { errorCode: "QUOTA_EXCEEDED" });
    const later = script(json({ error_code: "BUDGET_EXCEEDED" }, 429, { "retry-after": "3600" }));
    await fail(connect({ fetch: later }).request("GET", place, { path }), ApiError, { retryAfter: 3600 });
    const away = script(json({ error_code: "UNAVAILABLE" }, 503), new Response("bad gateway", { status: 502 }), json({ done: 2 }));
    equal(await connect({ fetch: away, retryDelay: 1 }).request("GET", place, { path }), { done: 2 });
    const unknown = script(json({ error_code: "OUTCOME_UNKNOWN", run_id: "r1" }, 503));
    await fail(connect({ fetch: unknown }).request("DELETE", place, { path }), ApiError, { status: 503 });
    const down = script(lose, lose, lose, lose);
    await fail(connect({ fetch: down, retryDelay: 1 }).request("GET", place, { path }), ConnectionError);
    equal(down.requests.length, 4);
  },

  async retry_and_fork() {
    const client = connect();
    const run = await client.agents.run("tool-add", { message: '{"a": 1, "b": 2}' });
    const again = await client.agents.retry("tool-add", run.run_id);
    equal([again.origin_kind, again.content], ["retry", "3"]);
    const refused = await fail(client.agents.fork("tool-add", run.run_id, { at: 1 }), ApiError, { errorCode: "NEEDS_CONFIRMATION" });
    const { confirm } = refused.body.plan;
    equal((await client.agents.fork("tool-add", run.run_id, { at: 1, confirm })).content, "3");
    const retried = await client.agents.run("echo", { message: "one" });
    equal(textOf(await readAll(client.agents.streamRetry("echo", retried.run_id))), "one");
    const other = client.agents.streamFork("echo", retried.run_id, { at: 2, message: "two", agent_id: "history" });
    const events = await readAll(other);
    equal([events[0].agent_id, events.at(-1).event], ["history", "RunCompleted"]);
    const fork = await client.agents.fork("echo", retried.run_id, { at: 2, message: "three" });
    equal(fork.content, "three");
  },

  async errors_have_code_status_and_request() {
    const client = connect();
    const path = { session_id: "none" };
    const missing = await fail(client.request("GET", "/sessions/{session_id}", { path }), ApiError,
      { status: 404, errorCode: "NOT_FOUND", detail: "Session not found", name: "ApiError" });
    equal([typeof missing.requestId, missing.message], ["string", "404 NOT_FOUND: Session not found"]);
    const refused = await fail(client.request("GET", "/audit"), ApiError, { status: 403 });
    equal(refused.body.required_scopes.length > 0, true);
    await fail(client.agents.run("echo", {}), ApiError, { errorCode: "VALIDATION_ERROR" });
    const nobody = new Client(work.url);
    await fail(nobody.request("GET", "/agents"), ApiError, { status: 401, errorCode: "UNAUTHENTICATED" });
    const away = new Client(work.nowhere, { retries: 1, retryDelay: 1 });
    await fail(away.request("GET", "/health"), ConnectionError);
    const page = new Client(work.site);
    await fail(page.request("GET", "/health"), ApiError, { status: 404, errorCode: null, body: null });
    const moved = script(new Response(null, { status: 302, headers: { location: "/" } }));
    await fail(connect({ fetch: moved }).request("GET", "/health"), InvalidResponseError);
    const text = script(new Response("hello"));
    await fail(connect({ fetch: text }).request("GET", "/health"), InvalidResponseError);
    const silent = (_, { signal }) => new Promise((_, reject) => signal.addEventListener("abort", () => reject(new Error("x"))));
    const late = await fail(connect({ fetch: silent, timeout: 30, retries: 0 }).request("GET", "/health"), ConnectionError);
    equal(late.message, "The server did not respond in time");
  },

  async addresses_and_ids_are_checked() {
    const create = async (...options) => new Client(...options);
    await fail(create("http://example.org", { token: "x" }), AgentctlError);
    await fail(create("http://user:word@127.0.0.1"), AgentctlError);
    await fail(create("http://127.0.0.1/?a=b"), AgentctlError);
    const fetch = script(json([]), json([]));
    const client = await create("http://example.org/prefix/", { token: "x", allowInsecure: true, fetch });
    await client.request("GET", "/agents");
    equal([fetch.requests[0].url, fetch.requests[0].headers.Authorization], ["http://example.org/prefix/agents", "Bearer x"]);
    for (const session_id of ["", ".", "..", undefined]) {
      await fail(create(work.url).then((each) => each.request("GET", "/sessions/{session_id}", { path: { session_id } })), AgentctlError);
    }
    const query = { tag: ["a b", "c"], user_id: null, limit: 5 };
    await client.request("GET", "/sessions", { query });
    equal(new URL(fetch.requests[1].url).search, "?tag=a+b&tag=c&limit=5");
    await fail(connect({ token: "two words" }).request("GET", "/agents"), AgentctlError);
  },

  async tokens_are_renewed() {
    const given = [work.tokens.invalid, work.tokens.me];
    let calls = 0;
    const client = connect({ token: async () => given[Math.min(calls++, 1)] });
    equal((await client.request("GET", "/auth/me")).principal, "me");
    equal(calls, 2);
    equal(textOf(await readAll(client.agents.stream("echo", { message: "hello" }))), "hello");
    const stale = connect({ token: () => work.tokens.invalid });
    await fail(stale.request("GET", "/agents"), ApiError, { status: 401 });
    const broken = connect({ token: () => Promise.reject(new RangeError("no token")) });
    await fail(broken.request("GET", "/agents"), RangeError);
  },

  async signals_end_requests_and_not_runs() {
    const client = connect();
    const before = AbortSignal.abort(new RangeError("before"));
    await fail(client.request("GET", "/agents", { signal: before }), RangeError);
    const controller = new AbortController();
    const stream = client.agents.stream("trickle", { message: "x" }, { signal: controller.signal });
    for await (const event of stream) {
      if (event.event === "RunContent") break;
    }
    const { runId, sessionId: session_id, lastEventIndex: after } = stream;
    const { signal } = controller;
    const reading = readAll(client.agents.follow("trickle", runId, { session_id, after, signal }));
    await sleep(50);
    controller.abort();
    const error = await fail(reading, DOMException);
    equal(error.name, "AbortError");
    const run = await client.request("GET", "/runs/{run_id}", { path: { run_id: runId } });
    equal(run.status, "RUNNING");
    equal((await client.agents.cancel("trickle", runId, { session_id })).cancel, "stopped");
    const waiting = new AbortController();
    const fetch = async () => { waiting.abort(new RangeError("enough")); return lose(); };
    await fail(connect({ fetch, retryDelay: 60_000 }).request("GET", "/agents", { signal: waiting.signal }), RangeError);
  },

  async streams_are_parsed_at_any_cut() {
    const comment = ": keep-alive\n\nretry: 5\n\nevent: x\n\n";
    const texts = [STARTED + comment + CONTENT + COMPLETED];
    for (const end of ["\r\n", "\r"]) texts.push(`\ufeff${texts[0].replaceAll("\n", end)}`);
    for (const text of texts) {
      for (const size of [1, 2, 3, 7, text.length]) {
        const client = connect({ fetch: script(streamOf(text, { size })) });
        const events = await readAll(client.agents.stream("echo", { message: "x" }));
        equal(namesOf(events), ["RunStarted", "RunContent", "RunCompleted"]);
        equal(textOf(events), "grüße\u2028 🙂");
      }
    }
    const wrong = script(streamOf("id: 0\ndata: {\n\n"));
    await fail(readAll(connect({ fetch: wrong }).agents.stream("echo", { message: "x" })), InvalidResponseError);
    const other = script(json({ status: "COMPLETED" }));
    await fail(readAll(connect({ fetch: other }).agents.stream("echo", { message: "x" })), InvalidResponseError);
  },

  async streams_that_end_early_go_on() {
    const member = { run_id: "r2", parent_run_id: "r1" };
    const fetch = script(
      streamOf(STARTED + eventOf(1, "RunCompleted", member) + CONTENT.slice(0, 30)),
      lose,
      json({ error_code: "UNAVAILABLE" }, 503, { "retry-after": "0" }),
      streamOf("", { isOpen: true }),
      streamOf(eventOf(1, "RunCompleted", member) + eventOf(2, "RunContent", { content: "x" }) + eventOf(3, "RunCompleted")),
    );
    const client = connect({ fetch, retryDelay: 1, idleTimeout: 50 });
    const began = Date.now();
    const events = await readAll(client.agents.stream("echo", { message: "x" }));
    equal(Date.now() - began < 20_000, true);
    equal(namesOf(events), ["RunStarted", "RunCompleted", "RunContent", "RunCompleted"]);
    equal(fetch.requests.slice(1).map(({ method, url }) => [method, new URL(url).pathname + new URL(url).search]),
      Array(4).fill(["POST", "/agents/echo/runs/r1/resume?session_id=s1&last_event_index=1"]));
    const gone = script(streamOf(STARTED), json({ error_code: "NOT_FOUND" }, 404));
    await fail(readAll(connect({ fetch: gone, retryDelay: 1 }).agents.stream("echo", { message: "x" })), ApiError);
    const never = connect({ fetch: script(streamOf(STARTED), ...Array(3).fill(lose)), retryDelay: 1, resumes: 2 });
    await fail(readAll(never.agents.stream("echo", { message: "x" })), ConnectionError);
  },

  async empty_streams_of_live_runs_go_on() {
    const last = eventOf(2, "RunCompleted");
    const fetch = script(streamOf(""), json({ status: "RUNNING" }), streamOf(""), json({ status: "COMPLETED" }), streamOf(last));
    const client = connect({ fetch, retryDelay: 1 });
    const events = await readAll(client.agents.follow("echo", "r1", { session_id: "s1", after: 1 }));
    equal(namesOf(events), ["RunCompleted"]);
    const ended = connect({ fetch: script(streamOf(""), json({}, 403), streamOf("")), retryDelay: 1 });
    equal(await readAll(ended.agents.follow("echo", "r1", { after: 1 })), []);
  },

  async streams_are_read_once() {
    const stream = connect().agents.stream("echo", { message: "x" });
    await readAll(stream);
    await fail(readAll(stream), AgentctlError);
  },
};

/** Execute the cases and return the failure of each, or null. */
export async function execute(given) {
  work = given;
  const found = {};
  for (const [name, run] of Object.entries(cases)) {
    try {
      await run();
      found[name] = null;
    } catch (error) {
      found[name] = `${error.stack ?? error}`;
    }
  }
  return found;
}

/** Read streams whose connections a proxy cuts, several at once, and return their problems. */
export async function readCutStreams({ url, token, count, prefix, together }) {
  const client = new Client(url, { token, retries: 1_000, resumes: 1_000, retryDelay: 0 });
  const problems = [];
  let next = 0;
  const readNext = async () => {
    while (next < count && problems.length < 20) {
      const number = next++;
      const session_id = `${prefix}-${number}`;
      const message = `${number} ${"wörd ".repeat(number % 40)}`.trim();
      try {
        const [noun, id, last] = number % 5 ? ["agents", "teller", "RunCompleted"] : ["workflows", "tellers", "WorkflowCompleted"];
        const stream = client[noun].stream(id, { message, session_id });
        const events = await readAll(stream);
        equal([events.at(-1).event, events.at(-1).content], [last, message]);
        if (id === "teller") equal(textOf(events), message);
      } catch (error) {
        problems.push(`${session_id}: ${error.stack ?? error}`);
      }
    }
  };
  await Promise.all(Array.from({ length: together }, readNext));
  return problems;
}
