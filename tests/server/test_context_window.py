"""A conversation that is larger than the context window of its model."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx2
import pytest

from tests.kit.model import ModelEndpoint
from tests.kit.site import answer, call
from tests.server.agents_in_code import run_agent, serve_module

KINDS = ("langgraph", "pydantic_ai", "agno", "agno_team", "openai_agents", "model_in_code")

WINDOW = 6_000
"""Characters of all messages of a request, with the instructions that a library adds."""

MODEL = """
[[models]]
id = "window"
provider = "openai"
model = "window:{window}"
base_url = "{url}"

[[agents]]
id = "configured"
model = "window"

[[models]]
id = "small"
provider = "openai"
model = "tokens:4000"
base_url = "{url}"
context_tokens = 4000

[[models]]
id = "plan"
provider = "openai"
model = "plan"
base_url = "{url}"

[[agents]]
id = "forgetful"
object = "windowed_agents:build_reading_thread"
history_runs = 0
"""

DETAIL = "The conversation is larger than the context window of the model"

LARGE_MESSAGE = "the largest part is the message with 6017 bytes: send a shorter message"

READING = tuple(
    f"reading_{kind}"
    for kind in ("fitted", "langgraph", "thread", "agno", "pydantic_ai", "openai_agents")
)
"""Agents of libraries with `agentctl.read_tool_result`."""

FITTED = ("configured", "model_in_code")
"""Agents whose model is one of the configuration."""


@pytest.fixture(scope="module")
def client(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[httpx2.Client]:
    folder = tmp_path_factory.mktemp("window")
    extra = MODEL.format(url=model_endpoint.base_url, window=WINDOW)
    names = (*KINDS, "fitted", "reading_function", "reading_team", *READING)
    model = f"window:{WINDOW}"
    with serve_module(
        folder, model_endpoint, "windowed_agents", names, extra, MODEL=model
    ) as client:
        yield client


@pytest.mark.parametrize("name", ["configured", *KINDS])
def test_short_message_is_answered_after_one_that_does_not_fit(
    client: httpx2.Client, name: str
) -> None:
    session = {"session_id": f"{name}-one"}
    assert run_agent(client, name, "the first", **session)["status"] == "COMPLETED"
    failed = run_agent(client, name, "x" * (WINDOW + 1), **session)
    assert failed["error"]["code"] == "CONTEXT_EXCEEDED"
    assert (LARGE_MESSAGE if name in FITTED else DETAIL) in failed["error"]["detail"]
    answered = run_agent(client, name, "hi", **session)
    assert answered["status"] == "COMPLETED", answered["error"]
    # The history of a configured agent is fitted, that of others begins again.
    assert ("the first" in answered["content"]) == (name == "configured")
    # Later runs know what came after the failure.
    assert '"hi"' in run_agent(client, name, "again", **session)["content"]


def test_conversation_that_does_not_fit_is_answered(client: httpx2.Client) -> None:
    """The size of the window is not known: a refused request is repeated with less."""
    session = {"session_id": "configured-many"}
    for number in range(6):
        run = run_agent(client, "configured", f"{number}" * 900, **session)
        assert run["status"] == "COMPLETED", run["error"]
    omissions = run["messages"][-1]["compacted"]["omissions"]
    assert [each["kind"] for each in omissions] == ["runs"]


def test_short_message_is_answered_after_a_conversation_that_does_not_fit(
    client: httpx2.Client,
) -> None:
    session = {"session_id": "pydantic_ai-many"}
    runs = [run_agent(client, "pydantic_ai", f"{number}" * 900, **session) for number in range(6)]
    failed = [number for number, run in enumerate(runs) if run["status"] == "ERROR"]
    assert failed
    assert runs[failed[0]]["error"]["code"] == "CONTEXT_EXCEEDED"
    # The next run after a failed one starts without history.
    assert all(number + 1 not in failed for number in failed)


def test_agent_of_a_library_is_fitted_into_the_window_of_its_model(
    client: httpx2.Client, model_endpoint: ModelEndpoint
) -> None:
    model_endpoint.forget()
    for message in ("fitted work 9 3000", "later " + "x" * 3_000, "fitted again work 2 4000"):
        run = run_agent(client, "fitted", message, session_id="fitted")
        assert run["status"] == "COMPLETED", run["error"]
    requests = model_endpoint.requests("tokens:2000")
    assert not any("refused" in body for body in requests)
    assert all(body["messages"][0]["content"] == "Be brief." for body in requests)
    compacted = [each["compacted"] for each in run["messages"] if "compacted" in each]
    kinds = [[each["kind"] for each in one["omissions"]] for one in compacted]
    assert (kinds[0], kinds[-1]) == (["runs"], ["tool_result", "runs", "turns"])
    # The stored messages are whole.
    assert [len(tool["result"]) for tool in run["tools"]] == [4_000, 4_000]


def test_agent_of_a_library_is_estimated_from_the_last_count(
    client: httpx2.Client, model_endpoint: ModelEndpoint
) -> None:
    """The stub counts four bytes for a token: nothing has to be left out."""
    for message in ("y" * 3_200, "hi " * 150):
        run = run_agent(client, "fitted", message, session_id="counted")
    assert not any("compacted" in each for each in run["messages"])
    sent = model_endpoint.requests("tokens:2000")[-1]["messages"]
    assert "y" * 3_200 in [each["content"] for each in sent]


def test_failed_run_for_another_reason_stays_in_the_history(client: httpx2.Client) -> None:
    """A cancelled run or one that failed for another reason is part of the conversation."""
    session = {"session_id": "other"}
    run_agent(client, "http-500", "broken", **session)
    answered = run_agent(client, "history", "hi", **session)
    assert "broken" in answered["content"]


@pytest.mark.parametrize("name", READING)
def test_agent_of_a_library_reads_results_that_are_left_out(
    client: httpx2.Client, model_endpoint: ModelEndpoint, name: str
) -> None:
    model_endpoint.forget()
    run = run_agent(client, name, f"{name} work 4 3200", session_id=name)
    assert run["status"] == "COMPLETED", run["error"]
    first = run["tools"][0]
    read = run["tools"][2]
    assert [tool["tool_name"] for tool in run["tools"]] == [
        "fetch", "fetch", "read_tool_result", "fetch",
    ]  # fmt: skip
    assert read["tool_args"] == {"id": first["tool_call_id"]}
    # A page fits into the window of a configured model.
    page = first["result"] if name == "reading_fitted" else first["result"][:1000]
    assert read["result"] == f"[Characters 0 to {len(page)} of 3200]\n{page}"

    sent = model_endpoint.requests()
    assert not any("refused" in body for body in sent)
    line = "[Result {} is left out: it has 3200 characters. Read it with read_tool_result, id"
    results = [each["content"] for each in sent[3]["messages"] if each["role"] == "tool"]
    assert results[0].startswith(line.format(results[0].split()[1]))
    assert results[2] == read["result"]
    calls = client.get(f"/runs/{run['run_id']}/model-calls").json()["model_calls"]
    shown = client.get(f"/runs/{run['run_id']}/model-calls/{calls[3]['id']}").json()
    if name != "reading_fitted":  # The requests of other models are not recorded.
        assert [m["content"] for m in shown["messages"] if m["role"] == "tool"] == results

    # The later runs of the session have the result, and no other session has it.
    known = f"read {first['tool_call_id']}"
    unknown = "read call_of_no_run"
    page = run_agent(client, name, known, session_id=name)["tools"][0]["result"]
    assert " of 3200]\n1111" in page
    for message, session in ((known, f"{name}-other"), (unknown, name)):
        (tool,) = run_agent(client, name, message, session_id=session)["tools"]
        assert tool["result"] == f"There is no result {message.removeprefix('read ')}"


def test_thread_that_is_longer_than_the_history_can_be_read(client: httpx2.Client) -> None:
    first = run_agent(client, "forgetful", "thread work 2 3200", session_id="thread")
    run = run_agent(client, "forgetful", "thread again work 3 3200", session_id="thread")
    read = run["tools"][2]
    assert read["tool_args"] == {"id": first["tools"][0]["tool_call_id"]}
    assert read["result"] == f"[Characters 0 to 1000 of 3200]\n{'1' * 1000}"


def test_member_of_a_library_reads_its_results(client: httpx2.Client) -> None:
    task = [
        answer(call("fetch", "f1", size=9, mark="m")),
        answer(call("read_tool_result", "f2", id="f1", offset=4)),
        answer(text="read"),
    ]
    arguments = {"member_id": "reader", "task": json.dumps(task)}
    plan = [answer(call("delegate_task_to_member", "d1", **arguments)), answer(text="done")]
    run_agent(client, "reading_team", plan, session_id="team")
    runs = client.get("/sessions/team/runs").json()
    (member,) = [run for run in runs if run["parent_run_id"]]
    assert member["tools"][1]["result"] == "[Characters 4 to 9 of 9]\nmmmmm"


def test_function_reads_results_of_its_session(client: httpx2.Client) -> None:
    page = f"[Characters 0 to 8000 of 8001]\n{'a' * 8_000}"
    rest = "/[Characters 7999 to 8001 of 8001]\nab/the offset must not be negative"
    for message in ("read own", "own"):
        run = run_agent(client, "reading_function", message, session_id="own")
        assert run["content"] == page + rest
    other = run_agent(client, "reading_function", "nothing", session_id="own-other")
    assert other["content"] == "/There is no result nothing"
