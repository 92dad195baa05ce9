"""The context of the model calls of one run: what fits into the window of the model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, ClassVar

import orjson

from agentctl.light_dataclass import dataclass
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.models.calls import ModelCall
from agentctl.runtime.models.listed_models import find_window
from agentctl.runtime.pauses import CallOutcome
from agentctl.runtime.transcript.context_window import (
    BYTES_PER_TOKEN,
    CERTAIN,
    FULL,
    READ_RESULT,
    Compaction,
    ContextMessages,
    FittedMessages,
    Message,
    Omission,
    fit_messages,
    keep_report,
    measure_message,
)
from agentctl.runtime.transcript.events import Compacted
from agentctl.runtime.transcript.history import complete_history, format_summary

if TYPE_CHECKING:
    from agentctl.records.components import ToolRecord
    from agentctl.runtime.components.configured import ConfiguredRunner
    from agentctl.runtime.models.attempts import PreparedModel
    from agentctl.runtime.transcript.conversation import Conversation

SMALLEST_WINDOW = 3_000
"""Bytes of a request that every listed model takes: a token has at least one byte."""

MAXIMUM_REFUSALS = 5
"""Refusals of one call as too large, each of a smaller request than the one before."""

ANSWER_TOKENS = 4_096
"""Tokens that are left to the answer, if the settings of the model do not bound it."""

PAGE_CHARACTERS = 8_000
"""Characters of a result that one call of the reading tool returns."""

_READ_TOOL: ToolRecord = {
    "name": READ_RESULT,
    "description": "Read a part of an earlier tool result that is left out of the conversation.",
    "parameters": {
        "type": "object",
        "properties": {
            "number": {"type": "integer", "description": "Number of the result"},
            "offset": {"type": "integer", "description": "First character to read, from 0"},
        },
        "required": ["number"],
        "additionalProperties": False,
    },
}

_ADVICE = {
    "the message": "send a shorter message",
    "the instructions": "shorten the instructions of the agent",
    "the tools": "give the agent fewer tools",
}


class ContextFitter:
    """Fits the messages of a run into the window of its model before each call.

    Attributes:
        messages: the history, then the messages of this run, whole.
        own: index of the first message of this run.
    """

    def __init__(self, runner: ConfiguredRunner, conversation: Conversation) -> None:
        self.messages: list[Message] = []
        self._runs: list[tuple[int, str]] = []
        self._failed: list[Omission] = []
        for earlier in conversation.context.earlier_runs:
            self._runs.append((len(self.messages), earlier.run_id))
            self.messages += complete_history(earlier.messages)
            if size := earlier.omitted_bytes:
                run_id = earlier.run_id
                self._failed.append(Omission("failed_run", 1, run_id, run_id, size))
        self.own = len(self.messages)
        self._runner = runner
        self._conversation = conversation
        self._compaction = Compaction(result_bytes=int(runner.result_tokens * BYTES_PER_TOKEN))
        self._recorded: list[dict[str, Any]] = []
        self._windows: dict[str, int | None] = {}
        self._context: ContextMessages
        self._fitted: FittedMessages
        self._other_bytes = self._refusals = 0

    async def begin_call(self) -> None:
        """Prepare the next call: measure new messages, and look up the windows that matter."""
        instructions = self._conversation.instructions
        if not self._other_bytes:
            self._context = ContextMessages(self.messages, self.own, self._runs)
            self._other_bytes = len(orjson.dumps([instructions, self._runner.tools]))
        self._refusals = 0
        self._conversation.about_call = {}
        size = self._context.measure() + self._other_bytes
        for model in self._runner.models:
            # No model has a smaller window, unless one is configured.
            is_large = size > SMALLEST_WINDOW or model.source.context_tokens
            if is_large and model.id not in self._windows:
                self._windows[model.id] = await find_window(model.source)

    def build_call(self, model: PreparedModel, **options: Any) -> ModelCall:
        """Build a call with the messages that fit; its answer records what does not.

        Args:
            options: `tool_choice` and `output` of the call.

        Raises:
            ExecutionError: CONTEXT_EXCEEDED: what cannot be left out is far too large.
        """
        window = self._windows.get(model.id)
        can_read = READ_RESULT not in self._runner.actions
        room = None if window is None else _leave_answer(model, window)
        fitted = self._fitted = fit_messages(
            self._context, room, self._compaction,
            other_bytes=self._other_bytes, can_read=can_read,
        )  # fmt: skip
        self._compaction = fitted.compaction
        if window is not None and fitted.estimated_tokens > window * CERTAIN:
            raise self.build_failure(model)
        if room is not None and (fitted.omissions or fitted.estimated_tokens > room * FULL):
            self._conversation.context.transcript.full_window = room

        instructions, tools = self._conversation.instructions, self._runner.tools
        if fitted.omissions:
            noted = (instructions, self._describe(fitted, room))
            instructions = "\n\n".join(filter(None, noted))
            if can_read and fitted.omissions[0].kind == "tool_result":
                self._offer_reading()
                tools = [*tools, _READ_TOOL]
        self._record(fitted, window)
        return ModelCall(instructions, fitted.messages, tools, model.settings, **options)

    def shrink(self) -> bool:
        """Make a call smaller that was refused as too large; return False if that is impossible.

        The size of the window is not known then: half of the size may fit, in the end the message
        alone.
        """
        self._refusals += 1
        half = self._fitted.size // 2 if self._refusals < MAXIMUM_REFUSALS else 1
        for bound in (half, 1):
            compaction = replace(self._compaction, maximum_bytes=max(bound, 1))
            smaller = fit_messages(self._context, None, compaction, other_bytes=self._other_bytes)
            if smaller.size < self._fitted.size:
                self._compaction = compaction
                return self._refusals <= MAXIMUM_REFUSALS
        return False

    @property
    def page_characters(self) -> int:
        """The characters of a result that one call of the reading tool returns."""
        # A page that would be cut again is of no use. A character has at most four bytes.
        bounds = (self._compaction.result_bytes, *self._windows.values())
        return min([PAGE_CHARACTERS, *(bound // 4 for bound in bounds if bound)])

    def keep_report(self) -> None:
        """Take over the tokens that the model has reported with its answer."""
        tokens = self._conversation.input_tokens
        self._compaction = keep_report(self._compaction, self._fitted.size, tokens)

    def keep(self) -> dict[str, Any]:
        """Return a JSON object from which another process builds the same calls; see `restore`."""
        return {"numbers": asdict(self._compaction), "recorded": self._recorded}

    def restore(self, kept: Mapping[str, Any] | None) -> None:
        if kept is not None:  # A checkpoint of an earlier version has none.
            self._compaction, self._recorded = Compaction(**kept["numbers"]), kept["recorded"]
            self._offer_reading()

    def build_failure(self, model: PreparedModel) -> ExecutionError:
        """Return the failure of a call that no omission makes small enough."""
        window = self._windows.get(model.id)
        size = "" if window is None else f" of {window} tokens"
        part, part_bytes = self._find_largest()
        return ExecutionError(
            "CONTEXT_EXCEEDED",
            f"About {self._fitted.estimated_tokens} tokens are more than the context window{size}"
            f" of the model {model.id}; the largest part is {part} with {part_bytes} bytes:"
            f" {_ADVICE.get(part, 'set tool_result_tokens of the agent')}",
        )

    def _find_largest(self) -> tuple[str, int]:
        parts = {
            "the instructions": len(self._conversation.instructions.encode()),
            "the tools": len(orjson.dumps(self._runner.tools)),
        }
        for message in self._fitted.messages:
            part = "the message"
            if message["role"] == "tool":
                part = f"a result of {message['tool_name']}"
            elif message["role"] == "assistant":
                part = "an answer"
            parts[part] = max(parts.get(part, 0), measure_message(message))
        part = max(parts, key=parts.__getitem__)
        return part, parts[part]

    def _describe(self, fitted: FittedMessages, room: int | None) -> str:
        """Return a paragraph for the instructions about the messages that are left out."""
        context, compaction = self._conversation.context, fitted.compaction
        parts = []
        if compaction.history_before:
            parts.append("The beginning of this conversation is left out.")
            summary = format_summary(context.summary or "")
            tokens = compaction.estimate_tokens(fitted.size + len(summary.encode()))
            if self._has_late_summary and room is not None and tokens <= room * FULL:
                parts.append(summary)
        start = self._context.current + 1
        if names := Counter(
            call["name"]
            for message in self.messages[start : compaction.turns_before]
            for call in message.get("tool_calls", ())
        ):
            counted = ", ".join(f"{name} ({count})" for name, count in names.items())
            parts.append(f"Your first tool calls for this message are left out: {counted}.")
        return "\n\n".join(parts)

    @property
    def _has_late_summary(self) -> bool:
        """True if the instructions do not have the summary of the session already."""
        return bool(self._conversation.context.summary) and not self._runner.summarizes

    def _offer_reading(self) -> None:
        if READ_RESULT not in self._conversation.actions:
            actions = self._conversation.actions
            self._conversation.actions = {**actions, READ_RESULT: _ReadResult(self)}

    def _record(self, fitted: FittedMessages, window: int | None) -> None:
        """Let the answer record what its call leaves out, if the call before left out less."""
        records = [omission.record() for omission in (*self._failed, *fitted.omissions)]
        if records and records != self._recorded:
            self._recorded = records
            tokens = fitted.estimated_tokens
            compacted = Compacted(records, tokens, window)
            self._conversation.about_call = {"compacted": asdict(compacted)}
            self._conversation.context.emit(compacted)


@dataclass(frozen=True, slots=True)
class _ReadResult:
    """Read a part of a result by its number in the messages of the run."""

    has_effects: ClassVar[bool] = False
    idempotent: ClassVar[bool] = True

    fitter: ContextFitter

    def record(self) -> ToolRecord:
        return _READ_TOOL

    async def perform(
        self, arguments: Mapping[str, Any], conversation: Conversation
    ) -> CallOutcome:
        number, offset = arguments.get("number"), arguments.get("offset", 0)
        if type(number) is not int or type(offset) is not int or offset < 0:
            return CallOutcome("The arguments number and offset are numbers from 0", failed=True)
        messages = self.fitter.messages
        if not 0 <= number < len(messages) or messages[number]["role"] != "tool":
            return CallOutcome(f"There is no result {number}", failed=True)
        text = messages[number]["content"]
        page = text[offset : offset + self.fitter.page_characters]
        end = offset + len(page)
        return CallOutcome(f"[Characters {offset} to {end} of {len(text)}]\n{page}")


def _leave_answer(model: PreparedModel, window: int) -> int:
    """Return the tokens of a window without those that are left to the answer."""
    return window - min(model.settings.max_tokens or ANSWER_TOKENS, window // 4)
