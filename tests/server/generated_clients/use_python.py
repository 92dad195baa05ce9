"""A program with the client that openapi-python-client generates: types are checked with mypy."""

import json
import sys
from typing import Any

from agents_client import AuthenticatedClient
from agents_client.api.agents import create_agent_run
from agents_client.api.sessions import get_session_by_id
from agents_client.models import (
    AgentSessionDetailSchema,
    CompletedEvent,
    ContentEvent,
    RunBody,
    RunRecord,
    SessionHead,
    TeamSessionDetailSchema,
    WorkflowSessionDetailSchema,
)
from agents_client.models.get_session_by_id_view import GetSessionByIdView


def main(url: str, token: str) -> dict[str, str]:
    client = AuthenticatedClient(base_url=url, token=token)
    run = create_agent_run.sync("echo", client=client, body=RunBody(message="hello", stream=False))
    assert isinstance(run, RunRecord)
    found = {"input": run.input_}

    text = ""
    body = RunBody(message="hello", session_id="generated").to_dict()
    with client.get_httpx_client().stream("POST", "/agents/echo/runs", json=body) as streamed:
        for line in streamed.iter_lines():
            name, _, data = line.partition(": ")
            if name == "data":
                text += read(json.loads(data))
    found["text"] = text

    agent = get_session_by_id.sync("mine", client=client)
    assert isinstance(agent, AgentSessionDetailSchema)
    found["agent"] = f"agent {agent.agent_id}"
    team = get_session_by_id.sync("mine-team", client=client)
    assert isinstance(team, TeamSessionDetailSchema)
    found["team"] = f"team {team.team_id}"
    workflow = get_session_by_id.sync("mine-workflow", client=client)
    assert isinstance(workflow, WorkflowSessionDetailSchema)
    found["workflow"] = f"workflow {workflow.workflow_id}"
    head = get_session_by_id.sync("mine-team", client=client, view=GetSessionByIdView.SUMMARY)
    assert isinstance(head, SessionHead)
    found["head"] = f"head {head.team_id}"
    return found


def read(data: dict[str, Any]) -> str:
    if data["event"] == "RunContent":
        return ContentEvent.from_dict(data).content
    if data["event"] == "RunCompleted":
        completed = CompletedEvent.from_dict(data)
        return f" ({len(completed.metrics.additional_properties)} counters)"
    return ""


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
