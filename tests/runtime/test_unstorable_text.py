"""Any text of a model or a tool: events and stored data can always be written."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st

from agentctl.config.settings import Limits
from agentctl.records.text import is_storable
from agentctl.runs.log import event_rows
from agentctl.runs.log.event_rows import RunIdentity
from agentctl.runs.states import Ending
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.json_values import NotSerializable
from agentctl.runtime.models.calls import clean_calls
from agentctl.runtime.models.conversion import to_model_messages
from agentctl.runtime.tools.functions import result_to_text
from agentctl.runtime.transcript.conversation import CallOutcome, Conversation
from agentctl.runtime.transcript.events import RunEvent
from agentctl.runtime.transcript.history import build_chat_history
from agentctl.runtime.transcript.recorder import RunRecorder
from agentctl.runtime.transcript.transcript import Transcript
from tests.kit.run_specs import a_spec

IDENTITY = RunIdentity("run", "session", None, "agent", "writer", "Writer")

TEXT = st.text(st.characters(exclude_categories=()), max_size=20) | st.sampled_from(
    ["\0", "\ud800", "\udfff\ud800", "a\0b", "\U0001f600", "\u2028", "\r\n\r\n", "data: x"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=10,
)
ARGUMENTS = st.one_of(
    TEXT,
    st.dictionaries(TEXT, JSON, max_size=3).map(json.dumps),
    st.dictionaries(TEXT, JSON, max_size=3).map(
        lambda value: json.dumps(value, ensure_ascii=False)
    ),
    st.dictionaries(TEXT, JSON, max_size=3),
)
CALL = st.tuples(st.sampled_from(["tool"]) | TEXT, ARGUMENTS, TEXT)
RESULT = st.one_of(JSON, st.binary(max_size=10), st.just(object()), st.sets(st.integers()))


class Told:
    """A run context that formats each event at once."""

    spec = a_spec(input="go")
    journal = None

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.transcript = Transcript()
        self.sent: list[bytes] = []
        self.recorder = RunRecorder(self)

    def emit(self, event: RunEvent) -> None:
        self.sent.append(event_rows.format_event(IDENTITY, event)[1])

    def checkpoint(self) -> None: ...

    def find_halt(self, *, tool: str) -> None:
        """Return None: nothing is halted."""

    async def run_member(self, component: Any, message: str) -> Any:
        raise AssertionError


class Returns:
    """A tool with a fixed result."""

    has_effects = False

    def __init__(self, result: object) -> None:
        self.result = result

    def record(self) -> Any:
        raise AssertionError

    async def perform(self, arguments: object, conversation: Conversation) -> CallOutcome:
        try:
            return CallOutcome(
                result_to_text(self.result, conversation.context.limits.tool_result_bytes)
            )
        except NotSerializable:
            return CallOutcome("no form", failed=True)


async def process_answer(
    told: Told, deltas: list[str], calls: list[tuple[str, Any, str]], result: object
) -> None:
    """Process one answer of a model with text and calls, like `runtime.agent`."""
    conversation = Conversation(told, {"tool": Returns(result)})
    conversation.add_prompt("system")
    conversation.begin_answer("m")
    for delta in deltas:
        conversation.add_text(delta)
    cleaned = clean_calls((call_id, name, args) for name, args, call_id in calls)
    conversation.end_answer(cleaned, "stop")
    for call in cleaned:
        await conversation.call(call["id"], call["name"], call["arguments"])


def strings(value: Any) -> list[str]:
    """Yield all strings in a JSON value, including names."""
    if isinstance(value, dict):
        return [text for item in value.items() for part in item for text in strings(part)]
    if isinstance(value, list):
        return [text for item in value for text in strings(item)]
    return [value] if isinstance(value, str) else []


@settings(max_examples=40)
@given(
    st.lists(TEXT, max_size=3),
    st.lists(CALL, max_size=3),
    RESULT,
    st.sampled_from([Limits(), Limits(tool_result_bytes=3), Limits(run_bytes=40)]),
)
def test_events_and_ends_are_always_storable(
    deltas: list[str], calls: list[tuple[str, Any, str]], result: object, limits: Limits
) -> None:
    told = Told(limits)
    with contextlib.suppress(ExecutionError):
        asyncio.run(process_answer(told, deltas, calls, result))
    transcript = told.transcript
    transcript.close_open_calls(0)

    told.sent.append(
        event_rows.format_end(IDENTITY, Ending("CANCELLED", reason="x"), transcript)[1]
    )
    kept = [transcript.messages, transcript.tools, build_chat_history(transcript.messages, None)]
    for data in [*told.sent, orjson.dumps(kept)]:
        assert b"\n" not in data
        assert all(is_storable(text) for text in strings(orjson.loads(data)))
    assert not any(entry["tool_call_error"] is None for entry in transcript.tools)
    to_model_messages(transcript.messages)
