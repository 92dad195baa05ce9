"""Python functions as agents: what they receive, return, yield and break."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from pydantic import BaseModel, Field, field_serializer

from agentctl.config.settings import Agent, Limits, Settings
from agentctl.errors import InvalidConfiguration
from agentctl.records.sessions import TOKEN_COUNTERS
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.components.execute import prepare_components
from agentctl.runtime.components.records import build_record, build_session_data
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.runners import loading
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.transcript.events import (
    Content,
    ProgressReported,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallStarted,
)
from agentctl.runtime.transcript.history import SessionState
from tests.kit.fake_context import FakeContext, attempt, settings
from tests.runtime.loop_steps import STEP_LIMIT, measure_steps

MODULE = "tests.runtime.sample_agents"
REFUSAL_BYTES = 2_000_000
"""Memory that the refusal of an output may need: 0.7 MB were measured; a copy takes over 17 MB."""

LEAST_TURNS = 5
"""Turns that other tasks have at least while 40,000 values are converted; some 30 were counted."""

UNKNOWN = dict.fromkeys(TOKEN_COUNTERS)


def hosted(name: str, *, limits: Limits | None = None) -> Settings:
    agents = (Agent("code", object=f"{MODULE}:{name}"),)
    return settings(agents=agents, limits=limits)


def run(
    name: str,
    message: str = "hello",
    *,
    history: list[dict[str, Any]] | None = None,
    limits: Limits | None = None,
) -> FakeContext:
    ended, failure = attempt(
        hosted(name, limits=limits), message, component="code", history=history
    )
    if failure is not None:
        raise failure
    return ended


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("greet", "nobody: hello"),
        ("only_message", "HELLO"),
        ("second_is_context", "RunContext"),
        ("in_thread", "hello in tool code"),
        ("nothing", ""),
        ("with_default", "hello plain code"),
    ],
)
def test_function_answers_with_its_result(name: str, answer: str) -> None:
    ended = run(name)
    assert ended.transcript.content == ended.joined_deltas == answer
    assert ended.transcript.output is None
    roles = [message["role"] for message in ended.transcript.messages]
    assert roles == (["user", "assistant"] if answer else ["user"])


@pytest.mark.parametrize(
    ("name", "output", "answer"),
    [
        ("ticket", {"title": "hello", "priority": 1}, '{"title":"hello","priority":1}'),
        ("plain", {"words": ["hello"]}, '{"words":["hello"]}'),
    ],
)
def test_structured_result_is_output_and_json(name: str, output: Any, answer: str) -> None:
    ended = run(name)
    assert ended.transcript.output == output
    assert ended.transcript.content == answer


def test_tokens_are_unknown_unless_reported() -> None:
    assert run("greet").transcript.metrics == UNKNOWN
    counted = run("counts").transcript.metrics
    assert counted == {
        **UNKNOWN,
        "input_tokens": 4, "output_tokens": 4, "total_tokens": 8,
        "cache_read_tokens": 0, "cache_write_tokens": 0, "reasoning_tokens": 0,
    }  # fmt: skip


def test_function_reads_the_history() -> None:
    history = [
        {"role": "user", "content": "one", "created_at": 0},
        {"role": "assistant", "content": "two", "created_at": 0},
    ]
    assert run("remembers", history=history).transcript.content == "user: one | assistant: two"


def test_generator_reports_text_and_events_in_order() -> None:
    ended = run("stream", "cats")
    kinds = [type(event) for event in ended.events]
    assert kinds == [
        ThinkingDelta, ProgressReported, ToolCallStarted, ToolCallStarted, ToolCallCompleted,
        ToolCallCompleted, Content, Content,
    ]  # fmt: skip
    assert ended.events[1] == ProgressReported("searching", 0.25)
    transcript = ended.transcript
    assert (transcript.content, transcript.reasoning_content) == ("found one", "let me look. ")
    assert transcript.output == {"title": "one", "priority": 1}
    assert (transcript.metrics["total_tokens"], transcript.metrics["reasoning_tokens"]) == (7, 1)
    assert [(tool["tool_call_error"], tool["result"]) for tool in transcript.tools] == [
        (False, '[{"hit":1}]'), (True, "nothing"),
    ]  # fmt: skip
    assert [message["role"] for message in transcript.messages] == [
        "user", "assistant", "tool", "tool", "assistant",
    ]  # fmt: skip
    calls = transcript.messages[1]["tool_calls"]
    assert [call["arguments"] for call in calls] == [
        {"query": "cats", "limit": 3}, {"input": "more"},
    ]  # fmt: skip


def test_open_call_of_a_completed_run_is_closed() -> None:
    transcript = run("leaves_call_open").transcript
    assert [tool["result"] for tool in transcript.tools] == ["cancelled"]
    assert [message["role"] for message in transcript.messages] == [
        "user",
        "assistant",
        "assistant",
        "tool",
    ] or [message["role"] for message in transcript.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]


def test_generator_may_cut_a_character() -> None:
    """Two halves in two pieces are one character; a half that is alone is replaced."""
    ended, failure = attempt(hosted("cuts_characters"), "hello", component="code")
    assert failure is None
    assert ended.transcript.content == "x \U0001f600 y\ufffd\ufffd\ufffd"


@pytest.mark.parametrize("name", ["fails", "exits", "cancels_itself", "yields_number"])
def test_failure_shows_no_text_of_the_exception(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "agentctl.runtime")
    _, failure = attempt(hosted(name), "hello", component="code")
    assert isinstance(failure, ExecutionError)
    assert (failure.code, failure.detail) == ("AGENT_FAILED", "The code of the agent failed")
    assert ("hunter2" in caplog.text) == (name == "fails")


def test_result_without_a_json_form_fails() -> None:
    with pytest.raises(ExecutionError) as caught:
        run("no_json")
    assert caught.value.detail == "The result of the agent has no JSON form"


def test_size_of_a_run_is_limited() -> None:
    with pytest.raises(ExecutionError) as caught:
        run("only_message", "long" * 50, limits=Limits(run_bytes=100))
    assert caught.value.code == "AGENT_FAILED"
    assert "maximum size" in caught.value.detail


class FragileRunner:
    """A runner that cannot be opened the first time, and not closed."""

    kind = "fragile"
    opened = 0

    async def open(self) -> None:
        self.opened += 1
        if self.opened == 1:
            raise SystemExit(1)

    async def run(self, message: str, run: HostedRun) -> None:
        run.add_text(f"opened {self.opened} times")

    async def close(self) -> None:
        raise SystemExit(2)


async def test_runner_that_cannot_be_opened_is_opened_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    catalog = Catalog.from_settings(hosted("greet"))
    runner = FragileRunner()
    monkeypatch.setattr(catalog, "hosted_runner", lambda _: runner)
    first = [FakeContext(catalog) for _ in range(3)]
    failures = await asyncio.gather(
        *(run.execute("agent", "code", "x", []) for run in first), return_exceptions=True
    )
    assert {getattr(failure, "code", None) for failure in failures} == {"AGENT_FAILED"}
    for _ in range(2):
        later = FakeContext(catalog)
        await later.execute("agent", "code", "x", [])
        assert later.transcript.content == "opened 2 times"


async def test_end_of_a_process_survives_a_runner_that_cannot_be_closed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    catalog = Catalog.from_settings(hosted("greet"))
    monkeypatch.setattr(loading, "build_runner", lambda *_: FragileRunner())
    catalog.hosted_runner(catalog.components("agent")["code"])
    await catalog.close()
    assert "agent code: it could not be closed" in caplog.text


@pytest.mark.parametrize(
    ("reference", "problem"),
    [
        (f"{MODULE}:absent", f"the module {MODULE} has no absent"),
        ("no_such_module_here:agent", "its module cannot be imported"),
        (f"{MODULE}:number", "it is an object of the type int, which is not an agent"),
        (f"{MODULE}:Callable", "it is the class Callable, which is not an agent"),
        (f"{MODULE}:generator_without_async", "it is a generator that is not asynchronous"),
        (f"{MODULE}:no_parameters", "it is an object of the type str, which is not an agent"),
        (f"{MODULE}:too_many", "its parameters are not (message) or (message, context)"),
    ],
)
def test_unusable_object_is_one_line_at_start(reference: str, problem: str) -> None:
    catalog = Catalog.from_settings(settings(agents=(Agent("code", object=reference),)))
    with pytest.raises(InvalidConfiguration) as caught:
        prepare_components(catalog)
    assert caught.value.detail.startswith(f"The agent code cannot use the object {reference!r}: ")
    assert problem in caught.value.detail
    assert "\n" not in caught.value.detail
    assert caught.value.hint


def test_records_of_an_agent_in_code_have_no_model() -> None:
    catalog = Catalog.from_settings(hosted("greet"))
    agent = catalog.components("agent")["code"]
    record = build_record(catalog, agent)
    assert (record["model"], record["tools"]) == (None, [])  # type: ignore[typeddict-item]
    assert build_session_data(catalog, agent)["model"] is None


def test_rest_of_a_long_output_is_not_converted() -> None:
    """docs/internals/security-cases.md M13."""
    with pytest.raises(ExecutionError) as caught:
        run("long_output", limits=Limits(run_bytes=1_000))

    assert caught.value.detail == "The run exceeded its maximum size"


def test_rest_of_a_long_state_is_not_converted() -> None:
    """docs/internals/security-cases.md M13."""
    state = SessionState('{"kept": 1}', 1_000)
    state.values["long"] = [*[7] * 1_000_000, object()]

    with pytest.raises(ExecutionError) as caught:
        state.find_changes()

    assert caught.value.detail == "The session state is larger than 1000 bytes"


@pytest.mark.parametrize(
    ("name", "failure"),
    [
        ("huge_text", "The run exceeded its maximum size"),
        ("huge_leaf", "The run exceeded its maximum size"),
        ("huge_rows", "The run exceeded its maximum size"),
        ("large_rows", None),
        ("many_pieces", None),
        ("large_arguments", None),
        ("many_arguments", "A tool call has too many arguments"),
        ("many_calls", "The run has too many tool calls"),
    ],
)
async def test_large_report_leaves_turns_to_other_runs(name: str, failure: str | None) -> None:
    """decision 75."""
    context = FakeContext(Catalog.from_settings(hosted(name)))
    found = None
    async with measure_steps() as longest:
        try:
            await context.execute("agent", "code", "go", [])
        except ExecutionError as error:
            found = error.detail
    assert found == failure
    assert longest.seconds < STEP_LIMIT


class Report(BaseModel):
    body: Any


@dataclass
class Note:
    body: Any


ROWS = [[7] * 1_000] * 20_000
ITSELF: list[object] = []
ITSELF.append(ITSELF)


def build_text() -> str:
    """Return a text of 20 MB: a constant would stay until the end of all tests."""
    return "x" * 20_000_000


@pytest.mark.parametrize(
    "build",
    [
        lambda: {"rows": {"a": ROWS}},
        lambda: build_text().encode(),
        lambda: [bytearray(build_text().encode())],
        lambda: {build_text(): 1},
        lambda: {build_text().encode(): 1},
        lambda: Report(body=build_text()),
        lambda: Report.model_construct(body=ROWS),
        lambda: [Report.model_construct(body=ROWS[0])] * 20_000,
        lambda: Note(ROWS),
        lambda: Report.model_construct(body=[ROWS[0]] * 300),
    ],
)
async def test_value_that_is_too_large_is_refused_before_it_is_copied(
    build: Callable[[], Any],
) -> None:
    value = build()
    assert await refuse_output(value) == "The run exceeded its maximum size"


async def test_value_that_contains_itself_is_refused_soon() -> None:
    assert await refuse_output(ITSELF) == "The result of the agent has no JSON form"


async def test_large_model_is_converted_in_turns() -> None:
    value = Report(body=[{"a": number} for number in range(40_000)])
    run = HostedRun(FakeContext(Catalog.from_settings(hosted("greet"))), "function")
    await run.set_output(Report(body=0))  # Imports what a conversion needs.
    async with measure_steps() as steps:
        await run.set_output(value)
    assert json.loads(run.output_text) == {"body": value.body}
    assert steps.count >= LEAST_TURNS


async def test_endless_output_ends_by_its_size_or_a_cancel() -> None:
    run = HostedRun(FakeContext(Catalog.from_settings(hosted("greet"))), "function")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(run.set_output(itertools.repeat(0)), 0.05)

    small = hosted("greet", limits=Limits(run_bytes=100_000))
    run = HostedRun(FakeContext(Catalog.from_settings(small)), "function")
    with pytest.raises(ExecutionError) as caught:
        await run.set_output(itertools.repeat(0))
    assert caught.value.detail == "The run exceeded its maximum size"


async def refuse_output(value: object) -> str:
    """Return the failure of a run with an output, and check that the output is not copied."""
    configured = hosted("greet", limits=Limits(run_bytes=10_000_000))
    run = HostedRun(FakeContext(Catalog.from_settings(configured)), "function")
    tracemalloc.start()
    try:
        with pytest.raises(ExecutionError) as caught:
            await run.set_output(value)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < REFUSAL_BYTES
    return caught.value.detail


async def test_fields_that_are_not_in_the_json_of_a_model_are_not_counted() -> None:
    class Short(BaseModel):
        a: int = 1
        rows: Any = Field(default=None, exclude=True)

    class Counted(BaseModel):
        rows: Any

        @field_serializer("rows")
        def count(self, rows: list[object]) -> int:
            return len(rows)

    run = HostedRun(FakeContext(Catalog.from_settings(hosted("greet"))), "function")
    await run.set_output([Short.model_construct(rows=ROWS), Counted.model_construct(rows=ROWS)])
    assert run.output_text == '[{"a":1},{"rows":20000}]'


def test_large_argument_that_is_not_text_is_named_by_its_type() -> None:
    ended = run("large_arguments")
    assert ended.transcript.tools[0]["tool_args"] == {"rows": "a list", "text": "x" * 300_000}


async def test_result_that_makes_a_run_too_large_is_kept() -> None:
    """The call was made: the record must not say that it was cancelled."""
    small = hosted("greet", limits=Limits(run_bytes=1_000))
    run = HostedRun(FakeContext(Catalog.from_settings(small)), "function")
    run.start_call("c1", "pay", {})

    with pytest.raises(ExecutionError) as caught:
        run.end_call("c1", "x" * 2_000)

    assert caught.value.detail == "The run exceeded its maximum size"
    assert run.transcript.tools[0]["result"] == "x" * 2_000


async def test_result_of_a_run_that_has_to_stop_is_kept() -> None:
    context = FakeContext(Catalog.from_settings(hosted("greet")))
    run = HostedRun(context, "function")
    run.start_call("c1", "pay", {})
    context.cancel_at_checkpoint = context.checkpoints + 1

    with pytest.raises(asyncio.CancelledError):
        run.end_call("c1", "paid")

    assert run.transcript.tools[0]["result"] == "paid"
