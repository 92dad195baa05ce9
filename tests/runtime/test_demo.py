"""Models of the provider `demo`, without a network."""

from __future__ import annotations

from typing import Any

import pytest

from agentctl.config.settings import Model, Team
from agentctl.errors import InvalidConfiguration
from agentctl.runtime.models.access import SLOW_SECONDS, SLOW_WORDS, DemoConnection
from tests.kit.fake_context import run, settings

LEADER = (Model("lead", "demo", "leader"),)


def test_echo_streams_the_message_in_pieces() -> None:
    ended = run(settings(instructions="Be plain."), "one two three\nfour five  six")

    assert ended.transcript.content == ended.joined_deltas == "one two three\nfour five  six"
    assert 1 < len(ended.events) <= 4
    assert ended.transcript.metrics["input_tokens"] == 8
    assert ended.transcript.metrics["output_tokens"] == 6
    assert ended.transcript.metrics["total_tokens"] == 14


@pytest.mark.parametrize("message", ["", " ", "\n\n x"])
def test_echo_keeps_white_space(message: str) -> None:
    assert run(settings(), message).transcript.content == message


def test_slow_takes_about_a_minute() -> None:
    assert 45 <= SLOW_WORDS * SLOW_SECONDS <= 75


@pytest.mark.parametrize("mode", ["coordinate", "route"])
def test_leader_delegates_to_the_first_member(mode: Any) -> None:
    configured = settings(models=LEADER, teams=(Team("t", "lead", ("writer",), mode=mode),))

    ended = run(configured, "hello there", kind="team", component="t")

    assert ended.transcript.content == "hello there"
    assert len(ended.children) == 1
    assert ended.transcript.metrics["total_tokens"] > 0


def test_leader_delegates_again_in_the_next_run_of_a_session() -> None:
    configured = settings(models=LEADER, teams=(Team("t", "lead", ("writer",)),))
    first = run(configured, "hello", kind="team", component="t")

    again = run(configured, "there", kind="team", component="t", history=first.transcript.messages)

    assert again.transcript.content == "there"
    assert len(again.children) == 1


def test_leader_without_members_echoes() -> None:
    assert run(settings(model="leader"), "hello there").transcript.content == "hello there"


@pytest.mark.parametrize(("message", "content"), [("7", "9"), ("shout 7", "SHOUT 7"), ("add", "3")])
def test_tool_calls_a_tool_with_the_message(message: str, content: str) -> None:
    tools = ("tests.runtime.sample_tools:add", "tests.runtime.sample_tools:shout")
    ended = run(settings(model="tool", tools=tools), message)

    assert ended.transcript.content == content


def test_tool_without_tools_echoes() -> None:
    assert run(settings(model="tool"), "hello").transcript.content == "hello"


def test_unknown_demo_model_is_refused() -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        DemoConnection("gpt")

    assert refused.value.hint == "use one of: echo, slow, leader, tool"
