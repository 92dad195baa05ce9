"""Structured results over HTTP: the request, the stream and the run record.

docs/internals/security-cases.md M25.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.kit.deployment import Deploy
from tests.kit.threaded_server import serve_in_thread

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

AGENTS = """
[[models]]
id = "drafts"
provider = "openai"
model = "drafts"
base_url = "{url}"
[[agents]]
id = "numbers"
model = "drafts"
output = "number_models:Number"
"""


@pytest.fixture(scope="module")
def client(deploy: Deploy) -> Iterator[httpx2.Client]:
    code = "from pydantic import BaseModel\n\n\nclass Number(BaseModel):\n    n: int\n"
    deployment = deploy(AGENTS.format(url=deploy.url), files={"number_models.py": code})
    with serve_in_thread(deployment) as host, deployment.client(host.url) as client:
        yield client


def stream(client: httpx2.Client, agent: str, **body: Any) -> list[dict[str, Any]]:
    with client.stream("POST", f"/agents/{agent}/runs", json=body) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if "data: " in line]
    return [json.loads(line) for line in lines]


def test_streamed_run_has_one_content_and_an_output(client: httpx2.Client) -> None:
    """The invalid first answer is never sent."""
    drafts = json.dumps(['{"n": "x"}', '{"n": 5}'])
    events = stream(client, "numbers", message=drafts, session_id="streamed")

    contents = [each["content"] for each in events if each["event"] == "RunContent"]
    assert contents == ['{"n": 5}']
    assert events[-1]["event"] == "RunCompleted"
    record = client.get(f"/agents/numbers/runs/{events[0]['run_id']}").json()
    assert record["output"] == {"n": 5}
    assert record["content"] == '{"n": 5}'
    history = client.get("/sessions/streamed").json()["chat_history"]
    assert [each["role"] for each in history] == ["user", "assistant", "assistant"]


@pytest.mark.parametrize("form", [False, True])
def test_schema_of_a_request_is_applied(client: httpx2.Client, form: bool) -> None:
    body = {"message": '{"n": 7}', "stream": "false", "output_schema": json.dumps(SCHEMA)}
    answer = (
        client.post("/agents/echo/runs", data=body)
        if form
        else client.post(
            "/agents/echo/runs", json={**body, "stream": False, "output_schema": SCHEMA}
        )
    )
    assert answer.status_code == 200
    assert (answer.json()["status"], answer.json()["output"]) == ("COMPLETED", {"n": 7})


def test_answer_that_stays_invalid_is_an_error(client: httpx2.Client) -> None:
    body = {"message": "seven", "stream": False, "output_schema": SCHEMA}
    record = client.post("/agents/echo/runs", json=body).json()
    assert (record["status"], record["output"]) == ("ERROR", None)
    assert record["error"]["code"] == "OUTPUT_INVALID"


@pytest.mark.parametrize(
    ("path", "schema", "status", "detail"),
    [
        ("/agents/echo", {"type": "array"}, 422, 'output_schema must have "type": "object"'),
        ("/agents/echo", {"type": "object", "x": "y" * 70_000}, 413, "output_schema must be"),
        ("/agents/echo", [1], 422, "output_schema"),
        ("/teams/desk", SCHEMA, 422, "output_schema is for agents and teams"),
        ("/workflows/line", SCHEMA, 422, "output_schema is for agents and teams"),
    ],
)
def test_unusable_schema_starts_no_run(
    client: httpx2.Client, path: str, schema: Any, status: int, detail: str
) -> None:
    body = {"message": "x", "stream": False, "output_schema": schema, "session_id": "unusable"}
    answer = client.post(f"{path}/runs", json=body)
    assert answer.status_code == status
    assert detail in answer.json()["detail"]
    assert client.get("/sessions/unusable").status_code == 404
