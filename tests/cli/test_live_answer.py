"""The answer of a run at a terminal: drawn as Markdown, each block once it is complete."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from rich.console import Console

from agentctl.cli.io import IO, using_io
from agentctl.cli.show.event_lines import EventLines, create_event_lines
from agentctl.cli.show.terminal import display_width, note
from agentctl.cli.show.transcript.markdown import draw_markdown
from agentctl.records.events import parse_event
from agentctl.transcripts.model import count_seconds
from tests.cli.conftest import Agentctl, Terminal
from tests.cli.projects import make_project
from tests.cli.test_pages import CONTROLS

TABLE = "| name | price |\n| --- | --- |\n| tea | 3 |\n\n"
CODE = "```python\nprint('**no**')\n```\n\n"

AGENT = f"""
import asyncio

async def answer(message, context):
    for part in ("Some **bold", "** text\\n\\n", *{TABLE!r}, {CODE!r}, "- last", " one"):
        yield part
        await asyncio.sleep(0)
    if message == "wait":
        await asyncio.sleep(120)
"""

DRAWN = ["Some bold text", "", "name  price", "───────────", "tea   3", "",
         "    print('**no**')", "", " • last one"]  # fmt: skip


@pytest.fixture
def here(tmp_path: Path) -> tuple[str, ...]:
    """Options for an agent whose answer is Markdown in parts."""
    (tmp_path / "marked_code.py").write_text(AGENT)
    tables = '[[databases]]\nid = "main"\nurl = "sqlite:///runs.db"\n'
    agent = '[[agents]]\nid = "marked"\nobject = "marked_code:answer"\n'
    return "--config", str(make_project(tmp_path, rest=tables + agent))


def read_screen(written: str) -> list[str]:
    """Return the lines that are on a screen at the end, without trailing spaces."""
    assert "\x1b[A" not in written  # the cursor stays in its line
    kept = re.sub(r"[^\n]*\r\x1b\[K", "", written)
    return [line.rstrip() for line in re.sub(r"\x1b\[[?0-9;]*[a-z]", "", kept).splitlines()]


def test_reported_duration_is_that_of_the_run_without_imports(
    agentctl: Agentctl, tmp_path: Path
) -> None:
    (tmp_path / "slow_code.py").write_text(f"import time\n\ntime.sleep(2)\n{AGENT}")
    tables = '[[databases]]\nid = "main"\nurl = "sqlite:///runs.db"\n'
    agent = '[[agents]]\nid = "slow"\nobject = "slow_code:answer"\n'
    place = ("--config", str(make_project(tmp_path, rest=tables + agent)))
    started = agentctl("runs", "start", "--agent", "slow", "-m", "go", *place)
    reported = re.search(r" completed in (.+)$", started.stderr)
    (run,) = json.loads(agentctl("runs", "list", *place, "-o", "json").stdout)["data"]
    took = count_seconds(run["started_at"], run["finished_at"])
    assert took is not None
    assert reported is not None, started.stderr
    number, unit = reported[1].split()
    # The first event is written after the row; a second allows for the rounding of the text.
    assert float(number) / (1_000 if unit == "ms" else 1) <= took + 1, (reported[1], run)


def test_start_and_watch_draw_markdown(
    terminal: Terminal, agentctl: Agentctl, here: tuple[str, ...]
) -> None:
    start = ("runs", "start", "--agent", "marked", "-m", "go", *here)
    seen = terminal(*start, env={"TERM": "xterm", "NO_COLOR": ""})
    assert "\x1b[1mbold\x1b[0m" in seen.screen
    first, *drawn, last = read_screen(seen.screen)
    run_id = first.split()[2]
    assert (drawn, seen.code) == (DRAWN, 0)
    assert last.startswith(f"run {run_id} completed in ")

    watched = terminal("runs", "watch", run_id, *here, env={"TERM": "xterm"})
    assert read_screen(watched.screen)[1:-1] == DRAWN
    assert "\x1b[1m" not in watched.screen

    sent = f"Some **bold** text\n\n{TABLE}{CODE}- last one\n"
    assert agentctl("runs", "watch", run_id, *here).stdout == sent
    assert sent in terminal("runs", "watch", run_id, *here).screen  # TERM is dumb
    assert (
        sent in terminal("runs", "watch", run_id, "-o", "tsv", *here, env={"TERM": "xterm"}).screen
    )


def test_an_interrupt_within_a_block_draws_it(terminal: Terminal, here: tuple[str, ...]) -> None:
    start = ("runs", "start", "--agent", "marked", "-m", "wait", *here)
    seen = terminal(*start, env={"TERM": "xterm"}, types="\x03", when="- last one")
    _, *drawn, last = read_screen(seen.screen)
    assert (drawn, seen.code) == (DRAWN, 130)
    assert last.endswith(" is CANCELLED")


class Screen(io.TextIOWrapper):
    """A terminal in memory."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), "utf-8", newline="", write_through=True)

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        self.seek(0)
        return self.read()


def take(lines: EventLines, name: str, **data: object) -> None:
    """Have an event of the run `r1` written."""
    event = json.dumps({"run_id": "r1", **data}).encode()
    lines.take(parse_event(name, event))


@pytest.fixture
def screen() -> Screen:
    return Screen()


@pytest.fixture
def lines(screen: Screen) -> Iterator[EventLines]:
    """Draws the run `r1` on a screen of 40 columns."""
    with (
        patch.dict(os.environ, {"COLUMNS": "40", "TERM": "xterm", "NO_COLOR": "1"}),
        using_io(IO(io.StringIO(), screen, screen)),
    ):
        yield create_event_lines("agent", "table", run_id="r1")


def test_notes_are_above_a_block_that_is_not_complete(lines: EventLines, screen: Screen) -> None:
    take(lines, "RunContent", content="| a |\n| - |\n| b")
    assert screen.text.endswith("\x1b[?7l| a | | - | | b\x1b[?7h")
    lines.end_line()
    note("the stream was interrupted")
    assert screen.text.endswith(
        "\r\x1b[Kthe stream was interrupted\n\x1b[?7l| a | | - | | b\x1b[?7h"
    )
    assert lines.in_line
    take(lines, "TeamRunStarted", run_id="m1", agent_id="echo")
    take(lines, "RunContent", content=" |\n| c |\n")
    take(lines, "ToolCallStarted", tool={"tool_call_id": "1", "tool_name": "nap"})
    assert not lines.in_line
    take(lines, "RunContent", content="end")
    take(lines, "RunCompleted", content="| a |\n| - |\n| b |\n| c |\nend.", metrics={})
    lines.flush()
    assert read_screen(screen.text) == [
        "the stream was interrupted", "  echo: started", "a", "─", "b", "c",
        "  calls nap {}", "end.",
    ]  # fmt: skip


@pytest.mark.parametrize("columns", [1, 2, 3, 4, 8])
def test_terminal_of_few_columns_is_no_error(columns: int, screen: Screen) -> None:
    text = (
        "# Head\n\n- one\n  1. two\n\n> quoted\n\n| a | b |\n| - | - |\n| c | d |\n\n"
        "```\ncode\n```\n日本 end\n\n---\n"
    )
    variables = {"COLUMNS": str(columns), "TERM": "xterm", "NO_COLOR": "1"}
    with patch.dict(os.environ, variables), using_io(IO(io.StringIO(), screen, screen)):
        lines = create_event_lines("agent", "table", run_id="r1")
        for part in text.splitlines(keepends=True):
            take(lines, "RunContent", content=part)
        take(lines, "TeamRunStarted", run_id="m1", agent_id="echo")
        take(lines, "RunCompleted", content=text, metrics={})
        lines.flush()
    assert "code" in screen.text


def test_a_draft_is_one_safe_line_that_fits(lines: EventLines, screen: Screen) -> None:
    take(lines, "RunContent", content="\x1b[2J\r\u202e" + "日本\t" * 300 + "end")
    draft = screen.text.rpartition("\x1b[?7l")[2].removesuffix("\x1b[?7h")
    assert draft.endswith("日本 end")
    assert (CONTROLS.findall(draft), display_width(draft)) == ([], 36)
    with patch.dict(os.environ, {"COLUMNS": "50"}):
        take(lines, "RunContent", content=f" {'word ' * 20}\n\nnext")
    assert "\x1b[2J" not in screen.text
    lines.flush()
    drawn = read_screen(screen.text)
    assert drawn[0].startswith("\\x1b[2J\\r\\u202e日本")
    assert max(map(len, drawn)) > 40
    assert drawn[-2:] == ["", "next"]


def test_wide_tables_and_pictures_lose_nothing() -> None:
    names = [f"column {n} of the table" for n in range(14)]
    line = "| {} |\n".format
    table = line(" | ".join(names)) + line(" | ".join("---" for _ in names))
    table += line(" | ".join(f"{n}-of-2026-11-22" for n in range(14)))
    text = f"{table}\n[![alt text](https://a.example/b.png)](https://c.example/d)\n"
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(draw_markdown(text))
    shown = console.export_text()
    assert "…" not in shown
    for number, name in enumerate(names):
        assert f"{name}: {number}-of-2026-11-22" in shown
    assert "alt text (https://a.example/b.png)" in shown
    assert "https://c.example/d" in shown
    console.print(draw_markdown("| a | b |\n| --- | --- |\n| 1 | 2 |\n"))
    assert "a  b" in console.export_text()
