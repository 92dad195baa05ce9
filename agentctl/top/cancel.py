"""The dialog that cancels runs, and stays until they have stopped."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from agentctl.cli.show.progress import run_all
from agentctl.cli.show.transcript.draw import SHORT_ID
from agentctl.errors import AgentctlError
from agentctl.interface.requests import CancelRequest
from agentctl.records.kinds import component_of_run, find_component
from agentctl.records.phase import describe_holding, describe_run
from agentctl.records.times import format_elapsed
from agentctl.top.feed import Run, RunFeed, is_live, is_settled
from agentctl.top.texts import format_age, format_state
from agentctl.transcripts.model import clean_line

if TYPE_CHECKING:
    from agentctl.interface.operations import Operations

REDRAW_SECONDS = 0.3
LISTED_RUNS = 8
CONCURRENT_REQUESTS = 16


class CancelScreen(ModalScreen[None]):
    """A question before a cancel, then both facts about it: requested, and stopped.

    Args:
        operations: the operations of the caller.
        feed: the runs, which are read again while the dialog is open.
        runs: the runs to cancel.
        members: the number of runs of members, which stop with them.
        asks_number: the user has to type the number of runs.
        describe_problem: returns the reason that the runs cannot be read; empty if they can.
    """

    CSS = """
    CancelScreen { align: center middle; }
    #box { width: 76; max-width: 96%; height: auto; max-height: 90%; border: round $error;
           padding: 1 2; background: $surface; }
    #facts { height: auto; margin-bottom: 1; }
    #buttons { height: 3; align-horizontal: right; }
    Button { margin-left: 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "keep", "keep running")]

    def __init__(
        self,
        operations: Operations,
        feed: RunFeed,
        runs: Sequence[Run],
        *,
        members: int,
        asks_number: bool,
        describe_problem: Callable[[], str],
    ) -> None:
        super().__init__()
        self._operations = operations
        self._feed = feed
        self._runs = {str(run["run_id"]): run for run in runs}
        self._failures: dict[str, str] = {}
        self._requested: set[str] = set()
        self._members = members
        self._asks_number = asks_number
        self._describe_problem = describe_problem
        self._began = 0.0
        self._began_at = 0.0

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Static(self._ask(), id="facts", markup=False)
            yield Input(id="reason", placeholder="reason (optional)", compact=True)
            if self._asks_number:
                hint = f"type {len(self._runs)} to cancel them all"
                yield Input(id="number", placeholder=hint, compact=True)
            with Horizontal(id="buttons"):
                yield Button("Keep running", id="keep")
                yield Button("Cancel runs", id="cancel", variant="error")

    def on_mount(self) -> None:
        self.query_one("#keep").focus()

    def on_unmount(self) -> None:
        self._feed.pinned.difference_update(self._runs)

    def action_keep(self) -> None:
        self.dismiss()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id != "cancel":
            self.dismiss()
            return
        if self._asks_number:
            typed = self.query_one("#number", Input).value.strip()
            if typed != str(len(self._runs)):
                hint = Text(f"\ntype {len(self._runs)} first", "bold red")
                self.query_one("#facts", Static).update(self._ask().append_text(hint))
                self.query_one("#number").focus()
                return
        reason = self.query_one("#reason", Input).value.strip() or None
        self.query_one("#cancel").remove()
        for field in self.query(Input):
            field.remove()
        keep = self.query_one("#keep", Button)
        keep.label = "Close"
        keep.focus()
        self._feed.pinned.update(self._runs)
        self._began, self._began_at = time.monotonic(), time.time()
        self.run_worker(self._cancel(reason), exclusive=True)
        self.set_interval(REDRAW_SECONDS, self._redraw)

    async def _cancel(self, reason: str | None) -> None:
        async def request(run_id: str) -> None:
            run = self._runs[run_id]
            wanted = CancelRequest(run["session_id"], 0.0, reason)
            try:
                await self._operations.cancel_run(*component_of_run(run), run_id, wanted)
            except AgentctlError as failure:
                self._failures[run_id] = clean_line(failure.detail)
            else:
                self._requested.add(run_id)
            self._redraw()

        await run_all([*self._runs], request, at_once=CONCURRENT_REQUESTS)

    def _redraw(self) -> None:
        if self.is_mounted:
            self.query_one("#facts", Static).update(self._draw_facts())

    def _ask(self) -> Text:
        count = len(self._runs)
        members = f" and {self._members} of members" if self._members else ""
        text = Text(f"Cancel {count} run{'' if count == 1 else 's'}{members}?\n", "bold")
        for run_id, run in list(self._runs.items())[:LISTED_RUNS]:
            _, component = find_component(run) or ("", "?")
            facts = [component, run.get("user_id"), format_age(run.get("created_at"))]
            words = f"{run_id[:SHORT_ID]} {', '.join(str(each) for each in facts if each)}"
            text.append(f"{clean_line(words)}\n", "none")
        if count > LISTED_RUNS:
            text.append(f"and {count - LISTED_RUNS} more\n", "dim")
        return text.append("What tools have done is not undone.", "dim")

    def _draw_facts(self) -> Text:
        latest = {run_id: self._feed.runs.get(run_id, run) for run_id, run in self._runs.items()}
        stopped = [run for run in latest.values() if is_settled(run)]
        at_work = [run for run in latest.values() if not is_live(run) and not is_settled(run)]
        count, waits = len(latest), len(self._requested) - len(stopped)
        began = time.strftime("%H:%M:%S", time.gmtime(self._began_at))
        text = Text(f"cancel requested: {len(self._requested)} of {count}", "bold")
        text.append(f"   {began} UTC\n", "none").append(
            f"stopped: {len(stopped)} of {count}", "bold"
        )
        if waits > 0:
            seconds = format_elapsed(time.monotonic() - self._began)
            text.append(f"            waiting {seconds}", "yellow")
        text.append("\n\n")
        for run in at_work:
            # Several runs at most: only a tool in a thread survives the end of its run.
            work = describe_holding(run.get("holding"))
            line = f"! {str(run['run_id'])[:SHORT_ID]} ended, but {work} and cannot be interrupted"
            text.append(f"{clean_line(line)}\n", "yellow")
        rest = [run for run in latest.values() if run not in at_work]
        for run in rest[:LISTED_RUNS]:
            run_id = str(run["run_id"])
            short_id = clean_line(run_id[:SHORT_ID])
            if run_id in self._failures:
                text.append(f"{short_id} {self._failures[run_id]}\n", "red")
                continue
            sentence = clean_line(describe_run(run)["sentence"])
            state = format_state(run).plain + (f": {sentence}" if sentence else "")
            text.append(f"{short_id} {state}\n", "none")
        if len(rest) > LISTED_RUNS:
            text.append(f"and {len(rest) - LISTED_RUNS} more\n", "dim")
        if problem := self._describe_problem():
            text.append(problem, "red")
        text.rstrip()
        return text
