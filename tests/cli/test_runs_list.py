"""`agentctl runs list`: filters by status, component and age, locally and on a server."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

import pytest

from tests.cli.conftest import Agentctl
from tests.cli.demo import Demo

_numbers = itertools.count()


@pytest.fixture
def session() -> str:
    return f"l-{next(_numbers)}"


@pytest.fixture
def two(demo: Demo, session: str, agentctl: Agentctl) -> Iterator[tuple[str, str]]:
    """A finished run and a live one in a new session."""
    ended = demo.run(session, "hello")
    live = demo.run(session, "one two", agent="slow", leave=True)
    yield ended, live
    agentctl("runs", "cancel", live, "--config", str(demo.config))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--live",), "live"),
        (("--agent", "echo"), "ended"),
        (("--agent", "slow"), "live"),
        (("--team", "slow"), ""),
        (("--workflow", "relay"), ""),
        (("--component", "echo"), "ended"),
        (("--type", "team"), ""),
        (("--live", "--agent", "echo"), ""),
        (("--older-than", "1h"), ""),
        (("--newer-than", "1h"), "live ended"),
        (("--newer-than", "1h", "--older-than", "30m"), ""),
        (("--live", "--newer-than", "1h"), "live"),
        (("--user", "ada", "--status", "completed"), "ended"),
    ],
)
def test_list_filters(
    through: Agentctl, session: str, two: tuple[str, str], options: tuple[str, ...], expected: str
) -> None:
    ids = dict(zip(("ended", "live"), two, strict=True))
    found = through("runs", "list", "--session", session, *options, "-o", "name")
    assert (found.code, found.lines) == (0, [ids[name] for name in expected.split()])


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("--live", "--status", "RUNNING"), "--live and --status exclude each other"),
        (("--agent", "echo", "--type", "team"), "exclude --type and --component"),
        (("--agent", "echo", "--component", "slow"), "exclude --type and --component"),
        (("--older-than", "soon"), "'soon' is not a time span"),
        (("--newer-than", "2999-01-01T00:00:00Z"), "is not within the last hundred years"),
    ],
)
def test_wrong_options_are_rejected(through: Agentctl, options: tuple[str, ...], part: str) -> None:
    ended = through("runs", "list", *options)
    assert (ended.code, ended.stdout) == (2, "")
    assert part in ended.stderr


def test_a_table_shows_age_and_duration(
    through: Agentctl, session: str, two: tuple[str, str]
) -> None:
    table = through("runs", "list", "--session", session, "-o", "table").lines
    assert table[0].split()[:6] == ["RUN", "STATUS", "COMPONENT", "AGE", "TOOK", "TOKENS"]
    assert re.search(r" (?:● running|◌ queued) +slow +\d+ (s|min) ", table[1])
    assert re.search(r" ✓ completed +echo +\d+ (s|min) +[\d.]+ (s|ms) ", table[2])


def test_beginning_of_an_id_names_the_run(through: Agentctl, two: tuple[str, str]) -> None:
    ended, live = two
    unique = next(n for n in range(8, 37) if ended[:n] != live[:n])
    assert through("runs", "get", ended[: max(unique, 20)], "-o", "name").lines == [ended]
    common = ended[:8]
    if live.startswith(common):
        ambiguous = through("runs", "get", common)
        assert (ambiguous.code, ambiguous.stdout) == (2, "")
        assert ended in ambiguous.stderr
        assert f" runs begin with {common}" in ambiguous.stderr
    assert through("runs", "get", "00000000-0000").code == 5
    assert through("runs", "get", ended[:7]).code == 5
