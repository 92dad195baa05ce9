"""The requests of OpenAI Codex 0.171 in its default settings, byte by byte (docs/openai.md).

`compat` records them again with the program itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.deployment import ADMIN, Deploy
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

RECORDED = Path(__file__).with_name("recorded")
MESSAGE = (RECORDED / "codex-0.171-message.json").read_bytes()
RESULT = (RECORDED / "codex-0.171-result.json").read_bytes()

AGENTS = """
[openai]
enabled = true
[[models]]
id = "adder"
provider = "openai"
model = "plan"
base_url = "{url}"
[[agents]]
id = "adder"
name = "Adder"
model = "adder"
tools = ["world_tools:add"]
"""

SCOPES = ("agents:run", "agents:read", "sessions:delete")


@pytest.fixture(scope="module")
def served(deploy: Deploy) -> Iterator[ThreadedServer]:
    with serve_in_thread(deploy(AGENTS.format(url=deploy.url))) as host:
        yield host


def send(served: ThreadedServer, body: bytes) -> tuple[Any, dict[str, Any]]:
    """Send a request of Codex; return the header fields of the answer and its whole response."""
    headers = served.bearer("ada", *SCOPES) | {"Content-Type": "application/json"}
    answered = served.client.post("/v1/responses", content=body, headers=headers)
    assert answered.status_code == 200, answered.text
    last = answered.text.strip().rpartition("data: ")[2]
    event = json.loads(last)
    assert event["type"] == "response.completed", event
    return answered.headers, event["response"]


def test_task_of_codex_uses_a_tool_of_the_agent_and_one_of_codex(served: ThreadedServer) -> None:
    headers, first = send(served, MESSAGE)
    assert headers["x-ignored-parameters"] == (
        "tools.namespace.multi_agent_v1, tools.web_search, reasoning"
    )
    text, call = first["output"]
    assert text["content"][0]["text"] == "the sum is known"
    assert call["name"] == "exec_command"
    offered = [tool["name"] for tool in first["tools"]]
    assert "exec_command" in offered
    assert len(offered) == 7

    earlier = json.loads(RESULT)["input"][-1]["call_id"]
    body = RESULT.replace(earlier.encode(), call["call_id"].encode())
    headers, last = send(served, body)
    assert last["output"][0]["content"][0]["text"] == "The sum is in sum.txt."
    run = served.client.get(
        f"/agents/adder/runs/{headers['x-run-id']}",
        params={"session_id": headers["x-session-id"]},
        headers=served.bearer("root", ADMIN),
    ).json()
    assert [(tool["tool_name"], tool["result"][:1]) for tool in run["tools"]] == [
        ("add", "5"),
        ("exec_command", "C"),
    ]


def test_response_without_store_is_not_found_but_its_run_is(served: ThreadedServer) -> None:
    headers, response = send(served, MESSAGE)
    assert response["store"] is False
    bearer = served.bearer("ada", *SCOPES)
    path = f"/v1/responses/{response['id']}"
    for method, place in (
        ("GET", path),
        ("GET", f"{path}/input_items"),
        ("POST", f"{path}/cancel"),
        ("DELETE", path),
    ):
        answered = served.client.request(method, place, headers=bearer)
        assert (answered.status_code, answered.json()["error"]["code"]) == (
            404, "response_not_found",
        ), place  # fmt: skip
    following = {"model": "adder", "input": "x", "previous_response_id": response["id"]}
    refused = served.client.post("/v1/responses", json=following, headers=bearer)
    assert refused.json()["error"]["code"] == "previous_response_not_found"

    place = {"session_id": headers["x-session-id"]}
    run = f"/agents/adder/runs/{headers['x-run-id']}"
    assert served.client.get(run, params=place, headers=bearer).json()["status"] == "PAUSED"
    stored = served.client.get(f"/v1/responses/resp_{headers['x-run-id']}", headers=bearer)
    assert stored.status_code == 200


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, "tool_choice"),
        ({"background": True, "stream": False}, "store"),
        ({"client_metadata": "x"}, "client_metadata"),
        ({"tools": [{"type": 7}]}, "tools[0].type"),
    ],
)
def test_request_that_cannot_be_honoured_is_refused(
    served: ThreadedServer, given: dict[str, Any], param: str
) -> None:
    body = json.loads(MESSAGE) | given
    answered = served.client.post("/v1/responses", json=body, headers=served.bearer("ada", *SCOPES))
    assert (answered.status_code, answered.json()["error"]["param"]) == (400, param)


def test_many_tools_of_vendors_are_named_up_to_a_bound(served: ThreadedServer) -> None:
    names = ["ok", "é", "x" * 65, *(f"t{n}" for n in range(50))]
    tools = [{"type": "custom", "name": name} for name in names] + [{"type": "über"}]
    body = {"model": "echo", "input": "hello", "tools": tools}
    answered = served.client.post("/v1/responses", json=body, headers=served.bearer("ada", *SCOPES))
    assert answered.status_code == 200, answered.text
    named = answered.headers["x-ignored-parameters"].split(", ")
    assert named[:3] == ["tools.custom.ok", "tools.custom", "tools.custom.t0"]
    assert len(named) == 32
