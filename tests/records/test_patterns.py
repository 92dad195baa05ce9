"""The patterns of PEM blocks and JSON strings match as simple scanners do, in linear time."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable

import pytest

from agentctl.auth.keys.material import PEM_BLOCK
from agentctl.records.strict import JSON_STRING, has_too_many_values, parse_object

PEM_PARTS = ("-----BEGIN A-----", "-----END A-----", "-----END B-----", "-----", "-", "a\n")


def find_pem_blocks(text: str) -> list[tuple[int, int]]:
    """Find the blocks whose content has no five hyphens, from left to right."""
    found = []
    start = text.find("-----BEGIN ")
    while start >= 0:
        label, _, rest = text[start + 11 :].partition("-----")
        content = start + 11 + len(label) + 5
        end = text.find("-----", content)
        line = f"-----END {label}-----"
        position = start + 1
        if rest and re.fullmatch("[A-Z0-9 ]+", label) and end >= 0 and text.startswith(line, end):
            position = end + len(line)
            found.append((start, position))
        start = text.find("-----BEGIN ", position)
    return found


def find_json_strings(text: str) -> list[tuple[int, int]]:
    """Find the strings from left to right; one without an end is as long as its text allows."""
    found = []
    position = 0
    while (start := text.find('"', position)) >= 0:
        position = start + 1
        while position < len(text) and text[position] != '"':
            if text[position] == "\\" and position + 1 == len(text):
                break
            position += 2 if text[position] == "\\" else 1
        position += text[position : position + 1] == '"'
        found.append((start, position))
    return found


@pytest.mark.parametrize(
    ("pattern", "parts", "length", "reference"),
    [
        (PEM_BLOCK, PEM_PARTS, 6, find_pem_blocks),
        (JSON_STRING, ('"', "\\", "a", "\n"), 7, find_json_strings),
    ],
    ids=["pem", "json"],
)
def test_a_pattern_matches_what_a_scanner_finds(
    pattern: str,
    parts: tuple[str, ...],
    length: int,
    reference: Callable[[str], list[tuple[int, int]]],
) -> None:
    compiled = re.compile(pattern)
    for size in range(length + 1):
        for chosen in itertools.product(parts, repeat=size):
            text = "".join(chosen)
            assert [match.span() for match in compiled.finditer(text)] == reference(text), text


HOSTILE_PEM = (
    "-----BEGIN PUBLIC KEY-----\n" * 16_000,
    "-----BEGIN A-----" + "-x" * 200_000,
    "-----BEGIN A-----" + "----x" * 80_000,
    "-----BEGIN " + "A" * 400_000,
    ("-----BEGIN A-----" + "-x" * 20) * 7_000,
)
HOSTILE_JSON = ('"' + "\\a" * 200_000, '\\"' * 200_000, '"a' * 200_000, '"' + "a" * 400_000)


def measure(work: Callable[[str], object], text: str) -> float:
    """Return the CPU seconds of work on a text: the least of three times."""
    seconds = []
    for _ in range(3):
        begun = time.process_time()
        work(text)
        seconds.append(time.process_time() - begun)
    return min(seconds)


def check_linear_time(work: Callable[[str], object], text: str) -> None:
    """Check that a text takes about 32 times as long as a 32nd of it, and not 1,024 times.

    The seconds themselves say little: a busy machine takes more of them, even of its CPU. A large
    text also leaves the caches of the CPU, which makes it up to three times as slow.
    """
    part = measure(work, text[: len(text) // 32])
    assert measure(work, text) < 256 * part


@pytest.mark.parametrize("text", HOSTILE_PEM, ids=lambda text: text[:20].strip("-\n "))
def test_hostile_pem_files_take_linear_time(text: str) -> None:
    def find(text: str) -> None:
        assert re.findall(PEM_BLOCK, text) == []

    check_linear_time(find, text)


@pytest.mark.parametrize("text", HOSTILE_JSON, ids=lambda text: text[:4])
def test_hostile_json_takes_linear_time(text: str) -> None:
    """The sizes are those of a body below the limit, with many values."""

    def read(text: str) -> None:
        assert has_too_many_values(b"," * 70_000 + text.encode())
        with pytest.raises(ValueError, match="is"):
            parse_object(b"{" * 9 + text.encode())

    check_linear_time(read, text)
