"""Answers of providers whose events have another form than the interface defines."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from agentctl.runtime.tracing import MAXIMUM_TOKENS
from tests.kit.fake_context import FakeContext, attempt, settings
from tests.kit.model import ModelEndpoint
from tests.runtime import sample_tools
from tests.runtime.provider_scripts import build_call, build_chunk, encode_event, script

TEXT = build_chunk({"content": "almost "})
STOP = build_chunk({}, "stop")


def attempt_script(endpoint: ModelEndpoint, message: str, *tools: str) -> tuple[FakeContext, Any]:
    names = tuple(f"{sample_tools.TOOLS}:{tool}" for tool in tools)
    return attempt(settings(endpoint, model="script", tools=names), message)


@pytest.mark.parametrize("position", ["first", "later"])
@pytest.mark.parametrize(
    "event",
    [
        "null",
        "7",
        "[]",
        '"text"',
        "[[]]",
        '{"choices": "text"}',
        '{"choices": [null]}',
        '{"choices": [7]}',
        '{"choices": {"a": 1}}',
        '{"created": "text", "choices": []}',
        '{"created": 1e300, "choices": []}',
        '{"created": 99999999999999999999, "choices": []}',
        '{"created": [], "choices": []}',
        '{"usage": 7, "choices": []}',
        '{"usage": [], "choices": []}',
        json.dumps(build_chunk("text")),
        json.dumps(build_chunk([])),
        json.dumps(build_chunk({"tool_calls": "text"})),
        json.dumps(build_chunk({"tool_calls": [None]})),
        json.dumps(build_chunk({"tool_calls": [{"function": 7}]})),
        json.dumps(build_chunk({"tool_calls": [{"index": [], "function": {"name": "add"}}]})),
        json.dumps(build_chunk({"tool_calls": [{"index": 0, "id": 7, "function": {"name": 7}}]})),
        json.dumps(build_chunk({"content": {"a": 1}})),
        json.dumps(build_chunk({"content": 7})),
        json.dumps(build_chunk({"reasoning_content": 7})),
        json.dumps(build_chunk({"refusal": 7})),
        '{"choices": [{"delta": {}, "finish_reason": ["stop"]}]}',
        '{"choices": [{"delta": {}, "logprobs": {"content": [7]}}]}',
    ],
)
@pytest.mark.filterwarnings("ignore:Unexpected non-string value")
def test_malformed_event_is_not_an_internal_failure(
    model_endpoint: ModelEndpoint, caplog: pytest.LogCaptureFixture, event: str, position: str
) -> None:
    """docs/internals/security-cases.md M09."""
    before = [TEXT] if position == "later" else []

    with caplog.at_level(logging.WARNING, "agentctl.runtime"):
        ended, failure = attempt_script(
            model_endpoint, script(*before, encode_event(event), STOP), "add"
        )

    assert failure is None or failure.code == "MODEL_ANSWER_INVALID"
    assert ended.transcript.content == ("almost " if before else "")
    assert "Traceback" not in caplog.text
    json.dumps([ended.transcript.messages, ended.transcript.tools, ended.transcript.metrics])


@pytest.mark.parametrize("arguments", [7, [], True, 1.5, None])
def test_arguments_of_another_type_are_not_an_internal_failure(
    model_endpoint: ModelEndpoint, arguments: object
) -> None:
    """docs/internals/security-cases.md M09."""
    call = build_call(arguments)  # type: ignore[arg-type]

    ended, failure = attempt_script(
        model_endpoint, script(build_chunk(call), build_chunk({}, "tool_calls")), "add"
    )

    assert failure is None or failure.code == "MODEL_ANSWER_INVALID"
    assert not any(tool["tool_call_error"] is False for tool in ended.transcript.tools)


@pytest.mark.parametrize("arguments", ["", " ", "\n", "\t \r\n", "{}", " {} "])
def test_blank_arguments_are_a_call_without_arguments(
    model_endpoint: ModelEndpoint, arguments: str
) -> None:
    """Models send them for tools without parameters, and repeat a call that is refused."""
    call = build_call(arguments, name="nothing")

    ended, failure = attempt_script(
        model_endpoint, script(build_chunk(call), build_chunk({}, "tool_calls")), "nothing"
    )

    assert failure is None
    (tool,) = ended.transcript.tools
    assert (tool["tool_args"], tool["tool_call_error"]) == ({}, False)


def test_calls_with_one_id_keep_their_own_results(model_endpoint: ModelEndpoint) -> None:
    """docs/internals/security-cases.md M10."""
    names = {"add": '{"a": 1}', "shout": '{"text": "hi"}', "fails": "{}", "nothing": "{}"}
    calls = [
        call
        for index, (name, arguments) in enumerate(names.items())
        for call in build_call(arguments, name=name, index=index, call_id="same")["tool_calls"]
    ]

    model_endpoint.forget()
    ended, failure = attempt_script(
        model_endpoint,
        script(build_chunk({"tool_calls": calls}), build_chunk({}, "tool_calls")),
        *names,
    )

    assert failure is None
    results = {call["tool_name"]: call["result"] for call in ended.transcript.tools}
    assert results == {
        "add": "3", "shout": "HI", "fails": "The tool fails failed (ValueError)", "nothing": "null"
    }  # fmt: skip
    kept = [message for message in ended.transcript.messages if message["role"] == "tool"]
    assert {message["tool_name"]: message["content"] for message in kept} == results
    ids = [call["tool_call_id"] for call in ended.transcript.tools]
    assert len(set(ids)) == len(ids)
    assert ids[0] == "same"
    sent = model_endpoint.requests("script")[-1]["messages"]
    assert [item["tool_call_id"] for item in sent if item["role"] == "tool"] == ids
    assert [call["id"] for item in sent for call in item.get("tool_calls", ())] == ids


@pytest.mark.parametrize(
    ("count", "kept"),
    [
        (2**62, MAXIMUM_TOKENS),
        (2**63, MAXIMUM_TOKENS),
        (10**40, MAXIMUM_TOKENS),
        (MAXIMUM_TOKENS, MAXIMUM_TOKENS),
    ],
)
def test_usage_out_of_range_does_not_lose_the_answer(
    model_endpoint: ModelEndpoint, count: int, kept: int
) -> None:
    """docs/internals/security-cases.md M11."""
    usage = {
        "prompt_tokens": count,
        "completion_tokens": 1,
        "total_tokens": count,
        "prompt_tokens_details": {"cached_tokens": count, "audio_tokens": count},
        "completion_tokens_details": {"reasoning_tokens": count},
    }

    ended, failure = attempt_script(model_endpoint, script(TEXT, {**STOP, "usage": usage}))

    assert failure is None
    assert ended.transcript.content == "almost "
    metrics = ended.transcript.metrics
    assert metrics["input_tokens"] == metrics["reasoning_tokens"] == kept
    assert metrics["output_tokens"] == 1
    assert all(0 <= value <= MAXIMUM_TOKENS for value in metrics.values())


@pytest.mark.filterwarnings("ignore:Failed to extract usage")
def test_negative_usage_does_not_lose_the_answer(model_endpoint: ModelEndpoint) -> None:
    """docs/internals/security-cases.md M11."""
    usage = {"prompt_tokens": -5, "completion_tokens": -1, "total_tokens": -6}

    ended, failure = attempt_script(model_endpoint, script(TEXT, {**STOP, "usage": usage}))

    assert failure is None
    assert ended.transcript.content == "almost "
    assert set(ended.transcript.metrics.values()) == {0}
