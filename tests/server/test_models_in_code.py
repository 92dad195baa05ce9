"""Agents in code whose models are those of the configuration (docs/models.md "Models in code")."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.kit.conditions import PATIENCE
from tests.kit.documents import Block, page
from tests.kit.model import ModelEndpoint
from tests.server.agents_in_code import run_agent, serve_agents

MODELS = ("plan", "script", "hang", "fallback", "refuse", "missing", "settings", "invalid", "demo")
LIBRARIES = ("langgraph", "pydantic_ai", "agno", "openai_agents")

CONFIGURATION = """
[[models]]
id = "plan"
provider = "openai"
model = "plan"
base_url = "{url}"

[[models]]
id = "script"
provider = "openai"
model = "script"
base_url = "{url}"

[[models]]
id = "fallback"
provider = "openai"
model = "http-503"
base_url = "{url}"
retries = 0
fallbacks = ["echo"]

[[models]]
id = "refuse"
provider = "openai"
model = "http-400"
base_url = "{url}"

[[models]]
id = "settings"
provider = "openai"
model = "settings"
base_url = "{url}"
settings = {{ temperature = 0.1, seed = 7 }}

[[models]]
id = "fast"
provider = "openai"
model = "echo"
base_url = "{url}"

[[models]]
id = "demo"
provider = "demo"
model = "echo"

[[models]]
id = "invalid"
provider = "openai"
model = "broken:add"
base_url = "{url}"
"""

OTHERS = {
    "sync": "build_sync_graph",
    "counting": "build_counting_graph",
    "typed_langgraph": "build_typed_langgraph",
    "typed_pydantic_ai": "build_typed_pydantic_ai",
    "typed_agno": "build_typed_agno",
    "typed_openai_agents": "build_typed_openai_agents",
}

MISSING = [f"{library}_missing" for library in LIBRARIES]


def read_blocks() -> list[Block]:
    """Return the Python blocks of the page."""
    models = page("docs/models.md")
    start = models.text.index("## Models in code")
    return [
        block for block in models.blocks("python") if block.line > models.text.count("\n", 0, start)
    ]


@pytest.fixture(scope="module")
def client(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[httpx2.Client]:
    folder = tmp_path_factory.mktemp("models")
    shutil.copy(Path(__file__).with_name("models_in_code.py"), folder)
    own, configured = (block.text for block in reversed(read_blocks()))
    (folder / "page.py").write_text(configured)
    own = own.replace('api_key="…"', f'api_key="x", base_url="{model_endpoint.base_url}"')
    own += "from langchain.agents import create_agent\nsupport = create_agent(chat, [])\n"
    (folder / "page_own_client.py").write_text(own)
    entries = {
        **{f"{each}_{model}": f"{each}__{model}" for each in LIBRARIES for model in MODELS},
        **OTHERS,
    }
    entries = {agent: f"models_in_code:{name}" for agent, name in entries.items()}
    entries |= {name: f"{name}:support" for name in ("page", "page_own_client")}
    extra = CONFIGURATION.format(url=model_endpoint.base_url)
    extra += "".join(
        f'[[agents]]\nid = "{agent}"\nobject = "{target}"\n' for agent, target in entries.items()
    )
    with serve_agents(folder, model_endpoint, extra) as client:
        yield client


def call_add(a: int, b: int) -> dict[str, Any]:
    function = {"name": "add", "arguments": json.dumps({"a": a, "b": b})}
    return {"tool_calls": [{"id": f"call-{a}", "type": "function", "function": function}]}


def build_chunk(delta: dict[str, Any], finish_reason: str | None = None) -> str:
    choice = {"delta": delta, "finish_reason": finish_reason}
    return f"data: {json.dumps({'choices': [choice]})}\n\n"


@pytest.mark.parametrize("library", LIBRARIES)
def test_model_calls_tools_and_its_tokens_are_counted(
    client: httpx2.Client, model_endpoint: ModelEndpoint, library: str
) -> None:
    model_endpoint.forget()
    plan = [call_add(1, 2), call_add(3, 4), {"content": "all done"}]
    record = run_agent(client, f"{library}_plan", plan)
    assert record["status"] == "COMPLETED", record
    assert record["content"] == "all done"
    assert [(tool["tool_name"], tool["result"]) for tool in record["tools"]] == [
        ("add", "3"),
        ("add", "7"),
    ]
    sent = model_endpoint.requests("plan")
    assert len(sent) == 3
    roles = [message["role"] for message in sent[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert sent[-1]["messages"][0]["content"] == "Be brief"
    (tool,) = sent[0]["tools"]
    assert tool["function"]["name"] == "add"
    # The endpoint counts words: each call has its own prompt.
    assert record["metrics"]["input_tokens"] == sum(
        len(str(message.get("content") or "").split())
        for body in sent
        for message in body["messages"]
    )
    calls = [span for span in record["spans"] if span["kind"] == "model"]
    assert len(calls) == 3
    assert all(span["name"] == "plan" and span["status"] == "completed" for span in calls)


@pytest.mark.parametrize("library", LIBRARIES)
def test_text_and_thinking_are_streamed_and_thinking_is_sent_back(
    client: httpx2.Client, model_endpoint: ModelEndpoint, library: str
) -> None:
    model_endpoint.forget()
    call = {"index": 0, "id": "c", "function": {"name": "add", "arguments": '{"a": 1, "b": 1}'}}
    deltas = [{"reasoning_content": "well "}, {"reasoning_content": "then"}, {"tool_calls": [call]}]
    pieces = [build_chunk(delta) for delta in deltas]
    pieces.append(build_chunk({}, "tool_calls") + "data: [DONE]\n\n")
    message = json.dumps({"headers": {}, "pieces": pieces})
    events: list[dict[str, Any]] = []
    body = {"message": message, "stream": True}
    with client.stream("POST", f"/agents/{library}_script/runs", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
    assert events[-1]["event"] == "RunCompleted", events[-1]
    texts = [event["content"] for event in events if event["event"] == "RunContent"]
    assert "".join(texts) == "2"
    record = client.get(f"/agents/{library}_script/runs/{events[-1]['run_id']}").json()
    assert record["reasoning_content"] == "well then"
    second = model_endpoint.requests("script")[-1]["messages"]
    assert second[-2]["reasoning_content"] == "well then"


@pytest.mark.parametrize("reason", ["length", "content_filter"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_answer_that_was_cut_has_its_finish_reason(
    client: httpx2.Client, library: str, reason: str
) -> None:
    pieces = [build_chunk({"content": "half of"}), build_chunk({}, reason), "data: [DONE]\n\n"]
    record = run_agent(client, f"{library}_script", {"headers": {}, "pieces": pieces})
    assert (record["status"], record["content"]) == ("COMPLETED", "half of"), record
    assert record["messages"][-1]["finish_reason"] == reason


def test_piece_of_an_answer_in_a_graph_takes_no_task(client: httpx2.Client) -> None:
    pair = "".join(build_chunk({name: "."}) for name in ("reasoning_content", "content"))
    pieces = [(pair, 100), build_chunk({}, "stop"), "data: [DONE]\n\n"]
    record = run_agent(client, "counting", {"headers": {}, "pieces": pieces})
    assert record["status"] == "COMPLETED", record
    counted = json.loads(record["content"])
    assert counted["pieces"] >= 200
    assert counted["tasks"] < counted["pieces"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_settings_of_the_code_override_those_of_the_model(
    client: httpx2.Client, model_endpoint: ModelEndpoint, library: str
) -> None:
    model_endpoint.forget()
    record = run_agent(client, f"{library}_settings", "hello")
    assert record["status"] == "COMPLETED", record
    (sent,) = model_endpoint.requests("settings")
    assert (sent["temperature"], sent["max_completion_tokens"], sent["seed"]) == (0.5, 77, 7)


@pytest.mark.parametrize("library", LIBRARIES)
def test_demo_model_answers_and_its_tokens_are_counted(client: httpx2.Client, library: str) -> None:
    record = run_agent(client, f"{library}_demo", "hello there")
    assert (record["status"], record["content"]) == ("COMPLETED", "hello there"), record
    assert record["metrics"]["output_tokens"] == 2


@pytest.mark.parametrize("library", LIBRARIES)
def test_fallback_answers_for_a_model_that_is_not_available(
    client: httpx2.Client, library: str
) -> None:
    record = run_agent(client, f"{library}_fallback", "hello there")
    assert (record["status"], record["content"]) == ("COMPLETED", "hello there")


@pytest.mark.parametrize("library", LIBRARIES)
def test_failure_has_the_code_of_the_model(client: httpx2.Client, library: str) -> None:
    record = run_agent(client, f"{library}_refuse", "hello")
    assert record["error"] == {
        "code": "MODEL_REJECTED",
        "detail": "The model refuse refused the request (HTTP 400)",
    }


@pytest.mark.parametrize("agent", MISSING)
def test_model_that_is_not_configured_is_named(client: httpx2.Client, agent: str) -> None:
    record = run_agent(client, agent, "hello")
    assert record["status"] == "ERROR"
    assert record["error"]["detail"] == (
        "The agent calls the model missing, which is not configured"
    )


@pytest.mark.parametrize("library", LIBRARIES)
def test_arguments_that_are_no_object_are_for_the_agent_to_refuse(
    client: httpx2.Client, library: str
) -> None:
    record = run_agent(client, f"{library}_invalid", "hello")
    assert record["status"] in ("COMPLETED", "ERROR")
    assert not any(tool["result"].isdigit() for tool in record["tools"] if tool["result"])


@pytest.mark.parametrize("library", LIBRARIES)
def test_cancel_ends_the_call_of_the_model(
    client: httpx2.Client, model_endpoint: ModelEndpoint, library: str
) -> None:
    before = model_endpoint.open_calls()
    started = run_agent(client, f"{library}_hang", "x", background=True)
    model_endpoint.wait_for_open(before + 1)
    client.post(f"/agents/{library}_hang/runs/{started['run_id']}/cancel?wait=30")
    model_endpoint.wait_for_open(before)
    record = client.get(f"/agents/{library}_hang/runs/{started['run_id']}").json()
    assert record["status"] == "CANCELLED"
    assert record["stopped_at"] == record["finished_at"]


def test_synchronous_node_calls_the_model_in_its_thread(client: httpx2.Client) -> None:
    record = run_agent(client, "sync", "hello there")
    assert (record["status"], record["content"]) == ("COMPLETED", "hello there")


@pytest.mark.parametrize("library", LIBRARIES)
def test_structured_answers_have_the_schema_of_the_code(
    client: httpx2.Client, model_endpoint: ModelEndpoint, library: str
) -> None:
    model_endpoint.forget()
    order = {"article": "tea", "amount": 2}
    message: Any = order
    if library == "langgraph":
        function = {"name": "Order", "arguments": json.dumps(order)}
        message = [{"tool_calls": [{"id": "c", "type": "function", "function": function}]}]
    record = run_agent(client, f"typed_{library}", message)
    assert record["output"] == order, record
    (sent,) = model_endpoint.requests()
    if library != "langgraph":
        schema = sent["response_format"]["json_schema"]["schema"]
        assert schema["properties"].keys() == order.keys()
    else:
        assert sent["tool_choice"] == "required"


def test_call_outside_of_a_run_says_where_models_are() -> None:
    from agentctl.langchain import ChatModel

    failures: list[str] = []

    def call() -> None:
        try:
            ChatModel(model="echo").invoke("hello")
        except RuntimeError as error:
            failures.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    thread.join(PATIENCE)
    assert failures == [
        "a model of the configuration was called outside of a run: start the agent with agentctl,"
        " for example with `agentctl runs start`"
    ]


def test_example_of_the_page_answers(client: httpx2.Client) -> None:
    record = run_agent(client, "page", "hello")
    assert record.get("content") == "hello", record
    assert run_agent(client, "page_own_client", "hello")["content"] == "hello"
