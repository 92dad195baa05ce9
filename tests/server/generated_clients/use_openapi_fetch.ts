// A program with the types that openapi-typescript generates: types are checked with tsc.

import createClient from "openapi-fetch";
import type { components, paths } from "./openapi";

declare const process: { argv: string[] };

type Schemas = components["schemas"];

async function main(url: string, token: string): Promise<Record<string, string>> {
  const client = createClient<paths>({ baseUrl: url, headers: { Authorization: `Bearer ${token}` } });
  const found: Record<string, string> = {};

  const started = await client.POST("/agents/{agent_id}/runs", {
    params: { path: { agent_id: "echo" } },
    body: { message: "hello", stream: false, session_id: "fetched" },
  });
  // The type of the response is that of its two content types.
  if (started.data === undefined || "event" in started.data) throw new Error("no record");
  const run: Schemas["RunRecord"] = started.data;
  found.input = run.input;

  const streamed = await client.POST("/agents/{agent_id}/runs", {
    params: { path: { agent_id: "echo" } },
    body: { message: "hello", session_id: "fetched" },
    parseAs: "text",
  });
  found.text = "";
  for (const line of String(streamed.data).split("\n")) {
    if (line.startsWith("data: ")) found.text += read(JSON.parse(line.slice(6)));
  }

  for (const id of ["mine", "mine-team", "mine-workflow"]) {
    const { data } = await client.GET("/sessions/{session_id}", {
      params: { path: { session_id: id } },
    });
    if (data === undefined) continue;
    if ("agent_session_id" in data) found.agent = `agent ${data.agent_id}`;
    else if ("team_data" in data) found.team = `team ${data.team_id}`;
    else if ("workflow_data" in data) found.workflow = `workflow ${data.workflow_id}`;
    else throw new Error("a session without its history");
  }
  const short = await client.GET("/sessions/{session_id}", {
    params: { path: { session_id: "mine-team" }, query: { view: "summary" } },
  });
  if (short.data && "turn_count" in short.data) found.head = `head ${short.data.team_id}`;
  return found;
}

function read(event: Schemas["RunEvent"]): string {
  switch (event.event) {
    case "RunContent":
      return event.content;
    case "RunCompleted":
      return ` (${Object.keys(event.metrics).length} counters)`;
    case "RunError":
      return event.error.code;
    default:
      return "";
  }
}

void main(process.argv[2]!, process.argv[3]!).then((found) => console.log(JSON.stringify(found)));
