// A program with the client that @hey-api/openapi-ts generates: types are checked with tsc.

import { createAgentRun, getAgentRunEvents, getSessionById } from "./hey-api/sdk.gen";
import { client } from "./hey-api/client.gen";
import type { RunEvent, RunRecord } from "./hey-api/types.gen";

declare const process: { argv: string[] };

async function main(url: string, token: string): Promise<Record<string, string>> {
  client.setConfig({ baseUrl: url, auth: token });
  const found: Record<string, string> = {};

  const started = await createAgentRun({
    path: { agent_id: "echo" },
    body: { message: "hello", background: true, stream: false, session_id: "hey" },
    throwOnError: true,
  });
  const run: RunRecord = started.data;
  found.input = run.input;

  const events = await getAgentRunEvents({
    path: { agent_id: "echo", run_id: run.run_id },
    query: { session_id: "hey" },
  });
  let text = "";
  for await (const event of events.stream) {
    if ("event" in event) text += read(event);
  }
  found.text = text;

  for (const id of ["mine", "mine-team", "mine-workflow"]) {
    const { data } = await getSessionById({ path: { session_id: id }, throwOnError: true });
    if ("agent_session_id" in data) found.agent = `agent ${data.agent_id}`;
    else if ("team_data" in data) found.team = `team ${data.team_id}`;
    else if ("workflow_data" in data) found.workflow = `workflow ${data.workflow_id}`;
    else throw new Error("a session without its history");
  }
  const short = await getSessionById({
    path: { session_id: "mine-team" },
    query: { view: "summary" },
    throwOnError: true,
  });
  if ("turn_count" in short.data) found.head = `head ${short.data.team_id}`;
  return found;
}

function read(event: RunEvent): string {
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
