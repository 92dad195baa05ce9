"""Characters that a stream cuts: each half arrives as a surrogate of its own."""

from __future__ import annotations

import pytest

from agentctl.config.settings import Agent
from agentctl.records.text import PieceJoiner, replace_unstorable
from tests.kit.fake_context import attempt, settings
from tests.kit.model import ModelEndpoint
from tests.runtime.provider_scripts import build_chunk, script

SPLIT = [
    (["x \ud83d", "\ude00 y"], "x \U0001f600 y"),
    (["\ud83d", "", "\ude00"], "\U0001f600"),
    (["\ud83d\ude00"], "\U0001f600"),
    (["\ud83d", "x"], "\ufffdx"),
    (["\ud83d", "\ud83d", "\ude00"], "\ufffd\U0001f600"),
    (["\ude00", "\ud83d"], "\ufffd\ufffd"),
    (["a\0", "b"], "a\ufffdb"),
]


@pytest.mark.parametrize(("pieces", "text"), SPLIT)
def test_halves_of_a_character_are_joined(pieces: list[str], text: str) -> None:
    joiner = PieceJoiner()
    assert "".join([*map(joiner.add, pieces), joiner.end()]) == text


def test_two_surrogates_in_one_text_are_their_character() -> None:
    assert replace_unstorable("a\ud83d\ude00\ud83d") == "a\U0001f600\ufffd"


@pytest.mark.parametrize(("pieces", "text"), SPLIT)
def test_model_may_cut_a_character(
    model_endpoint: ModelEndpoint, pieces: list[str], text: str
) -> None:
    chunks = [build_chunk({"content": piece}) for piece in pieces]
    ended, failure = attempt(
        settings(model_endpoint, model="script"), script(*chunks, build_chunk({}, "stop"))
    )
    assert failure is None
    assert ended.transcript.content == text


def test_model_of_a_library_may_cut_a_character() -> None:
    agent = Agent("code", object="tests.runtime.sample_frameworks:pydantic_cut")
    ended, failure = attempt(settings(agents=(agent,)), "hello", component="code")
    assert failure is None
    assert ended.transcript.content == "x \U0001f600 y\ufffd"
