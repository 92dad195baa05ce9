// The types of the client: tsc has to accept this file, and to refuse each line after a comment that
// expects an error. It is never executed; see test_typescript.py.

import { Client, type CancelRecord, type RunRecord, type SessionSummary } from "./agentctl.js";

const client = new Client("http://127.0.0.1:7777", { token: async () => "token" });
const path = { session_id: "s1" };

const agents = await client.request("GET", "/agents");
agents satisfies { agent_id: string }[];
const run: RunRecord = await client.agents.run("echo", { message: "hello" });
const cancelled: CancelRecord = await client.agents.cancel("echo", run.run_id);
cancelled.cancel satisfies "stopped" | "requested" | "already_final";
for await (const each of client.items("/sessions", { query: { limit: 5 } })) {
  each satisfies SessionSummary;
}
for await (const each of client.items("/runs")) each.run_id satisfies string;
(await client.request("DELETE", "/sessions/{session_id}", { path })) satisfies undefined;
await client.request("PATCH", "/sessions/{session_id}", { path, body: { session_name: "x" } });
for await (const event of client.agents.stream("echo", { message: "hello" })) {
  if (event.event === "RunContent") event.content satisfies string;
  if (event.event === "RunPaused") event.approvals[0]!.arguments_hash satisfies string;
  // @ts-expect-error there is no such event
  if (event.event === "RunPause") break;
}

// @ts-expect-error there is no such field
client.agents.run("echo", { mesage: "hello" });
// @ts-expect-error there is no such path
client.request("GET", "/nothing");
// @ts-expect-error the path has no such method
client.request("POST", "/health");
// @ts-expect-error the id is missing
client.request("GET", "/sessions/{session_id}");
// @ts-expect-error the body is missing
client.request("POST", "/sessions/{session_id}/hold", { path });
// @ts-expect-error there is no such parameter
client.request("GET", "/sessions", { query: { lmit: 5 } });
// @ts-expect-error a list of these has no pages
for await (const each of client.items("/agents")) each.agent_id;
