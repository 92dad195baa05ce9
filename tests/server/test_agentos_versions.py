"""The version of a component in the metadata that clients of AgentOS read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from agno.run.agent import RunOutput, run_output_event_from_dict
from agno.run.team import team_run_output_event_from_dict
from agno.run.workflow import workflow_run_output_event_from_dict

from agentctl.records.kinds import KINDS, ComponentKind
from tests.kit.deployment import ADMIN, Deploy
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.server.event_streams import parse_events

COMPONENTS: dict[ComponentKind, tuple[str, Any]] = {
    "agent": ("echo", run_output_event_from_dict),
    "team": ("crew", team_run_output_event_from_dict),
    "workflow": ("line", workflow_run_output_event_from_dict),
}
"""A component of each kind, and the function with which the client of AgentOS reads its events."""

CONTRACT = {"Agentctl-Interface": "contract"}


@pytest.fixture(scope="module")
def host(deploy: Deploy) -> Iterator[ThreadedServer]:
    deployment = deploy(server='compatibility = "agentos"')
    with serve_in_thread(deployment) as host:
        yield host


def build_metadata(host: ThreadedServer, kind: ComponentKind, component_id: str) -> dict[str, Any]:
    """Return the member of the metadata with the current version of a component."""
    path = f"/{KINDS[kind].path}/{component_id}/versions"
    listed = host.client.get(path, headers=host.bearer("ada", ADMIN)).json()
    (version,) = [each["version"] for each in listed["data"] if each["is_current"]]
    return {"agentctl": {"version": version}}


@pytest.mark.parametrize("kind", COMPONENTS)
def test_runs_and_events_have_the_version_of_the_component(
    host: ThreadedServer, kind: ComponentKind
) -> None:
    component_id, read_event = COMPONENTS[kind]
    path = f"/{KINDS[kind].path}/{component_id}/runs"
    headers = host.bearer("ada", ADMIN)
    given = {"trace": "t1", "agentctl": {"version": "of the caller"}}
    form = {"message": "hello", "session_id": f"s-{kind}", "metadata": json.dumps(given)}

    run = host.client.post(path, data=form | {"stream": "false"}, headers=headers).json()
    expected = build_metadata(host, kind, component_id)
    assert run["metadata"] == {"trace": "t1", **expected}
    if kind == "agent":
        assert RunOutput.from_dict(dict(run)).metadata == run["metadata"]

    # The members of a team are listed before it.
    items = host.client.get(f"/sessions/s-{kind}/runs?type={kind}", headers=headers).json()
    assert items[-1]["metadata"] == run["metadata"]

    # The record of the contract has the metadata as they were given.
    record = host.client.get(f"/runs/{run['run_id']}", headers=headers | CONTRACT).json()
    assert (record["metadata"], record["version"]) == (given, expected["agentctl"]["version"])

    form |= {"stream": "true", "session_id": f"s-{kind}-2"}
    with host.client.stream("POST", path, data=form, headers=headers) as response:
        events = [data for _, data, _ in parse_events(response.iter_lines())]
    own = [event for event in events if not event.get("parent_run_id")]
    assert [own[0]["metadata"], own[-1]["metadata"]] == [expected] * 2
    assert read_event(dict(own[-1])).metadata == expected
    assert not any("version" in event for event in events)
