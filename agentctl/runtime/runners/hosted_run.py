"""A run of an agent in code: its execution, what its runner reads, and how it reports results."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import orjson

from agentctl.agents import RunContext
from agentctl.records.text import replace_unstorable
from agentctl.runtime.context import RunEnvironment, RunHost, build_run_context, leave_out
from agentctl.runtime.failures import ExecutionError, build_too_large
from agentctl.runtime.files import LoadedFile, Message, build_files, leave_out_files, load_files
from agentctl.runtime.json_values import (
    NO_JSON_FORM,
    NotSerializable,
    ValueTooLarge,
    convert_in_steps,
    to_json_value,
)
from agentctl.runtime.runners.hidden_files import HiddenFiles
from agentctl.runtime.tools.functions import result_to_text
from agentctl.runtime.transcript.events import Compacted, MessageDelivered
from agentctl.runtime.transcript.recorder import SEPARATOR
from agentctl.runtime.transcript.repeated_calls import RepeatedCalls, RepeatLimits
from agentctl.work.event_loop import STEP_BYTES, Turns
from agentctl.work.unstopped import RUNNER, run_in_thread

if TYPE_CHECKING:
    from agentctl.runtime.pauses import InputSchema
    from agentctl.runtime.tracing import Span, SpanStatus

T = TypeVar("T")

MAXIMUM_ARGUMENTS = 128
"""Maximum number of arguments of a tool call."""

MAXIMUM_CALLS = 10_000
"""Maximum number of tool calls of a run."""

ARGUMENT_CHARACTERS = STEP_BYTES
"""Maximum size of the JSON of an argument that is not text."""

_HIDDEN = "hidden_files"
"""The member of a stored state with marks in place of the bytes of files."""

_STOP_SECONDS = 10.0
"""Maximum time until a process learns that it has lost a run."""


class LateReport(asyncio.CancelledError):
    """A report of an agent whose run has ended. It is dropped."""


class HostedRun:
    """A run as its runner sees it.

    Reports go to the recorder of the run, in a form that can be stored. Every report raises
    asyncio.CancelledError once the run has to stop, so that an agent that ignores its cancellation
    cannot add to a run that has ended, and ExecutionError if the run would exceed
    `limits.run_bytes`.

    Args:
        limits: how often its model may make one call in a row; None for no limit.

    Attributes:
        transcript: the results of the run so far.
        recorder: the recorder of the run.
        context_host: the side of `context` that belongs to the server.
        silent_calls: ids of the calls whose events an earlier process has published.
        counted: the sums of `set_usage` that the run has already.
        hidden: the files in the messages of the library.
        repeats: the calls of its model, whose repetitions are refused.
    """

    def __init__(
        self, environment: RunEnvironment, kind: str, limits: RepeatLimits | None = None
    ) -> None:
        self.environment = environment
        self.kind = kind
        self.transcript = environment.transcript
        self.recorder = environment.recorder
        self.context_host = RunHost(environment)

        self.repeats = RepeatedCalls(limits or RepeatLimits(), self.transcript.messages)
        self.silent_calls: Collection[str] = ()
        self.counted: dict[str, int] = {}
        self.hidden = HiddenFiles(is_url_safe=kind in ("google-adk", "pydantic-ai"))

        self._failed_call: Span | None = None
        self._output = b"null"
        self._turns = Turns()

    @cached_property
    def context(self) -> RunContext:
        return build_run_context(self.environment, self.context_host)

    async def read_input(self, schema: InputSchema | None) -> Any:
        """Return the object of the run as its agent takes it; the message if there is none.

        Raises:
            ExecutionError: the task of a member or step is no such object.
        """
        value = None if schema is None else await schema.read(self.environment.spec)
        return self.environment.spec.input if value is None else value

    async def load_prompt(self, text: str) -> Message:
        """Return a message of the user with all files of the run, see `load_messages`."""
        files = build_files(self.environment.spec.files)
        (message,) = await self._load([{"role": "user", "content": text, **files}])
        return message

    async def load_messages(self, messages: Iterable[Message]) -> Sequence[Message]:
        """Return neutral messages with the bytes of their files, as `LoadedFile`s in `files`."""
        return await self._load(leave_out_files([*messages]))

    async def _load(self, messages: Sequence[Message]) -> Sequence[Message]:
        loaded = await load_files(messages, self.environment.files)
        for message in loaded:
            self.hidden.add(message.get("files", ()))
        return loaded

    async def take_over_hidden(self, record: Mapping[str, Any] | None) -> None:
        """Load the files of a stored state (`HiddenFiles.record`).

        Raises:
            ExecutionError: one was deleted.
        """
        access = self.environment.files
        if record is None or access is None:
            return

        present_files = await access.find(record["files"])
        if len(present_files) < len(record["files"]):
            raise ExecutionError("AGENT_FAILED", "A file of the run was deleted while it waited")

        files = [LoadedFile(file, await access.read(file)) for file in present_files.values()]
        self.hidden.take_over(record, files)

    def hide_files(self, state: Any) -> Any:
        """Return a JSON value of the library without the bytes of files; itself if it has none."""
        record = self.hidden.record()
        if record is None:
            return state

        data = orjson.dumps(state)
        if not self.hidden.is_in(data):
            return state

        return {_HIDDEN: record, "state": self.hidden.hide(data).decode()}

    async def restore_files(self, state: Any) -> Any:
        """Return the value that `hide_files` has got. Raises as `take_over_hidden`."""
        if not isinstance(state, dict) or _HIDDEN not in state:
            return state
        await self.take_over_hidden(state[_HIDDEN])
        return orjson.loads(self.hidden.reveal(state["state"].encode()))

    async def build_deps(self, build: Callable[[RunContext], Any] | None) -> Any:
        """Return what the function of the key `deps` makes; without one, the `RunContext`."""
        deps = self.context if build is None else build(self.context)
        return await deps if inspect.isawaitable(deps) else deps

    @property
    def request_history(self) -> Sequence[Mapping[str, Any]]:
        """The earlier messages of the request, for a runner with its own memory."""
        requested = (run for run in self.environment.earlier_runs if run.from_request)
        return [message for run in requested for message in run.messages]

    async def begin_approved(self, approval_id: str) -> None:
        """Store that an approved call begins; see `RunEnvironment.begin_call`."""
        try:
            await self.environment.begin_call(approval_id)
        except asyncio.CancelledError:
            if not self.environment.is_stopping:
                # A cancel is recorded, or another process has the run: the stop arrives soon.
                await asyncio.sleep(_STOP_SECONDS)
            raise

    def checkpoint(self) -> None:
        """Raise asyncio.CancelledError if the run has to stop."""
        if self.environment.has_ended:
            raise LateReport
        self.environment.checkpoint()

    def add_text(self, piece: str, origin: Mapping[str, str] | None = None) -> None:
        """Add text to the answer, and publish it.

        Args:
            origin: further fields of the event (docs/contract.md "Events").
        """
        self.checkpoint()
        self.recorder.add_text(piece, origin)

    def end_text(self) -> None:
        """End the open text: a half of a character that waits for the other half gets none."""
        if self.environment.has_ended:
            raise LateReport
        self.recorder.end_text()

    def begin_answer(self) -> None:
        """Start a new answer of a model. An empty line separates its text from earlier text."""
        self.checkpoint()
        self.recorder.begin_answer()

    def complete_answer(self) -> None:
        """Report that the open answer has arrived completely; its calls may follow."""
        if not self.environment.has_ended:
            self.transcript.complete_answer()

    def start_model_call(self, model: object, at: int | None = None) -> Span:
        """Report the start of a call of a model, now or at a time in microseconds UTC.

        Args:
            model: the name of the model; a value that is no text is `model`.
        """
        self.checkpoint()
        return self.recorder.start_model_call(model, at)

    def end_model_call(
        self, span: Span, usage: Mapping[str, int] | None, *, is_counted: bool = False
    ) -> None:
        """Report the end of a call of a model, and add its tokens to the run.

        Args:
            usage: the counters of this call; None, or all zeros, if the library reports none.
            is_counted: True if `set_usage` has the tokens.
        """
        if usage is not None and not any(usage.values()):
            # Libraries have zeros for a model that reports nothing.
            usage = None
        self.recorder.end_model_call(span, usage, is_counted=is_counted)

    def fail_model_call(self, span: Span, status: SpanStatus = "failed") -> None:
        """Report that a call of a model has failed, or was cancelled."""
        self.recorder.end_model_call(span, None, status)
        if status == "failed":
            self._failed_call = span

    def explain_failed_call(self, code: str) -> None:
        """Report the code of the last `fail_model_call`: it is known later than the failure."""
        if self._failed_call is not None:
            self._failed_call.error_code = code
            self._failed_call = None

    def report_compacted(self, compacted: Compacted) -> None:
        """Record with the open answer what its call does not show, and publish it."""
        self.transcript.note_call(self.recorder.report_compacted(compacted))

    def add_message(self, message: MessageDelivered) -> None:
        """Make a message of `take_messages` a part of the run, after what it has so far."""
        self.checkpoint()
        self.recorder.add_message(message)

    def add_thinking(self, piece: str) -> None:
        """Add text to the thinking of the run, which is not part of its answer, and publish it."""
        self.checkpoint()
        self.recorder.add_thinking(piece)

    def replace_answers(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Replace the answers and results so far, for a library that has their order at the end.

        The content becomes the text of the answers.

        Args:
            messages: as for `Transcript.replace_answers`; the text of a result that the transcript
                has is taken from there.
        """
        self.checkpoint()

        results = {entry["tool_call_id"]: entry["result"] for entry in self.transcript.tools}
        replaced: list[Mapping[str, Any]] = []

        for message in messages:
            text = replace_unstorable(message["content"])
            if message["role"] == "tool":
                text = results.get(message["tool_call_id"]) or text
            replaced.append({**message, "content": text})

        self.transcript.replace_answers(replaced)

        texts = [message["content"] for message in replaced if message["role"] == "assistant"]
        content = SEPARATOR.join(text for text in texts if text)

        if content != self.transcript.content:
            self.transcript.replace_content(content)

    def count_calls(self, calls: Iterable[tuple[str, str, Mapping[str, Any]]]) -> None:
        """Count the calls of an answer of the model, before the first one is made.

        `repeats.find_refusal` has the result of a call that must not be made.

        Args:
            calls: the id, the name and the arguments of each, in the order of the answer.

        Raises:
            ExecutionError: LOOP: the model repeats a call that was refused as a repetition.
        """
        if not self.repeats.limits.is_active:
            return

        self.repeats.add_answer([self.describe_call(*call) for call in calls])
        self.repeats.check()

    def start_call(self, call_id: str, name: str, arguments: Mapping[str, Any]) -> None:
        """Report the start of a tool call.

        Args:
            call_id: id of the call, unique in the run.
            arguments: values with a JSON form; others, and those that are not text and have over
                `ARGUMENT_CHARACTERS` of JSON, are replaced by the name of their type.

        Raises:
            ExecutionError: also above `MAXIMUM_ARGUMENTS` or `MAXIMUM_CALLS`.
        """
        self.checkpoint()

        call_id = replace_unstorable(str(call_id))
        name = replace_unstorable(str(name))

        if len(arguments) > MAXIMUM_ARGUMENTS:
            raise ExecutionError("AGENT_FAILED", "A tool call has too many arguments")
        if len(self.transcript.tools) == MAXIMUM_CALLS:
            raise ExecutionError("AGENT_FAILED", "The run has too many tool calls")

        call = self.describe_call(call_id, name, arguments)
        self.recorder.request_call(call)
        announces = call_id not in self.silent_calls
        self.recorder.open_call(call_id, name, call["arguments"], announces=announces)

    def describe_call(
        self, call_id: str, name: str, arguments: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return a call as the record has it: `id`, `name` and `arguments`."""
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
        self.transcript.request_calls(
            [
                self.describe_call(replace_unstorable(call_id), replace_unstorable(name), arguments)
                for call_id, name, arguments in calls
            ]
        )

    def end_call(self, call_id: str, result: object = "", *, failed: bool = False) -> None:
        """Report the end of a tool call that was started; an unknown id is ignored.

        Args:
            result: text, or a value with a JSON form; see `format_result`.
        """
        if self.environment.has_ended:
            raise LateReport

        call_id = replace_unstorable(call_id)
        announces = call_id not in self.silent_calls
        text = self.format_result(result)
        self.recorder.close_call(call_id, text, failed=failed, announces=announces)

        # Only now: the call has been made, and a cancel must not turn it into one that was not.
        self.checkpoint()

    def format_result(self, result: object) -> str:
        """Return the text of a result of a tool, cut at `limits.tool_result_bytes`."""
        try:
            return result_to_text(result, self.environment.limits.tool_result_bytes)
        except NotSerializable:
            return NO_JSON_FORM

    def set_usage(self, usage: Mapping[str, int]) -> None:
        """Set the counters of this runner to their current sums, for libraries that report these.

        Tokens that functions report through the context are added to them.
        """
        increase = {name: count - self.counted.get(name, 0) for name, count in usage.items()}
        self.counted |= usage
        self.environment.add_usage(increase)

    async def set_output(self, value: object) -> None:
        """Set the structured result of the run.

        Raises:
            ExecutionError: also if the value has no JSON form.
        """
        self.checkpoint()

        try:
            output = await self.convert(value)
        except ValueTooLarge as error:
            raise build_too_large() from error
        except NotSerializable as error:
            raise ExecutionError(
                "AGENT_FAILED", "The result of the agent has no JSON form"
            ) from error

        self._output = orjson.dumps(output)
        self.recorder.reserve(len(self._output))
        self.transcript.output = output

    async def convert(self, value: object, spent: int = 0) -> Any:
        """Return the JSON value of a result. Other tasks continue meanwhile.

        Args:
            spent: characters that the other parts of the result need.

        Raises:
            NotSerializable: the value has no JSON form; `ValueTooLarge` if it does not fit.
        """
        room = self.environment.limits.run_bytes - self.recorder.kept_bytes - spent
        steps = convert_in_steps(value, room)
        try:
            while True:
                next(steps)
                await self._turns.take()
        except StopIteration as end:
            return end.value

    async def set_result(self, value: object) -> str:
        """Return the text of a result; set it as the structured result if it is no text.

        Raises:
            ExecutionError: as `set_output`.
        """
        if value is None:
            return ""
        if isinstance(value, str):
            return str.__str__(value)
        await self.set_output(value)
        return self.output_text

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
            function,
            self.environment.spec.component_id,
            self.transcript.unstopped,
            unstopped_name=RUNNER,
        )

    async def read_history(
        self,
        parse: Callable[[str], Iterable[T]],
        convert: Callable[[Sequence[Mapping[str, Any]]], Iterable[T]],
    ) -> list[T]:
        """Return the messages of earlier runs: as the library wrote them, or else neutral.

        Damaged messages, for which `parse` raises ValueError, are left out and recorded.
        """
        messages: list[T] = []
        for earlier in self.environment.earlier_runs:
            native_messages: Iterable[T] = ()
            try:
                native_messages = () if earlier.native is None else parse(earlier.native)
            except ValueError:
                size = len((earlier.native or "").encode())
                leave_out(self.environment, "damaged_native", earlier.run_id, size)
            messages += native_messages or convert(await self.load_messages(earlier.messages))

        return messages

    def set_native_history(self, dump: Callable[[], bytes]) -> None:
        """Keep the messages of this run as JSON of the library, for later runs of this kind.

        They may be set several times, also while the run is cancelled; the last call counts.
        Messages without a JSON form, larger than `limits.run_bytes`, or with the bytes of a file
        are not kept: later runs then get the neutral messages.
        """
        with suppress(TypeError, ValueError):
            messages = dump()
            if not self.environment.has_ended:
                fits = len(messages) <= self.environment.limits.run_bytes
                fits = fits and not self.hidden.is_in(messages)
                self.transcript.native_kind = self.kind if fits else None
                self.transcript.native_history = messages.decode() if fits else None

    def add_unstopped(self, work: asyncio.Future[Any]) -> None:
        """Add work of the run that was cancelled and has not ended; nothing waits for it.

        The run record shows it as work of the tool `runner`.

        Args:
            work: a task, or a future that is done when its thread has ended.
        """
        self.transcript.unstopped.add(work, RUNNER)

    def _convert_argument(self, value: object) -> Any:
        if isinstance(value, str):
            self.recorder.check_room(len(value))
            return replace_unstorable(str.__str__(value))
        try:
            return to_json_value(value, ARGUMENT_CHARACTERS)
        except NotSerializable:
            return f"a {type(value).__name__}"
