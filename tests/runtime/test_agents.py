"""Agents with an OpenAI-compatible endpoint over HTTP."""

from __future__ import annotations

import json

from agentctl.config.settings import Limits
from agentctl.records.sessions import TOKEN_COUNTERS
from agentctl.runtime.transcript.events import Content, ThinkingDelta
from tests.kit.fake_context import attempt, run, settings
from tests.kit.model import ModelEndpoint
from tests.runtime.provider_scripts import build_chunk, encode_event, script


def test_answer_streams_and_is_counted(model_endpoint: ModelEndpoint) -> None:
    ended = run(settings(model_endpoint, instructions="Be plain."), "one two  three")

    assert ended.transcript.content == "one two  three"
    assert ended.joined_deltas == ended.transcript.content
    assert 1 <= len(ended.events) <= 3
    assert ended.transcript.metrics == {
        "input_tokens": 5,
        "output_tokens": 3,
        "total_tokens": 8,
        "audio_input_tokens": 0,
        "audio_output_tokens": 0,
        "audio_total_tokens": 0,
        "cache_read_tokens": 1,
        "cache_write_tokens": 0,
        "reasoning_tokens": 2,
    }
    assert tuple(ended.transcript.metrics) == TOKEN_COUNTERS
    system, user, assistant = ended.transcript.messages
    assert (system["role"], system["content"]) == ("system", "Be plain.")
    assert (user["role"], user["content"]) == ("user", "one two  three")
    assert (assistant["role"], assistant["content"]) == ("assistant", "one two  three")
    assert assistant["metrics"] == ended.transcript.metrics
    assert all(isinstance(message["created_at"], int) for message in ended.transcript.messages)


def test_text_of_one_read_is_one_event(model_endpoint: ModelEndpoint) -> None:
    """decision 48."""
    texts = [f"{number} " for number in range(100)]
    thoughts = [f"{number}? " for number in range(100)]
    chunks = [build_chunk({"reasoning": thought}) for thought in thoughts]
    chunks += [build_chunk({"content": text}) for text in texts]
    one_write = "".join(map(encode_event, [*chunks, build_chunk({}, "stop")]))

    ended = run(settings(model_endpoint, model="script"), script(one_write))

    assert ended.joined_deltas == ended.transcript.content == "".join(texts)
    assert ended.transcript.reasoning_content == "".join(thoughts)
    assert len(ended.events) < 20
    kinds = [type(event) for event in ended.events]
    assert kinds == sorted(kinds, key=[ThinkingDelta, Content].index)


def test_no_instructions_no_system_message(model_endpoint: ModelEndpoint) -> None:
    ended = run(settings(model_endpoint, model="history"), "hi")

    assert [message["role"] for message in ended.transcript.messages] == ["user", "assistant"]
    assert json.loads(ended.transcript.content) == [["user", "hi"]]


def test_provider_without_usage_counts_zero(model_endpoint: ModelEndpoint) -> None:
    ended = run(settings(model_endpoint, model="no-usage"), "hi")

    assert ended.transcript.content == "hi"
    assert set(ended.transcript.metrics.values()) == {0}


def test_model_gets_history_and_current_instructions(model_endpoint: ModelEndpoint) -> None:
    history = [
        {"role": "system", "content": "Old rules.", "created_at": 1},
        {"role": "user", "content": "first", "created_at": 1},
        {
            "role": "assistant",
            "content": "",
            "created_at": 2,
            "tool_calls": [{"id": "c1", "name": "shout", "arguments": {"text": "x"}}],
        },
        {
            "role": "tool",
            "content": "X",
            "created_at": 3,
            "tool_call_id": "c1",
            "tool_name": "shout",
        },
        {"role": "assistant", "content": "It is X.", "created_at": 4, "metrics": {}},
    ]
    configured = settings(model_endpoint, model="history", instructions="New rules.")

    ended = run(configured, "second", history=history)

    assert json.loads(ended.transcript.content) == [
        ["system", "New rules."],
        ["user", "first"],
        ["assistant", ""],
        ["tool", "X"],
        ["assistant", "It is X."],
        ["user", "second"],
    ]
    kept = [(message["role"], message["content"]) for message in ended.transcript.messages[:2]]
    assert kept == [("system", "New rules."), ("user", "second")]


def test_open_call_in_the_history_gets_a_result(model_endpoint: ModelEndpoint) -> None:
    history = [
        {"role": "user", "content": "first", "created_at": 1},
        {
            "role": "assistant",
            "content": "wait",
            "created_at": 2,
            "tool_calls": [{"id": "c1", "name": "shout", "arguments": {}}],
        },
        {"role": "tool", "content": "?", "created_at": 3, "tool_call_id": "x", "tool_name": "y"},
    ]

    ended = run(settings(model_endpoint, model="history"), "second", history=history)

    assert json.loads(ended.transcript.content) == [
        ["user", "first"],
        ["assistant", "wait"],
        ["tool", "cancelled"],
        ["user", "second"],
    ]


def test_unstorable_text_is_replaced(model_endpoint: ModelEndpoint) -> None:
    ended = run(settings(model_endpoint), "a\x00b")

    assert ended.transcript.content == ended.joined_deltas == "a\ufffdb"


def test_answer_above_the_size_limit_ends_the_run(model_endpoint: ModelEndpoint) -> None:
    configured = settings(model_endpoint, model="trickle", limits=Limits(run_bytes=30))

    ended, failure = attempt(configured, "go on")

    assert failure is not None
    # The code of every run that exceeds it: the model has done nothing wrong.
    assert failure.code == "AGENT_FAILED"
    assert failure.detail == "The run exceeded its maximum size"
    assert 0 < len(ended.transcript.content.encode()) <= 30
    model_endpoint.wait_for_open(0)


def test_one_connection_serves_many_runs(model_endpoint: ModelEndpoint) -> None:
    import asyncio

    from agentctl.runtime.components.catalog import Catalog
    from tests.kit.fake_context import FakeContext, with_catalog

    async def work(catalog: Catalog) -> list[str]:
        runs = [FakeContext(catalog) for _ in range(20)]
        await asyncio.gather(
            *(each.execute("agent", "writer", f"m{n}", []) for n, each in enumerate(runs))
        )
        return [each.transcript.content for each in runs]

    answers = with_catalog(settings(model_endpoint), work)

    assert answers == [f"m{number}" for number in range(20)]


def test_empty_answer_completes_the_run(model_endpoint: ModelEndpoint) -> None:
    ended = run(settings(model_endpoint), "")

    assert ended.transcript.content == ""
    assert not [event for event in ended.events if isinstance(event, Content)]
