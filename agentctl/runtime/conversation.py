"""One run's talk between a model and its tools, as it is kept and told.

Everything that arrives goes through here: text is cleaned (calls have been, in `conversion`),
bounded, put into the transcript at once, and told to the listeners. It knows nothing of the model
library.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson

from agentctl.records.text import replace_unstorable
from agentctl.runtime.actions import Action, CallOutcome
from agentctl.runtime.events import Content, ToolCallCompleted, ToolCallStarted
from agentctl.runtime.failures import ExecutionError

if TYPE_CHECKING:
    from agentctl.runtime.context import RunContext

__all__ = ["MAXIMUM_CALLS", "MAXIMUM_FAILURES", "NOT_AN_OBJECT", "Conversation"]

MAXIMUM_FAILURES = 3
"""After so many failures of one tool in a row the run ends with TOOL_FAILED."""

MAXIMUM_UNKNOWN = 3
"""After so many calls of tools that are not there the run ends with MODEL_REJECTED."""

MAXIMUM_CALLS = 128
"""Calls of tools in one answer: they are carried out at the same time."""

NOT_AN_OBJECT = "INVALID_JSON"
"""The only argument of a call whose arguments were not a JSON object; its value is what came."""

_BETWEEN_ANSWERS = "\n\n"
"""Stands in the content between what the model said before and after a tool call."""


class Conversation:
    """The state of one run while its model is at work.

    Args:
        message: what the user asks.
        actions: what the model may call, by name.
        speaks: whether what the model says is the run's content; when not (a leader that routes),
            it is in the messages only.

    Attributes:
        routed: the answer of the member that the message was passed on to, in mode route.
        routing: whether a member is answering in the place of the leader.
    """

    def __init__(
        self,
        context: RunContext,
        message: str,
        actions: Mapping[str, Action],
        *,
        speaks: bool = True,
    ) -> None:
        self.context = context
        self.message = message
        self.actions = actions
        self.routed_answer: str | None = None
        self.is_routing = False
        self._publishes = speaks
        self._transcript = context.transcript
        self._needs_separator = False
        self._held_text: list[str] = []
        self._kept = 0
        self._arriving = 0
        self._failures: Counter[str] = Counter()
        self._unknown = 0

    def begin(self, system: str) -> None:
        """Note what the model is told at the start: instructions (`""`: none) and the message."""
        if system:
            self._transcript.add_system(system)
        self._transcript.add_user(self.message)

    def begin_answer(self) -> None:
        """The model is about to be called."""
        self._transcript.begin_answer()
        self._needs_separator = bool(self._transcript.content)
        self._held_text.clear()
        self._arriving = 0

    def hear(self, size: int) -> None:
        """More of an answer arrived that is not said: bytes of a call or of a thought.

        Raises:
            RunFailure: the run would outgrow `limits.run_bytes`.
        """
        self._arriving += size
        self._keep(0)

    def say(self, text: str) -> None:
        """The model said more.

        Raises:
            RunFailure: the run would outgrow `limits.run_bytes`.
        """
        text = replace_unstorable(text)
        if not text:
            return
        self._keep(len(text.encode()))
        self._transcript.extend_answer(text)
        if self._publishes:
            self._tell(text)
        else:
            self._held_text.append(text)

    def publish_held_text(self) -> None:
        """What the model said last, and was held back, is the run's answer after all."""
        text = "".join(self._held_text)
        if text:
            self._tell(text)

    def set_answer(self, text: str) -> None:
        """The run's answer comes from elsewhere: it is noted and told as the run's own."""
        self._transcript.add_answer(text)
        self._needs_separator = False
        self._transcript.replace_content(text)
        self.context.emit(Content(text))

    def end_answer(self, calls: list[dict[str, Any]]) -> None:
        """The model has ended its answer, with these calls: `id`, `name`, `arguments`.

        Raises:
            RunFailure: they are too many, or the run would outgrow `limits.run_bytes`.
        """
        self._arriving = 0
        if len(calls) > MAXIMUM_CALLS:
            raise ExecutionError("MODEL_REJECTED", "The model called too many tools at once")
        self._keep(len(orjson.dumps(calls)))
        self._transcript.end_answer(calls)

    async def call(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> str:
        """Carry out a call; returns what the model is told.

        Raises:
            RunFailure: the tool failed, or one that is not there was called, once too often.
        """
        self.context.checkpoint()
        self._open(call_id, name, arguments)
        action = self.actions.get(name)
        if action is None:
            outcome = self._missing(name)
        elif NOT_AN_OBJECT in arguments:
            outcome = CallOutcome("The arguments are not a JSON object", failed=True)
        else:
            outcome = await action.perform(arguments, self)
        text = replace_unstorable(outcome.text)
        self._close(call_id, text, error=outcome.failed)
        self._count(name, outcome)
        return text

    def _missing(self, name: str) -> CallOutcome:
        """A call of a tool that is not there: the model is told, and asked again."""
        self._unknown += 1
        if self._unknown > MAXIMUM_UNKNOWN:
            raise ExecutionError("MODEL_REJECTED", "The model called tools that are not there")
        return CallOutcome(f"There is no tool {name}", failed=True, counts=False)

    def _open(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> None:
        self.context.emit(ToolCallStarted(self._transcript.open_call(call_id, name, arguments)))

    def _close(self, call_id: str, text: str, *, error: bool) -> None:
        self._keep(len(text.encode()))
        entry = self._transcript.close_call(call_id, text, error=error)
        if entry is not None:
            self.context.emit(ToolCallCompleted(entry))

    def _tell(self, text: str) -> None:
        """Add to the content; all deltas, joined, are the content."""
        delta = _BETWEEN_ANSWERS + text if self._needs_separator else text
        self._needs_separator = False
        self._transcript.add_content(delta)
        self.context.emit(Content(delta))

    def _keep(self, size: int) -> None:
        self._kept += size
        if self._kept + self._arriving > self.context.limits.run_bytes:
            raise ExecutionError("MODEL_REJECTED", "The run grew beyond what a run may hold")

    def _count(self, name: str, outcome: CallOutcome) -> None:
        if not outcome.failed:
            self._failures[name] = 0
        elif outcome.counts:
            self._failures[name] += 1
        if self._failures[name] >= MAXIMUM_FAILURES:
            raise ExecutionError(
                "TOOL_FAILED", f"The tool {name} failed {MAXIMUM_FAILURES} times in a row"
            )
