"""The screen of `agentctl top`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.css.query import NoMatches
from textual.widgets import DataTable, Footer, Input, Static

from agentctl.cli.show.transcript.model import clean_line
from agentctl.cli.top.cancel import CancelScreen
from agentctl.cli.top.feed import Feed, Row
from agentctl.cli.top.texts import COLUMNS, build_cells, draw_run
from agentctl.errors import AgentctlError

if TYPE_CHECKING:
    from agentctl.cli.target import Target

__all__ = ["TopApp"]

LONGEST_PAUSE = 8.0
"""Seconds between two attempts while the target does not respond."""

NARROW_COLUMNS = 90
LOW_ROWS = 16
"""Below these sizes the screen has no column USER, and no transcript."""

_PHASES = (("running", "running"), ("stopping", "stopping"), ("queued", "queued"))
_ENDS = (("completed", "✓"), ("failed", "✗"), ("stopped", "■"))


class TopApp(App[None]):
    """The live runs of a target, with the transcript of the selected one.

    Args:
        target: the open target.
        feed: the runs; an attribute too.
        every: seconds between two readings.
        read_only: the reason that nothing can be cancelled; empty if it can.
    """

    CSS = """
    #head, #counts { height: 1; }
    #counts { color: $text-muted; }
    #filter { height: 3; display: none; }
    #filter.open { display: block; }
    #runs { height: 1fr; }
    #runs.lost { opacity: 50%; }
    #pane { height: 40%; border: round $panel; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("q", "quit", "quit"),
        Binding("c", "cancel", "cancel"),
        Binding("C", "cancel_all", "cancel all"),
        Binding("slash", "filter", "filter"),
        Binding("s", "sort", "sort"),
        Binding("p", "pause", "pause"),
        Binding("y", "copy", "copy id"),
        Binding("escape", "close_filter", "back", show=False),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(self, target: Target, feed: Feed, *, every: float, read_only: str = "") -> None:
        super().__init__()
        self._target = target
        self.feed = feed
        self._every = every
        self._read_only = read_only
        self._words = ""
        self._by_age = False
        self._paused = False
        self._shown: list[str] = []
        self._columns: tuple[str, ...] = ()
        self._read_at = time.monotonic()
        self._problem = ""

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Static(id="counts", markup=False)
        yield Input(id="filter", placeholder="agent:ID user:ID session:ID status:running or a word")
        table = DataTable[Text](id="runs", cursor_type="row")
        table.zebra_stripes = False
        yield table
        with VerticalScroll(id="pane"):
            yield Static(id="transcript", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self._arrange()
        self.query_one("#runs").focus()
        for work in (self._poll, self._follow):
            self.run_worker(self._until_closed(work), group=work.__name__)

    def on_resize(self) -> None:
        self._arrange()
        self._show_rows()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide the keys for a cancel if nothing can be cancelled."""
        return not (self._read_only and action in ("cancel", "cancel_all"))

    async def _until_closed(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run work until the screen is closed, which removes the widgets that it writes to."""
        with suppress(NoMatches):
            await work()

    async def _poll(self) -> None:
        """Read the runs again and again, less often while the target does not respond."""
        pause = self._every
        while True:
            if not self._paused:
                try:
                    await self.feed.refresh()
                except AgentctlError as failure:
                    pause = min(2 * pause, max(LONGEST_PAUSE, self._every))
                    self._problem = clean_line(failure.detail)
                else:
                    pause, self._problem, self._read_at = self._every, "", time.monotonic()
                self._show_rows()
            until = time.monotonic() + pause
            while (left := until - time.monotonic()) > 0:
                self._show_head(left)
                await asyncio.sleep(min(left, 1.0))

    async def _follow(self) -> None:
        """Show the transcript of the selected run, and read it again while it is selected."""
        transcript = self.query_one("#transcript", Static)
        while True:
            run_id = self.selected_id
            if run_id is None:
                transcript.update(Text("no runs", "dim"))
            elif not self._paused and self.query_one("#pane").display:
                try:
                    record = (await self._target.operations.get_run(run_id)).value
                except AgentctlError as failure:
                    transcript.update(Text(clean_line(failure.detail), "red"))
                else:
                    pane = self.query_one("#pane", VerticalScroll)
                    width = pane.content_size.width - pane.scrollbar_size_vertical
                    transcript.update(draw_run(record, min(width, 100)))
            for _ in range(max(1, round(self._every / 0.1))):
                await asyncio.sleep(0.1)
                if self.selected_id != run_id:
                    break

    @property
    def selected_id(self) -> str | None:
        """The id of the run under the cursor; None without one."""
        row = self.query_one("#runs", DataTable).cursor_row
        return self._shown[row] if 0 <= row < len(self._shown) else None

    def _arrange(self) -> None:
        """Fit columns and transcript to the size of the screen."""
        self.query_one("#pane").display = self.size.height >= LOW_ROWS
        narrow = self.size.width < NARROW_COLUMNS
        columns = tuple(name for name in COLUMNS if not (narrow and name == "USER"))
        if columns != self._columns:
            table = self.query_one("#runs", DataTable)
            table.clear(columns=True)
            for name in columns:
                table.add_column(name, key=name)
            self._columns, self._shown = columns, []

    def _show_rows(self) -> None:
        """Write the rows: cells in place as long as the runs are the same."""
        table = self.query_one("#runs", DataTable)
        table.set_class(bool(self._problem), "lost")
        rows = self.feed.rows(self._words, by_age=self._by_age)
        ids = [row.run_id for row in rows]
        if ids != self._shown:
            selected = self.selected_id
            table.clear()
            for row in rows:
                table.add_row(*self._cells(row), key=row.run_id)
            self._shown = ids
            if selected in ids:
                table.move_cursor(row=ids.index(selected), animate=False)
        else:
            for row in rows:
                for name, cell in zip(self._columns, self._cells(row), strict=True):
                    table.update_cell(row.run_id, name, cell, update_width=True)
        self._show_head(self._every)

    def _cells(self, row: Row) -> list[Text]:
        cells = dict(zip(COLUMNS, build_cells(row), strict=True))
        return [cells[name] for name in self._columns]

    def _show_head(self, left: float) -> None:
        place = self._target.place.removeprefix("on ")
        head = f"agentctl top · {place} · every {self._every:g} s"
        head += " · paused" if self._paused else ""
        head += f" · read-only: {self._read_only}" if self._read_only else ""
        self.query_one("#head", Static).update(clean_line(head))
        if self._problem:
            silent = time.monotonic() - self._read_at
            text = f"{self._problem} for {silent:.0f} s, trying again in {max(left, 0):.0f} s"
            self.query_one("#counts", Static).update(Text(text, "yellow"))
            return
        live, ended = self.feed.count_live(), self.feed.count_ended()
        parts = [f"{live[name]} {words}" for name, words in _PHASES]
        ends = "  ".join(f"{ended[name]} {glyph}" for name, glyph in _ENDS)
        line = f"{'  '.join(parts)} · ended in 5 min: {ends}"
        line += f" · filter: {clean_line(self._words)}" if self._words else ""
        self.query_one("#counts", Static).update(line)

    # Keys

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.add_class("open")
        field.focus()

    def action_close_filter(self) -> None:
        self.query_one("#filter").remove_class("open")
        self.query_one("#runs").focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        if event.input.id == "filter":
            self._words = event.value
            self._show_rows()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        if event.input.id == "filter":
            self.action_close_filter()

    def action_sort(self) -> None:
        self._by_age = not self._by_age
        self._show_rows()

    def action_pause(self) -> None:
        self._paused = not self._paused
        self._show_head(self._every)

    def action_copy(self) -> None:
        if self.selected_id is not None:
            self.copy_to_clipboard(self.selected_id)
            self.notify(f"copied {clean_line(self.selected_id)}", markup=False)

    def action_cancel(self) -> None:
        run = self.feed.runs.get(self.selected_id or "")
        if run is not None and Row(run, 0).is_live:
            self._open_cancel([run])

    def action_cancel_all(self) -> None:
        rows = self.feed.rows(self._words)
        runs = [row.run for row in rows if row.is_live and row.level == 0]
        if runs:
            self._open_cancel(runs, asks_number=True)

    def _open_cancel(self, runs: list[dict[str, Any]], *, asks_number: bool = False) -> None:
        members = sum(
            run.get("parent_run_id") in {each["run_id"] for each in runs} and Row(run, 1).is_live
            for run in self.feed.runs.values()
        )
        screen = CancelScreen(
            self._target.operations, runs, members=members, asks_number=asks_number
        )
        self.push_screen(screen)
