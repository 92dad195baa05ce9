"""Callbacks of LangChain: the calls of models in a graph, and the start of its tools."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias
from uuid import UUID

import orjson
from langchain_core.callbacks import AsyncCallbackHandler, BaseCallbackHandler
from langchain_core.messages import BaseMessage

from agentctl.records.times import now
from agentctl.runtime.json_values import NotSerializable, to_json_value
from agentctl.runtime.models.access import is_known_call
from agentctl.runtime.pauses import DecidedCall
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.langgraph_messages import read_model, read_text, read_usage
from agentctl.runtime.runners.library_runner import build_refusal, list_causes
from agentctl.runtime.runners.repeat_gate import RepeatGate
from agentctl.runtime.tracing import Span, SpanStatus

_HIDDEN_TAG = "nostream"

_PROGRESS_CHARACTERS = 4_096
"""Maximum JSON of a custom event; the text of progress is cut anyway."""

MIDDLEWARE = ("summarization", "tool_emulation")
"""Names of calls of LangChain's middleware whose text is no answer (`lc_source`)."""

NoteCall: TypeAlias = Callable[
    [str | None, Sequence[BaseMessage], Mapping[str, Any]], Coroutine[Any, Any, None]
]
"""A function that is called before each call of a model (`GraphInbox.note_call`)."""

_ERRORS = 32
"""Number of the newest exceptions of tools, and of models, that are kept."""

_PREFIX = "lc_run--"
"""LangChain gives an answer without an id the id of its call with this prefix."""


class _Call:
    """A call of a model, also while the run of its graph does not exist yet.

    The stream of a graph is read a little later than its callbacks are called.

    Args:
        lock: held by changes: callbacks of synchronous nodes are called in threads.
    """

    def __init__(self, key: str, model: object, lock: threading.RLock) -> None:
        self.key = key
        self._lock = lock
        self._model = model
        self._started_at = now()
        self._span: Span | None = None
        self._run: HostedRun | None = None
        self._has_token = False
        self._reports: list[Callable[[HostedRun, Span], None]] = []

    def adopt(self, run: HostedRun) -> None:
        """Report the call so far to its run."""
        with self._lock:
            span = run.start_model_call(self._model, self._started_at)
            for report in self._reports:
                report(run, span)
            self._run = run
            self._span = span

    @property
    def span_id(self) -> str | None:
        """The id of the call in its run; None if the run does not exist yet."""
        return None if self._span is None else self._span.id

    def mark_first_token(self) -> None:
        if not self._has_token:
            self._has_token = True
            self.report(lambda run, span: span.mark_first_token())

    def report(self, report: Callable[[HostedRun, Span], None]) -> None:
        with self._lock:
            if self._run is None or self._span is None:
                self._reports.append(report)
            else:
                report(self._run, self._span)


class ModelCalls(BaseCallbackHandler):  # type: ignore[misc]
    """Reports the calls of models in a graph and its subgraphs, also at the same time.

    Args:
        gate: counts the calls of tools that answers ask for.

    Attributes:
        is_cancelled: a call that starts, or receives a part of its answer, is cancelled. A
            cancellation of the task alone can get lost: LangChain waits for each part with
            `asyncio.wait_for`, which drops it in Python 3.11 if the part arrives at that moment
            (https://github.com/python/cpython/issues/81839).
        find_run: returns the run of the graph with a `checkpoint_ns`; None if it has none yet.
        inner: ids of the answers whose text is progress: structured output, and calls of middleware
            such as a summary.
        failed: ids of the answers of calls that failed.
        graph_names: names of the graphs that nodes call, by their `checkpoint_ns`.
        tool_calls: ids of the calls of tools, by the `checkpoint_ns` of their nodes.
        has_usage: True if a call has reported its tokens.
    """

    run_inline = True
    """Call the methods in place, not in a thread."""

    def __init__(self, run: HostedRun, gate: RepeatGate) -> None:
        self.is_cancelled = False
        self._gate = gate
        self.find_run: Callable[[str], HostedRun | None] = {"": run}.get
        self.inner: set[str] = set()
        self.failed: set[str] = set()
        self.graph_names: dict[str, str] = {}
        self.tool_calls: dict[str, str] = {}
        self.has_usage = False

        self._run = run
        self._calls: dict[UUID, _Call] = {}
        self._waiting: list[_Call] = []
        self._lock = threading.RLock()

        self._silent: set[UUID] = set()
        self._answers: dict[str, str] = {}
        self._tools: dict[UUID, tuple[str | None, str]] = {}
        self._tool_errors: deque[tuple[BaseException, str | None, str]] = deque(maxlen=_ERRORS)
        self._model_errors: deque[BaseException] = deque(maxlen=_ERRORS)

    def find_answer(self, message_id: str) -> str:
        """Return the id of the answer with a message.

        Pieces of one answer can have two ids: one of LangChain, and one of the provider.
        """
        return self._answers.get(message_id, message_id)

    def find_call_id(self, run_id: UUID) -> str | None:
        """Return the id of an open call in the run of the root graph.

        None for a call of a member.

        Args:
            run_id: the id that LangChain has given the call.
        """
        call = self._calls.get(run_id)
        return None if call is None or call.key else call.span_id

    def adopt(self, key: str, run: HostedRun) -> None:
        """Report the calls that a graph has made before its run existed.

        Args:
            key: the `checkpoint_ns` of the graph.
        """
        if not self._waiting:
            return

        with self._lock:
            arrived_calls = [call for call in self._waiting if call.key == key]
            self._waiting = [call for call in self._waiting if call.key != key]

        for call in arrived_calls:
            call.adopt(run)

    def adopt_rest(self, run: HostedRun) -> None:
        """Report the calls of graphs that had no part in the stream until its end."""
        for key in {call.key for call in self._waiting}:
            self.adopt(key, run)

    def on_chain_start(self, serialized: Any, inputs: Any, **more: Any) -> None:
        metadata = more.get("metadata") or {}
        name = metadata.get("lc_agent_name")
        # The node of a graph that a node or a tool calls does not have the name of the graph.
        if name and more.get("name") == name:
            self.graph_names.setdefault(metadata.get("langgraph_checkpoint_ns") or "", name)

    def find_failed_tool(self, error: Exception, open_calls: Mapping[str, str]) -> str | None:
        """Return the open call whose tool has raised an exception; None if no tool has.

        A node may execute a tool without the id of its call: then it is that of the only open call
        with this name.
        """
        causes = {id(cause) for cause in list_causes(error)}
        for raised, call_id, name in self._tool_errors:
            if id(raised) in causes:
                open_ids = [key for key, open_name in open_calls.items() if name == open_name]
                if call_id in open_calls or (call_id is None and len(open_ids) == 1):
                    return call_id or open_ids[0]

        return None

    def has_raised(self, error: Exception) -> bool:
        """Return True for an exception that ended a call of a model."""
        causes = {id(cause) for cause in list_causes(error)}
        return any(id(raised) in causes for raised in self._model_errors)

    def on_tool_start(self, serialized: Any, input_str: str, *, run_id: UUID, **more: Any) -> None:
        call_id = more.get("tool_call_id")
        self._tools[run_id] = call_id, (serialized or {}).get("name", "")
        if call_id:
            metadata = more.get("metadata") or {}
            self.tool_calls[metadata.get("langgraph_checkpoint_ns") or ""] = call_id

    def on_tool_end(self, output: Any, *, run_id: UUID, **more: Any) -> None:
        self._tools.pop(run_id, None)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **more: Any) -> None:
        self._tool_errors.append((error, *self._tools.pop(run_id, (None, ""))))

    def note_failed_call(self, error: Exception, call_id: str) -> None:
        """Keep the exception that has ended a call of a tool."""
        self._tool_errors.append((error, call_id, ""))

    def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: UUID, **more: Any
    ) -> None:
        self._check_cancelled()
        # Inline: this is the context in which the model is called.
        is_known_call.set(True)

        metadata = more.get("metadata") or {}
        key, _, _ = (metadata.get("langgraph_checkpoint_ns") or "").rpartition("|")
        call = self._calls[run_id] = _Call(key, metadata.get("ls_model_name"), self._lock)

        with self._lock:
            run = self.find_run(key)
            if run is None:
                self._waiting.append(call)

        if run is not None:
            call.adopt(run)

        options = (more.get("options"), more.get("invocation_params"))
        is_structured = any(
            isinstance(option, Mapping) and option.get("ls_structured_output_format")
            for option in options
        )

        if is_structured or metadata.get("lc_source") in MIDDLEWARE:
            self.inner.add(f"{_PREFIX}{run_id}")

        if _HIDDEN_TAG in (more.get("tags") or ()):
            self._silent.add(run_id)

    def on_llm_new_token(self, token: str, *, run_id: UUID, **more: Any) -> None:
        self._check_cancelled()
        if (call := self._calls.get(run_id)) is not None:
            call.mark_first_token()
            self._add_answer(getattr(more.get("chunk"), "message", None), run_id)

    def on_llm_end(self, response: Any, *, run_id: UUID, **more: Any) -> None:
        is_known_call.set(False)
        call = self._calls.pop(run_id, None)
        if call is None:
            return

        messages = [choice.message for choices in response.generations for choice in choices]
        for message in messages:
            self._add_answer(message, run_id)
        self._gate.add_answer(
            call.key, [each for message in messages for each in getattr(message, "tool_calls", ())]
        )

        usage = next(filter(None, map(read_usage, messages)), None)
        is_inner = f"{_PREFIX}{run_id}" in self.inner and run_id not in self._silent
        texts = [text for text in map(read_text, messages) if text] if is_inner else []
        self.has_usage = self.has_usage or usage is not None

        model = next(filter(None, map(read_model, messages)), None)
        metadata: Mapping[str, Any] = next((message.response_metadata for message in messages), {})
        names = [metadata.get(name) for name in ("model_name", "id", "finish_reason")]

        def report(run: HostedRun, span: Span) -> None:
            span.name = model or span.name
            run.transcript.requests.report(span, *names)
            run.end_model_call(span, usage)
            for text in texts:
                run.context.progress(text)

        call.report(report)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **more: Any) -> None:
        is_known_call.set(False)
        self._model_errors.append(error)
        call = self._calls.pop(run_id, None)
        if call is not None:
            self.failed.add(f"{_PREFIX}{run_id}")
            # Code that reads no further closes the generator of the answer.
            is_cancelled = isinstance(error, asyncio.CancelledError | GeneratorExit)
            status: SpanStatus = "cancelled" if is_cancelled else "failed"
            call.report(lambda run, span: run.fail_model_call(span, status))

    def on_custom_event(self, name: str, data: Any, *, run_id: UUID, **more: Any) -> None:
        key, _, _ = (more.get("metadata") or {}).get("langgraph_checkpoint_ns", "").rpartition("|")
        publish_progress(self.find_run(key) or self._run, data, name)

    def _add_answer(self, message: Any, run_id: UUID) -> None:
        if (key := getattr(message, "id", None)) and not key.startswith(_PREFIX):
            self._answers[key] = f"{_PREFIX}{run_id}"

    def _check_cancelled(self) -> None:
        if self.is_cancelled:
            raise asyncio.CancelledError


class ApprovedCalls(BaseCallbackHandler):  # type: ignore[misc]
    """Stops a tool whose arguments are not those that were approved, before it is executed."""

    ignore_chain = ignore_chat_model = ignore_llm = ignore_retriever = True
    run_inline = True
    raise_error = True

    def __init__(self, approved: Mapping[str, DecidedCall]) -> None:
        self._approved = approved

    def on_tool_start(self, serialized: Any, input_str: str, **more: Any) -> None:
        decision = self._approved.get(more.get("tool_call_id") or "")
        inputs = more.get("inputs")
        if decision is None or not isinstance(inputs, Mapping):
            return
        # Arguments that the graph injects are not part of the inputs.
        if not inputs.items() <= decision.arguments.items():
            raise build_refusal(serialized["name"])


class Effects(AsyncCallbackHandler):  # type: ignore[misc]
    """Stores that a tool without an approval begins, before it is executed.

    Halts hold it, and the calls of models.

    Args:
        model_calls: knows the calls of models.
        note_call: is called before each of them, after the halts.
    """

    ignore_chain = ignore_llm = ignore_retriever = True
    # Awaited in place: otherwise LangChain creates a task for each piece of an answer.
    run_inline = True
    raise_error = True

    def __init__(
        self,
        run: HostedRun,
        approved: Mapping[str, Any],
        model_calls: ModelCalls,
        note_call: NoteCall,
    ) -> None:
        self._run = run
        self._approved = approved
        self._model_calls = model_calls
        self._note_call = note_call
        self._loop = asyncio.get_running_loop()

    async def on_tool_start(self, serialized: Any, input_str: str, **more: Any) -> None:
        if more.get("tool_call_id") in self._approved:
            return
        begin = self._run.environment.begin_effect((serialized or {}).get("name"))
        if asyncio.get_running_loop() is self._loop:
            await begin
        else:
            # A synchronous tool in a node that may block the loop of the run: do not wait for it.
            asyncio.run_coroutine_threadsafe(begin, self._loop)

    async def on_chat_model_start(
        self, serialized: Any, messages: Any, *, run_id: UUID, **more: Any
    ) -> None:
        call_id = self._model_calls.find_call_id(run_id)
        request = [message for part in messages for message in part]
        note = partial(self._note_call, call_id, request, more.get("metadata") or {})
        if asyncio.get_running_loop() is self._loop:
            await self._run.environment.wait_while_halted()
            await note()
        else:
            # A synchronous node, as above.
            asyncio.run_coroutine_threadsafe(note(), self._loop)


def publish_progress(run: HostedRun, data: Any, name: str = "") -> None:
    """Publish a custom event of a graph as progress of its run.

    A text is the text of the event; an object with a `text` or a `fraction` gives these; of other
    values it is their JSON.

    Args:
        name: precedes the text.
    """
    text = data
    fraction = None

    if isinstance(data, Mapping) and {"text", "fraction"} & data.keys():
        text = data.get("text")
        fraction = data.get("fraction")

    if (
        isinstance(fraction, bool)
        or not isinstance(fraction, int | float)
        or not 0 <= fraction <= 1
    ):
        fraction = None

    if text is not None and not isinstance(text, str):
        text = describe_value(text, _PROGRESS_CHARACTERS)

    if name:
        text = f"{name}: {text}" if text else name

    if text is not None or fraction is not None:
        run.context.progress(text, fraction=fraction)


def describe_value(value: Any, limit: int) -> str:
    """Return the JSON text of a value; its type if it has none of at most `limit` characters."""
    try:
        return orjson.dumps(to_json_value(value, limit)).decode()
    except NotSerializable:
        return f"a {type(value).__name__}"
