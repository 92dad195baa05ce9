"""The dialog that decides about what a paused run waits for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from agentctl.cli.approvals import name_command, parse_value, read_pending
from agentctl.cli.show.approvals import describe_call
from agentctl.errors import AgentctlError, Forbidden, NotFound
from agentctl.interface.requests.approvals import ContinueRequest, Ruling, build_ruling
from agentctl.records.approvals import VERBS, Verb
from agentctl.records.kinds import component_of_run
from agentctl.records.text import escape_controls
from agentctl.top.feed import Run
from agentctl.transcripts.model import clean_line

if TYPE_CHECKING:
    from agentctl.cli.target import Target

_LABELS: dict[Verb, str] = {
    "approve": "Approve",
    "reject": "Reject",
    "answer": "Answer",
    "complete": "It was done",
    "fail": "It failed",
}
"""The decisions of the dialog. A call is made again by `agentctl approvals retry` only."""

_PLACEHOLDERS = {
    "approval": "note (optional)",
    "input": "the answer, JSON or text; or a note to reject",
    "external": "the result of the call, JSON or text; or why it failed",
    "outcome": "the result of the call, JSON or text; or why it failed",
}


class DecideScreen(ModalScreen[None]):
    """The oldest pending approval of a run, with its arguments; then the next one.

    Args:
        target: the target, with the rights of the caller.
        run: the summary of the paused run.
    """

    CSS = """
    DecideScreen { align: center middle; }
    #box { width: 90; max-width: 96%; height: auto; max-height: 90%; border: round $warning;
           padding: 1 2; background: $surface; }
    #call { height: auto; margin-bottom: 1; }
    #problem { height: auto; color: $error; }
    #buttons { height: 3; align-horizontal: right; }
    Button { margin-left: 2; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "decide later")]

    def __init__(self, target: Target, run: Run) -> None:
        super().__init__()
        self._target = target
        self._run = run
        self._approval: Mapping[str, Any] | None = None

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="box"):
            yield Static("reading …", id="call", markup=False)
            yield Input(id="note", compact=True)
            yield Static("", id="problem", markup=False)
            with Horizontal(id="buttons"):
                yield Button("Later", id="later")
                for verb, label in _LABELS.items():
                    yield Button(label, id=verb)

    def on_mount(self) -> None:
        self.query_one("#later").focus()
        self._show_buttons(())
        self.run_worker(self._show_next(), exclusive=True)

    def action_close(self) -> None:
        self.dismiss()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        verb = next((each for each in _LABELS if each == event.button.id), None)
        if verb is None or self._approval is None:
            self.dismiss()
            return
        self.run_worker(self._decide(self._approval, verb), exclusive=True)

    async def _show_next(self) -> None:
        run_id = str(self._run["run_id"])
        pending = await read_pending(self._target, run_id)
        if pending is None:
            self._write("#call", "the approvals of this run cannot be read with your rights")
            return
        if not pending:
            self.dismiss()
            return
        self._approval = pending[0]
        more = f"\n\nand {len(pending) - 1} more" if len(pending) > 1 else ""
        lines = (escape_controls(line) for line in describe_call(self._approval))
        self._write("#call", "\n".join(lines) + more)
        kind = self._approval["kind"]
        self.query_one("#note", Input).placeholder = _PLACEHOLDERS[kind]
        self._show_buttons(VERBS[kind])
        self.query_one("#later").focus()
        if kind == "outcome":
            command = name_command(self._target, self._approval)
            self._write("#problem", f"to call again: {command}")

    def _show_buttons(self, verbs: tuple[Verb, ...]) -> None:
        for button in self.query(Button):
            button.display = button.id == "later" or button.id in verbs
        self.query_one("#note").display = bool(verbs)

    async def _decide(self, approval: Mapping[str, Any], verb: Verb) -> None:
        text = self.query_one("#note", Input).value.strip()
        if verb in ("answer", "complete"):
            schema = approval["schema"] if verb == "answer" else None
            ruling = build_ruling(approval, verb, parse_value(text, schema))
        else:
            ruling = build_ruling(approval, verb, note=text or None)
        try:
            await self._send(approval, ruling)
        except AgentctlError as failure:
            self._write("#problem", clean_line(failure.detail))
            return
        self.query_one("#note", Input).value = ""
        self._write("#problem", "")
        await self._show_next()

    async def _send(self, approval: Mapping[str, Any], ruling: Ruling) -> None:
        operations = self._target.operations
        place = approval["component_type"], approval["component_id"], approval["approval_id"]
        try:
            await operations.decide_approval(*place, ruling)
        except (Forbidden, NotFound):
            if approval["policy"] != "user":
                raise
            # The caller is no approver, but may be the user of the run.
            request = ContinueRequest((ruling,), background=True)
            run_id = str(approval["root_run_id"])
            root = (await operations.get_run(run_id)).value
            await operations.continue_run(*component_of_run(dict(root)), run_id, request)

    def _write(self, widget: str, text: str) -> None:
        if self.is_mounted:
            self.query_one(widget, Static).update(Text(text))
