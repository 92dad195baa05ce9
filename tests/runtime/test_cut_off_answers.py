"""Answers that end before they are complete."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kit.fake_context import FakeContext, attempt, run, settings
from tests.kit.model import ModelEndpoint
from tests.runtime import sample_tools
from tests.runtime.provider_scripts import build_call, build_chunk, encode_event, script

DONE = encode_event("[DONE]")
TEXT = build_chunk({"content": "almost "})
CALLED = build_chunk({}, "tool_calls")


def attempt_script(endpoint: ModelEndpoint, message: str) -> tuple[FakeContext, Any]:
    tools = (f"{sample_tools.TOOLS}:add",)
    return attempt(settings(endpoint, model="script", tools=tools), message)


@pytest.mark.parametrize(
    "message",
    [
        script(TEXT, framing="close"),
        script(TEXT),
        script(TEXT, DONE),
        script(TEXT, encode_event(build_chunk({"content": "there"}, "stop"))[:-9]),
        script(TEXT, 'data: {"id": "x", "choices": []}\n\n', DONE),
    ],
    ids=["connection closed", "last chunk", "done", "half an event", "empty event"],
)
def test_text_without_a_finish_reason_is_not_an_answer(
    model_endpoint: ModelEndpoint, message: str
) -> None:
    """docs/internals/security-cases.md M01."""
    ended, failure = attempt_script(model_endpoint, message)

    assert failure is not None
    assert failure.code == "MODEL_UNAVAILABLE"
    assert ended.transcript.content == "almost "
    assert ended.transcript.messages[-1]["content"] == "almost "
    assert ended.transcript.messages[-1]["finish_reason"] is None


@pytest.mark.parametrize(
    ("arguments", "reason", "code"),
    [
        ("", None, "MODEL_UNAVAILABLE"),
        ('{"a": 1', None, "MODEL_UNAVAILABLE"),
        ('{"a": 1}', None, "MODEL_UNAVAILABLE"),
        ("", "length", "MODEL_ANSWER_INVALID"),
        ('{"a": 1}', "length", "MODEL_ANSWER_INVALID"),
        ("", "content_filter", "MODEL_ANSWER_INVALID"),
        ("", "gave up", "MODEL_ANSWER_INVALID"),
    ],
)
def test_tool_call_of_an_incomplete_answer_is_not_carried_out(
    model_endpoint: ModelEndpoint, arguments: str, reason: str | None, code: str
) -> None:
    """docs/internals/security-cases.md M02."""
    events = [TEXT, build_chunk(build_call(arguments))]
    if reason is not None:
        events.append(build_chunk({}, reason))

    ended, failure = attempt_script(model_endpoint, script(*events, DONE))

    assert failure is not None
    assert failure.code == code
    assert ended.transcript.tools == []
    assert [message["role"] for message in ended.transcript.messages] == ["user", "assistant"]
    assert ended.transcript.content == "almost "


@pytest.mark.parametrize(
    ("reason", "recorded"),
    [
        ("stop", "stop"),
        ("length", "length"),
        ("content_filter", "content_filter"),
        ("gave up", "unknown"),
    ],
)
def test_record_shows_the_reason_for_the_end_of_a_text(
    model_endpoint: ModelEndpoint, reason: str, recorded: str
) -> None:
    """docs/internals/security-cases.md M03."""
    ended, failure = attempt_script(model_endpoint, script(TEXT, build_chunk({}, reason), DONE))

    assert failure is None
    assert ended.transcript.content == "almost "
    assert ended.transcript.messages[-1]["finish_reason"] == recorded


def test_record_shows_a_finish_reason_for_each_answer(model_endpoint: ModelEndpoint) -> None:
    call = build_chunk(build_call('{"a": 1}'))

    ended, failure = attempt_script(
        model_endpoint, script(call, build_chunk({}, "tool_calls"), DONE)
    )

    assert failure is None
    answers = [item for item in ended.transcript.messages if item["role"] == "assistant"]
    assert [answer["finish_reason"] for answer in answers] == ["tool_call", "stop"]


@pytest.mark.parametrize("model", ["echo", "leader"])
def test_demo_models_finish_their_answers(model: str) -> None:
    ended = run(settings(model=model), "hi")

    assert ended.transcript.messages[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([TEXT, build_chunk({}, "error")], "MODEL_UNAVAILABLE"),
        (
            [build_chunk(build_call("{}", name=None)), build_chunk({}, "tool_calls")],
            "MODEL_ANSWER_INVALID",
        ),
        ([build_chunk({}, "tool_calls")], "MODEL_ANSWER_INVALID"),
    ],
    ids=["ended with an error", "call without a name", "no call"],
)
def test_answer_that_its_end_contradicts_is_a_failure(
    model_endpoint: ModelEndpoint, events: list[Any], code: str
) -> None:
    _, failure = attempt_script(model_endpoint, script(*events, DONE))

    assert failure is not None
    assert failure.code == code


def test_byte_order_mark_before_the_first_event_is_skipped(model_endpoint: ModelEndpoint) -> None:
    marked = "\ufeff" + encode_event(build_chunk({"content": "whole"}))

    ended, failure = attempt_script(model_endpoint, script(marked, build_chunk({}, "stop"), DONE))

    assert failure is None
    assert ended.transcript.content == "whole"
