"""The dialog that cancels runs, and stays until they have stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from agentctl.cli.options import component_of_run, find_component
from agentctl.cli.show.transcript.draw import SHORT_ID
from agentctl.cli.show.transcript.model import clean_line
from agentctl.cli.show.transcript.texts import describe_run
from agentctl.errors import AgentctlError
from agentctl.records.runs import FINAL_STATUSES
from agentctl.requests import CancelRequest

if TYPE_CHECKING:
    from agentctl.operations import Operations

__all__ = ["CancelScreen"]

POLL_SECONDS = 0.3
LISTED_RUNS = 8


class CancelScreen(ModalScreen[None]):
    """A question before a cancel, then both facts about it: requested, and stopped.

    Args:
        runs: the records of the runs to cancel.
        members: the number of runs of members, which stop with them.
        asks_number: the user has to type the number of runs.
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
        runs: Sequence[dict[str, Any]],
        *,
        members: int = 0,
        asks_number: bool = False,
    ) -> None:
        super().__init__()
        self._operations = operations
        self._runs = {str(run["run_id"]): dict(run) for run in runs}
        self._failures: dict[str, str] = {}
        self._members = members
        self._asks_number = asks_number

    def compose(self) -> ComposeResult:
        with Vertical(id="box"):
            yield Static(self._question(), id="facts", markup=False)
            yield Input(id="reason", placeholder="reason (optional)")
            if self._asks_number:
                yield Input(id="number", placeholder=f"type {len(self._runs)} to cancel them all")
            with Horizontal(id="buttons"):
                yield Button("Keep running", id="keep")
                yield Button("Cancel runs", id="cancel", variant="error")

    def on_mount(self) -> None:
        self.query_one("#keep").focus()

    def action_keep(self) -> None:
        self.dismiss()

    async def on_button_pressed(self, event: Button.Pressed) -> None:
        if event.button.id != "cancel":
            self.dismiss()
            return
        if self._asks_number:
            typed = self.query_one("#number", Input).value.strip()
            if typed != str(len(self._runs)):
                self.notify(f"type {len(self._runs)} first", severity="warning")
                return
        reason = self.query_one("#reason", Input).value.strip() or None
        self.query_one("#cancel").remove()
        for field in self.query(Input):
            field.remove()
        self.query_one("#keep", Button).label = "Close"
        self.run_worker(self._cancel(reason), exclusive=True)

    def _question(self) -> Text:
        count = len(self._runs)
        noun = "run" if count == 1 else "runs"
        extra = f" and the {self._members} of members" if self._members else ""
        text = Text(f"Cancel {count} {noun}{extra}?\n", "bold")
        for run_id, run in list(self._runs.items())[:LISTED_RUNS]:
            _, component = find_component(run) or ("", "?")
            user = run.get("user_id")
            line = f"{run_id[:SHORT_ID]} {component}{f', {user}' if user else ''}"
            text.append(f"{clean_line(line)}\n", "none")
        if count > LISTED_RUNS:
            text.append(f"and {count - LISTED_RUNS} more\n", "dim")
        return text.append("What tools have done is not undone.", "dim")

    async def _cancel(self, reason: str | None) -> None:
        """Request every cancel, then read the runs until the work of all has stopped."""
        await asyncio.gather(*(self._request(run_id, reason) for run_id in self._runs))
        while self.is_mounted:
            self.query_one("#facts", Static).update(self._facts())
            pending = [run_id for run_id in self._runs if self._is_pending(run_id)]
            if not pending:
                return
            await asyncio.sleep(POLL_SECONDS)
            await asyncio.gather(*(self._read(run_id) for run_id in pending))

    async def _request(self, run_id: str, reason: str | None) -> None:
        run = self._runs[run_id]
        request = CancelRequest(run["session_id"], 0.0, reason)
        try:
            await self._operations.cancel_run(*component_of_run(run), run_id, request)
        except AgentctlError as failure:
            self._failures[run_id] = clean_line(failure.detail)
        await self._read(run_id)

    async def _read(self, run_id: str) -> None:
        try:
            self._runs[run_id] = dict((await self._operations.get_run(run_id)).value)
        except AgentctlError as failure:
            self._failures.setdefault(run_id, clean_line(failure.detail))

    def _is_pending(self, run_id: str) -> bool:
        run = self._runs[run_id]
        ended = run["status"] in FINAL_STATUSES and run.get("stopped_at") is not None
        return not ended and run_id not in self._failures

    def _facts(self) -> Text:
        """Return both facts about each run."""
        text = Text()
        for run_id, run in list(self._runs.items())[:LISTED_RUNS]:
            phase = describe_run(run)
            text.append(f"{clean_line(run_id[:SHORT_ID])} ", "none")
            if run_id in self._failures:
                text.append(f"{self._failures[run_id]}\n", "red")
            else:
                words = " · ".join(filter(None, (phase.words, phase.warning)))
                text.append(f"{phase.glyph} {words}: {clean_line(phase.sentence)}\n")
        stopped = sum(
            run["status"] in FINAL_STATUSES and run.get("stopped_at") is not None
            for run in self._runs.values()
        )
        requested = len(self._runs) - len(self._failures)
        summary = f"cancel requested: {requested} of {len(self._runs)} · stopped: {stopped}"
        return text.append(summary, "bold")
