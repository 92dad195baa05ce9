"""The dialogs: cancels, decisions, and the sheet of all keys."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Static

from agentctl.cli.approvals import describe_call, name_command, parse_value, read_pending
from agentctl.cli.show.progress import run_all
from agentctl.cli.show.transcript.draw import SHORT_ID
from agentctl.cli.target import Target
from agentctl.errors import AgentctlError, Forbidden, NotFound
from agentctl.interface.operations import Operations
from agentctl.interface.requests import CancelRequest
from agentctl.interface.requests.approvals import ContinueRequest, Ruling, build_ruling
from agentctl.records.approvals import VERBS, Verb
from agentctl.records.kinds import component_of_run, find_component
from agentctl.records.phase import describe_holding, describe_run
from agentctl.records.text import escape_controls
from agentctl.records.times import format_elapsed
from agentctl.top.feed import Run, RunFeed, is_live, is_settled
from agentctl.top.texts import format_age, format_state
from agentctl.transcripts.model import clean_line

REDRAW_SECONDS = 0.3
LISTED_RUNS = 8
CONCURRENT_REQUESTS = 16

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

KEYS: tuple[tuple[str, str], ...] = (
    ("1 2 3 4", "runs, sessions, components, workers"),
    ("↑ ↓", "select a row"),
    ("Enter", "show the pane on the whole screen"),
    ("Esc", "go back: from the pane, the filter, another view"),
    ("t", "timeline of the selected run, or its transcript"),
    ("e", "events of the selected run as they happen, or its transcript"),
    ("r", "runs of the selected session or component"),
    ("c", "cancel the selected run, after a question"),
    ("C", "cancel all runs that the filter shows, after their number"),
    ("a", "decide about what the selected paused run waits for"),
    ("/", "filter: agent:ID team:ID workflow:ID user:ID session:ID status:WORD text"),
    ("s", "sort by the next key"),
    ("p", "pause"),
    ("u", "read now; try again now"),
    ("y", "copy the id"),
    ("?", "this help"),
    ("q", "quit; runs continue"),
)


class CancelScreen(ModalScreen[None]):
    """A question before a cancel, then both facts about it: requested, and stopped.

    Args:
        feed: the runs, which are read again while the dialog is open.
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
        self._began = time.monotonic()
        self._began_at = time.time()
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
        count = len(latest)
        waits = len(self._requested) - len(stopped)
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


class DecideScreen(ModalScreen[None]):
    """The oldest pending approval of a run, with its arguments; then the next one."""

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


class HelpScreen(ModalScreen[None]):
    """All keys, until a key closes it."""

    CSS = """
    HelpScreen { align: center middle; }
    #help { width: 78; max-width: 98%; height: auto; max-height: 98%; border: round $primary;
            padding: 0 1; background: $surface; }
    #help Static { height: auto; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding(key, "dismiss", "close") for key in ("escape", "question_mark", "q", "enter")
    ]

    def compose(self) -> ComposeResult:
        text = Text()
        for keys, action in KEYS:
            text.append(f"{keys:8} ", "bold").append(f"{action}\n", "none")
        text.rstrip()
        with VerticalScroll(id="help") as box:
            box.border_title = "keys"
            yield Static(text)
