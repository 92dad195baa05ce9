"""The context of the model calls of one run: what fits into the window of the model.

The model that summarizes the sessions of the component writes the summary of the oldest steps,
which the calls leave out. That call is one of the run: its tokens, its budgets, its record and its
cancel are those of every model call.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from agentctl.runtime.failures import MODEL_FAILURES, ExecutionError
from agentctl.runtime.models.access import get_access
from agentctl.runtime.models.answering import AnswerRequest, fetch_answer
from agentctl.runtime.models.call_fitting import (
    SMALLEST_WINDOW,
    CallFitter,
    find_window,
    leave_answer,
)
from agentctl.runtime.models.calls import ModelCall, PreparedModel
from agentctl.runtime.pauses import CallOutcome
from agentctl.runtime.tools.memories import OwnAction
from agentctl.runtime.tools.tool_records import build_tool
from agentctl.runtime.transcript.context_window import (
    BYTES_PER_TOKEN,
    FULL,
    PAGE_CHARACTERS,
    READ_RESULT,
    Compaction,
    ContextMessages,
    FittedMessages,
    Message,
    Omission,
    find_report,
    keep_report,
    read_page,
)
from agentctl.runtime.transcript.events import Compacted
from agentctl.runtime.transcript.history import (
    MAXIMUM_INPUT,
    MAXIMUM_OUTPUT_TOKENS,
    MAXIMUM_SUMMARY,
    SUMMARY_INSTRUCTIONS,
    complete_history,
    cut_turn,
    format_summary,
)

if TYPE_CHECKING:
    from agentctl.runtime.components.configured import ConfiguredRunner
    from agentctl.runtime.transcript.conversation import Conversation


MAXIMUM_STEP_RESULT = 1_000
"""Characters of the result of a tool in the input of a summary; the rest is left out."""

_log = logging.getLogger("agentctl.runtime")


class StepSummary(NamedTuple):
    """The summary of the first steps of a run."""

    text: str
    """The summary; `""` without a summary."""

    before: int
    """Index of the first message that it does not cover."""


def find_summary(messages: Sequence[Message]) -> tuple[str, str]:
    """Return the last summary in the messages of a run, and the last call that it covers."""
    for message in reversed(messages):
        compacted = message.get("compacted") or {}
        if summary := compacted.get("summary"):
            covered = (
                omission for omission in compacted["omissions"] if omission["kind"] == "summarized"
            )
            return summary, next((omission["last"] for omission in covered), "")
    return "", ""


async def summarize_steps(
    model_id: str, summary: StepSummary, task: str, messages: Sequence[Message]
) -> StepSummary:
    """Return a summary that covers all messages.

    If they are larger than the input of one call, each call gets the summary of the calls before.
    A failure of the model is no failure of the run: the summary covers then what it could.

    Args:
        model_id: the model that summarizes; the input fits into its context window.
        summary: the summary of the messages before.
        task: the message that the run answers.
        messages: the messages of the run up to the last one to cover.

    Raises:
        ExecutionError: a budget of the run is used up.
        asyncio.CancelledError: the run has to stop.
    """
    try:
        maximum = await _find_maximum(model_id)
        while summary.before < len(messages):
            prompt, end = _build_prompt(summary, task, messages, maximum)
            try:
                summary = StepSummary(await _fetch_summary(model_id, prompt), end)
            except ExecutionError as failure:
                if failure.code != "CONTEXT_EXCEEDED" or maximum <= MAXIMUM_STEP_RESULT:
                    raise
                maximum //= 2
    except ExecutionError as failure:
        if failure.code not in MODEL_FAILURES:
            raise
        _log.warning("steps of a run were not summarized: %s: %s", failure.code, failure.detail)

    return summary


async def _find_maximum(model_id: str) -> int:
    """Return the characters of an input that the model and its fallbacks can take."""
    attempts = get_access().prepare(model_id, None)
    maximum = MAXIMUM_INPUT
    for model in attempts.models:
        if (window := await find_window(model.source)) is not None:
            # A character has at most four bytes, and a token about three.
            maximum = min(maximum, leave_answer(window, MAXIMUM_OUTPUT_TOKENS) // 2)
        if refused := attempts.bounds.find(model.id):
            maximum = min(maximum, refused // 4)
    return maximum


def _build_prompt(
    summary: StepSummary, task: str, messages: Sequence[Message], maximum: int
) -> tuple[str, int]:
    """Return an input, and the index of the first message that it leaves to the next call."""
    parts = [f"Summary so far:\n{cut_turn(summary.text, maximum // 2)}"] if summary.text else []
    parts.append(f"User:\n{cut_turn(task, maximum // 4)}")

    size = sum(map(len, parts))
    end = summary.before

    for message in messages[summary.before :]:
        part = "\n\n".join(_list_texts(message, maximum // 4))
        size += len(part) + 2
        if end > summary.before and size > maximum:
            break
        parts.append(part)
        end += 1

    return "\n\n".join(parts)[:maximum], end


def _list_texts(message: Message, maximum: int) -> Iterator[str]:
    content = message["content"]
    if message["role"] == "tool":
        result = cut_turn(content, min(maximum, MAXIMUM_STEP_RESULT))
        yield f"Result of {message['tool_name']}:\n{result}"
    elif content:
        yield f"{message['role'].capitalize()}:\n{cut_turn(content, maximum)}"

    for call in message.get("tool_calls", ()):
        arguments = orjson.dumps(call["arguments"]).decode()
        yield f"Call of {call['name']}:\n{cut_turn(arguments, maximum)}"


async def _fetch_summary(model_id: str, prompt: str) -> str:
    request = AnswerRequest(
        model_id,
        SUMMARY_INSTRUCTIONS,
        [{"role": "user", "content": prompt}],
        settings={"max_tokens": MAXIMUM_OUTPUT_TOKENS},
    )
    _, answered = await fetch_answer(request)

    text = answered.answer.text.strip()
    if not text or len(text) > MAXIMUM_SUMMARY:
        raise ExecutionError("MODEL_ANSWER_INVALID", f"The summary has {len(text)} characters")

    return text


SUMMARY_PART = 0.1
"""Part of the window that the summary of the first steps of a run may take."""

_READ_TOOL = build_tool(
    READ_RESULT,
    "Read a part of an earlier tool result that is left out of the conversation.",
    {
        "number": {"type": "integer", "description": "Number of the result"},
        "offset": {"type": "integer", "description": "First character to read, from 0"},
    },
    ["number"],
)


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

        for earlier_run in conversation.context.earlier_runs:
            self._runs.append((len(self.messages), earlier_run.run_id))
            self.messages += complete_history(earlier_run.messages)
            if size := earlier_run.omitted_bytes:
                run_id = earlier_run.run_id
                self._failed.append(Omission("failed_run", 1, run_id, run_id, size))

        self.own = len(self.messages)
        self._runner = runner
        self._conversation = conversation
        self._can_read = READ_RESULT not in runner.actions

        bound = int(runner.result_tokens * BYTES_PER_TOKEN)
        sent_bytes, sent_tokens = find_report(self.messages, runner.models[0].id)
        self._compaction = Compaction(
            result_bytes=bound, sent_bytes=sent_bytes, sent_tokens=sent_tokens
        )

        self._recorded: list[dict[str, Any]] = []
        self._calls: CallFitter | None = None
        self._summary = ""
        self._recorded_summary = ""
        self._tried = 0

    async def begin_call(self, model: PreparedModel) -> CallFitter:
        """Prepare the next call, and return the fitter of its messages.

        Args:
            model: the model of the first attempt.

        Raises:
            ExecutionError: CONTEXT_EXCEEDED, or a budget is used up by a summary of first steps.
        """
        self._conversation.about_call = {}

        if self._calls is None:
            context = ContextMessages(self.messages, self.own, self._runs)
            self._take_over_summary(context)
            self._calls = CallFitter(
                context,
                self._conversation.instructions,
                self._runner.tools,
                self._runner.counters.bounds,
                self._compaction,
                reading="number" if self._can_read else None,
            )

        await self._calls.begin_call(self._runner.models)

        if self._runner.summary_model:
            await self._summarize(self._calls, model)

        return self._calls

    def _take_over_summary(self, context: ContextMessages) -> None:
        """Continue with the summary of an earlier process, or of the run that this one repeats."""
        transcript = self._conversation.context.transcript
        compaction = self._compaction
        self._summary, last = find_summary(transcript.messages)
        self._recorded_summary = self._summary
        if not self._summary:
            if compaction.summarized_before:
                self._compaction = compaction._replace(summarized_before=0)
        elif not compaction.summarized_before and (end := context.find_step_end(last)):
            self._compaction = compaction._replace(turns_before=end, summarized_before=end)

    async def _summarize(self, calls: CallFitter, model: PreparedModel) -> None:
        """Summarize the steps that the next call leaves out, before it is made."""
        self._fit(calls, model)

        current = calls.context.current
        covered_before = max(calls.compaction.summarized_before, current + 1)
        if calls.compaction.turns_before <= max(covered_before, self._tried):
            return

        calls.make_room()
        uncovered_from = calls.compaction.turns_before
        self._tried = uncovered_from

        before = StepSummary(self._summary, covered_before)
        task = self.messages[current]["content"]
        model_id = self._runner.summary_model
        summary = await summarize_steps(model_id, before, task, self.messages[:uncovered_from])

        if summary.before > covered_before:
            self._summary = summary.text
            calls.compaction = calls.compaction._replace(summarized_before=summary.before)

    def _fit(self, calls: CallFitter, model: PreparedModel) -> None:
        if self._summary:
            calls.note_bytes = len(self._format_summary(calls, model).encode())
        calls.fit(model)

    def _format_summary(self, calls: CallFitter, model: PreparedModel) -> str:
        """Return the paragraph with the summary of the first steps; `""` without a summary."""
        if not self._summary:
            return ""

        room = calls.find_room(model)
        bound = calls.compaction.maximum_bytes
        sizes = (int((room or 0) * BYTES_PER_TOKEN), bound, int(MAXIMUM_SUMMARY / SUMMARY_PART))
        maximum = int(min(size for size in sizes if size) * SUMMARY_PART)

        shown_summary = self._summary.encode()[:maximum].decode(errors="ignore")
        return format_summary(shown_summary, of_steps=True) if shown_summary else ""

    def build_call(self, calls: CallFitter, model: PreparedModel, **options: Any) -> ModelCall:
        """Build a call with the messages that fit; its answer records what does not.

        Args:
            options: `tool_choice` and `output` of the call.

        Raises:
            ExecutionError: CONTEXT_EXCEEDED: what cannot be left out is far too large.
        """
        self._fit(calls, model)
        fitted = calls.fitted
        room = calls.room
        if room is not None:
            transcript = self._conversation.context.transcript
            transcript.room = room
            transcript.is_full |= bool(fitted.omissions) or fitted.estimated_tokens > room * FULL

        instructions = self._conversation.instructions

        tools = self._runner.tools
        if fitted.omissions:
            omission_note = self._describe(calls.context.current + 1, fitted, room)
            has_gap = fitted.compaction.summarized_before or fitted.compaction.history_before
            steps_summary = self._format_summary(calls, model) if has_gap else ""
            instructions = "\n\n".join(filter(None, (instructions, omission_note, steps_summary)))

            if self._can_read and any(
                omission.kind == "tool_result" for omission in fitted.omissions
            ):
                self._offer_reading()
                tools = [*tools, _READ_TOOL]

        if self._failed or fitted.omissions:
            self._record(fitted, calls.windows.get(model.id))

        if fitted.size > SMALLEST_WINDOW:
            about = {**self._conversation.about_call, "sent_bytes": fitted.size}
            self._conversation.about_call = about

        files = self._conversation.context.files
        return ModelCall(
            instructions, fitted.messages, tools, model.settings, files=files, **options
        )

    def read(self, number: int, offset: int) -> str | None:
        """Return a page of the result at an index of the messages; None if there is none."""
        if not 0 <= number < len(self.messages) or self.messages[number]["role"] != "tool":
            return None
        characters = PAGE_CHARACTERS if self._calls is None else self._calls.page_characters
        return read_page(self.messages[number]["content"], offset, characters)

    def keep_report(self) -> None:
        """Take over the tokens that the model has reported with its answer."""
        if (calls := self._calls) is not None:
            tokens = self._conversation.input_tokens
            calls.compaction = keep_report(calls.compaction, calls.fitted.size, tokens)

    def keep(self) -> dict[str, Any]:
        """Return a JSON object from which another process builds the same calls; see `restore`."""
        compaction = self._compaction if self._calls is None else self._calls.compaction
        return {"numbers": compaction._asdict(), "recorded": self._recorded}

    def restore(self, kept_state: Mapping[str, Any] | None) -> None:
        if kept_state is not None:  # A checkpoint of an earlier version has none.
            self._compaction = Compaction(**kept_state["numbers"])
            self._recorded = kept_state["recorded"]
            self._offer_reading()

    def _describe(self, start: int, fitted: FittedMessages, room: int | None) -> str:
        """Return a paragraph for the instructions about the messages that are left out.

        Args:
            start: index of the first answer of the run.
        """
        context = self._conversation.context
        compaction = fitted.compaction
        parts = []

        if compaction.history_before:
            parts.append("The beginning of this conversation is left out.")
            summary = format_summary(context.summary or "")
            tokens = compaction.estimate_tokens(fitted.size + len(summary.encode()))
            if self._has_late_summary and room is not None and tokens <= room * FULL:
                parts.append(summary)

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
            self._conversation.actions = {**actions, READ_RESULT: _ReadResult(_READ_TOOL, self)}

    def _record(self, fitted: FittedMessages, window: int | None) -> None:
        """Let the answer record what its call leaves out, if the call before left out less."""
        records = [omission.record() for omission in (*self._failed, *fitted.omissions)]
        if records != self._recorded:
            self._recorded = records
            summary = self._summary if self._summary != self._recorded_summary else None
            self._recorded_summary = self._summary
            compacted = Compacted(records, fitted.estimated_tokens, window, summary)
            self._conversation.about_call = self._conversation.recorder.report_compacted(compacted)


@dataclass(frozen=True, slots=True)
class _ReadResult(OwnAction):
    """Read a part of a result by its number in the messages of the run."""

    fitter: ContextFitter

    async def perform(
        self, arguments: Mapping[str, Any], conversation: Conversation
    ) -> CallOutcome:
        number = arguments.get("number")
        offset = arguments.get("offset", 0)
        if type(number) is not int or type(offset) is not int or offset < 0:
            return CallOutcome("The arguments number and offset are numbers from 0", failed=True)
        page = self.fitter.read(number, offset)
        return CallOutcome(page or f"There is no result {number}", failed=page is None)
