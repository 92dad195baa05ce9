"""Calls of configured models by the code of agents: where they are made from, what they send, and
what the run counts (docs/models.md "Models in code").
"""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.gated.shown import compare_over_http
from tests.kit.model import ModelEndpoint
from tests.server.agents_in_code import run_agent, serve_agents

COUNTED = (
    "call_langchain",
    "call_in_thread",
    "call_pydantic_ai",
    "call_agno",
    "call_agno_in_thread",
    "call_openai_agents",
)
IN_LOOPS = ("call_pydantic_ai_in_loop", "call_openai_agents_in_loop", "call_langchain_in_loop")
ASKING = (
    ("asking_langgraph", "ask"),
    ("asking_langgraph", "ask_pydantic_ai"),
    ("asking_pydantic_ai", "ask"),
    ("asking_pydantic_ai", "ask_pydantic_ai"),
    ("asking_agno", "ask"),
    ("asking_agno", "ask_agno"),
    ("asking_openai_agents", "ask"),
    ("asking_openai_agents", "ask_openai_agents"),
    ("configured", "ask"),
    ("later_langgraph", "ask"),
    ("later_pydantic_ai", "ask"),
    ("later_agno", "ask_agno"),
    ("later_openai_agents", "ask_openai_agents"),
)
JSON_MODES = ("json_mode_of_agno", "json_mode_of_langchain")
OPTIONS = ("options_langgraph", "options_pydantic_ai", "options_openai_agents")
OTHERS = (
    "call_again",
    "two_models",
    "call_fallback",
    "agno_team",
    "native_output",
    "schema_output",
    "synchronous_node",
    "left_calls",
    "roles",
    "token_count",
    "cut_arguments",
    "fallback_of_pydantic_ai",
    "no_fallback_of_pydantic_ai",
    "retry_of_agno",
    "schema_of_agno",
)

MODELS = {
    "plan": "plan",
    "fast": "echo",
    "refuse": "http-400",
    "flaky": "flaky",
    "cut": "broken:remove",
}


@pytest.fixture(scope="module")
def client(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[httpx2.Client]:
    folder = tmp_path_factory.mktemp("calls")
    shutil.copy(Path(__file__).with_name("calling_agents.py"), folder)
    place = f'provider = "openai"\nbase_url = "{model_endpoint.base_url}"\nretries = 0\n'
    extra = "".join(
        f'[[models]]\nid = "{name}"\nmodel = "{model}"\n{place}' for name, model in MODELS.items()
    )
    extra += f'[[models]]\nid = "fallback"\nmodel = "http-503"\n{place}fallbacks = ["fast"]\n'
    agents = {*COUNTED, *IN_LOOPS, *JSON_MODES, *OPTIONS, *OTHERS}
    agents |= {agent for agent, _ in ASKING}
    extra += "".join(
        f'[[agents]]\nid = "{agent}"\nobject = "calling_agents:{agent}"\n'
        for agent in sorted(agents - {"configured"})
    )
    extra += '[[budgets]]\nid = "few"\nper = "agent"\ncomponent = "call_again"\n'
    extra += 'tokens = 3\non_exceed = "stop"\n'
    extra += '[[agents]]\nid = "configured"\nmodel = "plan"\n'
    extra += 'tools = ["calling_agents:ask"]\n'
    with serve_agents(folder, model_endpoint, extra) as client:
        yield client


def build_call(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"tool_calls": [{"id": "c", "type": "function", "function": function}]}


def list_calls(record: dict[str, Any]) -> list[tuple[str, str]]:
    return [(span["name"], span["status"]) for span in record["spans"] if span["kind"] == "model"]


def count_input(sent: list[dict[str, Any]]) -> int:
    """Count the tokens as the endpoint does: the words of all messages."""
    texts = (message.get("content") or "" for body in sent for message in body["messages"])
    return sum(len(text.split()) for text in texts)


@pytest.mark.parametrize("agent", [*COUNTED, *IN_LOOPS])
def test_call_of_a_function_counts_once(
    client: httpx2.Client, model_endpoint: ModelEndpoint, agent: str
) -> None:
    model_endpoint.forget()
    record = run_agent(client, agent, "hello there you")
    assert record["status"] == "COMPLETED", record
    assert record["content"] == "hello there you"
    assert list_calls(record) == [("fast", "completed")]
    assert record["metrics"]["input_tokens"] == count_input(model_endpoint.requests("echo"))
    assert record["metrics"]["output_tokens"] == 3
    said, sent = compare_over_http(client, record["run_id"], model_endpoint)
    assert said == sent


@pytest.mark.parametrize(("agent", "tool"), ASKING)
def test_call_of_a_tool_counts_with_those_of_its_agent(
    client: httpx2.Client, model_endpoint: ModelEndpoint, agent: str, tool: str
) -> None:
    model_endpoint.forget()
    record = run_agent(
        client, agent, [build_call(tool, question="what is it"), {"content": "done"}]
    )
    assert record["status"] == "COMPLETED", record
    sent = model_endpoint.requests()
    assert [body["model"] for body in sent] == ["plan", "echo", "plan"]
    assert record["metrics"]["input_tokens"] == count_input(sent)
    assert list_calls(record).count(("plan", "completed")) == 2
    said, received = compare_over_http(client, record["run_id"], model_endpoint)
    assert said - received == Counter()
    if (agent, tool) != ("asking_pydantic_ai", "ask_pydantic_ai"):
        assert said == received  # The library does not report the call of an agent by a tool.


def test_call_in_another_loop_leaves_the_connections_usable(client: httpx2.Client) -> None:
    for agent in (*IN_LOOPS, "call_langchain") * 3:
        record = run_agent(client, agent, "hello")
        assert (record["status"], record["content"]) == ("COMPLETED", "hello"), record


def test_tokens_of_members_of_agno_count_once(
    client: httpx2.Client, model_endpoint: ModelEndpoint
) -> None:
    model_endpoint.forget()
    call = build_call("delegate_task_to_member", member_id="member", task="hello")
    record = run_agent(client, "agno_team", [call, {"content": "done"}])
    assert record["status"] == "COMPLETED", record
    assert record["metrics"]["input_tokens"] == count_input(model_endpoint.requests("plan"))


def test_used_budget_ends_the_calls_of_a_function(
    client: httpx2.Client, model_endpoint: ModelEndpoint
) -> None:
    model_endpoint.forget()
    record = run_agent(client, "call_again", [{"content": "two words"}])
    assert record["error"]["code"] == "BUDGET_EXCEEDED", record
    assert len(model_endpoint.requests("plan")) == 1


def test_tokens_of_models_at_the_same_time_count_for_each(client: httpx2.Client) -> None:
    record = run_agent(client, "two_models", [{"content": "x"}])
    assert record["status"] == "COMPLETED", record
    query = {"by": "model", "component_type": "agent", "component_id": "two_models"}
    used = client.get("/usage", params=query).json()["data"]
    counts = {row["model"]: row["output_tokens"] for row in used}
    assert counts == {"fast": 2, "plan": 1}


def test_attempts_of_a_call_have_the_names_of_their_models(client: httpx2.Client) -> None:
    record = run_agent(client, "call_fallback", "hello")
    assert list_calls(record) == [("fallback", "failed"), ("fast", "completed")]


def test_synchronous_node_streams_and_ends_with_its_run(
    client: httpx2.Client, model_endpoint: ModelEndpoint
) -> None:
    before = model_endpoint.open_calls()
    events = []
    body = {"message": "hello", "stream": True}
    with client.stream("POST", "/agents/synchronous_node/runs", json=body) as response:
        for line in response.iter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
                if "".join(event.get("content", "") for event in events) == "one two three":
                    break
    run_id = events[0]["run_id"]
    client.post(f"/agents/synchronous_node/runs/{run_id}/cancel?wait=20")
    model_endpoint.wait_for_open(before)
    record = client.get(f"/agents/synchronous_node/runs/{run_id}").json()
    assert (record["status"], record["content"]) == ("CANCELLED", "one two three")


def test_calls_that_their_code_ends_are_cancelled_and_have_not_failed(
    client: httpx2.Client,
) -> None:
    record = run_agent(client, "left_calls", "hello")
    assert record["status"] == "COMPLETED", record
    assert list_calls(record) == [("half", "cancelled"), ("half", "cancelled")]


@pytest.mark.parametrize("agent", ["native_output", "schema_output"])
def test_schema_of_langchain_is_sent_to_the_provider(
    client: httpx2.Client, model_endpoint: ModelEndpoint, agent: str
) -> None:
    model_endpoint.forget()
    order = {"article": "tea", "amount": 2}
    record = run_agent(client, agent, [{"content": json.dumps(order)}])
    assert json.loads(record["content"]) == order, record
    (sent,) = model_endpoint.requests()
    assert sent["response_format"]["json_schema"]["schema"]["properties"].keys() == order.keys()
    assert "tools" not in sent


def test_schema_of_agno_is_sent_to_the_provider(
    client: httpx2.Client, model_endpoint: ModelEndpoint
) -> None:
    model_endpoint.forget()
    run_agent(client, "schema_of_agno", "hello")
    (sent,) = model_endpoint.requests()
    assert sent["response_format"]["json_schema"]["name"] == "order"


@pytest.mark.parametrize("agent", JSON_MODES)
def test_json_mode_is_sent_to_the_provider(
    client: httpx2.Client, model_endpoint: ModelEndpoint, agent: str
) -> None:
    model_endpoint.forget()
    order = {"article": "tea", "amount": 2}
    record = run_agent(client, agent, [{"content": json.dumps(order)}])
    assert record["status"] == "COMPLETED", record
    (sent,) = model_endpoint.requests()
    assert sent["response_format"] == {"type": "json_object"}


@pytest.mark.parametrize("agent", OPTIONS)
def test_options_of_the_code_are_sent(
    client: httpx2.Client, model_endpoint: ModelEndpoint, agent: str
) -> None:
    model_endpoint.forget()
    record = run_agent(client, agent, [{"content": "done"}])
    assert record["status"] == "COMPLETED", record
    (sent,) = model_endpoint.requests()
    assert (sent["parallel_tool_calls"], sent["frequency_penalty"]) == (False, 0.5)
    if agent == "options_openai_agents":
        assert (sent["seed"], sent["stop"]) == (3, ["END"])


def test_roles_of_chat_messages_are_kept(client: httpx2.Client) -> None:
    record = run_agent(client, "roles", "hello")
    assert json.loads(record["content"]) == [["system", "s"], ["assistant", "a"], ["user", "hello"]]


def test_tokens_can_be_counted_without_a_tokenizer(client: httpx2.Client) -> None:
    record = run_agent(client, "token_count", "hello")
    assert record["status"] == "COMPLETED", record
    assert 80 < int(record["content"]) < 200


def test_arguments_that_were_cut_are_not_completed(client: httpx2.Client) -> None:
    record = run_agent(client, "cut_arguments", "hello")
    assert json.loads(record["content"]) == [{"INVALID_JSON": '{"half": '}]


def test_fallback_model_of_pydantic_ai_falls_back(client: httpx2.Client) -> None:
    record = run_agent(client, "fallback_of_pydantic_ai", "hello")
    assert (record["status"], record["content"]) == ("COMPLETED", "hello"), record
    assert list_calls(record) == [("fast", "completed")]


def test_failure_of_all_models_has_the_code_of_the_last(client: httpx2.Client) -> None:
    record = run_agent(client, "no_fallback_of_pydantic_ai", "hello")
    assert record["error"]["code"] == "MODEL_REJECTED"


def test_retries_of_agno_call_the_model_again(
    client: httpx2.Client, model_endpoint: ModelEndpoint
) -> None:
    model_endpoint.forget()
    record = run_agent(client, "retry_of_agno", "hello")
    assert (record["status"], record["content"]) == ("COMPLETED", "hello"), record
    assert len(model_endpoint.requests("flaky")) == 2
