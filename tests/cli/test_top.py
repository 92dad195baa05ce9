"""`agentctl top`: the screen on a real server, driven by keys."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from agentctl.cli.commands.top import create_app
from agentctl.cli.target import Target
from agentctl.cli.top.app import TopApp
from agentctl.cli.top.feed import Row, matches
from agentctl.cli.top.texts import build_cells, draw_run
from agentctl.remote import RemoteOperations
from agentctl.requests import RunFilter
from tests.cli.conftest import Agentctl, Terminal
from tests.cli.demo import Demo

pytestmark = pytest.mark.slow

DEADLINE = 60.0
LONG = "word " * 2_000

Journey = Callable[[TopApp, Pilot[None]], Awaitable[None]]


def on_screen(demo: Demo, journey: Journey, *, read_only: str = "", rows: int = 40) -> None:
    """Open the screen on the demo server, and follow a journey."""

    async def main() -> None:
        async with RemoteOperations(demo.url, demo.token) as operations:
            target = Target(operations, f"on {demo.url}")
            wanted = RunFilter(user_id=None)
            app = create_app(target, wanted, every=0.2, read_only=read_only)
            async with app.run_test(size=(120, rows)) as pilot:
                await journey(app, pilot)

    asyncio.run(main())


async def until(pilot: Pilot[None], condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():
            await pilot.pause(0.05)


def text_of(app: TopApp, widget: str) -> str:
    return str(app.screen.query_one(widget, Static).content)


def rows_of(app: TopApp) -> list[list[str]]:
    table = app.query_one("#runs", DataTable)
    return [[str(cell) for cell in table.get_row_at(at)] for at in range(table.row_count)]


def cell(app: TopApp, run: str, at: int) -> str:
    return next((row[at] for row in rows_of(app) if row[0].strip() == run[:13]), "")


def test_a_cancel_shows_both_facts(demo: Demo) -> None:
    run = demo.run("top-1", LONG, agent="slow", leave=True)

    async def journey(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "running" in cell(app, run, 1))
        await pilot.press("slash", *"session:top-1", "enter")
        await until(pilot, lambda: len(rows_of(app)) == 1)
        await until(pilot, lambda: "slow" in text_of(app, "#transcript"))
        await pilot.press("c")
        await until(pilot, lambda: "Cancel 1 run?" in text_of(app, "#facts"))
        await pilot.press("tab")
        await pilot.press("enter")
        await until(pilot, lambda: "stopped: 1" in text_of(app, "#facts"))
        assert "cancel requested: 1 of 1" in text_of(app, "#facts")
        await pilot.press("escape")
        await until(pilot, lambda: "stopped" in cell(app, run, 1))
        assert "1 ■" in text_of(app, "#counts")

    on_screen(demo, journey)


def test_a_dialog_that_is_closed_cancels_nothing(demo: Demo) -> None:
    run = demo.run("top-2", LONG, agent="slow", leave=True)

    async def journey(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "running" in cell(app, run, 1))
        await pilot.press("c", "enter")
        await pilot.pause(0.3)
        assert "running" in cell(app, run, 1)

    on_screen(demo, journey)
    on_screen(demo, _cancel_every_run)


async def _cancel_every_run(app: TopApp, pilot: Pilot[None]) -> None:
    await until(pilot, lambda: bool(rows_of(app)))
    count = len(rows_of(app))
    await pilot.press("C")
    await until(pilot, lambda: "?" in text_of(app, "#facts"))
    app.screen.query_one("#number", Input).focus()
    await pilot.press(*str(count))
    await pilot.click("#cancel")
    await until(pilot, lambda: f"stopped: {count}" in text_of(app, "#facts"))


def test_read_only_has_no_cancel(demo: Demo) -> None:
    run = demo.run("top-3", LONG, agent="slow", leave=True)

    async def journey(app: TopApp, pilot: Pilot[None]) -> None:
        await until(pilot, lambda: "running" in cell(app, run, 1))
        await pilot.press("c", "C")
        await pilot.pause(0.2)
        assert app.screen is app.screen_stack[0]
        assert "read-only: --read-only" in text_of(app, "#head")

    on_screen(demo, journey, read_only="--read-only", rows=15)
    on_screen(demo, _cancel_every_run)


def test_a_lost_server_leaves_the_last_rows() -> None:
    async def main() -> None:
        async with RemoteOperations("http://127.0.0.1:9", None) as operations:
            target = Target(operations, "on http://127.0.0.1:9")
            app = create_app(target, RunFilter(), every=0.2, read_only="")
            async with app.run_test(size=(80, 24)) as pilot:
                await until(pilot, lambda: "trying again in" in text_of(app, "#counts"))

    asyncio.run(main())


@pytest.mark.parametrize("hostile", ["\x1b[31mred\x1b[0m", "\u202egnp", "[bold]x[/bold]", "a\nb"])
def test_hostile_texts_are_shown_as_text(hostile: str) -> None:
    run: dict[str, Any] = {
        "run_id": hostile, "session_id": hostile, "agent_id": hostile, "user_id": hostile,
        "status": "ERROR", "error": {"code": hostile, "detail": hostile}, "input": hostile,
        "content": hostile, "created_at": "2030-01-31T12:00:00Z", "stopped_at": None,
    }  # fmt: skip
    shown = [str(each) for each in build_cells(Row(run, 0))] + [draw_run(run, 100).plain]
    for text in shown:
        assert not set(text) & {"\x1b", "\u202e"}
    assert "\n" not in "".join(shown[:-1])


def test_words_filter_runs() -> None:
    run = {
        "run_id": "r1", "agent_id": "clerk", "user_id": "ada", "session_id": "s1",
        "status": "RUNNING",
    }  # fmt: skip
    matching = ("", "clerk", "agent:clerk", "user:ada status:running", "R1")
    assert all(matches(run, words) for words in matching)
    assert not any(matches(run, words) for words in ("bob", "team:clerk", "agent:clerk user:bob"))


def test_off_a_terminal_top_is_refused(agentctl: Agentctl, demo: Demo) -> None:
    ended = agentctl("top", "--config", str(demo.config))
    assert ended.code == 2
    assert "top needs a terminal" in ended.stderr


def test_a_terminal_shows_the_screen(terminal: Terminal, demo: Demo) -> None:
    seen = terminal(
        "top", "--url", demo.url, "--timeout", "20",
        env={"AGENTCTL_TOKEN": demo.token, "TERM": "xterm"}, when="agentctl top", types="q",
    )  # fmt: skip
    assert seen.code == 0
