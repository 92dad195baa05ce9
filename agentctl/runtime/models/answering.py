"""The answers of models for the code of agents, in pieces as they arrive.

`stream_answer` offers the calls of `runtime.models.attempts` to the models of libraries, such as
`agentctl.langchain.ChatModel`, which name a model of the configuration by its id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from agentctl.records.run_spec import REQUIRED
from agentctl.records.text import replace_unstorable
from agentctl.runtime.failures import build_too_large, check_parts
from agentctl.runtime.json_values import NOT_AN_OBJECT
from agentctl.runtime.models.access import ModelAccess, get_access
from agentctl.runtime.models.attempts import call_model, dump_message, load_message
from agentctl.runtime.models.call_fitting import CallFitter
from agentctl.runtime.models.calls import (
    CALL_OPTIONS,
    Message,
    ModelAnswer,
    ModelCall,
    PreparedModel,
)
from agentctl.runtime.models.structured_output import OutputSchema
from agentctl.runtime.tracing import Span, SpanStatus
from agentctl.runtime.transcript.context_window import ContextMessages
from agentctl.work.run_scope import outside_run

if TYPE_CHECKING:
    from agentctl.records.components import ToolRecord
    from agentctl.runtime.context import RunEnvironment

PROVIDER = "agentctl"
"""The provider of answers, as libraries show it; the name of their model is its id."""

_JSON_OBJECT = {"type": "json_object"}


class Delta(NamedTuple):
    """A piece of an answer: its text or its thinking."""

    text: str
    is_thinking: bool = False


class Answered(NamedTuple):
    """A complete answer."""

    model: str
    """Id of the model that answered, which may be a fallback."""

    answer: ModelAnswer

    usage: Mapping[str, int] | None
    """The nine counters; None if the provider reported none."""

    native: dict[str, Any] | None
    """The answer in the form of its provider as a JSON object, which a later call has to get back
    as `native` of the message; None if the neutral form has everything."""


@dataclass(frozen=True, slots=True)
class AnswerRequest:
    """A call of a model of the configuration by the code of an agent."""

    model: str
    """Id of the model."""

    instructions: str
    """Instructions of the model; `""` without instructions."""

    messages: Sequence[Mapping[str, Any]]
    """Neutral messages, each tool call with its result; an answer may have the `native` of its
    `Answered`."""

    tools: Sequence[ToolRecord] = ()

    settings: Mapping[str, Any] | None = None
    """The settings of the code, by the names of the configuration. A setting that is absent or None
    is taken from the model."""

    tool_choice: str | None = None
    """As in `ModelCall`."""

    output: OutputSchema | None = None
    """As in `ModelCall`."""

    options: Mapping[str, Any] | None = None
    """As in `ModelCall`."""

    is_reported: bool = False
    """True if the runner of the library reports the call to the run; otherwise the call reports
    itself."""


def stream_answer(request: AnswerRequest) -> AsyncGenerator[Delta | Answered]:
    """Call a model of the configuration: yield its pieces as they arrive, and the answer last.

    An iteration that is not continued to its end must be closed, which ends the call. It may be
    iterated in any event loop: the call is made in the loop of the server, which has the
    connections.

    Raises:
        ExecutionError: the call failed, after the attempts of its model and of the fallbacks; or a
            budget of the run is used up.
        RuntimeError: the code is not called by a run.
    """
    access = get_access()
    if asyncio.get_running_loop() is access.loop:
        return _stream(request, access)
    return _stream_elsewhere(request, access)


async def _stream_elsewhere(
    request: AnswerRequest, access: ModelAccess
) -> AsyncGenerator[Delta | Answered]:
    """Stream an answer to another event loop than the server's, such as `asyncio.run`."""
    arrived: asyncio.Queue[Delta | Answered | None] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def pass_on(piece: Delta | Answered | None) -> None:
        # If the loop is closed, its code reads no more.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(arrived.put_nowait, piece)

    work = _send(request, access, pass_on)
    try:
        while (piece := await arrived.get()) is not None:
            yield piece
        _check(work)
    finally:
        work.cancel()


def stream_to_thread(request: AnswerRequest) -> Generator[Delta | Answered]:
    """Call a model from a thread of a run; the pieces and errors are those of `stream_answer`.

    Raises:
        RuntimeError: it is called in the event loop of the server, which would wait for itself.
    """
    access = get_access()
    access.check_thread()
    arrived: SimpleQueue[Delta | Answered | None] = SimpleQueue()
    work = _send(request, access, arrived.put)
    try:
        while (piece := arrived.get()) is not None:
            yield piece
        _check(work)
    finally:
        work.cancel()


def _send(
    request: AnswerRequest, access: ModelAccess, pass_on: Callable[[Delta | Answered | None], None]
) -> Future[None]:
    """Stream an answer in the loop of the server to `pass_on`, with None at its end."""

    async def send() -> None:
        async with aclosing(_stream(request, access)) as pieces:
            async for piece in pieces:
                pass_on(piece)

    work = asyncio.run_coroutine_threadsafe(send(), access.loop)
    work.add_done_callback(lambda _: pass_on(None))
    return work


def _check(work: Future[None]) -> None:
    """Raise the exception that ended a call.

    A cancel is a CancelledError, which no `except Exception` in the code of a user catches.
    """
    if work.cancelled():
        raise asyncio.CancelledError
    work.result()


async def _stream(request: AnswerRequest, access: ModelAccess) -> AsyncGenerator[Delta | Answered]:
    """Stream an answer in the event loop of the server."""
    attempts = access.prepare(request.model, request.settings)
    environment = access.environment
    environment.checkpoint()
    await environment.begin_model_call()

    models = attempts.models
    messages: list[Message] = [load_message(dict(message), models) for message in request.messages]

    context = ContextMessages(messages, len(messages))
    fitter = CallFitter(context, request.instructions, request.tools, attempts.bounds)
    await fitter.begin_call(models)

    def build_call(model: PreparedModel) -> ModelCall:
        fitted_messages = fitter.fit(model)
        environment.transcript.requests.left_out |= fitter.list_left_out()
        return ModelCall(
            instructions=request.instructions,
            messages=fitted_messages,
            tools=request.tools,
            settings=model.settings,
            tool_choice=request.tool_choice,
            output=request.output,
            options=request.options or {},
            files=environment.files,
        )

    arriving = _ArrivingAnswer(access.run_bytes, None if request.is_reported else environment)
    # The call belongs to the code that iterates, which ends it.
    with outside_run():
        work = asyncio.create_task(call_model(attempts, build_call, arriving, fitter))
    work.add_done_callback(arriving.wake)

    try:
        while deltas := await arriving.take(work):
            for delta in deltas:
                yield delta
        answer = work.result()
    finally:
        if not work.done():
            work.cancel()
            # The connection to the provider is closed before the run ends.
            await asyncio.wait({work})
        if not work.cancelled():
            # Its reader may be gone: asyncio would log an exception that no one has retrieved.
            work.exception()
        arriving.end(work)

    if request.is_reported:
        access.finish_reason = answer.finish_reason
        if attempts.model.id != request.model:
            # The runner has named the call after the model that the code calls.
            environment.transcript.spans.rename_model_call(request.model, attempts.model.id)

    native = None
    if answer.native:
        native = dump_message(answer.message, models).get("native")
    yield Answered(attempts.model.id, answer, arriving.usage, native)


async def fetch_answer(request: AnswerRequest) -> tuple[str, Answered]:
    """Call a model of the configuration; return its thinking and its answer.

    The errors are those of `stream_answer`.
    """
    return _join([piece async for piece in stream_answer(request)])


def fetch_to_thread(request: AnswerRequest) -> tuple[str, Answered]:
    """Call a model from a thread of a run; return its thinking and its answer.

    The errors are those of `stream_to_thread`.
    """
    return _join(list(stream_to_thread(request)))


def _join(pieces: list[Delta | Answered]) -> tuple[str, Answered]:
    answered = pieces.pop()
    assert isinstance(answered, Answered)
    thinking = (piece.text for piece in pieces if isinstance(piece, Delta) and piece.is_thinking)
    return "".join(thinking), answered


class _ArrivingAnswer:
    """The pieces of an answer that its reader has not taken yet, and the report of its call.

    The runner of a library reports the calls that its library makes. All other calls report
    themselves: calls of functions that are agents, of tools, and of another library in the code of
    an agent (decision 132).

    Args:
        environment: the run, for a call that reports itself; None for any other call.

    Attributes:
        usage: the counters of the provider so far.
    """

    def __init__(self, run_bytes: int, environment: RunEnvironment | None) -> None:
        self._environment = environment
        self._span: Span | None = None
        self.usage: Mapping[str, int] | None = None
        self.has_answer_begun = False
        self._run_bytes = run_bytes
        self._size = 0
        self._parts = 0
        self._calls = 0
        self._deltas: list[Delta] = []
        self._waiter: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()

    async def take(self, work: asyncio.Task[Any]) -> list[Delta]:
        """Return the pieces that have arrived; wait if there are none; empty at the end."""
        while not self._deltas and not work.done():
            self._waiter = self._loop.create_future()
            await self._waiter
        deltas = self._deltas
        self._deltas = []
        return deltas

    def wake(self, work: object = None) -> None:
        """Let `take` look again; also called when the call has ended."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def begin_answer(self, model: str) -> Span | None:
        self.has_answer_begun = False
        self._size = 0
        self._parts = 0
        self._calls = 0
        if self._environment is not None:
            self._span = self._environment.recorder.start_model_call(model)
        return self._span

    def fail_answer(self, code: str) -> None:
        if self._span is not None:
            self._span.end_call(None, "failed", code)

    def end(self, work: asyncio.Task[Any]) -> None:
        """End the call and count its tokens, also if its answer is not complete.

        Args:
            work: the task of the call, which has ended.
        """
        span = self._span
        environment = self._environment
        if span is None or environment is None or environment.has_ended:
            return

        status: SpanStatus = "completed"
        if work.cancelled():
            status = "cancelled"
        elif work.exception() is not None:
            status = "failed"
        environment.recorder.end_model_call(span, self.usage, status)

    def add_text(self, text: str) -> None:
        self._add(text, is_thinking=False)

    def add_thinking(self, text: str) -> None:
        self._add(text, is_thinking=True)

    def count_part(self, *, is_call: bool) -> None:
        self._parts += 1
        self._calls += is_call
        check_parts(self._parts, self._calls)

    def count_arriving(self, size: int) -> None:
        self._size += size
        if self._size > self._run_bytes:
            raise build_too_large()

    def set_usage(self, usage: Mapping[str, int]) -> None:
        self.usage = usage

    def _add(self, text: str, *, is_thinking: bool) -> None:
        self.count_arriving(len(text))
        text = replace_unstorable(text)
        if not text:
            return

        if self._span is not None and not self.has_answer_begun:
            self._span.mark_first_token()
        self.has_answer_begun = True
        self._deltas.append(Delta(text, is_thinking))
        self.wake()


def select_tools(
    functions: Iterable[Mapping[str, Any]], choice: object
) -> tuple[list[ToolRecord], str | None]:
    """Return the tools and the `tool_choice` of a request in the form of OpenAI.

    Args:
        functions: `name`, `description` and `parameters` of each tool.
        choice: `auto`, `required`, `none`, or the name of a tool, also in an object.
    """
    tools: list[ToolRecord] = [
        {
            "name": function["name"],
            "description": function.get("description") or "",
            "parameters": function.get("parameters") or {"type": "object", "properties": {}},
        }
        for function in functions
    ]

    if isinstance(choice, Mapping):
        choice = choice.get("function", choice).get("name")

    if choice == "none":
        return [], None
    if choice == "required":
        return tools, REQUIRED if tools else None
    if isinstance(choice, str) and choice != "auto":
        return tools, choice
    return tools, None


def select_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a call among the settings of a library.

    These are `CALL_OPTIONS`, and a `response_format` that asks for any JSON object.
    """
    options = {name: settings[name] for name in CALL_OPTIONS if settings.get(name) is not None}
    if settings.get("response_format") == _JSON_OBJECT:
        options["response_format"] = _JSON_OBJECT

    return options


def write_arguments(arguments: Mapping[str, Any]) -> str:
    """Return the arguments of a call as the model has sent them: JSON text, or other text."""
    if NOT_AN_OBJECT in arguments:
        return str(arguments[NOT_AN_OBJECT])
    return orjson.dumps(arguments).decode()


def read_format(response_format: object) -> AnswerSchema | None:
    """Return the schema of a `response_format` in the form of OpenAI, if it has one."""
    if not isinstance(response_format, Mapping):
        return None
    schema = response_format.get("json_schema")
    if not isinstance(schema, Mapping):
        return None
    return AnswerSchema(schema["schema"], schema.get("name"), schema.get("description"))


class AnswerSchema(OutputSchema):
    """The schema of an answer that the code of an agent validates."""

    def __init__(self, schema: dict[str, Any], name: str | None, description: str | None) -> None:
        self.json_schema = schema
        self.name = name
        self.description = description

    async def validate(self, value: Any) -> Any:
        return value
