"""Agents of pydantic-ai on a server: structured outputs, deps, conversations and nested agents."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agentctl.errors import InvalidConfiguration
from agentctl.runtime.components.catalog import Catalog
from tests.kit.deployment import create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import serve_in_thread

NAMES = (
    "whales", "either", "numbers", "doubles", "explained", "corrected", "nested",
    "dataclass_deps", "model_deps", "plain_deps", "conversation",
    "validated", "validated_text", "union", "text_or_whale", "text_of_two", "greeted", "counted",
    "shouted", "tool_output", "tool_outputs", "tool_union", "native", "prompted", "declared",
    "declared_native",
)  # fmt: skip


def entry(name: str) -> str:
    return f'[[agents]]\nid = "{name}"\nobject = "typed_agents:{name}"\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("typed")
    shutil.copy(Path(__file__).with_name("typed_agents.py"), folder)
    return folder


@pytest.fixture(scope="module")
def client(folder: Path, model_endpoint: ModelEndpoint) -> Iterator[httpx2.Client]:
    extra = "".join(map(entry, NAMES))
    deployment = create_deployment(folder, model_endpoint.base_url, extra=extra)
    with serve_in_thread(deployment) as host, deployment.client(host.url) as client:
        yield client


def run(client: httpx2.Client, agent: str, **body: Any) -> dict[str, Any]:
    response = client.post(
        f"/agents/{agent}/runs", json={"message": "hello", "stream": False, **body}
    )
    record: dict[str, Any] = response.json()
    assert record["status"] == "COMPLETED", record
    return record


@pytest.mark.parametrize("agent", ["whales", "either"])
def test_object_is_streamed_while_the_model_writes_it(
    client: httpx2.Client, folder: Path, agent: str
) -> None:
    go_on = folder / "go-on"
    pieces = []
    go_on.unlink(missing_ok=True)
    body = {"message": "x", "stream": True}
    with client.stream("POST", f"/agents/{agent}/runs", json=body) as response:
        for line in response.iter_lines():
            if not line.startswith("data: "):
                continue
            event = json.loads(line.removeprefix("data: "))
            if event["event"] == "RunContent":
                pieces.append(event["content"])
                # The model writes the rest only after the begin has arrived here.
                if "".join(pieces) == '{"name": "blue whale", "tons": ':
                    go_on.touch()
    assert len(pieces) >= 2
    record = client.get(f"/agents/{agent}/runs/{event['run_id']}").json()
    assert "".join(pieces) == record["content"] == '{"name": "blue whale", "tons": 150}'
    assert record["output"] == {"name": "blue whale", "tons": 150, "ocean": "all"}
    assert record["tools"] == []


@pytest.mark.parametrize(
    ("agent", "content", "output"),
    [
        ("numbers", "7", 7),
        ("doubles", "14", 14),
        ("explained", "A fish: ", {"fins": 5}),
        ("corrected", '{"fins": "many"}\n\n{"fins": 5}', {"fins": 5}),
    ],
)
def test_content_of_other_outputs(
    client: httpx2.Client, agent: str, content: str, output: object
) -> None:
    record = run(client, agent)
    assert (record["content"], record["output"]) == (content, output)


SHARK = '{"name": "shark", "tons": 2}'
WHOLE_SHARK = {"name": "shark", "tons": 2, "ocean": "all"}


@pytest.mark.parametrize(
    ("agent", "content", "output"),
    [
        ("union", SHARK, WHOLE_SHARK),
        ("text_or_whale", SHARK, WHOLE_SHARK),
        ("text_of_two", "a shark", None),
        ("greeted", "hello Ann", None),
        ("counted", "a shark", 7),
        ("shouted", "a shark", "A SHARK"),
        ("validated", '{"fins": 1}\n\n{"fins": 2}', {"fins": 20}),
        ("validated_text", "hello", "HELLO"),
        ("tool_output", SHARK, WHOLE_SHARK),
        ("tool_outputs", SHARK, WHOLE_SHARK),
        ("tool_union", '{"name":"shark","tons":2,"ocean":"all"}', WHOLE_SHARK),
        ("native", SHARK, WHOLE_SHARK),
        ("prompted", SHARK, WHOLE_SHARK),
        ("declared", SHARK, WHOLE_SHARK),
        ("declared_native", SHARK, WHOLE_SHARK),
    ],
)
def test_each_kind_of_output(
    client: httpx2.Client, agent: str, content: str, output: object
) -> None:
    record = run(client, agent)
    assert (record["content"], record["output"]) == (content, output)


def test_tokens_of_nested_agents_count_once(client: httpx2.Client) -> None:
    record = run(client, "nested")
    own = [span for span in record["spans"] if span["kind"] == "model"]
    assert len(own) == 2
    results = {call["tool_name"]: call["result"] for call in record["tools"]}
    without = [json.loads(results[name]) for name in ("ask_without_usage", "ask_two_at_once")]
    # The spans are those of the run's own calls; the agent with its usage is known by difference.
    rest = [
        record["metrics"][name]
        - sum(span[name] for span in own)
        - sum(each[index] for each in without)
        for index, name in enumerate(("input_tokens", "output_tokens"))
    ]
    assert rest[1] == 3
    assert 0 < rest[0] <= without[0][0]


@pytest.mark.parametrize(
    ("agent", "answer"),
    [("dataclass_deps", "tons 1"), ("model_deps", "Atlantic"), ("plain_deps", "10")],
)
def test_deps_with_defaults_are_made_for_each_run(
    client: httpx2.Client, agent: str, answer: str
) -> None:
    assert run(client, agent)["content"] == answer
    assert run(client, agent)["content"] == answer


@pytest.mark.parametrize(("agent", "name"), [("required_deps", "Required"), ("text_deps", "str")])
def test_deps_without_defaults_need_a_function(
    folder: Path, tmp_path: Path, model_endpoint: ModelEndpoint, agent: str, name: str
) -> None:
    shutil.copy(folder / "typed_agents.py", tmp_path)
    deployment = create_deployment(tmp_path, model_endpoint.base_url, extra=entry(agent))
    with pytest.raises(InvalidConfiguration, match=f"needs deps of the type {name}") as refused:
        Catalog.from_settings(deployment.settings).load_code()
    assert str(refused.value.hint).startswith('set deps = "module:function"')


def test_conversation_is_the_session(client: httpx2.Client) -> None:
    for _ in range(2):
        assert run(client, "conversation", session_id="s-9")["content"] == "s-9 s-9"
