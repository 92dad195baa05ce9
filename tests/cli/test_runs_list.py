"""`agentctl runs list`: filters by status, component and age."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Agentctl
from tests.cli.demo import Demo
from tests.cli.projects import make_project
from tests.kit.deployment import Deployment
from tests.kit.tables import every_row
from tests.kit.threaded_server import serve_in_thread

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


@every_row(
    "options, expected",
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
    on_demo: Agentctl, session: str, two: tuple[str, str], options: tuple[str, ...], expected: str
) -> None:
    ids = dict(zip(("ended", "live"), two, strict=True))
    found = on_demo("runs", "list", "--session", session, *options, "-o", "name")
    assert (found.code, found.lines) == (0, [ids[name] for name in expected.split()])


@every_row(
    "options, part",
    [
        (("--live", "--status", "RUNNING"), "--live and --status cannot be used together"),
        (("--agent", "echo", "--type", "team"), "exclude --type and --component"),
        (("--agent", "echo", "--component", "slow"), "exclude --type and --component"),
        (("--older-than", "soon"), "'soon' is not a time span"),
        (("--newer-than", "2999-01-01T00:00:00Z"), "is not within the last hundred years"),
    ],
)
def test_wrong_options_are_rejected(on_demo: Agentctl, options: tuple[str, ...], part: str) -> None:
    ended = on_demo("runs", "list", *options)
    assert (ended.code, ended.stdout) == (2, "")
    assert part in ended.stderr


def test_a_table_shows_age_and_duration(
    on_demo: Agentctl, session: str, two: tuple[str, str]
) -> None:
    table = on_demo("runs", "list", "--session", session, "-o", "table").lines
    assert table[0].split()[:6] == ["RUN", "STATUS", "COMPONENT", "AGE", "TOOK", "TOKENS"]
    assert re.search(r" (?:● running|◌ queued) +slow +\d+ (s|min) ", table[1])
    assert re.search(r" ✓ completed +echo +\d+ (s|min) +[\d.]+ (s|ms) ", table[2])


def test_beginning_of_an_id_names_the_run(on_demo: Agentctl, two: tuple[str, str]) -> None:
    ended, live = two
    unique = next(n for n in range(8, 37) if ended[:n] != live[:n])
    assert on_demo("runs", "get", ended[: max(unique, 20)], "-o", "name").lines == [ended]
    common = ended[:8]
    if live.startswith(common):
        ambiguous = on_demo("runs", "get", common)
        assert (ambiguous.code, ambiguous.stdout) == (2, "")
        assert ended in ambiguous.stderr
        assert f" runs begin with {common}" in ambiguous.stderr
    assert on_demo("runs", "get", "00000000-0000").code == 5
    assert on_demo("runs", "get", ended[:7]).code == 5


BOOM = """
async def boom(message, context):
    raise ValueError(f"no order {message}\\nin the shop")
"""


def test_failures_have_the_exception_and_its_place(agentctl: Agentctl, tmp_path: Path) -> None:
    config = make_project(tmp_path, rest='[[agents]]\nid = "boom"\nobject = "cli_boom:boom"')
    (tmp_path / "cli_boom.py").write_text(BOOM)
    local = ("--config", str(config))

    def mint(scope: str) -> dict[str, str]:
        minted = agentctl("token", "mint", "--sub", "me", "--scope", scope, *local)
        return {"AGENTCTL_TOKEN": minted.stdout.strip()}

    with serve_in_thread(Deployment(tmp_path)) as server:
        url = ("--url", server.url)
        debugger = mint("runs:debug")
        for order in ("17", "18"):
            started = agentctl(
                "runs", "start", "--agent", "boom", "-m", order, *url, env=mint("user")
            )
            assert started.code == 1
        failures = ("runs", "failures", "--newer-than", "1h")
        for read in (lambda *o: agentctl(*o, *local), lambda *o: agentctl(*o, *url, env=debugger)):
            names = read(*failures, "--agent", "boom", "-o", "name").lines
            first, *rows = read(*failures, "--sort-order", "asc", "-o", "tsv").lines
            row = dict(zip(first.split("\t"), rows[0].split("\t"), strict=True))
            assert [row["run_id"], row["cause_type"]] == [names[1], "ValueError"]
            assert row["cause_place"] == "cli_boom.py:3 in boom"
            assert row["error"].startswith("AGENT_FAILED: ")
            shown = read(*failures, "--limit", "1", "-o", "table")
            assert "ValueError: no order 18  cli_boom.py:3 in boom" in shown.stdout
            assert "in the shop" not in shown.stdout
            assert read(*failures, "--error-code", "TOOL_FAILED", "-o", "name").lines == []
            assert "no such option: --status" in read(*failures, "--status", "ERROR").stderr
        refused = agentctl(*failures, *url, env=mint("user"))
        assert (refused.code, refused.stdout) == (4, "")
        assert "runs:debug" in refused.stderr
