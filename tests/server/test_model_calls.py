"""The setting `model_calls` of agents and teams."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx2
import pytest

from tests.kit.model import ModelEndpoint
from tests.server.agents_in_code import serve_agents

CONFIG = """
[[models]]
id = "again"
provider = "openai"
model = "again:add"
base_url = "{url}"

[[models]]
id = "plan"
provider = "openai"
model = "plan"
base_url = "{url}"

[[agents]]
id = "few"
model = "again"
tools = ["world_tools:add"]
model_calls = 3

[[agents]]
id = "durable"
model = "again"
tools = ["world_tools:add"]
model_calls = 3
durable = true

[[teams]]
id = "leader"
model = "again"
members = ["echo"]
tools = ["world_tools:add"]
model_calls = 4

[[agents]]
id = "default"
model = "again"
tools = ["world_tools:add"]

[[agents]]
id = "many"
model = "plan"
tools = ["world_tools:add"]
model_calls = 61
durable = true
"""


@pytest.fixture(scope="module")
def client(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[httpx2.Client]:
    folder = tmp_path_factory.mktemp("calls")
    extra = CONFIG.format(url=model_endpoint.base_url)
    with serve_agents(folder, model_endpoint, extra) as client:
        yield client


@pytest.mark.parametrize(
    ("component", "calls"),
    [("agents/few", 3), ("agents/durable", 3), ("teams/leader", 4), ("agents/default", 50)],
)
def test_run_ends_after_its_model_calls(client: httpx2.Client, component: str, calls: int) -> None:
    form = {"message": '{"a": 1, "b": 2}', "stream": False}
    run = client.post(f"/{component}/runs", json=form).json()
    detail = f"The model did not finish within {calls} model calls"
    assert run["error"] == {"code": "MODEL_CALLS_EXCEEDED", "detail": detail}
    assert len([span for span in run["spans"] if span["kind"] == "model"]) == calls


def test_long_work_needs_a_larger_number(client: httpx2.Client) -> None:
    function = {"name": "add", "arguments": '{"a": 1, "b": 2}'}
    plan = [
        {"tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}]}
        for number in range(60)
    ]
    form = {"message": json.dumps([*plan, {"content": "done"}]), "stream": False}
    run = client.post("/agents/many/runs", json=form).json()
    assert (run["status"], run["content"], len(run["tools"])) == ("COMPLETED", "done", 60)
