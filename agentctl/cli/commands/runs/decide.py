"""Decisions at the terminal in which `agentctl runs start` was typed.

The user of the run decides about approvals with the policy `user`. All others stay pending.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from agentctl.cli.approvals import build_waiting, parse_value, read_pending, show_call
from agentctl.cli.options import CommandOutput
from agentctl.cli.questions import ask_value
from agentctl.cli.show.event_lines import TEXT_FORMATS
from agentctl.cli.show.terminal import ask, may_ask, note
from agentctl.cli.target import Target
from agentctl.errors import ConfirmationDeclined, ValidationFailed
from agentctl.interface.requests.approvals import ContinueRequest, Ruling, build_ruling
from agentctl.records.kinds import ComponentRef

if TYPE_CHECKING:
    from agentctl.interface.requests import StreamEvent
    from agentctl.records.document import Document
    from agentctl.records.runs import RunRecord

_CHOICES = "Make this call? [y]es, [n]o, [e]dit the arguments, [l]ater: "


class RunQuestions:
    """Asks what a run waits for, and lets it continue.

    Each approval is asked about once. A decision that the server does not accept is asked again.

    Args:
        output_format: questions are asked in formats for people only.
    """

    def __init__(self, target: Target, component: ComponentRef, out: CommandOutput) -> None:
        self._target = target
        self._component = component
        self._asked: set[str] = set()
        self.may_ask = out.format in TEXT_FORMATS and may_ask()

    async def ask(self, run_id: str, known: Sequence[Mapping[str, Any]]) -> tuple[Ruling, ...]:
        """Ask about the approvals of a run.

        Args:
            known: what the run waits for, if the caller cannot read it, or the server has no list
                of it.

        Raises:
            WaitsForDecision: there is no decision: no one can be asked, or other people decide.
            KeyboardInterrupt: Ctrl-C was typed.
        """
        read = await read_pending(self._target, run_id)
        pending = [each for each in known if each["approval_id"] not in self._asked]
        pending = read or pending
        decisions = []
        for approval in pending if self.may_ask else ():
            if approval["policy"] == "user" and approval["approval_id"] not in self._asked:
                self._asked.add(approval["approval_id"])
                decision = _ask_about(approval)
                decisions += [] if decision is None else [decision]
        if not decisions:
            raise build_waiting(self._target, run_id, pending)
        return tuple(decisions)

    async def stream(
        self, run_id: str, decisions: tuple[Ruling, ...]
    ) -> AsyncIterator[StreamEvent]:
        """Yield the events after the decisions; none if the run still waits."""
        operations = self._target.operations
        with self._asking_again(decisions):
            request = ContinueRequest(decisions)
            events = operations.stream_continued_run(*self._component, run_id, request)
            async with contextlib.aclosing(events):  # type: ignore[type-var]
                async for event in events:
                    yield event

    async def continue_run(self, run_id: str, decisions: tuple[Ruling, ...]) -> Document[RunRecord]:
        """Return the record of the run after its next leg, or of the run that still waits."""
        operations = self._target.operations
        with self._asking_again(decisions):
            return await operations.continue_run(
                *self._component, run_id, ContinueRequest(decisions)
            )
        read = operations.get_component_run
        return await read(*self._component, run_id)

    @contextlib.contextmanager
    def _asking_again(self, decisions: Sequence[Ruling]) -> Iterator[None]:
        try:
            yield
        except ValidationFailed as failure:
            note(f"not accepted: {failure.detail}")
            self._asked -= {each.approval_id for each in decisions if each.approval_id}


def _ask_about(approval: Mapping[str, Any]) -> Ruling | None:
    show_call(approval)
    match approval["kind"]:
        case "approval":
            return _ask_about_call(approval)
        case "input":
            note("Ctrl-D at the beginning of a line: later")
            with contextlib.suppress(ConfirmationDeclined):
                value = ask_value("answer", approval.get("schema"))
                return build_ruling(approval, "answer", value)
        case "external":
            text = ask(f"result of {approval['tool_name']}, JSON or text (empty: later): ")
            if text:
                return build_ruling(approval, "complete", parse_value(text, None))
    return None


def _ask_about_call(approval: Mapping[str, Any]) -> Ruling | None:
    edited: Mapping[str, Any] | None = None
    while True:
        match (ask(_CHOICES) or "later").lower():
            case "y" | "yes":
                arguments = None if edited is None else dict(edited)
                return build_ruling(approval, "approve", arguments)
            case "n" | "no":
                words = ask("Note for the agent (empty: none): ") or None
                return build_ruling(approval, "reject", note=words)
            case "e" | "edit":
                before = approval["arguments"] if edited is None else edited
                try:
                    value = ask_value("arguments", approval.get("schema"), before)
                except ConfirmationDeclined:
                    continue
                if not isinstance(value, Mapping):
                    note("the arguments are a JSON object")
                    continue
                edited = value
                show_call(approval, edited)
            case "l" | "later":
                return None
