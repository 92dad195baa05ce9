"""Agents of pydantic-ai, LangGraph and agno: deps, history, threads, interrupts and failures."""

from __future__ import annotations

import asyncio
import importlib
import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from agentctl.config.extras import build_extra_command
from agentctl.config.settings import Agent, Limits, Settings, Team
from agentctl.errors import InvalidConfiguration
from agentctl.records import times
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.components.execute import execute_component
from agentctl.runtime.context import EarlierRun
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.transcript.events import ThinkingDelta
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.fake_context import FakeContext, settings
from tests.kit.model import ModelEndpoint

MODULE = "tests.runtime.sample_frameworks"


def frameworks() -> Any:
    """Import the agents when a test needs them, because that takes a second in each process."""
    return importlib.import_module(MODULE)


@pytest.fixture(autouse=True)
def models(model_endpoint: ModelEndpoint) -> None:
    frameworks().url = model_endpoint.base_url


def hosted(name: str, deps: str = "", **options: Any) -> Settings:
    agent = Agent("code", object=f"{MODULE}:{name}", deps=deps and f"{MODULE}:{deps}")
    return settings(agents=(agent,), **options)


async def run(catalog: Catalog, message: str = "{}", *earlier: EarlierRun) -> FakeContext:
    """Run the agent to its end."""
    context = FakeContext(catalog)
    context.change_spec(user_id="ann")
    await execute(context, message, *earlier)
    return context


async def execute(context: FakeContext, message: str, *earlier: EarlierRun) -> None:
    component = context.catalog.get("agent", "code")
    assert component is not None
    context.change_spec(component_id=component.id, input=message)
    context.earlier_runs = list(earlier)
    try:
        await execute_component(component, context, context.catalog)
    except (asyncio.CancelledError, ExecutionError):
        context.transcript.close_open_calls(times.now())
        raise


def earlier_run(context: FakeContext) -> EarlierRun:
    transcript = context.transcript
    return EarlierRun(transcript.messages, transcript.native_history)


async def run_once(name: str, message: str = "{}", deps: str = "", **options: Any) -> FakeContext:
    catalog = Catalog.from_settings(hosted(name, deps, **options))
    try:
        return await run(catalog, message)
    finally:
        await catalog.close()


async def fail_once(name: str, **options: Any) -> tuple[ExecutionError, FakeContext]:
    """Run an agent that fails; return the failure and the run."""
    catalog = Catalog.from_settings(hosted(name, **options))
    context = FakeContext(catalog)
    try:
        with pytest.raises(ExecutionError) as failure:
            await execute(context, "{}")
    finally:
        await catalog.close()
    return failure.value, context


def refusal(name: str, deps: str = "") -> InvalidConfiguration:
    """Load an agent that cannot be used, and return the error."""
    catalog = Catalog.from_settings(hosted(name, deps))
    agent = catalog.get("agent", "code")
    assert agent is not None
    with pytest.raises(InvalidConfiguration) as refused:
        catalog.hosted_runner(agent)
    return refused.value


# Deps


@pytest.mark.parametrize("deps", ["build_deps", "build_deps_later"])
async def test_deps_function_receives_the_run_context(deps: str) -> None:
    ended = await run_once("with_deps", deps=deps)
    assert ended.transcript.content == "deps of code"
    graph = await run_once("with_context", deps=deps)
    assert graph.transcript.content == "deps of code"


@pytest.mark.parametrize("name", ["with_deps", "with_context"])
def test_agent_with_other_deps_needs_a_function(name: str) -> None:
    error = refusal(name)
    assert "of the type Deps" in str(error)
    assert "deps" in (error.hint or "")


@pytest.mark.parametrize("name", ["with_default_context", "with_default_keys", "not_compiled"])
async def test_graph_is_used_without_deps(name: str) -> None:
    assert (await run_once(name)).transcript.content == "default"


def test_deps_without_effect_are_refused() -> None:
    assert "deps has no effect" in str(refusal("counting", "build_deps"))
    assert "not a function" in str(refusal("history", "not_a_function"))
    assert "has no absent" in str(refusal("history", "absent"))


# Calls of models


@pytest.mark.parametrize("name", ["with_deps", "graph_with_tool", "counting"])
async def test_model_calls_of_libraries_have_spans(name: str) -> None:
    ended = await run_once(name, deps="build_deps" if name == "with_deps" else "")
    spans = ended.transcript.spans.records()
    assert [span["kind"] for span in spans] == ["model", "tool", "model"]
    for span in (spans[0], spans[2]):
        assert span["name"].startswith("tool:")
        assert span["status"] == "completed"
        assert span["started_at"] <= span["finished_at"]
        # LangChain requests no usage from an endpoint that is not that of OpenAI.
        assert (span["input_tokens"] is None) == (name == "graph_with_tool")
    assert spans[2]["started_at"] <= spans[2]["first_token_at"] <= spans[2]["finished_at"]
    counted = sum(span["output_tokens"] or 0 for span in spans)
    assert counted == (ended.transcript.metrics["output_tokens"] or 0)


@pytest.mark.parametrize("name", ["model_fails", "model_of_graph_fails", "model_of_agno_fails"])
async def test_failed_model_calls_of_libraries_have_failed_spans(name: str) -> None:
    failure, ended = await fail_once(name)
    last = ended.transcript.spans.take_ended()[-1]
    assert (last.kind, last.status, last.error_code) == ("model", "failed", failure.code)


async def test_answer_that_the_agent_refuses_is_complete() -> None:
    ended = await run_once("refusing_once")
    answers = [entry for entry in ended.transcript.messages if entry["role"] == "assistant"]
    assert [entry["finish_reason"] for entry in answers] == ["stop", "stop"]


# History of pydantic-ai


async def test_native_messages_are_given_back() -> None:
    catalog = Catalog.from_settings(hosted("history"))
    try:
        first = await run(catalog, "one")
        native = json.loads(first.transcript.native_history or "")
        assert [message["kind"] for message in native] == ["request", "response"]
        # A detail that the neutral messages do not have shows which ones are used.
        native[0]["parts"][0]["content"] = "one, as the library wrote it"
        given = EarlierRun(first.transcript.messages, json.dumps(native))
        second = await run(catalog, "two", given)
        unreadable = EarlierRun(first.transcript.messages, '[{"kind": "unknown"}]')
        third = await run(catalog, "three", unreadable)
    finally:
        await catalog.close()
    said = json.loads(second.transcript.content)
    assert [text for role, text in said if role == "user"] == [
        "one, as the library wrote it",
        "two",
    ]
    assert [text for role, text in json.loads(third.transcript.content) if role == "user"] == [
        "one", "three",
    ]  # fmt: skip
    assert first.transcript.native_kind == "pydantic-ai"


def build_messages(**texts: str) -> list[dict[str, Any]]:
    """Build neutral messages as a request gives them, from texts by role."""
    return [{"role": role, "content": text, "created_at": 1} for role, text in texts.items()]


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("history", ["three", "brief", "four"]),
        ("graph_history", ["three", "brief", "four"]),
        ("remembering", ["one", "three", "brief", "four"]),
        ("agno_history", ["three", "brief", "four"]),
        ("agno_remembering", ["brief", "one", "three", "four"]),
    ],
)
async def test_messages_of_a_request_reach_the_agent(name: str, texts: list[str]) -> None:
    messages = build_messages(user="one", assistant="two")
    catalog = Catalog.from_settings(hosted(name))
    try:
        first = await run(catalog, "three", EarlierRun(messages, from_request=True))
        instruction = EarlierRun(build_messages(user="brief"), from_request=True)
        second = await run(catalog, "four", earlier_run(first), instruction)
    finally:
        await catalog.close()
    assert users(first) == ["one", "three"]
    # The memory of a library has the messages of requests, too; agno puts its own history last.
    assert users(second) == texts


async def test_toolsets_are_opened_once_by_one_task() -> None:
    toolset = frameworks().CountedToolset
    toolset.entered.clear()
    toolset.exited.clear()
    catalog = Catalog.from_settings(hosted("with_toolset"))
    for message in ("one", "two"):
        await run(catalog, message)
    # The library enters a toolset again for each run; the first entry is that of the server.
    owner = toolset.entered[0]
    assert owner not in toolset.exited
    await asyncio.wait_for(catalog.close(), PATIENCE)
    assert toolset.exited[-1] is owner
    assert len(toolset.entered) == len(toolset.exited)


# Thinking and content


async def test_thinking_is_not_content() -> None:
    failure, ended = await fail_once("thinking", limits=Limits(run_bytes=100_000))
    assert failure.code == "AGENT_FAILED"
    assert any(isinstance(event, ThinkingDelta) for event in ended.events)
    assert ended.transcript.content == ""

    blocks = await run_once("blocks")
    assert blocks.transcript.content == "one two"
    assert [event.delta for event in blocks.events if isinstance(event, ThinkingDelta)] == ["hm"]


async def test_thinking_of_two_nodes_is_separated() -> None:
    ended = await run_once("thinking_twice")
    assert ended.transcript.reasoning_content == "hm\n\nhm"
    assert ended.transcript.content == ended.joined_deltas == "done\n\ndone"


# Threads of LangGraph


async def test_checkpointer_keeps_the_history_of_a_session() -> None:
    catalog = Catalog.from_settings(hosted("remembering"))
    try:
        first = await run(catalog, "one")
        second = await run(catalog, "two", earlier_run(first))
        # A session without earlier runs has the id of a deleted one.
        again = await run(catalog, "three")
        other = FakeContext(catalog)
        other.change_spec(user_id="bob")
        await execute(other, "four", earlier_run(first))
        member = FakeContext(catalog)
        member.change_spec(user_id="ann", parent_run_id="run")
        await execute(member, "five")
    finally:
        await catalog.close()
    assert users(second) == ["one", "two"]
    assert users(again) == ["three"]
    assert users(other) == ["four"]
    assert users(member) == ["five"]


def users(context: FakeContext) -> list[str]:
    said = json.loads(context.transcript.content)
    return [text for role, text in said if role == "user"]


@pytest.mark.parametrize("name", ["remembering_with_tool", "remembering_slowly"])
async def test_thread_of_a_cancelled_run_can_go_on(name: str) -> None:
    """Also one whose checkpoint with the call was not stored, only the output of its node."""
    catalog = Catalog.from_settings(hosted(name))
    context = FakeContext(catalog)
    try:
        work = asyncio.create_task(execute(context, "{}"))
        await wait_until(lambda: context.transcript.tools or work.done())
        await asyncio.sleep(0.05)
        context.is_stopping = True
        work.cancel()
        await asyncio.wait({work}, timeout=PATIENCE)
        assert work.cancelled()
    finally:
        await catalog.close()
    after = Catalog.from_settings(hosted("remembering"))
    try:
        again = FakeContext(after)
        await execute(again, "go on", earlier_run(context))
    finally:
        await after.close()
    said = json.loads(again.transcript.content)
    assert [role for role, _ in said] == ["user", "assistant", "tool", "user"]
    assert said[2][1] == "cancelled"


async def test_cancelled_graph_takes_no_further_step() -> None:
    frameworks().steps.clear()
    frameworks().released = asyncio.Event()
    before = asyncio.all_tasks()
    catalog = Catalog.from_settings(hosted("swallows_cancellation"))
    context = FakeContext(catalog)
    try:
        work = asyncio.create_task(execute(context, "{}"))
        await wait_until(lambda: frameworks().steps)
        context.is_stopping = True
        work.cancel()
        await asyncio.wait({work}, timeout=PATIENCE)
        assert work.cancelled()
        frameworks().released.set()
        await wait_until(lambda: asyncio.all_tasks() <= before)
    finally:
        await catalog.close()
    assert frameworks().steps == ["first"]


async def test_model_call_ends_although_a_cancellation_was_lost() -> None:
    frameworks().parts.clear()
    catalog = Catalog.from_settings(hosted("losing_a_cancellation"))
    context = FakeContext(catalog)
    try:
        work = asyncio.create_task(execute(context, "{}"))
        await wait_until(lambda: len(frameworks().parts) > 2)
        context.is_stopping = True
        work.cancel()
        await asyncio.wait({work}, timeout=PATIENCE)
        assert work.cancelled()
        await wait_until(lambda: not context.transcript.unstopped.pending)
    finally:
        await catalog.close()
    # The part after the lost cancellation is the last one.
    assert frameworks().parts[-2:] == ["lost", "part"]


# Failures


async def test_wait_for_input_is_a_failure() -> None:
    failure, _ = await fail_once("breaking")
    assert failure.code == "INTERRUPTED"


@pytest.mark.parametrize("name", ["failing_tool", "failing_graph_tool"])
async def test_failed_tool_ends_the_run(name: str) -> None:
    failure, ended = await fail_once(name)
    assert (failure.code, failure.detail) == ("TOOL_FAILED", "The tool fail failed (ValueError)")
    (call,) = ended.transcript.tools
    assert (call["result"], call["tool_call_error"]) == ("The tool fail failed (ValueError)", True)
    assert frameworks().SECRET not in str(ended.transcript.messages)


@pytest.mark.parametrize("name", ["textless_graph_tool", "textless_agno_tool"])
async def test_tool_whose_result_has_no_text_has_failed(name: str) -> None:
    """It was called: the next run of the session must not read that it was cancelled."""
    failure, ended = await fail_once(name)
    detail = "The tool give failed (ValueError)"
    assert (failure.code, failure.detail) == ("TOOL_FAILED", detail)
    (call,) = ended.transcript.tools
    assert (call["result"], call["tool_call_error"]) == (detail, True)
    assert frameworks().SECRET not in str(ended.transcript.messages)


async def test_failed_tool_of_agno_does_not_show_its_exception() -> None:
    ended = await run_once("failing_agno_tool")
    (call,) = ended.transcript.tools
    assert (call["result"], call["tool_call_error"]) == ("The tool fail failed", True)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("model_fails", "MODEL_KEY_REJECTED"),
        ("model_of_graph_fails", "MODEL_UNAVAILABLE"),
        ("model_of_agno_fails", "MODEL_UNAVAILABLE"),
        ("endless", "AGENT_FAILED"),
    ],
)
async def test_failures_of_models_and_graphs_have_codes(name: str, code: str) -> None:
    failure, ended = await fail_once(name)
    assert failure.code == code
    assert "secret" not in failure.detail
    assert ended.transcript.metrics["input_tokens"] is None


# State of agno


async def test_agno_reads_and_changes_the_session_state() -> None:
    catalog = Catalog.from_settings(hosted("counting"))
    try:
        context = FakeContext(catalog)
        context.change_spec(metadata='{"tenant": "north"}')
        context.state.values["count"] = 4
        await execute(context, "{}")
    finally:
        await catalog.close()
    assert context.transcript.content == "5 {'tenant': 'north'}"
    assert context.state.values == {"count": 5}


# Factories


async def test_factories_make_agents() -> None:
    later = await run_once("made_later", "hello")
    assert users(later) == ["hello"]
    frameworks().closed.clear()
    for_a_while = await run_once("made_for_a_while", "hello")
    assert for_a_while.transcript.content == "hello"
    assert frameworks().closed == ["closed"]


def test_unusable_objects_are_one_line() -> None:
    nothing = refusal("made_of_nothing")
    assert "an object of the type NoneType" in str(nothing)
    assert "LangGraph" in (nothing.hint or "")
    assert "ValueError: no such place" in str(refusal("broken"))
    assert "asynccontextmanager" in (refusal("not_decorated").hint or "")
    assert "without parameters" in (refusal("still_closed").hint or "")
    assert "server of LangGraph" in str(refusal("for_langgraph_server"))
    for name in ("made_of_nothing", "broken"):
        assert "\n" not in str(refusal(name))


async def test_factory_without_an_agent_is_explained() -> None:
    failure, _ = await fail_once("made_of_none")
    assert failure.code == "AGENT_FAILED"
    assert "it is an object of the type NoneType" in failure.detail


async def test_failure_to_open_is_logged_and_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken() -> Any:
        raise ConnectionError(frameworks().SECRET)

    catalog = Catalog.from_settings(hosted("made_later"))
    agent = catalog.get("agent", "code")
    assert agent is not None
    runner: Any = catalog.hosted_runner(agent)
    monkeypatch.setattr(runner, "_factory", broken)
    try:
        with caplog.at_level(logging.WARNING), pytest.raises(ExecutionError) as failure:
            await run(catalog, "hello")
        assert failure.value.detail == "The factory of the agent failed"
        assert frameworks().SECRET in caplog.text
        monkeypatch.undo()
        assert users(await run(catalog, "hello")) == ["hello"]
    finally:
        await catalog.close()


# Members


async def test_graph_with_a_checkpointer_is_a_member() -> None:
    base = hosted("remembering")
    team = Team("crew", "m", members=("code",), mode="broadcast")
    catalog = Catalog.from_settings(settings(agents=base.agents[1:], teams=(team,)))
    agent = catalog.get("agent", "code")
    assert agent is not None
    try:
        context = FakeContext(catalog)
        results = await asyncio.gather(*(context.run_member(agent, text) for text in ("a", "b")))
    finally:
        await catalog.close()
    assert [json.loads(each.content) for each in results] == [[["user", "a"]], [["user", "b"]]]


@pytest.mark.parametrize("library", ["agents", "agno", "langgraph", "pydantic_ai"])
def test_missing_library_names_its_extra(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"needs_{library}.py").write_text(f"import {library}\n")
    monkeypatch.setitem(sys.modules, library, None)
    agent = Agent("code", object=f"needs_{library}:agent")
    catalog = Catalog.from_settings(settings(agents=(agent,), path=tmp_path / "agentctl.toml"))
    component = catalog.get("agent", "code")
    assert component is not None
    with pytest.raises(InvalidConfiguration) as refused:
        catalog.hosted_runner(component)
    assert f"No module named {library!r}" in str(refused.value) or "import of" in str(refused.value)
    extra = "openai-agents" if library == "agents" else library.replace("_", "-")
    assert refused.value.hint == f"install the library: {build_extra_command(extra)}"
