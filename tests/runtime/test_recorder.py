"""The recorder of a run: the own loop and the runners of code tell the same story of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from agentctl.config.settings import Agent, Limits
from agentctl.records.run_spec import Origin
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.library_members import LibraryMembers, complete_members
from agentctl.runtime.transcript.conversation import Conversation
from agentctl.runtime.transcript.events import MessageDelivered, StepStarted, ThinkingDelta
from agentctl.runtime.transcript.transcript import Transcript
from tests.kit.fake_context import FakeContext, settings

AGENT = Agent("code", object="tests.runtime.sample_agents:greet")

Told = Conversation | HostedRun
Build = Callable[[FakeContext], Told]


def build_conversation(context: FakeContext) -> Conversation:
    return Conversation(context, {})


def build_hosted(context: FakeContext) -> HostedRun:
    return HostedRun(context, "function")


BOTH = pytest.mark.parametrize("build", [build_conversation, build_hosted])


def create_context(limit: int = 1_000, transcript: Transcript | None = None) -> FakeContext:
    limits = Limits(run_bytes=limit)
    catalog = Catalog.from_settings(settings(agents=(AGENT,), limits=limits))
    return FakeContext(catalog, transcript=transcript)


def begin_answer(run: Told) -> None:
    if isinstance(run, Conversation):
        run.begin_answer("m")
    else:
        run.begin_answer()


@BOTH
async def test_results_of_earlier_legs_count_in_the_size_of_a_run(build: Build) -> None:
    transcript = Transcript()
    transcript.add_user("x" * 1_000)
    transcript.add_answer("y" * 300)
    transcript.request_call({"id": "c", "name": "t", "arguments": {"a": "z" * 300}})
    transcript.open_call("c", "t", {})
    transcript.close_call("c", "r" * 300, error=False)

    run = build(create_context(transcript=transcript))
    begin_answer(run)
    run.add_text("fits")
    with pytest.raises(ExecutionError) as failure:
        run.add_text("y" * 100)
    assert failure.value.detail == "The run exceeded its maximum size"


@pytest.mark.parametrize("component", ["writer", "code"])
async def test_messages_of_the_origin_count_in_the_size_of_a_run(component: str) -> None:
    context = create_context()
    message = {"role": "user", "content": "x" * 1_001, "created_at": 0, "origin_run_id": "r"}
    context.change_spec(origin=Origin("r", "fork", at=1, messages=(message,)))
    with pytest.raises(ExecutionError) as failure:
        await context.execute("agent", component, "hello", [])
    assert failure.value.detail == "The run exceeded its maximum size"


@BOTH
async def test_thinking_of_two_answers_is_separated(build: Build) -> None:
    context = create_context()
    run = build(context)
    for pieces in (("I", " look"), ("I see",)):
        begin_answer(run)
        for piece in pieces:
            run.add_thinking(piece)
    deltas = [event.delta for event in context.events if isinstance(event, ThinkingDelta)]
    assert deltas == ["I", " look", "\n\nI see"]
    assert context.transcript.reasoning_content == "I look\n\nI see"


@BOTH
async def test_halves_of_a_character_are_joined_in_text_and_thinking(build: Build) -> None:
    context = create_context()
    run = build(context)
    begin_answer(run)
    for piece in ("a \ud83d", "\ude00 b", "\ud83d"):
        run.add_thinking(piece)
        run.add_text(piece)
    context.recorder.complete()
    assert context.transcript.reasoning_content == "a \U0001f600 b\ufffd"
    assert context.transcript.content == "a \U0001f600 b\ufffd"


async def test_half_of_a_character_ends_the_text_of_a_member() -> None:
    context = create_context()
    members = LibraryMembers(build_hosted(context))
    members.start("1", "researcher", "look").run.add_text("found \ud83d")
    await complete_members(context)
    assert context.reported[0].transcript.content == "found \ufffd"


def read_reasons(context: FakeContext) -> list[str | None]:
    messages = context.transcript.messages
    return [message["finish_reason"] for message in messages if message["role"] == "assistant"]


async def test_answer_has_no_finish_reason_only_if_it_was_interrupted() -> None:
    context = create_context()
    run = build_hosted(context)

    run.begin_answer()
    run.add_text("interrupted")
    run.begin_answer()
    run.add_text("complete")
    run.complete_answer()
    run.begin_answer()
    run.add_text("before a message")
    run.add_message(MessageDelivered("m", "hurry", None))
    run.begin_answer()
    run.add_text("before a call")
    run.complete_answer()
    run.start_call("c", "t", {})
    run.end_call("c", "result")
    run.add_text("last")
    assert read_reasons(context) == [None, "stop", "stop", "tool_call", None]

    context.recorder.complete()
    assert read_reasons(context)[-1] == "stop"


async def test_names_of_steps_can_be_stored() -> None:
    context = create_context()
    span = context.recorder.begin_step(0, "a\0b")
    assert span.name == "a\ufffdb"
    assert context.events == [StepStarted("a\ufffdb", 0)]
