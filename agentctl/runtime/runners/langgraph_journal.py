"""The checkpointer of one run, for graphs without their own, and the journal of a durable graph.

The content of the checkpointer is stored at a pause; in a durable run, after each finished
superstep, and the journal has the calls of tools after it. The nodes of an unfinished one run again
in the next process, and each call of a tool that has ended gets its stored result. Tools are called
by nodes, so the methods of LangChain that execute a tool are replaced (decision 84).
"""

from __future__ import annotations

import asyncio
import base64
import functools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import orjson
from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool, ToolException
from langgraph.checkpoint.base import CheckpointTuple, copy_checkpoint
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.errors import GraphBubbleUp, GraphInterrupt
from langgraph.runtime import RunControl
from langgraph.types import Command

from agentctl.agents import get_tool_options
from agentctl.records.text import replace_unstorable
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.json_values import (
    NO_JSON_FORM,
    NotSerializable,
    clean_json_value,
    to_json_value,
)
from agentctl.runtime.pauses import (
    ENDED,
    IDEMPOTENT,
    ApprovedEnd,
    CallOutcome,
    CallPause,
    DecidedCall,
    Journal,
    JournaledCall,
    Leg,
    to_text,
)
from agentctl.runtime.runners.hidden_files import HiddenFiles
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.langgraph_calls import bind_call
from agentctl.runtime.runners.langgraph_messages import read_text
from agentctl.runtime.runners.langgraph_report import GraphReport
from agentctl.work.run_scope import CurrentCall, current_call

_log = logging.getLogger("agentctl.runtime")

THREAD = "run"
"""The thread of the run: its saver has no other one."""

_STATE_FACTOR = 2
"""The state of a graph has its messages, and so has its report: together at most this multiple of
`limits.run_bytes`."""

_IS_LOST = "is_lost"
"""The member of the stored end of a call whose result could not be stored: it has the text only."""

_current: ContextVar[GraphJournal | None] = ContextVar("agentctl_graph_journal", default=None)


class _LazySerializer:
    """Serializes values when they are stored, not when the graph keeps them.

    Most runs do not pause: they serialize nothing. In this process, a graph that stops and goes on
    continues with its own values, also those that nothing can serialize.
    """

    def __init__(self) -> None:
        # The values come from the database of this service.
        self._serializer = JsonPlusSerializer(allowed_msgpack_modules=True)

    def dumps_typed(self, value: Any) -> tuple[str, Any]:
        return "object", value

    def loads_typed(self, data: tuple[str, Any]) -> Any:
        kind, value = data
        return value if kind == "object" else self._serializer.loads_typed(data)

    def encode(self, data: tuple[str, Any]) -> tuple[str, bytes]:
        kind, value = data
        return self._serializer.dumps_typed(value) if kind == "object" else (kind, value)


class RunSaver(InMemorySaver):  # type: ignore[misc]
    """A checkpointer in memory for one leg of one run.

    Args:
        hidden: the files whose bytes are in the messages of the graph, and not in its JSON.
    """

    def __init__(self, hidden: HiddenFiles) -> None:
        self._hidden = hidden
        self._lazy = _LazySerializer()
        super().__init__(serde=self._lazy)

    def get_tuple(self, config: Any) -> CheckpointTuple | None:
        """Return a checkpoint, which the graph may change: it is not the object that is kept."""
        saved = super().get_tuple(config)
        if saved is None:
            return None
        checkpoint = copy_checkpoint(saved.checkpoint)
        return saved._replace(checkpoint=checkpoint, metadata={**saved.metadata})

    def to_json(self) -> dict[str, Any]:
        """Return the newest checkpoint of the graph and of its subgraphs as a JSON object."""
        try:
            return self._dump()
        except Exception as error:
            raise ExecutionError(
                "AGENT_FAILED",
                "The run cannot wait: the state of the graph has a value that cannot be stored",
            ) from error

    def prune(self) -> None:
        """Forget all checkpoints but the newest one of each graph."""
        kept_keys = set()

        for space, checkpoints in self.storage[THREAD].items():
            newest = max(checkpoints, default="")

            for checkpoint_id in [key for key in checkpoints if key != newest]:
                del checkpoints[checkpoint_id]
                self.writes.pop((THREAD, space, checkpoint_id), None)

            if newest:
                versions = self._lazy.loads_typed(checkpoints[newest][0])["channel_versions"]
                kept_keys |= {(THREAD, space, *item) for item in versions.items()}

        for key in [key for key in self.blobs if key not in kept_keys]:
            del self.blobs[key]

    def _dump(self) -> dict[str, Any]:
        checkpoints = []
        writes = []
        blobs = []
        for space, stored_checkpoints in self.storage[THREAD].items():
            if not stored_checkpoints:
                continue

            checkpoint_id = max(stored_checkpoints)
            checkpoint, metadata, _ = stored_checkpoints[checkpoint_id]
            checkpoints.append(
                [space, checkpoint_id, self._to_text(checkpoint), self._to_text(metadata)]
            )

            pending = self.writes.get((THREAD, space, checkpoint_id), {})
            for (task_id, index), (_, channel, value, path) in pending.items():
                writes.append(
                    [space, checkpoint_id, task_id, index, channel, self._to_text(value), path]
                )

            versions = self._lazy.loads_typed(checkpoint)["channel_versions"]
            for channel, version in versions.items():
                value = self.blobs.get((THREAD, space, channel, version))
                if value is not None:
                    blobs.append([space, channel, version, self._to_text(value)])

        record = self._hidden.record()
        hidden = {} if record is None else {"hidden": record}
        return {"checkpoints": checkpoints, "writes": writes, "blobs": blobs, **hidden}

    def _to_text(self, data: tuple[str, Any]) -> list[str]:
        kind, value = self._lazy.encode(data)
        return [kind, base64.b64encode(self._hidden.hide(value)).decode()]

    def _from_text(self, serialized: list[str]) -> tuple[str, bytes]:
        return serialized[0], self._hidden.reveal(base64.b64decode(serialized[1]))

    def restore(self, pause: Mapping[str, Any]) -> None:
        """Take over the content of the checkpointer of a pause."""
        for space, checkpoint_id, checkpoint, metadata in pause["checkpoints"]:
            values = self._from_text(checkpoint), self._from_text(metadata), None
            self.storage[THREAD][space][checkpoint_id] = values

        for space, checkpoint_id, task_id, index, channel, value, path in pause["writes"]:
            self.writes[THREAD, space, checkpoint_id][task_id, index] = (
                task_id,
                channel,
                self._from_text(value),
                path,
            )

        for space, channel, version, value in pause["blobs"]:
            self.blobs[THREAD, space, channel, version] = self._from_text(value)


class GraphJournal:
    """The steps of one leg of a durable graph.

    Args:
        state: the state of the earlier legs; None in the first one.
        approved: the calls that a person has approved, by their ids; the run stores that these
            begin.

    Attributes:
        made: the approved calls whose ends this journal stores.

    Raises:
        ExecutionError: an earlier process has made a call whose result it could not store.
    """

    def __init__(
        self,
        run: HostedRun,
        journal: Journal,
        control: RunControl,
        state: Mapping[str, Any] | None,
        approved: Mapping[str, DecidedCall],
        saver: RunSaver,
        report: GraphReport,
    ) -> None:
        self._saver = saver
        self._report = report
        self._run = run
        self._journal = journal
        self._control = control

        self._approved = approved
        self._decided = _list_approved_results(run.environment.leg)
        self._known = {**self._decided, **(state or {}).get("known", {})}
        _check_results(self._known)

        self.made = set[str]()
        self._numbers = Counter[str]()
        self._loop = asyncio.get_running_loop()
        self._serializer = JsonPlusSerializer(allowed_msgpack_modules=True)

    def use(self) -> None:
        """Store the calls of tools in the present context, and in the tasks that it starts."""
        _current.set(self)

    async def store(self) -> None:
        """Store the newest superstep in place of the one before it."""
        self._saver.prune()

        # Its members have ended with their nodes.
        report = {**self._report.to_json(), "members": [], "spaces": {}}
        body = {
            "graph": {
                "interrupts": [],
                "saver": self._saver.to_json(),
                "report": report,
                # A person has decided about these; the graph has not called them so far.
                "approved": sorted({*self._approved, *self._decided} - self.made),
            },
            "whole": self._run.transcript.to_json(),
        }

        if len(orjson.dumps(body)) > _STATE_FACTOR * self._run.environment.limits.run_bytes:
            raise ExecutionError("STATE_REJECTED", "The state of the graph is too large")

        await self._journal.replace_answer(body)

        self._known = {**self._decided}
        self._numbers = Counter()

        if self._journal.is_parking:
            self._control.request_drain("the run is handed over")

    async def call(
        self,
        tool: BaseTool,
        arguments: Any,
        options: Mapping[str, Any],
        make: Callable[[], Awaitable[Any]],
    ) -> Any:
        """Make a call of a tool and store it, or return its stored result."""
        call = self._describe(tool, arguments, options)
        if call.call_id in self._known:
            return self._load(call, options.get("tool_call_id"))

        await self._begin(call)

        try:
            with _inside(call):
                result = await make()
        except Exception as error:
            await self._end(call, _describe_failure(call, error), {})
            raise

        await self._end(call, *self._dump(tool, result))
        return result

    def call_in_thread(
        self, tool: BaseTool, arguments: Any, options: Mapping[str, Any], make: Callable[[], Any]
    ) -> Any:
        """Make a call of a synchronous tool in its thread; see `call`."""
        call = self._describe(tool, arguments, options)
        if call.call_id in self._known:
            return self._load(call, options.get("tool_call_id"))

        self._wait(self._begin(call), call)

        try:
            with _inside(call):
                result = make()
        except Exception as error:
            self._wait(self._end(call, _describe_failure(call, error), {}), call)
            raise

        self._wait(self._end(call, *self._dump(tool, result)), call)
        return result

    async def _begin(self, call: JournaledCall) -> None:
        if call.call_id in self._approved:
            # The run has stored that it begins.
            self.made.add(call.call_id)
        else:
            await self._journal.begin_call(call, {})

    async def _end(
        self, call: JournaledCall, outcome: CallOutcome, more: Mapping[str, Any]
    ) -> None:
        """Store the end of a call now: its node may still make others."""
        approved = None
        if (decision := self._approved.get(call.call_id)) is not None:
            if outcome.pause is not None:
                return
            # The approval has the text only.
            approved = ApprovedEnd(decision.approval_id, outcome.text)
        await self._journal.end_call(call, outcome, more, approved)

    def _wait(self, write: Coroutine[Any, Any, None], call: JournaledCall) -> None:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run_coroutine_threadsafe(write, self._loop).result()
            return
        write.close()
        detail = f"An async node of a durable graph calls the tool {call.name} without await"
        raise ExecutionError("AGENT_FAILED", detail)

    def _describe(
        self, tool: BaseTool, arguments: Any, options: Mapping[str, Any]
    ) -> JournaledCall:
        call_id = options.get("tool_call_id") or self._identify(tool, options)
        return JournaledCall(call_id, tool.name, _to_arguments(arguments), is_idempotent(tool))

    def _dump(self, tool: BaseTool, result: Any) -> tuple[CallOutcome, dict[str, Any]]:
        """Return the end of a call that was made, and its result for a later leg.

        The tool has had its effect, so this raises nothing: its end has to be stored.
        """
        outcome = CallOutcome(_describe_result(tool, result))

        try:
            kind, data = self._serializer.dumps_typed(result)
        except Exception as error:
            # Any value of a user's class can fail here. This process has it, and continues with it.
            _log.warning("tool %s: its result cannot be stored", tool.name, exc_info=error)
            return outcome, {_IS_LOST: True}

        # The state of the newest superstep has the record of the files.
        hidden = self._run.hidden.hide(data)
        return outcome, {"returned": [kind, base64.b64encode(hidden).decode()]}

    def _identify(self, tool: BaseTool, options: Mapping[str, Any]) -> str:
        """Return the id of a call that no answer of a model has requested.

        It is the same when the node runs again, if the node calls its tools in the same order.
        """
        metadata = (options.get("config") or {}).get("metadata") or {}
        key = f"{metadata.get('langgraph_checkpoint_ns') or ''}:{tool.name}"
        self._numbers[key] += 1
        return f"{key}:{self._numbers[key]}"

    def _load(self, call: JournaledCall, tool_call_id: str | None) -> Any:
        stored_call = self._known[call.call_id]
        self.made.add(call.call_id)
        self._decided.pop(call.call_id, None)

        if (returned := stored_call.get("returned")) is not None:
            kind, data = returned
            data_with_files = self._run.hidden.reveal(base64.b64decode(data))
            return self._serializer.loads_typed((kind, data_with_files))

        text = stored_call["text"]
        failed = stored_call["failed"]

        if tool_call_id is not None:
            status = "error" if failed else "success"
            return ToolMessage(text, tool_call_id=tool_call_id, name=call.name, status=status)

        if failed:
            raise ToolException(text)
        return text


def is_idempotent(tool: BaseTool) -> bool:
    """Return True if the calls of a tool may be made again with their ids."""
    function: Any = getattr(tool, "coroutine", None) or getattr(tool, "func", None)
    is_stated = (tool.metadata or {}).get(IDEMPOTENT) is True
    return is_stated or get_tool_options(function).idempotent


def find_undone(leg: Leg) -> dict[str, DecidedCall]:
    """Return the approved calls that the graph of an earlier leg has not made."""
    undone = {}
    for call_id in leg.state.get("approved", ()):
        decision = leg.find(call_id, "approval")
        if decision is None or decision.execution == "unknown":
            raise ExecutionError("INTERNAL", "The outcome of an approved call is not known")
        if decision.is_approved and decision.execution not in ENDED:
            # `executing` after a hand-over: the process before this one has not made it.
            undone[call_id] = decision
    return undone


def _check_results(known_results: Mapping[str, Mapping[str, Any]]) -> None:
    """Check that the nodes of the unfinished superstep can get the results of their calls.

    It is known before a node begins: an exception inside of a call would be one of its tool, which
    code of the graph may show to the model, or answer with a further call.

    Raises:
        ExecutionError: a result could not be stored.
    """
    if any(result.get(_IS_LOST) for result in known_results.values()):
        raise ExecutionError(
            "AGENT_FAILED",
            "The run cannot go on in another process: a tool was called, and its result could not"
            " be stored",
        )


def _list_approved_results(leg: Leg | None) -> dict[str, dict[str, Any]]:
    """Return the results of the approved calls that an earlier leg has begun."""
    results = {}
    for call_id in () if leg is None else leg.state.get("approved", ()):
        decision = leg.find(call_id, "approval") if leg is not None else None
        if decision is not None and decision.execution in ENDED:
            text = to_text(decision.result)
            failed = decision.execution == "failed"
            results[call_id] = {"text": text, "failed": failed}
    return results


class DurableSaver(RunSaver):
    """The checkpointer of a durable graph: stores each finished superstep of the root graph."""

    journal: GraphJournal

    async def aput(self, config: Any, *args: Any, **options: Any) -> Any:
        """Keep a checkpoint, and store it if it is one of the root graph."""
        result = await super().aput(config, *args, **options)
        if not config["configurable"].get("checkpoint_ns"):
            await self.journal.store()
        return result


@contextmanager
def _inside(call: JournaledCall) -> Iterator[None]:
    """Make the calls of tools inside of one a part of it."""
    journal = _current.set(None)
    present = current_call.set(CurrentCall(call.call_id, call.name))
    try:
        yield
    finally:
        _current.reset(journal)
        current_call.reset(present)


def _describe_failure(call: JournaledCall, error: Exception) -> CallOutcome:
    if isinstance(error, GraphBubbleUp):
        # The graph waits for a person in the middle of the tool.
        return CallOutcome("", pause=CallPause([], None))
    return CallOutcome(f"The tool {call.name} failed ({type(error).__name__})", failed=True)


def _describe_result(tool: BaseTool, result: Any) -> str:
    """Return the text of what a tool has returned. Raises nothing, as `GraphJournal._dump`."""
    try:
        if isinstance(result, Command) and isinstance(result.update, Mapping):
            messages = result.update.get("messages") or ()
            result = next(
                (message for message in messages if isinstance(message, ToolMessage)), result
            )
        text = read_text(result) if isinstance(result, ToolMessage) else str(result)
    except Exception as error:
        _log.warning("tool %s: its result has no text", tool.name, exc_info=error)
        return NO_JSON_FORM

    return replace_unstorable(text)


def _to_arguments(arguments: Any) -> dict[str, Any]:
    try:
        value = clean_json_value(to_json_value(arguments, 2**31))
    except (NotSerializable, ValueError):
        return {}

    return value if isinstance(value, dict) else {"input": value}


def _replace_methods() -> None:
    run: Any = BaseTool.run
    arun: Any = BaseTool.arun

    @functools.wraps(arun)
    async def execute(self: BaseTool, tool_input: Any, *args: Any, **options: Any) -> Any:
        call = bind_call(options)
        if call is None:
            make = functools.partial(arun, self, tool_input, *args, **options)
            return await make_journaled(self, tool_input, options, make)
        if call.has_ended:
            return call.load()
        if (refused := call.refuse(self.name)) is not None:
            return refused

        make = functools.partial(arun, self, tool_input, *args, **call.options)
        try:
            with call.executing():
                result = await make_journaled(self, tool_input, options, make)
        except GraphInterrupt:
            await call.wait_for_others()
            raise
        call.keep(result)
        return result

    async def make_journaled(
        tool: BaseTool,
        arguments: Any,
        options: Mapping[str, Any],
        make: Callable[[], Awaitable[Any]],
    ) -> Any:
        journal = _current.get()
        if journal is None:
            return await make()
        return await journal.call(tool, arguments, options, make)

    @functools.wraps(run)
    def execute_in_thread(self: BaseTool, tool_input: Any, *args: Any, **options: Any) -> Any:
        call = bind_call(options)
        if call is None:
            make = functools.partial(run, self, tool_input, *args, **options)
            return make_journaled_in_thread(self, tool_input, options, make)
        if call.has_ended:
            return call.load()
        if (refused := call.refuse(self.name)) is not None:
            return refused

        make = functools.partial(run, self, tool_input, *args, **call.options)
        with call.executing():
            result = make_journaled_in_thread(self, tool_input, options, make)
        call.keep(result)
        return result

    def make_journaled_in_thread(
        tool: BaseTool, arguments: Any, options: Mapping[str, Any], make: Callable[[], Any]
    ) -> Any:
        journal = _current.get()
        if journal is None:
            return make()

        return journal.call_in_thread(tool, arguments, options, make)

    setattr(BaseTool, "arun", execute)  # noqa: B010
    setattr(BaseTool, "run", execute_in_thread)  # noqa: B010


_replace_methods()
