"""Agents of openai-agents: tools, guardrails, output, history, failures and traces."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from pathlib import Path
from typing import Any

import agents
import pytest

from agentctl.config.settings import Agent, Limits
from agentctl.errors import InvalidConfiguration
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.components.execute import execute_component
from agentctl.runtime.context import EarlierRun
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.runners.hosted_run import HostedRun
from tests.kit.fake_context import FakeContext, settings
from tests.kit.model import ModelEndpoint

LIMITS = Limits()

MODULE = "tests.runtime.sample_openai_agents"

samples: Any = importlib.import_module(MODULE)


@pytest.fixture(autouse=True)
def models(model_endpoint: ModelEndpoint) -> None:
    samples.url = model_endpoint.base_url


async def run(
    name: str, message: str = "{}", *earlier: EarlierRun, deps: str = "", limits: Limits = LIMITS
) -> tuple[FakeContext, ExecutionError | None]:
    """Run an agent to its end; return the run and its failure."""
    agent = Agent("code", object=f"{MODULE}:{name}", deps=deps and f"{MODULE}:{deps}")
    catalog = Catalog.from_settings(settings(agents=(agent,), limits=limits))
    context = FakeContext(catalog)
    component = catalog.get("agent", "code")
    assert component is not None
    context.change_spec(user_id="ann", component_id="code", input=message)
    context.earlier_runs = list(earlier)
    try:
        await execute_component(component, context, catalog)
    except ExecutionError as error:
        return context, error
    finally:
        await catalog.close()
    return context, None


async def complete(name: str, message: str = "{}", **options: Any) -> FakeContext:
    """Run an agent that must not fail."""
    ended, failure = await run(name, message, **options)
    assert failure is None, failure
    return ended


def plan(*answers: dict[str, Any]) -> str:
    return json.dumps(answers)


def call(number: int, name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_{number}", "type": "function", "function": function}


# Tools


async def test_answers_and_calls_are_recorded_in_their_order() -> None:
    ended = await complete(
        "adder", plan({"content": "One moment.", "tool_calls": [call(1, "add", a=1, b=2)]})
    )
    assert [message["role"] for message in ended.transcript.messages] == [
        "user", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert ended.transcript.content == ended.joined_deltas == "One moment.\n\n3"
    kinds = [type(event).__name__ for event in ended.events]
    assert kinds.index("Content") < kinds.index("ToolCallStarted")
    spans = ended.transcript.spans.records()
    assert [span["kind"] for span in spans] == ["model", "tool", "model"]
    assert spans[2]["started_at"] <= spans[2]["first_token_at"] <= spans[2]["finished_at"]
    counted = [span["output_tokens"] for span in spans if span["kind"] == "model"]
    assert sum(counted) == ended.transcript.metrics["output_tokens"]


async def test_text_comes_before_calls_although_its_reader_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def wait(_: HostedRun) -> None:
        await asyncio.sleep(0.02)

    monkeypatch.setattr(HostedRun, "take_turn", wait)
    first = {"content": "One moment.", "tool_calls": [call(1, "add", a=1, b=2)]}
    ended = await complete("adder", plan(first))
    kinds = [type(event).__name__ for event in ended.events]
    assert kinds.index("ToolCallStarted") > kinds.index("Content")
    assert ended.transcript.content == "One moment.\n\n3"


async def test_calls_of_the_provider_have_ended_when_they_arrive() -> None:
    ended = await complete("searching")
    made = [(each["tool_name"], each["tool_args"]) for each in ended.transcript.tools]
    assert made[1] == ("add", {"a": 1, "b": 2})
    assert made[0][0] == "web_search_call"
    assert made[0][1]["action"]["query"] == "rates"
    assert ended.transcript.content == ended.joined_deltas == "one\n\nthree"
    assert not ended.transcript.open_calls


async def test_calls_of_one_answer_are_made_at_the_same_time() -> None:
    ended = await complete("adder_twice", '{"a": 2, "b": 3}')
    assert [each["result"] for each in ended.transcript.tools] == ["5", "5"]


async def test_handled_failure_of_a_tool_does_not_end_the_run() -> None:
    ended = await complete("handled_failure")
    (made,) = ended.transcript.tools
    assert (made["result"], made["tool_call_error"]) == ("The tool fail failed", True)
    assert samples.SECRET not in str(ended.transcript.messages)


async def test_raised_failure_of_a_tool_ends_the_run() -> None:
    ended, failure = await run("raised_failure")
    assert failure is not None
    assert (failure.code, failure.detail) == ("TOOL_FAILED", "The tool fail failed (ValueError)")
    (made,) = ended.transcript.tools
    assert (made["result"], made["tool_call_error"]) == (failure.detail, True)


async def test_result_may_be_a_table_without_a_truth_value() -> None:
    ended = await complete("tabulating")
    (made,) = ended.transcript.tools
    assert (made["result"], made["tool_call_error"]) == ("1 2", False)


async def test_result_of_a_tool_may_be_the_answer() -> None:
    ended = await complete("first_result", '{"a": 1, "b": 2}')
    assert ended.transcript.content == ended.joined_deltas == "3"


async def test_context_of_tools_is_the_run_context_or_the_result_of_deps() -> None:
    assert (await complete("context")).transcript.content == "user ann"
    ended = await complete("context", deps="build_deps")
    assert ended.transcript.content == "deps of ann"


async def test_tokens_of_agents_that_a_tool_runs_count() -> None:
    runs = [await complete("asking", f'{{"is_streamed": {how}}}') for how in ("false", "true")]
    waited, streamed = (run.transcript.metrics for run in runs)
    assert streamed == waited
    assert waited["cache_read_tokens"] == 3, "one for each call of a model"


async def test_mcp_servers_are_connected_once_by_one_task() -> None:
    server = samples.Server
    server.connected.clear()
    server.closed.clear()
    assert (await complete("with_server", "hello")).transcript.content == "hello"
    assert server.connected == server.closed
    assert len(server.connected) == 1


# Members


def describe(member: FakeContext) -> tuple[str, str, list[str], str]:
    """Return the name, the task, the calls and the content of a member."""
    calls = [each["tool_name"] for each in member.transcript.tools]
    assert member.is_reported
    return member.spec.component_id, member.spec.input, calls, member.transcript.content


async def test_handoffs_are_members() -> None:
    message = plan(
        {"content": "To refunds.", "tool_calls": [call(1, "transfer_to_refunds")]},
        {"tool_calls": [call(2, "add", a=1, b=2)]},
        {"tool_calls": [call(3, "transfer_to_last_desk")]},
        {"content": "bye"},
    )
    ended = await complete("triage", message)
    assert ended.transcript.content == ended.joined_deltas == "To refunds.\n\nbye"
    assert [each["tool_name"] for each in ended.transcript.tools] == ["transfer_to_refunds"]
    refunds, last = ended.reported
    assert describe(refunds) == ("Refunds", message, ["add", "transfer_to_last_desk"], "")
    assert describe(last) == ("Last Desk", message, [], "bye")
    counted = [each.transcript.metrics["output_tokens"] for each in (ended, refunds, last)]
    spans = [
        span["output_tokens"]
        for each in (ended, refunds, last)
        for span in each.transcript.spans.records()
        if span["kind"] == "model"
    ]
    assert (len(spans), sum(spans)) == (4, sum(counted))
    assert all(counted)
    (_, member, _) = [s for s in ended.transcript.spans.records() if s["kind"] != "model"]
    assert (member["kind"], member["parent"]) == ("member", "call_1")


async def test_agents_as_tools_are_members() -> None:
    samples.Recorded.ended.clear()
    inner = plan(
        {"tool_calls": [call(2, "add", a=1, b=2), call(3, "ask_deep", input="how deep")]},
        {"content": "inner is done"},
    )
    ended = await complete("manager", plan({"tool_calls": [call(1, "ask_inner", input=inner)]}))
    assert ended.transcript.content == ended.joined_deltas == "inner is done"
    assert [each["tool_name"] for each in ended.transcript.tools] == ["ask_inner"]
    (member,) = ended.reported
    assert describe(member) == ("Inner", inner, ["add", "ask_deep"], "inner is done")
    (deep,) = member.reported
    assert describe(deep) == ("Deep", "how deep", [], "how deep")
    assert samples.Recorded.ended == ["Inner"]
    counted = [each.transcript.metrics["output_tokens"] for each in (ended, member, deep)]
    assert all(counted)


async def test_failed_agent_is_a_failed_member() -> None:
    ended = await complete(
        "failing_manager", plan({"tool_calls": [call(1, "ask_inner", input="go")]})
    )
    (made,) = ended.transcript.tools
    assert (made["result"], made["tool_call_error"]) == ("The tool ask_inner failed", True)
    (member,) = ended.reported
    assert member.is_reported
    assert member.transcript.spans.records()[-1]["status"] == "failed"


# Guardrails


@pytest.mark.parametrize(
    ("name", "detail"),
    [
        ("guarded_input", "A guardrail refused the message"),
        ("guarded_output", "A guardrail refused the answer"),
    ],
)
async def test_guardrail_ends_the_run_before_its_text_is_published(name: str, detail: str) -> None:
    ended, failure = await run(name, "a secret")
    assert failure is not None
    assert (failure.code, failure.detail) == ("GUARDRAIL", detail)
    assert ended.transcript.content == ended.joined_deltas == ""
    passed = await complete(name, "hello big world")
    assert passed.transcript.content == passed.joined_deltas == "hello big world"


async def test_text_before_a_call_is_published_before_the_guardrail() -> None:
    first = {"content": "a secret", "tool_calls": [call(1, "add", a=1, b=2)]}
    ended = await complete("guarded_adder", plan(first, {"content": "three"}))
    assert ended.transcript.content == ended.joined_deltas == "a secret\n\nthree"
    kinds = [type(event).__name__ for event in ended.events]
    assert kinds.index("Content") < kinds.index("ToolCallStarted")


async def test_guardrail_of_a_tool_refuses_a_call() -> None:
    ended = await complete("guarded_tool", '{"a": 13, "b": 2}')
    (made,) = ended.transcript.tools
    assert (made["tool_name"], made["tool_args"]) == ("add", {"a": 13, "b": 2})
    assert made["tool_call_error"]
    assert ended.transcript.content == "no 13"


# Failures


@pytest.mark.parametrize(
    ("name", "code", "detail"),
    [
        ("model_fails", "MODEL_KEY_REJECTED", "rejected the API key"),
        ("model_is_down", "MODEL_UNAVAILABLE", "not available"),
        ("unknown_tool", "MODEL_ANSWER_INVALID", "cannot be used"),
        ("endless", "AGENT_FAILED", "maximum number of turns"),
        ("typed", "OUTPUT_INVALID", "does not match"),
    ],
)
async def test_failures_have_codes(name: str, code: str, detail: str) -> None:
    ended, failure = await run(name, '{"total": "none"}' if name == "typed" else '{"a": 1, "b": 2}')
    assert failure is not None
    assert failure.code == code
    assert detail in failure.detail
    assert "secret" not in failure.detail
    if name.startswith("model"):
        last = ended.transcript.spans.records()[-1]
        assert (last["kind"], last["status"]) == ("model", "failed")
        assert ended.transcript.metrics["input_tokens"] is None


async def test_agent_that_cancels_its_run_fails() -> None:
    _, failure = await run("cancels_itself")
    assert failure is not None
    assert (failure.code, failure.detail) == ("AGENT_FAILED", "The agent cancelled its run")


async def test_size_of_a_run_is_limited() -> None:
    ended, failure = await run("thinking", limits=Limits(run_bytes=100_000))
    assert failure is not None
    assert failure.detail == "The run exceeded its maximum size"
    assert ended.transcript.content == ""
    assert ended.transcript.reasoning_content


# History


async def test_items_of_the_library_are_given_back(model_endpoint: ModelEndpoint) -> None:
    first = await complete("adder", plan({"tool_calls": [call(1, "add", a=1, b=2)]}))
    transcript = first.transcript
    assert transcript.native_kind == "openai-agents"
    items = json.loads(transcript.native_history or "")
    assert [item.get("type", item.get("role")) for item in items] == [
        "user", "function_call", "function_call_output", "message",
    ]  # fmt: skip
    # A detail that the neutral messages do not have shows which ones are used.
    items[0]["content"] = "as the library has it"
    given = EarlierRun(transcript.messages, json.dumps(items))
    for earlier, text in (
        (given, "as the library has it"),
        (EarlierRun(transcript.messages), transcript.messages[0]["content"]),
    ):
        await run("history", "two", earlier)
        sent = model_endpoint.requests("history")[-1]["messages"]
        assert [message["role"] for message in sent] == [
            "user", "assistant", "tool", "assistant", "user",
        ]  # fmt: skip
        assert sent[0]["content"] == text
        assert (sent[2]["content"], sent[4]["content"]) == ("3", "two")


async def test_messages_of_a_cancelled_run_are_complete(model_endpoint: ModelEndpoint) -> None:
    asked = {"id": "call_1", "name": "add", "arguments": {"a": 1, "b": 2}}
    messages = [
        {"role": "user", "content": "one", "created_at": 1},
        {"role": "assistant", "content": "", "created_at": 1, "tool_calls": [asked]},
    ]
    await run("history", "two", EarlierRun(messages))
    sent = model_endpoint.requests("history")[-1]["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "user"]
    assert sent[2]["content"] == "cancelled"


# Traces


@pytest.mark.parametrize(("variable", "count"), [(None, 0), ("1", 0), ("0", 1)])
async def test_traces_of_runs_are_off_unless_the_operator_wants_them(
    variable: str | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library would send them to its vendor."""
    seen: list[Any] = []

    class Recorder(agents.tracing.TracingProcessor):
        def on_trace_start(self, trace: Any) -> None:
            seen.append(trace)

        def on_trace_end(self, trace: Any) -> None: ...
        def on_span_start(self, span: Any) -> None: ...
        def on_span_end(self, span: Any) -> None: ...
        def shutdown(self) -> None: ...
        def force_flush(self) -> None: ...

    monkeypatch.delenv("OPENAI_AGENTS_DISABLE_TRACING", raising=False)
    if variable is not None:
        monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", variable)
    agents.set_trace_processors([Recorder()])
    try:
        await complete(
            "configured_manager", plan({"tool_calls": [call(1, "ask_inner", input="go")]})
        )
    finally:
        agents.set_trace_processors([])
    assert len(seen) == count


# Loading


def refuse(reference: str, folder: Path) -> InvalidConfiguration:
    """Load an object that cannot be used, and return the error."""
    agent = Agent("code", object=reference)
    catalog = Catalog.from_settings(settings(agents=(agent,), path=folder / "agentctl.toml"))
    component = catalog.get("agent", "code")
    assert component is not None
    with pytest.raises(InvalidConfiguration) as refused:
        catalog.hosted_runner(component)
    return refused.value


def test_users_may_have_a_module_of_the_name_of_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "agents"]:
        monkeypatch.delitem(sys.modules, name)
    (tmp_path / "agents.py").write_text("class Agent:\n    pass\n\nsupport = Agent()\n")
    error = refuse("agents:support", tmp_path)
    assert "an object of the type Agent, which is not an agent" in str(error)
    assert "an Agent of openai-agents" in (error.hint or "")
    monkeypatch.setitem(sys.modules, "agents", None)
    assert refuse("agents:support", tmp_path).hint == (
        "put agents.py next to the configuration file, or install it"
    )
