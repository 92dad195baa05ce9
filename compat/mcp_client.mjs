// Operations of the TypeScript SDK of MCP; see mcp_session.py.
//   node mcp_client.mjs FOLDER_OF_PACKAGES WORK

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import assert from 'node:assert/strict';

const [folder, file] = process.argv.slice(2);
const load = createRequire(`${folder}/`);
const { Client } = load('@modelcontextprotocol/sdk/client/index.js');
const { StreamableHTTPClientTransport } = load('@modelcontextprotocol/sdk/client/streamableHttp.js');
const { ElicitRequestSchema } = load('@modelcontextprotocol/sdk/types.js');
const work = JSON.parse(readFileSync(file, 'utf8'));
const url = new URL(`${work.url}/mcp`);
const PATIENCE = 15000;

const sleep = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const text = (result) => result.content[0].text;

async function countOpen() {
  return (await (await fetch(`${work.model}/open`)).json()).open;
}

async function waitForOpen(number, limit = PATIENCE) {
  const deadline = Date.now() + limit;
  let found;
  while ((found = await countOpen()) !== number) {
    assert(Date.now() < deadline, `${found} open, not ${number}`);
    await sleep(50);
  }
}

async function settle() {
  await waitForOpen(0);
  return 0;
}

async function connect(token = work.token, { capabilities = {}, fetchWith, headers = {} } = {}) {
  const client = new Client({ name: 'test', version: '1' }, { capabilities });
  const requestInit = { headers: { Authorization: `Bearer ${token}`, ...headers } };
  const transport = new StreamableHTTPClientTransport(url, { requestInit, fetch: fetchWith });
  await client.connect(transport);
  return { client, transport };
}

async function use(action, ...options) {
  const { client, transport } = await connect(...options);
  try {
    return await action(client, transport);
  } finally {
    await client.close();
  }
}

const call = (client, name, values, options) =>
  client.callTool({ name, arguments: values }, undefined, options);

const names = async (client) => (await client.listTools()).tools.map((tool) => tool.name);

async function pay(answer) {
  const capabilities = { elicitation: {} };
  const { client } = await connect(work.token, { capabilities });
  client.setRequestHandler(ElicitRequestSchema, async () => answer);
  const result = await call(client, 'agent_payer', { message: 'user' });
  await client.close();
  return result;
}

class Provider {
  constructor() {
    this.redirectUrl = 'http://127.0.0.1:9/back';
    this.clientMetadata = { client_name: 'test', redirect_uris: [this.redirectUrl] };
  }
  clientInformation() { return this.client; }
  saveClientInformation(client) { this.client = client; }
  tokens() { return this.saved; }
  saveTokens(tokens) { this.saved = tokens; }
  saveCodeVerifier(verifier) { this.verifier = verifier; }
  codeVerifier() { return this.verifier; }
  async redirectToAuthorization(place) {
    const answer = await fetch(place, { redirect: 'manual' });
    this.code = new URL(answer.headers.get('location')).searchParams.get('code');
  }
}

async function refusal(token) {
  try {
    await connect(token);
  } catch (error) {
    return error;
  }
  throw new Error('no error');
}

const operations = {
  connect: () => use(async (client) => assert(client.getServerCapabilities().tools)),
  server_version: () => use(async (client) => assert.equal(client.getServerVersion().name, 'world')),
  instructions: () => use(async (client) => assert.match(client.getInstructions(), /session_id/)),
  ping: () => use((client) => client.ping()),
  list_tools: () => use(async (client) => assert((await names(client)).includes('team_crew'))),
  tools_by_scope: () => use(async (client) => {
    const found = await names(client);
    assert(found.includes('agent_echo') && !found.includes('agent_hang'), found.join());
  }, work.narrow),
  call_agent: () => use(async (client) =>
    assert.equal(text(await call(client, 'agent_echo', { message: 'hello' })), 'hello')),
  structured_content: () => use(async (client) => {
    const result = await call(client, 'agent_echo', { message: 'hello' });
    assert(result.structuredContent.run_id && result.structuredContent.session_id);
  }),
  continued_session: () => use(async (client) => {
    const first = await call(client, 'agent_history', { message: 'one' });
    const given = { message: 'two', session_id: first.structuredContent.session_id };
    assert.match(text(await call(client, 'agent_history', given)), /one/);
  }),
  call_team: () => use(async (client) =>
    assert(!(await call(client, 'team_crew', { message: 'ask echo' })).isError)),
  call_workflow: () => use(async (client) =>
    assert(!(await call(client, 'workflow_line', { message: 'ask echo' })).isError)),
  failed_run: () => use(async (client) => {
    const result = await call(client, 'agent_http-500', { message: 'x' });
    assert(result.isError);
    assert.match(text(result), /MODEL_UNAVAILABLE/);
  }),
  missing_argument: () => use(async (client) => assert((await call(client, 'agent_echo', {})).isError)),
  wrong_type: () => use(async (client) =>
    assert((await call(client, 'agent_echo', { message: 5 })).isError)),
  unknown_argument: () => use(async (client) =>
    assert((await call(client, 'agent_echo', { message: 'x', more: 1 })).isError)),
  unknown_tool: () => use((client) =>
    assert.rejects(call(client, 'agent_none', { message: 'x' }), /no such tool/)),
  forbidden_tool: () => use((client) =>
    assert.rejects(call(client, 'agent_hang', { message: 'x' }), /no such tool/), work.narrow),
  list_sessions: () => use(async (client) =>
    assert(JSON.parse(text(await call(client, 'list_sessions', {}))).data.length)),
  get_session: () => use(async (client) => {
    const ran = (await call(client, 'agent_echo', { message: 'x' })).structuredContent;
    const found = await call(client, 'get_session', { session_id: ran.session_id });
    assert.equal(JSON.parse(text(found)).session_id, ran.session_id);
  }),
  list_session_runs: () => use(async (client) => {
    const ran = (await call(client, 'agent_echo', { message: 'x' })).structuredContent;
    const found = await call(client, 'list_session_runs', { session_id: ran.session_id });
    assert.equal(JSON.parse(text(found))[0].run_id, ran.run_id);
  }),
  get_session_run: () => use(async (client) => {
    const ran = (await call(client, 'agent_echo', { message: 'x' })).structuredContent;
    const given = { session_id: ran.session_id, run_id: ran.run_id };
    assert.equal(JSON.parse(text(await call(client, 'get_session_run', given))).content, 'x');
  }),
  session_of_another_user: async () => {
    const ran = await use((client) => call(client, 'agent_echo', { message: 'x' }));
    const given = { session_id: ran.structuredContent.session_id };
    const found = await use((client) => call(client, 'get_session', given), work.other);
    assert(found.isError);
  },
  parallel_calls: () => use(async (client) => {
    const numbers = [...Array(8).keys()].map(String);
    const results = await Promise.all(numbers.map((message) => call(client, 'agent_echo', { message })));
    assert.deepEqual(results.map(text), numbers);
  }),
  unicode_text: () => use(async (client) => {
    const message = 'Grüße 🙂 \u2028 «x»';
    assert.equal(text(await call(client, 'agent_echo', { message })), message);
  }),
  abort: () => use(async (client) => {
    const before = await settle();
    const controller = new AbortController();
    const running = call(client, 'agent_hang', { message: 'x' }, { signal: controller.signal });
    running.catch(() => {});
    await waitForOpen(before + 1);
    controller.abort();
    await waitForOpen(before);
  }),
  timeout: () => use(async (client) => {
    const before = await settle();
    await assert.rejects(call(client, 'agent_hang', { message: 'x' }, { timeout: 2000 }), /timed out/i);
    await waitForOpen(before);
  }),
  close: async () => {
    const before = await settle();
    const { client } = await connect();
    call(client, 'agent_hang', { message: 'x' }).catch(() => {});
    await waitForOpen(before + 1);
    await client.close();
    await waitForOpen(before);
  },
  terminate: async () => {
    const before = await settle();
    const { client, transport } = await connect();
    call(client, 'agent_hang', { message: 'x' }).catch(() => {});
    await waitForOpen(before + 1);
    await transport.terminateSession();
    await waitForOpen(before);
    await client.close();
  },
  progress: () => use(async (client) => {
    const seen = [];
    const controller = new AbortController();
    const options = { onprogress: (each) => seen.push(each), signal: controller.signal };
    call(client, 'agent_trickle', { message: 'x' }, options).catch(() => {});
    const deadline = Date.now() + PATIENCE;
    while (seen.length < 3) {
      assert(Date.now() < deadline, JSON.stringify(seen));
      await sleep(50);
    }
    controller.abort();
    assert(seen[0].progress < seen[1].progress && seen[1].progress < seen[2].progress);
    assert.match(seen[2].message, /characters/);
  }),
  progress_keeps_alive: () => use(async (client) => {
    const options = { onprogress: () => {}, timeout: 2500, resetTimeoutOnProgress: true, maxTotalTimeout: 6000 };
    const began = Date.now();
    await assert.rejects(call(client, 'agent_trickle', { message: 'x' }, options));
    assert(Date.now() - began > 5500, `ended after ${Date.now() - began} ms`);
  }),
  approval_accepted: async () => {
    const result = await pay({ action: 'accept', content: { decision: 'approve' } });
    assert.equal(text(result), 'Results: paid');
  },
  approval_declined: async () => {
    const result = await pay({ action: 'decline' });
    assert(!text(result).includes('paid'), text(result));
  },
  stolen_session: async () => {
    const { client, transport } = await connect();
    const headers = { 'Mcp-Session-Id': transport.sessionId, Authorization: `Bearer ${work.other}` };
    const answer = await fetch(url, {
      method: 'POST',
      headers: { ...headers, Accept: 'application/json, text/event-stream', 'Content-Type': 'application/json' },
      body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'ping' }),
    });
    assert.equal(answer.status, 404);
    await client.close();
  },
  wrong_token: async () => {
    const error = await refusal('wrong');
    assert.match(String(error.message), /Invalid or expired credential/);
  },
  resource_metadata: async () => {
    const answer = await fetch(url, { method: 'POST', body: '{}' });
    const challenge = answer.headers.get('www-authenticate');
    const place = /resource_metadata="([^"]+)"/.exec(challenge)[1];
    assert.equal((await (await fetch(place)).json()).resource, url.href);
  },
  well_known: async () => {
    const place = new URL('/.well-known/oauth-protected-resource', url);
    assert((await (await fetch(place)).json()).authorization_servers.length);
    const other = await fetch(new URL('/.well-known/oauth-authorization-server', url));
    assert.equal(other.status, 404);
  },
  oauth_sign_in: async () => {
    const authProvider = new Provider();
    const begin = new StreamableHTTPClientTransport(url, { authProvider });
    const client = new Client({ name: 'test', version: '1' });
    await assert.rejects(client.connect(begin), /Unauthorized/);
    await begin.finishAuth(authProvider.code);
    const again = new Client({ name: 'test', version: '1' });
    await again.connect(new StreamableHTTPClientTransport(url, { authProvider }));
    assert.equal(text(await call(again, 'agent_echo', { message: 'signed in' })), 'signed in');
    await again.close();
  },
  origin: async () => {
    const error = await connect(work.token, { headers: { Origin: 'https://evil.example.org' } })
      .then(({ client }) => client.close(), (refused) => refused);
    assert(error, 'the origin is not checked');
  },
};

const found = {};
for (const [name, operation] of Object.entries(operations)) {
  try {
    const limit = new Promise((_, reject) => setTimeout(reject, 40000, new Error('too long')).unref());
    await Promise.race([operation(), limit]);
    found[name] = null;
  } catch (error) {
    found[name] = `${error.name}: ${error.message}`;
  }
}
console.log(JSON.stringify(found));
process.exit(0);
