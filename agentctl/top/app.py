"""The screen of `agentctl top`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import ClassVar

from rich.text import Text
from textual import on
from textual.app import App, ComposeResult, ScreenStackError
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.css.query import NoMatches
from textual.widgets import DataTable, Footer, Input, Static

from agentctl.cli.show.transcript.draw import SHORT_ID
from agentctl.cli.target import Target
from agentctl.errors import AgentctlError, Unavailable
from agentctl.top.dialogs import CancelScreen, DecideScreen, HelpScreen
from agentctl.top.feed import Run, RunFeed, arrange_runs, is_live, is_paused, list_descendants
from agentctl.top.head import (
    ConnectionState,
    ScreenSettings,
    count_runs,
    describe_failure,
    draw_head,
    draw_tabs,
)
from agentctl.top.list import RecordTable
from agentctl.top.texts import EventLog, draw_facts
from agentctl.top.views import Form, View
from agentctl.transcripts.model import clean_line

LOW_ROWS = 16
"""Rows of the screen below which it has no pane."""

DIALOG_SECONDS = 0.5
"""Seconds between two readings while the dialog about a cancel is open."""

DRAW_SECONDS = 0.2
"""Seconds between two drawings of events that arrive."""

INTERRUPTED = 130
"""Exit code after Ctrl-C."""

FORMS: tuple[Form, ...] = ("timeline", "events")


class TopApp(App[None]):
    """The views of a target, with a pane about the selected row."""

    CSS = """
    #head, #tabs { height: 1; }
    #counts { height: auto; max-height: 3; }
    #counts.lost { color: $text-warning; }
    #tabs { color: $text-muted; }
    #filter { display: none; }
    #filter.open { display: block; }
    #list { height: 1fr; }
    #list.lost { opacity: 50%; }
    #empty { height: 1fr; display: none; padding: 0 1; color: $text-muted; }
    #pane { height: 45%; border: round $panel; padding: 0 1; }
    #pane:focus { border: round $accent; }
    Screen.open #pane { height: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", show=False),
        Binding("t", "form('timeline')", "timeline"),
        Binding("e", "form('events')", "events"),
        Binding("a", "decide", "decide"),
        Binding("c", "cancel", "cancel"),
        Binding("C", "cancel_all", "cancel all", show=False),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("s", "sort", "sort"),
        Binding("p", "pause", "pause"),
        Binding("question_mark", "help", "help", key_display="?"),
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "interrupt", "quit", show=False, priority=True),
        Binding("r", "list_runs", "runs", show=False),
        Binding("u", "update", "update", show=False),
        Binding("y", "copy", "copy id", show=False),
        Binding("escape", "close", "back", show=False),
        *(Binding(str(at), f"view({at - 1})", show=False) for at in range(1, 5)),
    ]
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self, target: Target, feed: RunFeed, views: Sequence[View], settings: ScreenSettings
    ) -> None:
        super().__init__()
        self.theme = "ansi-dark"  # the colors of the terminal, light or dark
        self._target = target
        self.feed = feed
        self._views = views
        self._settings = settings
        self._view = views[0]
        self._words = ""
        self._sorts = {view.name: 0 for view in views}
        self._paused = False
        self._form: Form = "transcript"
        self.connection = ConnectionState()
        self._wake = asyncio.Event()
        self._pane_wake = asyncio.Event()
        self._drawn: tuple[object, ...] = ()
        self._events: EventLog | None = None
        self._draws_soon = False
        self._texts: dict[str, Text] = {}
        self._are_read = {views[0].name}

    def compose(self) -> ComposeResult:
        yield Static(id="head", markup=False)
        yield Static(id="counts", markup=False)
        yield Static(id="tabs", markup=False)
        yield Input(
            id="filter",
            compact=True,
            placeholder="agent:ID user:ID session:ID status:running or a word",
        )
        yield RecordTable(id="list")
        yield Static(id="empty", markup=False)
        with VerticalScroll(id="pane"):
            yield Static(id="detail", markup=False)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        self._table.focus()
        self._show()
        for work in (self._poll, self._fill_pane):
            self.run_worker(self._until_closed(work), group=work.__name__)

    def on_resize(self) -> None:
        self._drawn = ()
        self._show()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Hide the keys without an effect: cancels of readers, and forms of other views."""
        if action in ("cancel", "cancel_all"):
            return not self._settings.read_only and self._view.name == "runs"
        if action == "decide":
            return self._settings.read_only != "--read-only" and self._view.name == "runs"
        if action == "form":
            return self._view.name == "runs" or (
                self._view.name == "sessions" and parameters == ("timeline",)
            )
        return True

    async def _until_closed(self, work: Callable[[], Awaitable[None]]) -> None:
        with suppress(NoMatches, ScreenStackError):
            await work()

    # Reading

    async def _poll(self) -> None:
        while True:
            pause = self._settings.every
            has_dialog = isinstance(self.screen, CancelScreen)
            if not self._paused or has_dialog:
                pause = await self._read()
                if has_dialog and not self.connection.problem:
                    pause = min(pause, DIALOG_SECONDS)
                self._show()
                self._pane_wake.set()
            await self._sleep(pause)

    async def _read(self) -> float:
        view = self._view
        every = self._settings.every
        reading = asyncio.ensure_future(view.refresh())
        self.connection.ask()
        try:
            while not reading.done():
                await asyncio.wait({reading}, timeout=1.0)
                if self._view is not view:
                    return 0.0
                if self.connection.is_lost:
                    self._show_head()
            reading.result()
        except AgentctlError as failure:
            return self.connection.fail(failure, self._target.token, every)
        finally:
            reading.cancel()
        self.connection.succeed()
        self._are_read.add(view.name)
        return every

    async def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._wake.is_set() and (left := until - time.monotonic()) > 0:
            if self.connection.is_lost:
                self._show_head()
                left = min(left, 1.0)
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._wake.wait()
        self._wake.clear()

    async def _fill_pane(self) -> None:
        while True:
            await self._pane_wake.wait()
            self._pane_wake.clear()
            key = self._table.selected_key
            if not self._pane.display:
                self._drawn = ()
            elif key is None:
                self._stop_events()
                self._draw_pane("", Text(""))
                self._drawn = ()
            elif not self.connection.problem:
                await self._fill_pane_of(key)

    async def _fill_pane_of(self, key: str) -> None:
        view = self._view
        form = self._form
        width = self._pane.content_size.width - self._pane.scrollbar_size_vertical
        run = view.find_run(key)
        if form == "events" and run is not None:
            if self._drawn[:3] != (view.name, key, form):
                self._drawn = (view.name, key, form)
                self._follow_events(run)
            self._note_event()
            return
        self._stop_events()
        drawing = (view.name, key, form, width, view.get_version(key))
        if drawing == self._drawn:
            return
        try:
            title, text = await view.read_pane(key, form, width)
        except Unavailable:
            return  # the lines above the list say it, and the pane stays
        except AgentctlError as failure:
            title = clean_line(key)
            text = Text(describe_failure(failure, None), "red")
        if (view, form, key) == (self._view, self._form, self._table.selected_key):
            self._drawn = drawing
            self._draw_pane(title, text)

    def _follow_events(self, run: Run) -> None:
        root = run
        runs = self.feed.runs
        while (parent := runs.get(str(root.get("parent_run_id")))) is not None:
            root = parent

        def is_visible(run_id: str) -> bool:
            if root is run or run_id == run["run_id"]:
                return True
            below = list_descendants(runs.values(), [run["run_id"]])
            return any(run_id == member["run_id"] for member in below)

        self._events = EventLog(self._target.operations, root, is_visible, self._note_event)
        self.run_worker(self._events.follow(), group="events", exclusive=True)

    def _stop_events(self) -> None:
        if self._events is not None:
            self._events = None
            self.workers.cancel_group(self, "events")

    def _note_event(self) -> None:
        if not self._draws_soon:
            self._draws_soon = True
            self.set_timer(DRAW_SECONDS, self._draw_events)

    def _draw_events(self) -> None:
        self._draws_soon = False
        # The timer may be due when the screen is closed already.
        if self._events is not None and self.is_running:
            run_id = str(self._drawn[1])
            run = self.feed.runs.get(run_id) or {}
            title = f"{clean_line(run_id[:SHORT_ID])} · session {clean_line(run.get('session_id'))}"
            text = Text("")
            if run:
                text = draw_facts(run).append("\n\n").append_text(self._events.draw())
            self._draw_pane(title, text)
            self._pane.scroll_end(animate=False)

    # Drawing

    @property
    def _table(self) -> RecordTable:
        return self.query_one("#list", RecordTable)

    @property
    def _pane(self) -> VerticalScroll:
        return self.query_one("#pane", VerticalScroll)

    def _draw_pane(self, title: str, text: Text) -> None:
        pane = self._pane
        pane.border_title = Text(title)
        forms = [name for name in FORMS if self.check_action("form", (name,))]
        names = ["transcript", *forms] if forms else []
        choices = (f"[{name}]" if name == self._form else name for name in names)
        pane.border_subtitle = Text(" ".join(choices))
        self._write("#detail", text)

    def _show(self) -> None:
        view = self._view
        self._pane.display = self.size.height >= LOW_ROWS or self._is_open
        rows = view.list_rows(self._words, view.sorts[self._sorts[view.name]])
        table = self._table
        empty = self.query_one("#empty", Static)
        table.show_rows(view.columns, rows, self.size.width)
        table.set_class(self.connection.is_lost, "lost")
        is_open = self._is_open
        table.display = bool(rows) and not is_open
        empty.display = not rows and not is_open
        if not rows:
            text = view.empty if view.name in self._are_read else "reading …"
            if self._words:
                text = f"no {view.name} match the filter; Esc clears it"
            empty.update(text)
        self._show_head()

    def _show_head(self) -> None:
        width = self.size.width
        state = self.connection
        head = draw_head(self._target.place, self._settings, state, width, paused=self._paused)
        self._write("#head", head)
        problem = state.describe()
        self.query_one("#counts").set_class(bool(problem), "lost")
        self._write("#counts", Text(problem or count_runs(self.feed, width)))
        sort = self._view.sorts[self._sorts[self._view.name]]
        names = [view.name for view in self._views]
        self._write("#tabs", draw_tabs(names, self._view.name, sort, self._words))

    def _write(self, widget: str, text: Text) -> None:
        before = self._texts.get(widget)
        if before is None or before != text or before.spans != text.spans:
            lines = None if before is None else before.plain.count("\n")
            # The lines of a transcript fit the pane, others are wrapped by it.
            is_wrapped = widget == "#detail" and self._form != "transcript"
            is_new = is_wrapped or lines != text.plain.count("\n")
            self.query_one(widget, Static).update(text, layout=is_new)
            self._texts[widget] = text

    # Keys

    @property
    def _is_open(self) -> bool:
        return self.screen_stack[0].has_class("open")

    @on(DataTable.RowHighlighted)
    def _note_selection(self) -> None:
        self._pane_wake.set()

    @on(DataTable.RowSelected)
    def action_open(self) -> None:
        if self._table.selected_key is not None:
            self._set_open(True)

    def _set_open(self, is_open: bool) -> None:
        self.screen_stack[0].set_class(is_open, "open")
        (self._pane if is_open else self._table).focus()
        self._show()
        self._drawn = self._drawn[:3] if self._form == "events" else ()
        self._pane_wake.set()

    def action_interrupt(self) -> None:
        """End as an interrupted command does; the runs go on."""
        self.exit(return_code=INTERRUPTED)

    def action_close(self) -> None:
        """Go back by one step: the pane, the filter, the view."""
        if self._is_open:
            self._set_open(False)
        elif self.query_one("#filter").has_class("open"):
            self.query_one("#filter", Input).value = ""
            self._close_filter()
        elif self._words:
            self.query_one("#filter", Input).value = ""
        elif self._view is not self._views[0]:
            self.action_view(0)

    def action_form(self, form: Form) -> None:
        """Show a form of the pane, or the transcript again."""
        self._form = "transcript" if self._form == form else form
        self._pane_wake.set()

    def action_view(self, at: int) -> None:
        if at < len(self._views) and self._views[at] is not self._view:
            self._view = self._views[at]
            self._form = "transcript"
            self.query_one("#filter", Input).value = ""
            self._words = ""
            self._set_open(False)
            self.refresh_bindings()
            self._wake.set()

    def action_list_runs(self) -> None:
        key = self._table.selected_key
        words = None if key is None else self._view.find_filter(key)
        if words is not None:
            self.action_view(0)
            self.query_one("#filter", Input).value = words

    def action_filter(self) -> None:
        field = self.query_one("#filter", Input)
        field.add_class("open")
        field.focus()

    @on(Input.Submitted, "#filter")
    def _close_filter(self) -> None:
        self.query_one("#filter").remove_class("open")
        self._table.focus()

    @on(Input.Changed, "#filter")
    def _filter(self, event: Input.Changed) -> None:
        self._words = event.value
        self._show()

    def action_sort(self) -> None:
        name = self._view.name
        self._sorts[name] = (self._sorts[name] + 1) % len(self._view.sorts)
        self._show()

    def action_pause(self) -> None:
        self._paused = not self._paused
        self._wake.set()
        self._show_head()

    def action_update(self) -> None:
        """Read now instead of at the end of the pause."""
        self._wake.set()

    def action_help(self) -> None:
        self.push_screen(HelpScreen())

    def action_copy(self) -> None:
        if (key := self._table.selected_key) is not None:
            self.copy_to_clipboard(key)
            self.notify(f"copied {clean_line(key)}", markup=False)

    def action_cancel(self) -> None:
        run = self._view.find_run(self._table.selected_key or "")
        if run is not None and is_live(run):
            self._open_cancel([run])

    def action_decide(self) -> None:
        """Ask what the selected run waits for."""
        run = self._view.find_run(self._table.selected_key or "")
        if run is not None and is_paused(run):
            self.push_screen(DecideScreen(self._target, run), lambda _: self._wake.set())

    def action_cancel_all(self) -> None:
        rows = arrange_runs(self.feed.runs.values(), self._words)
        runs = [row.run for row in rows if row.level == 0]
        runs = [run for run in runs if is_live(run) and not is_paused(run)]
        if runs:
            self._open_cancel(runs, asks_number=True)

    def _open_cancel(self, runs: list[Run], *, asks_number: bool = False) -> None:
        ids = [str(run["run_id"]) for run in runs]
        members = sum(map(is_live, list_descendants(self.feed.runs.values(), ids)))
        screen = CancelScreen(
            self._target.operations,
            self.feed,
            runs,
            members=members,
            asks_number=asks_number,
            describe_problem=self.connection.describe,
        )
        self.push_screen(screen)
        self._wake.set()
