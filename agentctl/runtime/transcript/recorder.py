"""The recorder of a run: what happens in the run is written here, and nowhere else.

Several parts of agentctl work on a run: the own loop (`Conversation`), the runner of an agent in
code (`HostedRun`), a workflow, and the models that code calls itself. They report the same facts:
text has arrived, a call has begun, a message was delivered. For each fact the recorder counts the
bytes that the run keeps, changes the transcript, and publishes the event, in one step. So the
record, the spans and the stream of a run tell the same story, whichever part reports it
(decision 149).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from agentctl.records.text import PieceJoiner, replace_unstorable
from agentctl.records.times import now
from agentctl.runtime.failures import build_too_large
from agentctl.runtime.transcript import events

if TYPE_CHECKING:
    from agentctl.config.settings import Limits
    from agentctl.records.run_spec import RunSpec
    from agentctl.runtime.tracing import Span, SpanStatus
    from agentctl.runtime.transcript.transcript import Transcript

SEPARATOR = "\n\n"
"""Separates the texts of two answers in the content, and their thinking."""


class RecordedRun(Protocol):
    """The part of a `RunEnvironment` that its recorder uses."""

    spec: RunSpec
    transcript: Transcript
    limits: Limits

    def emit(self, event: events.RunEvent) -> None: ...
    def add_usage(self, usage: Mapping[str, int], model: str | None = None) -> None: ...
    async def take_messages(
        self, *, for_code: bool = False
    ) -> Sequence[events.MessageDelivered]: ...


class RunRecorder:
    """The writer of the results of one run in one leg; see `RunEnvironment.recorder`.

    It does not check whether the run has to stop. The own loop is cancelled as a task; code of a
    user may ignore that, so `HostedRun` refuses its reports.

    What adds data raises ExecutionError if the run would exceed `limits.run_bytes`.

    Attributes:
        transcript: the transcript of the run, to which it adds.
        kept_bytes: the bytes that the run keeps, those of its earlier legs included.
        holds_text: True if the text of an answer waits for `publish_held_text`: it may not become
            the content of the run.
    """

    def __init__(self, run: RecordedRun) -> None:
        self.transcript = run.transcript
        self.kept_bytes = self.transcript.measure()
        self.transcript.size = self.kept_bytes
        self.holds_text = False

        self._run = run
        self._limit = run.limits.run_bytes
        self._arriving_bytes = 0

        self._text_pieces = PieceJoiner()
        self._thinking_pieces = PieceJoiner()
        self._origin: Mapping[str, str] | None = None
        self._held_text: list[str] = []
        self._needs_separator = False
        self._separates_thinking = False

    def check_room(self, characters: int) -> None:
        """Refuse a text that cannot fit before any work on it (decision 75)."""
        if self.kept_bytes + characters > self._limit:
            raise build_too_large()

    def reserve(self, size: int) -> None:
        """Count bytes that the run keeps."""
        kept_bytes = self.kept_bytes + size
        self.kept_bytes = kept_bytes
        self.transcript.size = kept_bytes
        if kept_bytes + self._arriving_bytes > self._limit:
            raise build_too_large()

    def count_arriving(self, size: int) -> None:
        """Count bytes of an answer that are not kept so far, such as an incomplete tool call."""
        self._arriving_bytes += size
        self.reserve(0)

    def begin(self, instructions: str = "") -> None:
        """Begin the run: its instructions, the messages of the run that it repeats, its message."""
        if instructions:
            self.transcript.add_system(instructions)

        spec = self._run.spec
        if spec.origin is not None:
            self.reserve(sum(len(message["content"].encode()) for message in spec.origin.messages))
        self.transcript.add_question(spec)

    async def take_messages(self, *, for_code: bool = False) -> Sequence[events.MessageDelivered]:
        """Take the messages that were sent to the run; see `RunEnvironment.take_messages`.

        The caller makes each of them a part of the run with `add_message`.
        """
        messages = await self._run.take_messages(for_code=for_code)
        for message in messages:
            self.reserve(len(message.content.encode()))
        return messages

    def add_message(self, message: events.MessageDelivered) -> None:
        """Make a message of `take_messages` a part of the run, after what it has so far.

        It comes between two steps of the run, so an open answer is complete.
        """
        self.end_text()
        self.transcript.end_answer([], "stop")
        self.transcript.add_message(message.message_id, message.content)
        self._run.emit(message)

    def report_compacted(self, compacted: events.Compacted) -> dict[str, Any]:
        """Publish what a call leaves out; return it for the message of its answer."""
        self._run.emit(compacted)
        return {"compacted": asdict(compacted)}

    def begin_answer(
        self, model: str | None = None, about_call: Mapping[str, Any] = {}
    ) -> Span | None:
        """Start a new answer; its text and its thinking are separated from earlier ones.

        Args:
            model: the model that is called for it; None if its call is reported apart
                (`start_model_call`), or if no model of this run answers.
            about_call: further members of its message, about its call.

        Returns:
            The span of the call, which ends with the answer; None without a model.
        """
        self.end_text()
        span = self.transcript.begin_answer(model, about_call)
        self._needs_separator = bool(self.transcript.content)
        self.begin_thinking()
        self._held_text.clear()
        self._arriving_bytes = 0
        return span

    def begin_thinking(self) -> None:
        """Separate the thinking that follows from the thinking so far: it is of another answer.

        `begin_answer` does this, too. Call it for a whole answer whose text the run has already.
        """
        self._separates_thinking = bool(self.transcript.reasoning_content)

    def add_text(self, piece: str, origin: Mapping[str, str] | None = None) -> None:
        """Add text to the answer, and publish it, unless the answer is held back.

        A character that a stream has cut in halves is added when the other half arrives.

        Args:
            origin: further fields of the event (docs/contract.md "Events").
        """
        if origin != self._origin:
            self.end_text()
            self._origin = origin
        self.check_room(len(piece))
        text = self._text_pieces.add(piece)
        if text:
            self._accept_text(text)

    def end_text(self) -> None:
        """End the open text and the open thinking: a half of a character gets no other half."""
        if self._text_pieces.held:
            self._accept_text(self._text_pieces.end())
        if self._thinking_pieces.held:
            self._accept_thinking(self._thinking_pieces.end())

    def _accept_text(self, text: str) -> None:
        self.reserve(len(text.encode()))
        stop = self.transcript.stop
        if stop is None:
            self._extend_answer(self._origin, text)
        else:
            stop.take(text, partial(self._extend_answer, self._origin))

    def _extend_answer(self, origin: Mapping[str, str] | None, text: str) -> None:
        transcript = self.transcript
        if transcript.open_answer is None:
            transcript.begin_answer()
        transcript.extend_answer(text)
        if self.holds_text:
            self._held_text.append(text)
        else:
            self._publish_text(text, origin)

    def _publish_text(self, text: str, origin: Mapping[str, str] | None = None) -> None:
        delta = text
        if self._needs_separator:
            self._needs_separator = False
            delta = SEPARATOR + text
        self.transcript.add_content(delta)
        self._run.emit(events.Content(delta, origin or None))

    @property
    def held_text(self) -> str:
        """The text of the current answer that is held back."""
        return "".join(self._held_text)

    def publish_held_text(self) -> None:
        """Make the text that is held back a part of the content, and publish it."""
        if text := self.held_text:
            self._publish_text(text)

    def set_answer(self, text: str) -> None:
        """Make a text of no model of this run its answer and its content, and publish it."""
        stop = self.transcript.stop
        if stop is not None:
            text = stop.cut(text)
        self.transcript.add_answer(text)
        self._needs_separator = False
        self.transcript.replace_content(text)
        self._run.emit(events.Content(text))

    def add_thinking(self, piece: str) -> None:
        """Add text to the thinking of the run, which is not part of its content, and publish it."""
        self.check_room(len(piece))
        text = self._thinking_pieces.add(piece)
        if text:
            self._accept_thinking(text)

    def _accept_thinking(self, text: str) -> None:
        delta = SEPARATOR + text if self._separates_thinking else text
        self._separates_thinking = False
        self.reserve(len(delta.encode()))
        self.transcript.mark_first_token()
        self.transcript.add_reasoning(delta)
        self._run.emit(events.ThinkingDelta(delta))

    def end_answer(self, calls: list[dict[str, Any]], finish_reason: str) -> None:
        """Complete the answer with all of its tool calls: `id`, `name` and `arguments` of each.

        Args:
            finish_reason: the reason of the provider (docs/contract.md "Run record").
        """
        self.end_text()
        self._arriving_bytes = 0
        self.reserve(len(orjson.dumps(calls)))
        self.transcript.end_answer(calls, finish_reason)

    def request_call(self, call: dict[str, Any]) -> None:
        """Add one call to the answer: `id`, `name` and `arguments`; see `Transcript`."""
        self.end_text()
        self.reserve(len(orjson.dumps(call)))
        self.transcript.request_call(call)

    def open_call(
        self,
        call_id: str,
        name: str,
        arguments: Mapping[str, Any],
        *,
        at: int | None = None,
        announces: bool = True,
    ) -> None:
        """Record that a tool call begins, now or at a time in microseconds UTC.

        Args:
            announces: False if an earlier process has published its events.
        """
        entry = self.transcript.open_call(call_id, name, arguments, at)
        if announces:
            self._run.emit(events.ToolCallStarted(entry))

    def close_call(
        self,
        call_id: str,
        result: str,
        *,
        failed: bool,
        at: int | None = None,
        files: str | None = None,
        announces: bool = True,
    ) -> None:
        """Record the result of a tool call that was opened; an unknown id is ignored.

        Args:
            at: its end in microseconds UTC; None for now.
            files: JSON array of the references of its files; None without files.
            announces: as for `open_call`.
        """
        closed = self.transcript.close_call(call_id, result, error=failed, at=at, files=files)
        if closed is not None and announces:
            self._run.emit(events.ToolCallCompleted(closed))

        # The call has been made: the size of the run must not turn it into one that was not. A run
        # that grows too large ends once the record has the result.
        self.reserve(len(result.encode()))

    def start_model_call(self, model: object, at: int | None = None) -> Span:
        """Record that a model is called, by a library or by code; see `end_model_call`.

        Args:
            model: the name of the model; a value that is no text is `model`.
            at: the time in microseconds UTC; None for now.
        """
        name = replace_unstorable(model) if isinstance(model, str) and model else "model"
        return self.transcript.spans.start_model_call(name, at)

    def end_model_call(
        self,
        span: Span,
        usage: Mapping[str, int] | None,
        status: SpanStatus = "completed",
        *,
        error_code: str | None = None,
        is_counted: bool = False,
    ) -> None:
        """Record how a call of `start_model_call` has ended, and add its tokens to the run.

        Args:
            usage: the counters of this call; None if they are not known.
            error_code: the code of the failure, if it is known.
            is_counted: True if the tokens are added to the run in another way.
        """
        if usage is not None and not is_counted:
            self._run.add_usage(usage, span.name)
        span.end_call(usage, status, error_code)

    def begin_step(self, index: int, name: str) -> Span:
        """Record that a step of a workflow begins; `index` counts from 0."""
        name = replace_unstorable(name)
        self._run.emit(events.StepStarted(name, index))
        return self.transcript.spans.start_step(index, name)

    def complete_step(self, span: Span, index: int, output: str) -> None:
        """Record that a step has succeeded, with its output."""
        span.end("completed")
        self._run.emit(events.StepCompleted(span.name, index, output))

    def complete(self, finish_reason: str | None = None) -> None:
        """Complete the work of the run: nothing in it stays open.

        Args:
            finish_reason: of the last answer, if its provider has cut it.
        """
        self.end_text()
        self.transcript.end_answer([], "stop")
        if finish_reason is not None:
            self.transcript.mark_incomplete(finish_reason)
        self.transcript.close_open_calls(now())
