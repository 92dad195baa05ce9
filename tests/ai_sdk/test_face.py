"""The ends of the streams of the AI SDK, for events that a run could have."""

from __future__ import annotations

import json
from typing import Any

from agentctl.interface.requests import StreamEvent
from agentctl.interop.ai_sdk.face import AiStream
from tests.kit.tables import every_row

RunEvent = tuple[str, dict[str, Any]]

USAGE = {"agentctl": {"usage": None}}

STARTED: RunEvent = ("RunStarted", {})
WORD: RunEvent = ("RunContent", {"content": "one"})
END_OF_STEP = {"type": "finish-step"}


def read_events(stream: AiStream, *events: RunEvent) -> list[Any]:
    """Return the chunks for the events of a run, without those of its beginning and end."""
    stream.root_id = "r"
    chunks: list[Any] = []
    for seq, (name, data) in enumerate(events):
        line = json.dumps({"run_id": "r", "agent_id": "a", **data}).encode()
        chunks += stream.read(StreamEvent(seq, name, line))
    return chunks


ENDS: list[tuple[RunEvent, dict[str, Any]]] = [
    (
        ("RunCompleted", {"content": "one"}),
        {"type": "finish", "finishReason": "stop", "messageMetadata": USAGE},
    ),
    (
        ("RunCompleted", {"content": "one", "finish_reason": "length"}),
        {"type": "finish", "finishReason": "length", "messageMetadata": USAGE},
    ),
    (
        ("RunError", {"error": {"code": "INTERNAL", "detail": "no"}}),
        {"type": "error", "errorText": "no (INTERNAL)"},
    ),
    (("RunCancelled", {}), {"type": "abort", "reason": "The run was cancelled"}),
    (
        ("RunCancelled", {"reason": "enough"}),
        {"type": "abort", "reason": "The run was cancelled: enough"},
    ),
]


@every_row("event, end", ENDS)
def test_end_of_a_run_is_the_end_of_its_message(event: RunEvent, end: dict[str, Any]) -> None:
    stream = AiStream("s")
    chunks = read_events(stream, STARTED, WORD, event)
    text = {"id": "r:1"}
    assert [*chunks, *stream.finish(None)] == [
        {"type": "text-start", **text},
        {"type": "text-delta", **text, "delta": "one"},
        {"type": "text-end", **text},
        END_OF_STEP,
        end,
    ]


def test_stream_without_the_end_of_its_run_ends_with_an_error() -> None:
    stream = AiStream("s")
    read_events(stream, STARTED, WORD)
    closing, end = stream.abort()
    assert closing == {"type": "text-end", "id": "r:1"}
    assert end == {"type": "error", "errorText": "The stream ended before the run (UNAVAILABLE)"}


def test_failed_call_has_an_error_in_place_of_its_output() -> None:
    call = {"tool_call_id": "c", "tool_name": "add", "tool_args": {}}
    failed = {**call, "result": "no", "tool_call_error": True}
    begin = ("ToolCallStarted", {"tool": call})
    end = ("ToolCallCompleted", {"tool": failed})
    *_, result = read_events(AiStream("s"), STARTED, begin, end)
    assert (result["type"], result["errorText"]) == ("tool-output-error", "no")


@every_row(
    "status, chunk",
    [
        ("answered", {"type": "tool-output-available", "output": "answered"}),
        ("cancelled", {"type": "tool-output-error", "errorText": "cancelled"}),
    ],
)
def test_question_that_another_client_answered_has_an_output(
    status: str, chunk: dict[str, Any]
) -> None:
    names = {"approval_id": "p", "kind": "input", "tool_call_id": "c"}
    question = {
        **names,
        "tool_name": "ask",
        "arguments": {},
        "question": "Where?",
        "schema": {},
        "policy": "user",
    }
    chunks = read_events(
        AiStream("s", replays=True),
        STARTED,
        ("RunPaused", {"approvals": [question]}),
        ("RunContinued", {"approvals": [{**names, "status": status, "note": None}]}),
    )
    assert chunk.items() <= chunks[-1].items()
