"""A run of an agent in code: its execution, what its runner reads, and how it reports results."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from agentctl.agents import RunContext
from agentctl.records.text import replace_unstorable
from agentctl.runtime.bounds import STEP_BYTES, Turns
from agentctl.runtime.context import RunHost, build_run_context
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.json_values import (
    NotSerializable,
    ValueTooLarge,
    convert_in_steps,
    to_json_value,
)
from agentctl.runtime.tools.functions import result_to_text
from agentctl.runtime.transcript.events import (
    Content,
    ThinkingDelta,
    ToolCallCompleted,
    ToolCallStarted,
)
from agentctl.runtime.transcript.transcript import TranscriptMark
from agentctl.work.unstopped import RUNNER, run_in_thread

if TYPE_CHECKING:
    from agentctl.config.settings import Limits
    from agentctl.runtime.context import RunEnvironment
    from agentctl.runtime.journal import Journal
    from agentctl.runtime.pauses import Leg
    from agentctl.runtime.transcript.spans import Span, Spans, SpanStatus
    from agentctl.runtime.transcript.transcript import Transcript


T = TypeVar("T")

_TOO_LARGE = "The run exceeded its maximum size"

MAXIMUM_ARGUMENTS = 128
"""Maximum number of arguments of a tool call."""

MAXIMUM_CALLS = 10_000
"""Maximum number of tool calls of a run."""

ARGUMENT_CHARACTERS = STEP_BYTES
"""Maximum size of the JSON of an argument that is not text."""

_SEPARATOR = "\n\n"
"""Separates the texts of two answers in the content."""


_STOP_SECONDS = 10.0
"""Maximum time until a process learns that it has lost a run."""


class ModelSpan:
    """A call of a model that a library makes, with its times and tokens."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def mark_first_token(self) -> None:
        self._span.mark_first_token()

    @property
    def model(self) -> str:
        """The name of the model."""
        return self._span.name

    def rename(self, model: str | None) -> None:
        """Name the call after the model that answers, such as a fallback; None changes nothing."""
        self._span.name = model or self._span.name

    def end(self, usage: Mapping[str, int] | None = None, status: SpanStatus = "completed") -> None:
        """Record the end.

        Args:
            usage: the counters of this call; None, or all zeros, if the library reports none.
        """
        if usage is not None and any(usage.values()):
            self._span.input_tokens = usage["input_tokens"]
            self._span.output_tokens = usage["output_tokens"]
            self._span.answer = {"metrics": usage}
        self._span.end(status)


class LateReport(asyncio.CancelledError):
    """A report of an agent whose run has ended. It is dropped."""


class HostedRun:
    """A run as its runner sees it.

    Every report raises asyncio.CancelledError once the run has to stop, so that an agent that
    ignores its cancellation cannot add to a run that has ended. Text is made storable, and the size
    of the run is limited.

    Args:
        environment: the run.
        kind: the kind of runner.

    Attributes:
        spec: its specification.
        earlier_runs: the earlier runs, each with its native messages if this kind of runner
            executed it.
        history: their neutral messages (`runtime.transcript.transcript`), oldest first.
        leg: the state and the decisions with which the run goes on; None in its first leg.
        limits: size limits in bytes.
        context_host: the side of `context` that belongs to the server.
        silent_calls: ids of the calls whose events an earlier process has published.
    """

    def __init__(self, environment: RunEnvironment, kind: str) -> None:
        self.spec = environment.spec
        self.earlier_runs = environment.earlier_runs
        self.history = environment.history
        self.leg: Leg | None = environment.leg
        self.limits: Limits = environment.limits
        self.context_host = RunHost(environment)
        self.silent_calls: Collection[str] = ()
        self._environment = environment
        self._kind = kind
        self._kept_bytes = 0
        self._counted: dict[str, int] = {}
        self._needs_separator = False
        self._output = b"null"
        self._turns = Turns()
        self._mark = TranscriptMark() if self.leg is None else self._transcript.mark()

    @property
    def environment(self) -> RunEnvironment:
        return self._environment

    @property
    def kind(self) -> str:
        return self._kind

    @cached_property
    def context(self) -> RunContext:
        return build_run_context(self._environment, self.context_host)

    @property
    def request_history(self) -> Sequence[Mapping[str, Any]]:
        """The earlier messages of the request, for a runner with its own memory."""
        requested = (run for run in self.earlier_runs if run.from_request)
        return [message for run in requested for message in run.messages]

    async def is_first_of_session(self) -> bool:
        return await self._environment.is_first_of_session()

    @property
    def content(self) -> str:
        return self._transcript.content

    @property
    def open_calls(self) -> dict[str, str]:
        """The names of the calls without a result so far, by their ids."""
        return self._transcript.open_calls

    @property
    def spans(self) -> Spans:
        """The times of the parts of the run."""
        return self._transcript.spans

    @property
    def _transcript(self) -> Transcript:
        return self._environment.transcript

    @property
    def is_stopping(self) -> bool:
        return self._environment.is_stopping

    async def begin_approved(self, approval_id: str) -> None:
        """Store that an approved call begins; see `RunEnvironment.begin_call`."""
        try:
            await self._environment.begin_call(approval_id)
        except asyncio.CancelledError:
            if not self.is_stopping:
                # A cancel is recorded, or another process has the run: the stop arrives soon.
                await asyncio.sleep(_STOP_SECONDS)
            raise

    async def end_approved(self, approval_id: str, result: str, *, failed: bool) -> None:
        """Store the result of an approved call that has ended."""
        await self._environment.end_call(approval_id, result, failed=failed)

    async def begin_effect(self) -> None:
        """Store, once in a later leg, that a call without an approval begins."""
        await self._environment.begin_effect()

    @property
    def journal(self) -> Journal | None:
        """The journal of a durable run; None for every other run."""
        return self._environment.journal

    def discard_state_changes(self) -> None:
        """Undo the changes of the session's state; those of a member remain, for its parent."""
        if self.spec.parent_run_id is None:
            self._environment.state.discard_changes()

    def checkpoint(self) -> None:
        """Raise asyncio.CancelledError if the run has to stop."""
        if self._environment.has_ended:
            raise LateReport
        self._environment.checkpoint()

    def add_text(self, delta: str, origin: Mapping[str, str] | None = None) -> None:
        """Add text to the answer, and publish it.

        Args:
            origin: further fields of the event (docs/contract.md "Events").

        Raises:
            ExecutionError: the run would exceed `limits.run_bytes`.
        """
        if not (delta := self._accept_text(delta)):
            return
        if not self._transcript.is_answering:
            self._transcript.begin_answer()
        self._transcript.extend_answer(delta)
        if self._needs_separator:
            self._needs_separator, delta = False, _SEPARATOR + delta
        self._transcript.add_content(delta)
        self._environment.emit(Content(delta, origin or None))

    def start_model_call(self, model: object, at: int | None = None) -> ModelSpan:
        """Report the start of a call of a model, now or at a time in microseconds UTC.

        Args:
            model: the name of the model; a value that is no text is `model`.
        """
        self.checkpoint()
        name = replace_unstorable(model) if isinstance(model, str) and model else "model"
        return ModelSpan(self._transcript.spans.start_model_call(name, at))

    def begin_answer(self) -> None:
        """Start a new answer of a model. An empty line separates its text from earlier text."""
        self.checkpoint()
        self._transcript.begin_answer()
        self._needs_separator = bool(self._transcript.content)

    def add_thinking(self, delta: str) -> None:
        """Add text to the thinking of the run, which is not part of its answer, and publish it.

        Raises:
            ExecutionError: the run would exceed `limits.run_bytes`.
        """
        if delta := self._accept_text(delta):
            self._transcript.add_reasoning(delta)
            self._environment.emit(ThinkingDelta(delta))

    def replace_answers(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Replace the answers and results so far, for a library that has their order at the end.

        The content becomes the text of the answers.

        Args:
            messages: as for `Transcript.replace_answers`; the text of a result that the transcript
                has is taken from there.
        """
        self.checkpoint()
        results = {entry["tool_call_id"]: entry["result"] for entry in self._transcript.tools}
        replaced: list[Mapping[str, Any]] = []
        for message in messages:
            text = replace_unstorable(message["content"])
            if message["role"] == "tool":
                text = results.get(message["tool_call_id"]) or text
            replaced.append({**message, "content": text})
        self._transcript.replace_answers(replaced)
        texts = [message["content"] for message in replaced if message["role"] == "assistant"]
        content = _SEPARATOR.join(text for text in texts if text)
        if content != self._transcript.content:
            self._transcript.replace_content(content)

    def start_call(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> None:
        """Report the start of a tool call.

        Args:
            call_id: id of the call, unique in the run.
            arguments: values with a JSON form; others, and those that are not text and have over
                `ARGUMENT_CHARACTERS` of JSON, are replaced by the name of their type.

        Raises:
            ExecutionError: the run would exceed `limits.run_bytes`, `MAXIMUM_ARGUMENTS` or
                `MAXIMUM_CALLS`.
        """
        self.checkpoint()
        call_id, name = replace_unstorable(str(call_id)), replace_unstorable(str(name))
        if len(arguments) > MAXIMUM_ARGUMENTS:
            raise ExecutionError("AGENT_FAILED", "A tool call has too many arguments")
        if len(self._transcript.tools) == MAXIMUM_CALLS:
            raise ExecutionError("AGENT_FAILED", "The run has too many tool calls")
        call = self._build_call(call_id, name, arguments)
        self.reserve(len(orjson.dumps(call)))
        self._transcript.request_call(call)
        opened = self._transcript.open_call(call_id, name, call["arguments"])
        if call_id not in self.silent_calls:
            self._environment.emit(ToolCallStarted(opened))

    def _build_call(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        values = {
            replace_unstorable(str(key)): self._convert_argument(arguments[key])
            for key in arguments
        }
        return {"id": call_id, "name": name, "arguments": values}

    def request_calls(self, calls: Iterable[tuple[str, str, Mapping[str, Any]]]) -> None:
        """Complete the present answer with all of its calls, before the first one starts.

        Args:
            calls: the id, the name and the arguments of each, as for `start_call`.
        """
        self.checkpoint()
        self._transcript.request_calls(
            [
                self._build_call(replace_unstorable(call_id), replace_unstorable(name), arguments)
                for call_id, name, arguments in calls
            ]
        )

    def keep_transcript(self) -> dict[str, Any]:
        """Return all that the run has reported, as JSON for its journal."""
        return self._transcript.to_json()

    def take_added(self) -> dict[str, Any]:
        """Return what the run has reported since the last call, as JSON for its journal."""
        added = self._transcript.since(self._mark, results=True)
        self._mark = self._transcript.mark()
        return added

    def end_call(self, call_id: str, result: object = "", *, failed: bool = False) -> None:
        """Report the end of a tool call that was started; an unknown id is ignored.

        Args:
            result: text, or a value with a JSON form; cut at `limits.tool_result_bytes`.
            failed: True if the call failed.

        Raises:
            ExecutionError: the run would exceed `limits.run_bytes`.
        """
        self.checkpoint()
        try:
            text = result_to_text(result, self._environment.limits.tool_result_bytes)
        except NotSerializable:
            text = "The result has no JSON form"
        self.reserve(len(text.encode()))
        closed = self._transcript.close_call(replace_unstorable(call_id), text, error=failed)
        if closed is not None and call_id not in self.silent_calls:
            self._environment.emit(ToolCallCompleted(closed))

    def add_usage(self, usage: Mapping[str, int], model: str | None = None) -> None:
        """Add to the token counters of the run. Counters that no one reports stay unknown.

        Args:
            usage: numbers by the names of the nine counters (docs/contract.md "Session records").
            model: the model that used the tokens; None for the one that was called last.
        """
        if not self._environment.has_ended:
            self._transcript.add_usage(usage, model)
            self._environment.watch_budgets()

    def set_usage(self, usage: Mapping[str, int]) -> None:
        """Set the counters of this runner to their current sums, for libraries that report these.

        Tokens that functions report through the context are added to them.
        """
        increase = {name: count - self._counted.get(name, 0) for name, count in usage.items()}
        self._counted |= usage
        self.add_usage(increase)

    def restore_usage(self, usage: Mapping[str, int]) -> None:
        """Continue the sums of an earlier leg, whose tokens the run has already."""
        self._counted |= usage

    async def set_output(self, value: object) -> None:
        """Set the structured result of the run.

        Raises:
            ExecutionError: the value has no JSON form, or the run would exceed `limits.run_bytes`.
        """
        self.checkpoint()
        steps = convert_in_steps(value, self._environment.limits.run_bytes - self._kept_bytes)
        try:
            while True:
                next(steps)
                await self._turns.take()
        except StopIteration as end:
            output = end.value
        except ValueTooLarge as error:
            raise ExecutionError("AGENT_FAILED", _TOO_LARGE) from error
        except NotSerializable as error:
            raise ExecutionError(
                "AGENT_FAILED", "The result of the agent has no JSON form"
            ) from error
        self._output = orjson.dumps(output)
        self.reserve(len(self._output))
        self._transcript.output = output

    @property
    def output_text(self) -> str:
        """The structured result as JSON text."""
        return self._output.decode()

    async def take_turn(self) -> None:
        """Let other tasks continue if this one has reported for a while without an `await`."""
        await self._turns.take()

    async def call_in_thread(self, function: Callable[[], T]) -> T:
        """Call a function in a new thread; raise what it raises.

        If the run is cancelled, the thread continues, is reported as unstopped work, and its result
        is dropped.

        Raises:
            TooManyAbandonedThreads: too many abandoned threads still run; nothing was called.
        """
        return await run_in_thread(
            function, self.spec.component_id, self._transcript.unstopped, unstopped_name=RUNNER
        )

    def set_native_history(self, messages: str) -> None:
        """Keep the messages of this run as JSON of the library, for later runs of this kind.

        They may be set several times, also while the run is cancelled; the last ones are stored.
        Messages that are larger than `limits.run_bytes` are not kept: later runs then get the
        neutral messages.
        """
        if self._environment.has_ended:
            return
        fits = len(messages.encode()) <= self._environment.limits.run_bytes
        self._transcript.native_kind = self._kind if fits else None
        self._transcript.native_history = messages if fits else None

    def add_unstopped(self, work: asyncio.Future[Any]) -> None:
        """Add work of the run that was cancelled and has not ended; nothing waits for it.

        The run record shows it as work of the tool `runner`.

        Args:
            work: a task, or a future that is done when its thread has ended.
        """
        self._transcript.unstopped.add(work, RUNNER)

    def _convert_argument(self, value: object) -> Any:
        if isinstance(value, str):
            self.check_room(len(value))
            return replace_unstorable(str.__str__(value))
        try:
            return to_json_value(value, ARGUMENT_CHARACTERS)
        except NotSerializable:
            return f"a {type(value).__name__}"

    def _accept_text(self, text: str) -> str:
        """Count the bytes of a text that has arrived, and return it as it can be stored."""
        self.checkpoint()
        self.check_room(len(text))
        text = replace_unstorable(text)
        if text:
            self.reserve(len(text.encode()))
        return text

    def check_room(self, characters: int) -> None:
        """Refuse a text that cannot fit before any work on it.

        Raises:
            ExecutionError: the run would exceed `limits.run_bytes`.
        """
        if self._kept_bytes + characters > self._environment.limits.run_bytes:
            raise ExecutionError("AGENT_FAILED", _TOO_LARGE)

    def reserve(self, size: int) -> None:
        """Count bytes that the run keeps.

        Raises:
            ExecutionError: the run would exceed `limits.run_bytes`.
        """
        self._kept_bytes += size
        self._transcript.size = self._kept_bytes
        if self._kept_bytes > self._environment.limits.run_bytes:
            raise ExecutionError("AGENT_FAILED", _TOO_LARGE)
