"""The bytes that each face makes of the events of recorded runs.

The pages are in `golden`, a folder for each face; AGENTCTL_TEST_WRITE=1 writes them. The events
come in portions of any size, which change no byte. The streams also obey the rules of the clients
of their protocols.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from agentctl.interface.requests import StreamEvent
from agentctl.interop.agui.face import AguiExchange, AguiStream
from agentctl.interop.ai_sdk.face import AiExchange, AiStream
from agentctl.interop.mcp.client import CallProgress
from agentctl.interop.openai.chat import ChatCompletion
from agentctl.interop.openai.events import LegStart, RunEvents
from agentctl.interop.openai.failures import describe_end
from agentctl.interop.openai.parameters import OpenAIParameters
from agentctl.interop.openai.responses import ModelResponse
from tests.agui.protocol import parse_stream as check_agui
from tests.ai_sdk.protocol import apply, calls_of
from tests.ai_sdk.protocol import parse_stream as parse_chunks
from tests.interop.faces import (
    GOLDEN,
    RecordedOperations,
    Stream,
    build_exchange,
    call_tool,
    call_twice,
    expand_pauses,
    find_root,
    format_document,
    format_streams,
    list_asked,
    open_portions,
    read_response,
)
from tests.interop.recorded_runs import ENDINGS, RECORDINGS, Recording, read_events, split_legs
from tests.kit.golden import check_golden

Translate = Callable[[Recording, int], Awaitable[list[Stream]]]
"""Returns what a face makes of a recorded run, whose events come in portions of a size."""

RECORDED = (*RECORDINGS, *ENDINGS)

MODELS = [recording for recording in RECORDED if recording.kind != "workflow"]
"""The runs of agents and teams, which are models of OpenAI's API."""

STATES = ({"draft": 1, "kept/~": 2}, {"kept/~": 2, "seen": ["ada"]})
"""The state of the session before and after the run `text`."""

TOKENS = {"input_tokens": 5, "output_tokens": 4, "total_tokens": 9}
"""The counters of a run after its first leg."""


async def check_face(face: str, translate: Translate, recording: Recording) -> None:
    """Compare the bytes of a face with its golden page."""
    text = format_streams(await translate(recording, 1))
    assert format_streams(await translate(recording, 100)) == text
    check_golden(GOLDEN / face / f"{recording.name}.txt", text)


@pytest.mark.parametrize("recording", RECORDED, ids=lambda each: each.name)
async def test_events_are_streams_of_agui(recording: Recording) -> None:
    await check_face("agui", translate_to_agui, recording)


@pytest.mark.parametrize("recording", RECORDED, ids=lambda each: each.name)
async def test_events_are_streams_of_the_ai_sdk(recording: Recording) -> None:
    await check_face("ai_sdk", translate_to_ai_sdk, recording)


@pytest.mark.parametrize("recording", MODELS, ids=lambda each: each.name)
async def test_events_are_chat_completions(recording: Recording) -> None:
    await check_face("chat", translate_to_chat, recording)


@pytest.mark.parametrize("recording", MODELS, ids=lambda each: each.name)
async def test_events_are_responses_of_openai(recording: Recording) -> None:
    await check_face("responses", translate_to_responses, recording)


@pytest.mark.parametrize("recording", RECORDED, ids=lambda each: each.name)
async def test_events_are_the_messages_of_a_call_of_mcp(recording: Recording) -> None:
    await check_face("mcp", translate_to_mcp, recording)


async def translate_to_agui(recording: Recording, size: int) -> list[Stream]:
    events = read_events(recording.name)
    run_id, session_id = find_root(events)

    # Pages since version 1.0 know members, the older ones know steps.
    versions = {"": True} if recording.kind == "agent" else {"": True, " of an older page": False}
    streams = []
    states = STATES if recording.name == "text" else ()
    for title, attributes in versions.items():
        for number, leg in enumerate(split_legs(events), start=1):
            exchange = build_exchange(AguiExchange, recording, states)
            stream = AguiStream(session_id, f"run-{number}", attributes=attributes)
            stream.root_id = run_id
            text = await read_response(exchange, stream, leg, size)
            check_agui(text.splitlines())
            streams.append((f"leg {number}{title}", text))

    if recording.rulings:
        # A page that repeats its answers gets the same events, although they begin with leg 1.
        answered = [approval["approval_id"] for approval in list_asked(events)]
        stream = AguiStream(session_id, "run-2", attributes=True, after=answered)
        exchange = build_exchange(AguiExchange, recording, ())
        assert ("leg 2", await read_response(exchange, stream, events, size)) in streams
    return streams


async def translate_to_ai_sdk(recording: Recording, size: int) -> list[Stream]:
    events = read_events(recording.name)
    run_id, session_id = find_root(events)
    legs = split_legs(events)

    streams = []
    message = None
    asked: list[Any] = []
    for number, leg in enumerate(legs, start=1):
        results = [each for each in asked if each["kind"] in ("external", "input")]
        stream = AiStream(
            session_id,
            message_id=message and message["id"],
            shown=[call["toolCallId"] for call in calls_of(message)] if message else (),
            asked_approvals=asked,
            answered_call_ids=[f"{each['run_id']}:{each['tool_call_id']}" for each in results],
        )
        stream.root_id = run_id
        text = await read_response(build_exchange(AiExchange, recording, ()), stream, leg, size)
        message = apply(parse_chunks(text), message)
        streams.append((f"leg {number}", text))
        asked = list_asked(leg)

    if len(legs) > 1:
        stream = AiStream(session_id, replays=True)
        stream.root_id = run_id
        exchange = build_exchange(AiExchange, recording, ())
        text = await read_response(exchange, stream, events, size)
        apply(parse_chunks(text))
        streams.append(("resumed by a page that was reloaded", text))
    return streams


async def translate_to_chat(recording: Recording, size: int) -> list[Stream]:
    tools = [{"type": "function", "function": tool} for tool in recording.tools]
    body = {
        "model": recording.component,
        "messages": [{"role": "user", "content": "x"}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": tools,
    }
    return await translate_to_openai(ChatCompletion, body, recording, size)


async def translate_to_responses(recording: Recording, size: int) -> list[Stream]:
    tools = [{"type": "function", **tool} for tool in recording.tools]
    body = {"model": recording.component, "input": "x", "tools": tools}
    return await translate_to_openai(ModelResponse, body, recording, size)


async def translate_to_openai(
    interface: type[ChatCompletion] | type[ModelResponse],
    body: dict[str, Any],
    recording: Recording,
    size: int,
) -> list[Stream]:
    turn = interface(OpenAIParameters(body, interface.rules, ()), recording.component)
    events = read_events(recording.name)
    streams = []
    start = LegStart()
    for number, leg in enumerate(split_legs(events), start=1):
        expanded = expand_pauses(leg)
        text = await read_chunks(turn, expanded, start, size)
        streams.append((f"leg {number} as a stream", text))

        portions = open_portions(expanded, size)
        answer = await RunEvents(expanded[0], start).collect(await anext(portions), portions)
        assert answer.end is not None
        document = turn.build(answer) or describe_end(answer.end, turn.paused_code)
        streams.append((f"leg {number} as a document", format_document(document)))

        # Each decision counts as a leg, and a leg counts its own tokens.
        start = LegStart(number + len(list_asked(leg)), TOKENS)

    if recording.rulings:
        # A program that repeats its results gets the same events, although they begin with leg 1.
        asked = list_asked(events)
        start = LegStart(1 + len(asked), TOKENS, asked[0]["approval_id"])
        assert ("leg 2 as a stream", await read_chunks(turn, events, start, size)) in streams
    return streams


async def read_chunks(
    turn: ChatCompletion | ModelResponse, events: Sequence[StreamEvent], start: LegStart, size: int
) -> str:
    """Return the stream of a response that begins with a leg."""
    encode = turn.build_encoder(RunEvents(events[0], start))
    parts = [encode(portion) async for portion in open_portions(events, size)]
    return b"".join([*parts, encode([])]).decode()


async def translate_to_mcp(recording: Recording, size: int) -> list[Stream]:
    events = read_events(recording.name)
    run_id, _ = find_root(events)
    operations = RecordedOperations(events, size)
    streams = [("a call", await call_tool(recording, operations, asks=False))]

    notes = NotedProgress()
    for event in events:
        notes.read(event, run_id)
    streams.append(("its progress", "".join(f"{text}\n" for text in notes.texts) + "\n"))

    if list_asked(events):
        operations = RecordedOperations(events, size)
        text = await call_tool(recording, operations, asks=True)
        streams.append(("a call of a client that asks its user", text))

    if recording.rulings:
        operations = RecordedOperations(events, size)
        asked, result = await call_twice(recording, operations)
        streams.append(("the same without a session", format_document(asked)))
        streams.append(("its second call, with the answers", format_document(result)))
        verbs = [ruling.decision for ruling in operations.rulings]
        assert verbs == [ruled.verb for ruled in recording.rulings]
    return streams


class NotedProgress(CallProgress):
    """The messages that a call would send, if the time between two of them did not count."""

    def __init__(self) -> None:
        super().__init__(report_nothing)
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


async def report_nothing(number: int, text: str) -> None:
    """Send no notification."""
