"""Stop texts: where the text of an answer ends, however the model cuts it into pieces."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from agentctl.runtime.transcript.answer import StopTexts
from tests.kit.tables import every_row

ROWS = [
    # The text of a model, the stop texts, and what is left of the text.
    ("one STOP two", ["STOP"], "one "),
    ("one two three", ["three", "two"], "one "),
    ("one two three", ["e two t"], "on"),
    ("ababac", ["abac"], "ab"),
    ("one obs", ["observe"], "one obs"),
    ("one", ["one"], ""),
    ("one", ["two", "x" * 256], "one"),
    ("öö ümlaut", ["üm"], "öö "),
]


def cut_pieces(pieces: Sequence[str], texts: Sequence[str]) -> tuple[str, bool]:
    """Return the text of an answer in pieces, and True if a stop text has completed the run."""
    added: list[str] = []

    def complete() -> None:
        raise asyncio.CancelledError

    stop_texts = StopTexts(texts, complete)
    try:
        for piece in pieces:
            stop_texts.take(piece, added.append)
        stop_texts.release()
    except asyncio.CancelledError:
        return "".join(added), True
    return "".join(added), False


@every_row("text, stop, expected", ROWS)
def test_text_ends_before_the_first_stop_text(text: str, stop: list[str], expected: str) -> None:
    for size in range(1, len(text) + 1):
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        assert cut_pieces(pieces, stop) == (expected, expected != text), pieces


def test_only_what_may_begin_a_stop_text_is_held_back() -> None:
    added: list[str] = []
    stop_texts = StopTexts(["observe"], lambda: None)
    stop_texts.take("one ob", added.append)
    assert added == ["one "]
    stop_texts.take("jects", added.append)
    assert "".join(added) == "one objects"


def test_text_that_was_held_back_is_released_once() -> None:
    added: list[str] = []
    stop_texts = StopTexts(["observe"], lambda: None)
    stop_texts.take("one ob", added.append)
    stop_texts.release()
    stop_texts.release()
    assert "".join(added) == "one ob"
