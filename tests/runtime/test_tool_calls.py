"""Tool calls of models over HTTP."""

from __future__ import annotations

import json
import logging
from typing import Any

import orjson
import pytest

from agentctl.config.settings import Limits
from agentctl.runtime.components.records import build_record
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.transcript.events import Content, ToolCallCompleted, ToolCallStarted
from agentctl.work import event_loop
from tests.kit.fake_context import UNREACHED_SECONDS, FakeContext, attempt, run, settings
from tests.kit.model import ModelEndpoint
from tests.runtime import sample_tools


def run_with_tool(
    endpoint: ModelEndpoint,
    name: str,
    arguments: dict[str, Any] | str | None = None,
    *,
    behaviour: str = "tool",
    **options: Any,
) -> tuple[FakeContext, ExecutionError | None]:
    """Run an agent whose model calls the tool `name`."""
    tool_timeout = options.pop("tool_timeout", UNREACHED_SECONDS)
    configured = settings(
        endpoint, model=f"{behaviour}:{name}", tools=(f"{sample_tools.TOOLS}:{name}",), **options
    )
    return attempt(configured, f"do {json.dumps(arguments or {})}", tool_timeout=tool_timeout)


def only_call(ended: FakeContext) -> dict[str, Any]:
    assert len(ended.transcript.tools) == 1
    return ended.transcript.tools[0]


@pytest.mark.parametrize(
    ("name", "arguments", "result"),
    [
        ("add", {"a": 3, "b": 4}, "7"),
        ("add", {"a": "3"}, "5"),
        ("shout", {"text": "hi"}, "HI"),
        ("whisper", {"text": "HI", "times": 2}, "hihi"),
        ("nothing", {}, "null"),
        ("counts", {}, "[1,2,3]"),
        ("colour", {}, "red"),
        ("ambiguous", {}, "NaN"),
        ("dirty", {}, "a\ufffdb\ufffdc"),
        ("dirty_record", {}, '{"text":"a\ufffdc"}'),
        (
            "weather",
            {"place": {"city": "Bonn"}},
            '{"place":"Bonn","degrees":21.5,"on":"2026-01-02"}',
        ),
    ],
)
def test_model_answers_from_the_tool_result(
    model_endpoint: ModelEndpoint, name: str, arguments: dict[str, Any], result: str
) -> None:
    ended, failure = run_with_tool(model_endpoint, name, arguments)

    assert failure is None
    assert ended.transcript.content == result
    call = only_call(ended)
    assert call == {
        "tool_call_id": call["tool_call_id"],
        "tool_name": name,
        "tool_args": arguments,
        "tool_call_error": False,
        "result": result,
    }
    asked, called, answered, said = ended.transcript.messages
    assert asked["role"] == "user"
    assert called["tool_calls"] == [
        {"id": call["tool_call_id"], "name": name, "arguments": arguments}
    ]
    assert answered["role"] == "tool"
    assert answered["tool_call_id"] == call["tool_call_id"]
    assert answered["tool_name"] == name
    assert answered["content"] == result
    assert said["content"] == result


def test_model_gets_the_schema_of_the_record(model_endpoint: ModelEndpoint) -> None:
    model_endpoint.forget()
    ended, _ = run_with_tool(model_endpoint, "whisper", {"text": "x"})

    agent = ended.catalog.components("agent")["writer"]
    record = build_record(ended.catalog, agent)
    sent = model_endpoint.requests("tool:whisper")[0]["tools"]
    assert [tool["function"]["name"] for tool in sent] == ["whisper"]
    assert sent[0]["function"]["description"] == "Lowers a text."
    assert sent[0]["function"]["parameters"] == record["tools"][0]["parameters"]  # type: ignore[typeddict-item]


def test_events_before_and_after_a_tool_call(model_endpoint: ModelEndpoint) -> None:
    ended, _ = run_with_tool(model_endpoint, "shout", {"text": "hi"})

    started, completed, content = ended.events
    assert isinstance(started, ToolCallStarted)
    assert isinstance(completed, ToolCallCompleted)
    assert started.tool["result"] is None
    assert started.tool["tool_call_error"] is None
    assert completed.tool == only_call(ended)
    assert content == Content("HI")


def test_usage_of_all_model_calls_is_summed(model_endpoint: ModelEndpoint) -> None:
    ended, _ = run_with_tool(model_endpoint, "shout", {"text": "hi"})

    counted = [message["metrics"] for message in ended.transcript.messages if "metrics" in message]
    assert len(counted) == 2
    for name, total in ended.transcript.metrics.items():
        assert total == sum(metrics[name] for metrics in counted)
    assert ended.transcript.metrics["cache_read_tokens"] == 2


def test_both_calls_of_one_answer_get_results(model_endpoint: ModelEndpoint) -> None:
    ended, failure = run_with_tool(model_endpoint, "add", {"a": 1}, behaviour="tools")

    assert failure is None
    assert ended.transcript.content == "3 | 3"
    ids = [call["tool_call_id"] for call in ended.transcript.tools]
    assert len(set(ids)) == 2
    answered = [m["tool_call_id"] for m in ended.transcript.messages if m["role"] == "tool"]
    assert sorted(answered) == sorted(ids)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"a": "three"}, "The arguments of add are not valid: a: Input should be a valid integer"),
        ({"b": 1}, "The arguments of add are not valid: a is missing"),
        ({"a": 1, "c": 1}, "The arguments of add are not valid: c is unknown"),
    ],
)
def test_invalid_arguments_are_reported_to_the_model(
    model_endpoint: ModelEndpoint, arguments: dict[str, Any], told: str
) -> None:
    ended, failure = run_with_tool(model_endpoint, "add", arguments)

    assert failure is None
    assert ended.transcript.content.startswith(told)
    assert only_call(ended)["tool_call_error"] is True


def test_arguments_without_json_are_reported_to_the_model(model_endpoint: ModelEndpoint) -> None:
    ended, failure = run_with_tool(model_endpoint, "add", behaviour="broken")

    assert failure is None
    assert ended.transcript.content == "The arguments are not a JSON object"
    assert only_call(ended)["tool_args"] == {"INVALID_JSON": '{"half": '}


def tool_call_chunk(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize(
    ("call", "tool_args", "result"),
    [
        (tool_call_chunk("c\ud800\0", "add", '{"a": 1}'), {"a": 1}, "3"),
        (tool_call_chunk("c\ud800\0", "ad\ud800d", "{}"), {}, "There is no tool ad\ufffdd"),
        (tool_call_chunk("c", "shout", '{"text": "\\ud800"}'), {"text": "\ufffd"}, "\ufffd"),
        (
            tool_call_chunk("c", "shout", '{"text": "\ud800\0"}'),
            {"text": "\ufffd\ufffd"},
            "\ufffd\ufffd",
        ),
        (tool_call_chunk("c", "add", f'{{"a": {2**64 - 1}}}'), {"a": 2**64 - 1}, str(2**64 + 1)),
    ],
)
def test_unstorable_call_is_cleaned_and_executed(
    model_endpoint: ModelEndpoint, call: dict[str, Any], tool_args: dict[str, Any], result: str
) -> None:
    tools = (f"{sample_tools.TOOLS}:add", f"{sample_tools.TOOLS}:shout")
    answer = json.dumps({"content": "so \ud800", "tool_calls": [call]})
    ended, failure = attempt(settings(model_endpoint, model="exact", tools=tools), answer)

    assert failure is None
    entry = only_call(ended)
    assert (entry["tool_args"], entry["result"]) == (tool_args, result)
    orjson.dumps([ended.transcript.tools, ended.transcript.messages])
    said = [message for message in ended.transcript.messages if message["role"] == "assistant"]
    assert said[0]["content"] == "so \ufffd"
    assert said[0]["tool_calls"][0]["id"] == entry["tool_call_id"]


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999", "[" * 200 + "]" * 200, "[" * 9000])
def test_unstorable_arguments_are_not_an_object(model_endpoint: ModelEndpoint, value: str) -> None:
    arguments = f'{{"a": {value}}}'
    answer = json.dumps({"tool_calls": [tool_call_chunk("c", "add", arguments)]})
    configured = settings(model_endpoint, model="exact", tools=(f"{sample_tools.TOOLS}:add",))
    ended, failure = attempt(configured, answer)

    assert failure is None
    assert only_call(ended)["tool_args"] == {"INVALID_JSON": arguments}
    assert only_call(ended)["result"] == "The arguments are not a JSON object"


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("fails", "The tool fails failed (ValueError)"),
        ("leaves", "The tool leaves failed (SystemExit)"),
        ("leaves_too", "The tool leaves_too failed (SystemExit)"),
        ("interrupts", "The tool interrupts failed (KeyboardInterrupt)"),
        ("interrupts_its_thread", "The tool interrupts_its_thread failed (KeyboardInterrupt)"),
        ("uncommon", "The tool uncommon failed (Uncommon)"),
        ("cancels_itself", "The tool cancels_itself failed (CancelledError)"),
        ("closes", "The tool closes failed (GeneratorExit)"),
        ("gives_up", "The tool gives_up failed (CancelledError)"),
        ("unprintable", "The tool unprintable gave a result without a JSON form"),
        ("promises", "The tool promises gave a result without a JSON form"),
        ("cyclic", "The tool cyclic gave a result without a JSON form"),
        ("deep", "The tool deep gave a result without a JSON form"),
        ("undecodable", "The tool undecodable gave a result without a JSON form"),
    ],
)
def test_tool_failure_is_a_result_without_details(
    model_endpoint: ModelEndpoint, caplog: pytest.LogCaptureFixture, name: str, told: str
) -> None:
    with caplog.at_level(logging.WARNING, "agentctl.runtime"):
        ended, failure = run_with_tool(model_endpoint, name)

    assert failure is None
    assert ended.transcript.content == told
    assert only_call(ended)["tool_call_error"] is True
    assert sample_tools.SECRET not in json.dumps(
        [ended.transcript.messages, ended.transcript.tools]
    )
    assert (sample_tools.SECRET in caplog.text) is (name == "fails")


def test_failing_validator_is_a_tool_failure(model_endpoint: ModelEndpoint) -> None:
    ended, failure = run_with_tool(model_endpoint, "odd", {"value": {"text": "x"}})

    assert failure is None
    assert ended.transcript.content == "The tool odd failed (KeyError)"


def test_endless_result_is_truncated(model_endpoint: ModelEndpoint) -> None:
    ended, failure = run_with_tool(
        model_endpoint, "never_ends", limits=Limits(tool_result_bytes=15)
    )

    assert failure is None
    assert only_call(ended)["result"] == '["0","1","2","3'


def test_too_many_abandoned_threads_are_reported_to_the_model(
    model_endpoint: ModelEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_loop, "MAXIMUM_ABANDONED", event_loop.abandoned_threads.count)
    ended, failure = run_with_tool(model_endpoint, "add", {"a": 1})

    assert failure is None
    told = "The tool add was not called: too many earlier calls never ended"
    assert ended.transcript.content == told
    assert only_call(ended)["tool_call_error"] is True


def test_repeated_tool_failures_end_the_run(model_endpoint: ModelEndpoint) -> None:
    ended, failure = run_with_tool(model_endpoint, "fails", behaviour="again")

    assert failure is not None
    assert failure.code == "TOOL_FAILED"
    assert failure.detail == "The tool fails failed 3 times in a row"
    assert [call["tool_call_error"] for call in ended.transcript.tools] == [True] * 3


def test_unknown_tool_is_reported_to_the_model(model_endpoint: ModelEndpoint) -> None:
    configured = settings(model_endpoint, model="tool:nope", tools=(f"{sample_tools.TOOLS}:add",))

    ended = run(configured, "do {}")

    call = only_call(ended)
    assert call["tool_name"] == "nope"
    assert call["result"] == "There is no tool nope"
    assert call["tool_call_error"] is True
    roles = [message["role"] for message in ended.transcript.messages]
    assert roles == ["user", "assistant", "tool", "assistant"]


def test_repeated_unknown_tool_ends_the_run(model_endpoint: ModelEndpoint) -> None:
    configured = settings(model_endpoint, model="again:nope", tools=(f"{sample_tools.TOOLS}:add",))

    _, failure = attempt(configured, "do {}")

    assert failure is not None
    assert failure.code == "MODEL_ANSWER_INVALID"


@pytest.mark.parametrize("name", ["sleepy", "stubborn", "stuck"])
def test_tool_exceeds_its_time_limit(model_endpoint: ModelEndpoint, name: str) -> None:
    sample_tools.release.clear()
    try:
        ended, failure = run_with_tool(model_endpoint, name, tool_timeout=0.1)
    finally:
        sample_tools.release.set()

    assert failure is None
    assert ended.transcript.content == f"The tool {name} did not end within 0.1 seconds"
    assert only_call(ended)["tool_call_error"] is True
    assert ended.left == ([] if name == "sleepy" else [name])


def test_result_is_cut_between_characters(model_endpoint: ModelEndpoint) -> None:
    ended, _ = run_with_tool(
        model_endpoint, "long_text", {"size": 100}, limits=Limits(tool_result_bytes=15)
    )

    assert only_call(ended)["result"] == "é" * 7


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("long_list", "[7,7,7,"),
        ("long_object", '{"place":"Bonn","numbers":[0,1,2,3,'),
        ("long_rows", '[{"id":7,"name":"xxx'),
        ("long_record", '{"name":"é","rows":[1.5,1.5,'),
    ],
)
def test_rest_of_a_long_result_is_not_converted(
    model_endpoint: ModelEndpoint, name: str, start: str
) -> None:
    """docs/internals/security-cases.md M13."""
    ended, failure = run_with_tool(model_endpoint, name, limits=Limits(tool_result_bytes=100))

    assert failure is None
    call = only_call(ended)
    assert call["tool_call_error"] is False
    assert call["result"].startswith(start)
    assert len(call["result"].encode()) == 100


def test_unusable_tool_is_an_internal_failure(
    model_endpoint: ModelEndpoint, caplog: pytest.LogCaptureFixture
) -> None:
    _, failure = attempt(settings(model_endpoint, tools=("not.there:tool",)), "hi")

    assert failure is not None
    assert failure.code == "INTERNAL"
    assert "agent writer cannot use the tool 'not.there:tool'" in caplog.text


def test_result_that_makes_a_run_too_large_is_kept(model_endpoint: ModelEndpoint) -> None:
    """The call was made: the record must not say that it was cancelled."""
    ended, failure = run_with_tool(
        model_endpoint, "shout", {"text": "x" * 300}, limits=Limits(run_bytes=600)
    )

    assert failure is not None
    assert failure.code == "AGENT_FAILED"
    assert failure.detail == "The run exceeded its maximum size"
    assert only_call(ended)["result"] == "X" * 300
