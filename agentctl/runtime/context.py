"""The environment of a run: the interface between a component and the engine that runs it, and the
public `RunContext`, which tools and agents in code receive.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

from agentctl.agents import File, Memories, RunContext
from agentctl.records.files import FileReference
from agentctl.records.halts import HaltScope
from agentctl.records.text import replace_unstorable
from agentctl.runtime.files import FileAccess, load_references
from agentctl.runtime.pauses import Ask, CallOutcome, DecidedCall, Journal, Leg, to_text
from agentctl.runtime.transcript.context_window import PAGE_CHARACTERS, Omission, read_page
from agentctl.runtime.transcript.events import (
    Compacted,
    MessageDelivered,
    ProgressReported,
    RunEvent,
)
from agentctl.work.run_scope import current_call

if TYPE_CHECKING:
    from agentctl.agents.waiting import Replayer
    from agentctl.config.settings import Limits
    from agentctl.records.events import OmissionKind
    from agentctl.records.kinds import ComponentKind
    from agentctl.records.run_spec import RunSpec
    from agentctl.records.store_items import ItemPut, ItemSearch, Namespace, StoreItem
    from agentctl.runtime.component import Component
    from agentctl.runtime.transcript.history import SessionState
    from agentctl.runtime.transcript.recorder import RunRecorder
    from agentctl.runtime.transcript.transcript import Transcript

T = TypeVar("T")

MemberStatus = Literal["COMPLETED", "ERROR", "CANCELLED", "PAUSED", "PARKED"]

MAXIMUM_PROGRESS_EVENTS = 1_000
"""Progress events of one run; further ones are dropped."""

MAXIMUM_PROGRESS_LENGTH = 1_000
"""Characters of the text of a progress event; a longer one is cut."""


@dataclass(frozen=True, slots=True)
class MemberResult:
    """The result of the run of a member or of a step."""

    status: MemberStatus
    """Its final status, or PAUSED: then its parent has to pause as well; or PARKED: then its parent
    is handed over as well."""

    content: str
    """Its content; partial unless the status is COMPLETED."""

    error_detail: str | None = None
    """Public text of its failure; None unless the status is ERROR."""

    error_code: str | None = None
    """Code of its failure (docs/contract.md "Failures of a run"); None unless the status is ERROR.
    """

    run_id: str = ""
    """Its run, with which a later leg of the parent continues it."""


@dataclass(frozen=True, slots=True)
class EarlierRun:
    """The messages of an earlier run of the session, or earlier messages of the request."""

    messages: Sequence[Mapping[str, Any]]
    """Its neutral messages (`runtime.transcript.transcript`), without system messages."""

    native: str | None = None
    """Its messages as JSON of the library of the same kind of runner; None if another kind executed
    it."""

    from_request: bool = False
    """True for messages of the request, which no memory of a runner has."""

    run_id: str = ""
    """Its id; `""` for messages of the request."""

    omitted_bytes: int = 0
    """Size of its messages before they were shortened, because its conversation was larger than the
    context window of the model; 0 if they are whole."""

    seq: int | None = None
    """Its number in the session; None if the messages are not those that it has stored."""


def leave_out(environment: RunEnvironment, kind: OmissionKind, run_id: str, size: int) -> None:
    """Record and publish stored data that is damaged: a run does not get it.

    Args:
        run_id: the earlier run that has it; `""` for the session.
        size: its size in bytes.
    """
    left_out = environment.transcript.left_out

    omission = next((entry for entry in left_out if entry["kind"] == kind), None)
    if omission is None:
        left_out.append(Omission(kind, 1, run_id, run_id, size).record())
    elif omission["last"] != run_id:
        omission.update(count=omission["count"] + 1, last=run_id, size=omission["size"] + size)

    environment.transcript.name_left_out()
    environment.recorder.report_compacted(Compacted([*left_out], None, None))


class Halting(NamedTuple):
    """The halt of an operator that stops a call."""

    scope: HaltScope
    """The kind of the work that the operator has halted."""

    reason: str


class HeldBack(Exception):
    """A call that was not made, because it was halted when everything was ready for it."""


class ItemStore(Protocol):
    """Items that runs keep, in namespaces (`records.store_items`).

    The methods raise `agentctl.errors.AgentctlError` if a value is not allowed or the database is
    not available. With `refresh`, the time to live of the items that are read begins again.
    """

    async def get(self, namespace: Namespace, key: str, *, refresh: bool) -> StoreItem | None: ...
    async def search(self, wanted: ItemSearch, *, refresh: bool) -> list[StoreItem]: ...
    async def list_namespaces(self) -> list[Namespace]: ...
    async def put(self, puts: Sequence[ItemPut]) -> None: ...


class RunEnvironment(Protocol):
    """The environment of one run.

    Attributes:
        spec: the work of the run, its user and its limits.
        state: the state of the session, shared with the runs of members and steps.
        earlier_runs: the runs of the session that the component receives, oldest first.
        history: their messages.
        summary: the summary of the runs before them, if there is one.
        memories: the memories of the user, None without a user.
        is_stopping: True once the run has to stop. It may be read in any thread.
        has_ended: True once the results of the run are no longer changed.
        has_messages: True if messages may wait for the run, so that `take_messages` has to look.
        transcript: results of the run, empty at the start.
        recorder: writes what happens in the run to the transcript, and publishes it.
        limits: size limits in bytes.
        leg: the state and the decisions with which the run continues; None in its first leg.
        journal: the journal of a durable run; None for every other run.
        files: the bytes of its files; None where there is no store.
    """

    spec: RunSpec
    state: SessionState
    earlier_runs: Sequence[EarlierRun]
    summary: str | None
    has_ended: bool
    has_messages: bool
    transcript: Transcript
    recorder: RunRecorder
    limits: Limits
    leg: Leg | None

    @property
    def history(self) -> Sequence[Mapping[str, Any]]: ...
    @property
    def memories(self) -> Memories | None: ...
    @property
    def is_stopping(self) -> bool: ...
    @property
    def journal(self) -> Journal | None: ...
    @property
    def files(self) -> FileAccess | None: ...

    def open_store(self, *, is_shared: bool) -> ItemStore:
        """Return the store of the user of the run, or the one that users share."""

    def emit(self, event: RunEvent) -> None:
        """Publish an event. Fast, never waits.

        What happens in the work of the run is reported to `recorder`, which publishes it.
        """

    def keep_cause(self, error: BaseException, tool: str | None = None) -> None:
        """Keep an exception of the user's code with the run, for callers that may read it.

        Args:
            tool: name of the tool that has raised it; None for other code.
        """

    async def is_first_of_session(self) -> bool:
        """Return True if the session has no earlier run."""

    def checkpoint(self) -> None:
        """Raise asyncio.CancelledError if a cancel was requested.

        Called before every model call and every tool call.
        """

    def find_halt(self, *, tool: str | None = None, models: Sequence[str] = ()) -> Halting | None:
        """Return what stops the run now; None if nothing does. It may be called in any thread.

        Args:
            tool: the name of a tool: also what stops its calls.
            models: ids of models: also what stops the calls of all of them.
        """

    async def wait_while_halted(
        self, *, tool: str | None = None, models: Sequence[str] = ()
    ) -> None:
        """Wait until `find_halt` returns None; without a step of the event loop if it does now.

        The wait does not count in the time limit of the run.
        """

    def starting(self, seconds: float) -> AbstractContextManager[None]:
        """Enclose the steps between `find_halt` and the begin of a call, if it takes several.

        A new halt is confirmed after them; at the latest some seconds from now.
        """

    async def report_model_failure(self, model_id: str, code: str) -> None:
        """Report that a call of a model failed for good, for the breaker of the model.

        It does not fail. A halt that it has caused is known when it returns.

        Args:
            code: the code of the failure (docs/contract.md "Failures of a run").
        """

    async def begin_model_call(self, *, may_ask: bool = False) -> Ask | None:
        """Check that the budgets of the run let it call a model.

        Args:
            may_ask: True if the caller pauses the run for the question that is returned.

        Returns:
            The question that a person has to answer first; None if the model may be called.

        Raises:
            ExecutionError: a budget is used up.
            Unavailable: the database does not answer.
        """

    async def take_messages(self, *, for_code: bool = False) -> Sequence[MessageDelivered]:
        """Deliver the messages that were sent to the run, in their order, to its next model call.

        Call it between a complete set of tool results and the next model call. The caller makes
        them a part of the run (`RunRecorder.add_message`) when that call begins; those that are not
        part of the run when it ends count as not delivered.

        Args:
            for_code: True if the code of the run gets them, and not a model call.

        Raises:
            asyncio.CancelledError: the run stops, or this leg has lost it.
            Unavailable: the database does not answer.
        """

    async def name_model_call(self, message_id: str, call_id: str | None) -> None:
        """Store the model call that received a delivered message.

        Only for a call other than the next one at the time of `take_messages`.

        Args:
            call_id: the id of the call; None for a call of another run, such as a member.
        """

    def add_usage(self, usage: Mapping[str, int], model: str | None = None) -> None:
        """Add tokens that code has reported, unless the run has ended.

        The budgets of the run are checked in the background, which may stop it. Counters that no
        one reports stay unknown.

        Args:
            usage: numbers by the names of the nine counters (docs/contract.md "Session records").
            model: the model that used the tokens; None for the one that was called last.
        """

    async def run_member(
        self,
        component: Component,
        message: str,
        *,
        run_id: str | None = None,
        keeps_input: bool = False,
    ) -> MemberResult:
        """Run a member or a step as a child of this run; the engine sets its time limit.

        A cancel of this call cancels the child. A failure of the child is a result, not an
        exception; so is a pause. In a durable run the member of the current call or step is the one
        that an earlier process has started, if it did.

        Args:
            run_id: the paused run of the member, to continue; None starts a new one. The result
                of a member that has ended is read, and nothing is run again.
            keeps_input: True gives a new run the object `input` of this one.
        """

    @property
    def reported(self) -> Sequence[ReportedMember]:
        """The runs of members that were reported in this leg."""

    def report_member(
        self, kind: ComponentKind, name: str, task: str, *, call_id: str | None = None
    ) -> ReportedMember:
        """Start the run of a member that a library executes inside this run.

        Args:
            name: id and name of the member.
            call_id: the open tool call of this run that started it.
        """

    async def continue_reported(
        self, kind: ComponentKind, name: str, run_id: str
    ) -> ReportedMember | None:
        """Continue with a paused run of such a member; return None if it does not wait."""

    async def begin_call(self, approval_id: str) -> None:
        """Store that an approved call begins; the caller makes it after that.

        Raises:
            asyncio.CancelledError: the call must not be made: this leg has lost its run.
            Unavailable: the database does not answer; the call must not be made.
        """

    async def end_call(self, approval_id: str, result: str, *, failed: bool) -> None:
        """Store the result of an approved call that has ended."""

    async def begin_effect(self, tool: str | None = None) -> None:
        """Store, once in a leg after the first, that a call without an approval begins.

        It waits before that while a halt stops the call.

        Args:
            tool: the name of the tool, if a library calls it when this returns.

        A leg whose server dies before that is run again from its checkpoint. A leg whose server
        dies later is not, so that the call is made at most once.
        """


class ReportedMember(RunEnvironment, Protocol):
    """The run of a member that a library executes; its runner reports what happens.

    Attributes:
        is_reported: True once the end was reported.
        has_failed: True if it was a failure.
    """

    @property
    def is_reported(self) -> bool: ...
    @property
    def has_failed(self) -> bool: ...

    def end_report(self, failure: BaseException | None = None) -> None:
        """Report the end, unless one was reported before.

        Args:
            failure: ExecutionError for a failure, Paused for a pause; None if it is complete.
        """

    async def wait_until_stored(self) -> None:
        """Wait until the end is stored, or cannot be."""


class RunSendGate:
    """The gate of the requests to models that a run sends; see `work.send_gate`.

    Args:
        models: the ids of the models of the request; empty if they are not known.
    """

    def __init__(self, context: RunEnvironment, models: Sequence[str] = ()) -> None:
        self._context = context
        self._models = models

    def is_open(self) -> bool:
        return self._context.find_halt(models=self._models) is None

    async def wait(self) -> None:
        await self._context.wait_while_halted(models=self._models)


async def admit_tool(context: RunEnvironment, tool: str, *, waits: bool) -> str | None:
    """Wait while the run is halted; return the result of the call if its tool is halted.

    Args:
        waits: True if the call waits until its tool is not halted any more, as an approved call.

    Returns:
        The text for the model; None if the call may be made now.
    """
    while True:
        halting = context.find_halt(tool=tool)
        if halting is None:
            return None
        if halting.scope == "tool" and not waits:
            return f"not available: the tool {tool} is halted: {halting.reason}"
        await context.wait_while_halted(tool=tool if waits else None)


async def perform_decided(
    context: RunEnvironment,
    decision: DecidedCall,
    perform: Callable[[Mapping[str, Any]], Awaitable[CallOutcome]],
    *,
    stores_end: bool = True,
) -> CallOutcome:
    """Return the outcome of a call that was decided about; make it at most once.

    A call that an earlier leg has made is not made again: its result is stored. `executing` is on
    the disk before the call. A call that waits in the middle keeps it until it ends.

    Args:
        perform: makes the call with the approved arguments.
        stores_end: False if the caller stores the end of the call.
    """
    if decision.execution in ("done", "failed"):
        return CallOutcome(to_text(decision.result), failed=decision.execution == "failed")

    if not decision.is_approved:
        return CallOutcome(decision.refusal, failed=True, counts_as_failure=False)

    await context.wait_while_halted(tool=decision.tool_name)

    if decision.execution != "executing":
        # Else an earlier leg has begun the call, and has waited in the middle of it.
        await context.begin_call(decision.approval_id)

    outcome = await perform(decision.arguments)
    if outcome.pause is None and stores_end:
        await context.end_call(decision.approval_id, outcome.text, failed=outcome.failed)
    return outcome


class ContextMisuse(RuntimeError):
    """A call of a method of `RunContext` that is not possible; its text is public."""


def find_tool_result(environment: RunEnvironment, call_id: str) -> tuple[str, int] | None:
    """Return the newest result of a call that a run has, and the characters of a page of it.

    A run has what its models were to be shown, its own results, those of members that a library
    executes in it, and those of the earlier runs that it receives; nothing else of its session.
    """
    left_out = environment.transcript.requests.left_out.get(call_id)
    if left_out is not None:
        return left_out

    for message in reversed([*environment.history, *environment.transcript.messages]):
        if message["role"] == "tool" and message["tool_call_id"] == call_id:
            return message["content"], PAGE_CHARACTERS

    for member in reversed(environment.reported):
        result = find_tool_result(member, call_id)
        if result is not None:
            return result
    return None


class RunHost:
    """The side of a `RunContext` that belongs to the server.

    Its methods may be called in any thread; they change the run in the thread of the event loop.

    Attributes:
        abandoned: set when the tool call that has the context was abandoned.
        replayer: set for an async function that is an agent.
    """

    def __init__(self, environment: RunEnvironment) -> None:
        self.abandoned = False
        self.replayer: Replayer | None = None
        self._environment = environment
        self._loop = asyncio.get_running_loop()

    def is_cancelled(self) -> bool:
        return self.abandoned or self._environment.is_stopping

    def report_progress(self, text: str | None, fraction: float | None) -> None:
        """Publish a progress event, unless the run has stopped or published too many."""
        if self._drops_reports:
            return
        if self._environment.transcript.progress_events >= MAXIMUM_PROGRESS_EVENTS:
            return
        if text is not None:
            text = replace_unstorable(text[:MAXIMUM_PROGRESS_LENGTH])
        self._call(self._publish, ProgressReported(text, fraction))

    def report_usage(self, usage: Mapping[str, int]) -> None:
        """Add to the token counters of the run, unless it has stopped."""
        if not self._drops_reports:
            self._call(self._environment.add_usage, usage)

    def get_call_id(self) -> str | None:
        """Return the run and the id of the current tool call or step; None outside of one."""
        call = current_call.get()
        return None if call is None else format_call_id(self._environment.spec.run_id, call.id)

    def read_tool_result(self, call_id: str, offset: int) -> str | None:
        """Return a page of a result; None if the run has none of this call."""
        result = find_tool_result(self._environment, call_id)
        if result is None:
            return None

        text, page_characters = result
        return read_page(text, offset, page_characters)

    async def find_path(self, file: File) -> Path:
        return await self._await(self._get_files().path(_get_reference(file)))

    async def save_file(self, name: str, data: bytes) -> File:
        self._environment.checkpoint()
        return self.build_file(await self._await(self._get_files().save(name, data)))

    def build_file(self, reference: FileReference) -> File:
        """Return a file of the run for its code."""

        async def load() -> bytes:
            return await self._await(self._get_files().read(reference))

        return File(load=load, **asdict(reference))

    def _get_files(self) -> FileAccess:
        if self._environment.files is None:
            raise ContextMisuse("this run has no store of files")
        return self._environment.files

    async def _await(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for work in the loop of the server, also in the loop of a thread of the run."""
        if self._is_in_loop():
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))

    def find_replayer(self, method: str) -> Replayer:
        if self.replayer is None:
            raise ContextMisuse(f"context.{method} is for async functions that are agents")
        if not self._is_in_loop():
            raise ContextMisuse(f"context.{method} was called outside of the event loop")
        return self.replayer

    @property
    def _drops_reports(self) -> bool:
        return self.replayer is not None and self.replayer.drops_reports

    def _publish(self, event: ProgressReported) -> None:
        environment = self._environment
        if self.is_cancelled() or environment.transcript.progress_events >= MAXIMUM_PROGRESS_EVENTS:
            return
        environment.transcript.progress_events += 1
        environment.emit(event)

    def _is_in_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        if self._is_in_loop():
            function(*arguments)
            return
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            # The event loop was closed while a thread still worked: no one needs the report.
            return


def _get_reference(file: File) -> FileReference:
    return FileReference(file.file_id, file.name, file.media_type, file.size, file.sha256)


def format_call_id(run_id: str, tool_call_id: str) -> str:
    """Return an id that no call of another run has: models repeat theirs."""
    return f"{run_id}:{tool_call_id}"


def is_run_context(annotation: object) -> bool:
    """Return True for `RunContext`, `RunContext | None` and `Annotated` of these."""
    if get_origin(annotation) is Annotated:
        return is_run_context(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        parts = [part for part in get_args(annotation) if part is not NoneType]
        return len(parts) == 1 and is_run_context(parts[0])
    return annotation is RunContext


def build_run_context(environment: RunEnvironment, host: RunHost | None = None) -> RunContext:
    """Build the context of a run.

    Claims, metadata, input and history are copies, so that a function cannot change those of
    another one.
    The state is shared by all functions of the run and of its members.
    """
    spec = environment.spec
    call = current_call.get()
    host = host or RunHost(environment)
    return RunContext(
        user_id=spec.user_id,
        session_id=spec.session_id,
        run_id=spec.run_id,
        component_id=spec.component_id,
        call_id=format_call_id(spec.run_id, call.id) if call is not None else None,
        claims=json.loads(spec.claims) if spec.claims else None,
        metadata=json.loads(spec.metadata) if spec.metadata else None,
        dependencies=json.loads(spec.dependencies) if spec.dependencies else None,
        input=json.loads(spec.input_object) if spec.input_object else None,
        state=environment.state.values,
        history=tuple(dict(message) for message in environment.history),
        memories=environment.memories,
        files=tuple(map(host.build_file, load_references(spec.files))) if spec.files else (),
        host=host,
    )
