"""A run while this process executes it: its state, and the view of its component."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, NoReturn, Protocol, TypeVar

import orjson

from agentctl.config.settings import Limits
from agentctl.records.kinds import ComponentKind
from agentctl.records.run_spec import RunSpec
from agentctl.records.text import replace_unstorable
from agentctl.records.times import now
from agentctl.runs.gate.gate import Gate, build_scopes
from agentctl.runs.gate.halts import Scope
from agentctl.runs.life.admission import Admission, LegInput
from agentctl.runs.life.run_files import RunFiles, RunItems, RunMemories
from agentctl.runs.log import event_rows
from agentctl.runs.log.event_rows import RunIdentity
from agentctl.runs.log.journal import RunJournal
from agentctl.runs.log.stream import EventPlace, Stream, StreamRecorder
from agentctl.runs.states import PARENT_ENDED, WORKER_LOST, Ending, LegEnd
from agentctl.runtime.component import Component
from agentctl.runtime.context import Halting, MemberResult
from agentctl.runtime.failures import CauseReader, ExecutionError
from agentctl.runtime.pauses import MEMBER_PREFIX, Ask
from agentctl.runtime.tracing import LegTrace
from agentctl.runtime.transcript.answer import StopTexts
from agentctl.runtime.transcript.events import MessageDelivered, RunEvent
from agentctl.runtime.transcript.history import SessionState, StateChanges
from agentctl.runtime.transcript.recorder import RunRecorder
from agentctl.runtime.transcript.transcript import Transcript
from agentctl.store.database import Steps, Work, unit
from agentctl.store.databases import Databases
from agentctl.store.repositories import approvals, run_messages, run_reads, runs
from agentctl.store.repositories.sessions import NO_COST, Cost
from agentctl.store.visibility import EVERYONE
from agentctl.work.event_loop import retrieve_exception, retry_until_stopped
from agentctl.work.run_scope import CurrentCall, current_call

_log = logging.getLogger("agentctl.runs")

T = TypeVar("T")

LIBRARY_START_SECONDS = 0.1
"""Time after `begin_effect` within which a library begins its call."""


class MemberRunner(Protocol):
    """Starts the runs of members; see `runs.life.members`."""

    async def run(
        self,
        parent: LiveRun,
        component: Component,
        message: str,
        call: CurrentCall,
        run_id: str | None,
        keeps_input: bool,
    ) -> MemberResult: ...

    def report(
        self, parent: LiveRun, component: Component, message: str, call_id: str | None
    ) -> ReportedRun: ...

    async def continue_reported(
        self, parent: LiveRun, component: Component, run_id: str
    ) -> ReportedRun | None: ...


@dataclass(frozen=True, slots=True)
class RunServices:
    """The objects that a process gives to each of its runs."""

    databases: Databases
    """The database of the component has the row, the system database the memories."""

    limits: Limits
    """The limits of the configuration."""

    members: MemberRunner
    """Starts the runs of members and steps."""

    cause_reader: CauseReader
    """Reads the causes of failures from exceptions."""

    gate: Gate
    """Lets the calls of the run pass, or holds them: budgets, halts and breakers."""

    open_files: Callable[[LiveRun], RunFiles]
    """Builds the access to the files of a run."""


class LiveRun:
    """The state of a run in this process; the `runtime.context.RunEnvironment` of its component.

    A member's run shares the stream of its root. The transcript is filled as data arrives, so that
    a run that is stopped keeps its partial result. Only the methods of this class set its
    attributes, except `previous_instructions`, `earlier_runs` and `summary`.

    Args:
        parent: the run that requested this one; None for a root run and for background work.
        start: where the leg begins; None for the first leg.
    """

    start_place: EventPlace | None = None
    """The place of the first event of the leg in the stream; None for the next place."""

    end_place: EventPlace | None = None
    """The place of the last event of the leg; None for the next place."""

    def __init__(
        self,
        spec: RunSpec,
        component: Component,
        services: RunServices,
        parent: LiveRun | None = None,
        *,
        start: LegInput | None = None,
    ) -> None:
        start = start or LegInput()
        self._start = start

        # What it is, and its place in the tree.
        self.spec = spec
        """Its specification; its user is known when the row is committed."""

        self.run_id = spec.run_id
        self.component = component
        self.parent = parent

        self.root: LiveRun = parent.root if parent is not None else self
        """The root run of its tree; the run itself if it has no parent."""

        self.children: list[LiveRun] = []
        """The runs of members and steps whose rows are committed."""

        self.reported: list[ReportedRun] = []
        """The runs of members that a library executes, also before their rows are committed."""

        self.identity = RunIdentity(
            spec.run_id,
            spec.session_id,
            spec.parent_run_id,
            component.kind,
            component.id,
            component.name,
        )

        # What this process gives it.
        self.database = services.databases[component.database]
        self.limits = services.limits
        self._databases = services.databases
        self._members = services.members
        self._cause_reader = services.cause_reader
        self._gate = services.gate

        # This leg.
        self.attempt = start.attempt
        """Number that fences the writes of this leg; 1 in the first leg."""

        self.leg = start.leg
        """The state and the decisions for the component; None if the run begins."""

        self.is_first = start.is_first
        """True if the session of a root run was created with the run."""

        self.version_change = start.version_change
        """JSON of the change of the version before this leg; None without a change."""

        self.previous_instructions = start.previous_instructions
        """The system message of the session's previous run, or None."""

        self.earlier_runs = start.earlier_runs
        """The earlier runs of the session that the component gets, oldest first."""

        self.summary = start.summary
        """The summary of the session that the component gets, or None."""

        self.has_checkpoint = start.has_checkpoint
        """True if the run has a checkpoint, which its end deletes."""

        self.has_asked = False
        """True if this leg has tried to store a pause, which may be committed."""

        self.has_messages = start.has_messages
        """True if messages may wait for the run, so that its next model call reads them."""

        self.on_messages: Callable[[], None] | None = None
        """Called when a message waits; None if nothing has to know it at once."""

        self.begins_in_doubt: dict[str, int] = {}
        """The times of begins of approved calls that may be committed, by the approval's id.

        Microseconds UTC. Their calls were not made.
        """

        self.trace: LegTrace | None = None
        """The trace of this leg, once it has begun; None if it is not traced."""

        self.worker_id = ""
        """Owner in the row of the run, once it is committed."""

        self._stored_at = 0

        # What it does.
        if parent is not None:
            self.stream: Stream = parent.stream
        else:
            self.stream = Stream(
                spec.run_id, self.attempt, recorded=spec.recorded, first=start.first_event
            )

        self.stream_recorder: StreamRecorder | None = None
        """Stores the events of a recorded root run, once its row is committed."""

        self.transcript = start.transcript
        self.recorder = RunRecorder(self)
        """Writes what the component does to the transcript, and publishes it."""

        if spec.stop:
            self.transcript.stop = StopTexts(spec.stop, self.complete)

        self.state: SessionState = parent.state if parent else SessionState(None, 0)
        """The state of the session, which all runs of a tree share."""

        self.state_changes: StateChanges | None = None
        """The changes of a root run to the state, once the work has ended."""

        self._changed_at = 0
        self._effects: asyncio.Task[bool] | None = None

        loop = asyncio.get_running_loop()
        # How halts hold it.
        self._clock = loop.time
        self._scopes: tuple[str | None, frozenset[Scope]] | None = None
        self._holders = 0
        self._held_since = 0.0
        self._held_seconds = 0.0

        # How it ends.
        self.stop_requested: asyncio.Future[None] = loop.create_future()

        self.ended: asyncio.Future[LegEnd] = loop.create_future()
        """The stored end of the leg, or the expected one if the database has not stored it yet."""

        self.requested_end: Ending | None = None
        """The ending that the first stop request asks for; None before that."""

        self.is_handed_over = False
        """True if another process continues, although a step was interrupted."""

        self.has_ended = False
        """True once all further events of the work are ignored."""

        self.finished_at: int | None = None
        """The time when the work ended or was abandoned, in microseconds UTC.

        The row, the stored event and the published event have the same time.
        """

        self.lets_begin = False
        """True if a queued run of the session can begin now, because this run has ended."""

        self.was_ended_elsewhere = False
        """True if its end was refused, because another process has ended it."""

        # These read the run.
        self.journal: RunJournal | None = None
        if spec.durable:
            self.journal = RunJournal(self, start.steps, start.first_step)
        self.files = services.open_files(self)

    @property
    def root_attempt(self) -> int:
        return self.root.attempt

    @property
    def memories(self) -> RunMemories | None:
        if self.spec.user_id is None:
            return None
        databases = self._databases
        return RunMemories(databases.system, self.spec.user_id, self, quotas=databases.quotas)

    def open_store(self, *, is_shared: bool) -> RunItems:
        databases = self._databases
        return RunItems(databases.system, self, databases.quotas, is_shared=is_shared)

    @property
    def history(self) -> Sequence[Mapping[str, Any]]:
        return [message for run in self.earlier_runs for message in run.messages]

    @property
    def is_stopping(self) -> bool:
        return self.requested_end is not None or self.has_ended

    @property
    def is_continued(self) -> bool:
        """True if an earlier leg has done a part of its work."""
        return self.leg is not None or bool(self._start.steps)

    def mark_stored(self, admission: Admission) -> None:
        """Take over the values of the committed row; start to record events."""
        self.worker_id = admission.owner or ""
        self.spec = admission.spec
        self.is_first = self.is_first or admission.is_first
        self.has_checkpoint = self.has_checkpoint or admission.has_start
        self._stored_at = now()

        if self.parent is not None:
            self.parent.children.append(self)
        else:
            self.state = SessionState(admission.session_state, self.limits.state_bytes)
        if self._start.session_changes is not None:
            self.root.restore_state(self._start.session_changes, self._start.changed_at)
        if self.parent is None and self.stream.recorded:
            self.stream_recorder = StreamRecorder(self.stream, self.database)

    def restore_state(self, changes: StateChanges, at: int) -> None:
        """Repeat the changes of the session state that an earlier process has made.

        A run and its members have each stored the changes of the whole tree: the latest count.

        Args:
            at: their time in microseconds UTC.
        """
        if at > self._changed_at:
            self._changed_at = at
            self.state.apply(changes)

    def stop(self, ending: Ending) -> None:
        """Request that this run and its members' runs end this way. The first request counts."""
        if self.requested_end is None:
            self.requested_end = ending
            self.stop_requested.set_result(None)
        for child in self.children:
            child.stop(ending)

    def complete(self) -> NoReturn:
        """Complete this run, whose answer has reached a stop text. Its open members are cancelled.

        Raises:
            CancelledError: always; the work of the run ends.
        """
        self.transcript.end_answer([], "stop")
        if self.requested_end is None:
            self.requested_end = Ending.completed()
            self.stop_requested.set_result(None)
            for member in (*self.children, *self.reported):
                member.stop(PARENT_ENDED)
        raise asyncio.CancelledError

    def park(self) -> None:
        """Hand a durable run over to another process before its next step."""
        if self.journal is not None:
            self.journal.is_parking = True

    def hand_over(self, ending: Ending) -> None:
        """Interrupt a durable run: its leg ends as it does when its process dies.

        Args:
            ending: what its work sees as the cause.
        """
        if self.requested_end is None:
            self.is_handed_over = True
            for child in self.children:
                child.hand_over(ending)
            self.stop(ending)

    def detach(self) -> None:
        """Set `finished_at` and ignore all further events of the work."""
        self.has_ended = True
        # The clock may have gone back since.
        self.finished_at = max(now(), self._stored_at)

    def keep_state(self) -> None:
        """Set `state_changes`. Code that has not stopped cannot change them afterwards.

        Raises:
            ExecutionError: the state cannot be stored.
        """
        if self.parent is None:
            self.state_changes = self.state.find_changes()

    def discard_transcript(self) -> None:
        """Replace a transcript that cannot be stored; work that has not stopped stays known."""
        self.transcript = Transcript(self.transcript.unstopped)

    def emit(self, event: RunEvent) -> None:
        if self.stream.recorded and not self.has_ended:
            name, data, piece = event_rows.format_event(self.identity, event)
            if not self.root.database.version.allows_text_rows:
                # A server of an earlier release could not read such a row.
                piece = None
            self.stream.publish(name, data, piece, start=self.start_place)

    def keep_cause(self, error: BaseException, tool: str | None = None) -> None:
        if not self.has_ended:
            self.transcript.causes.add(self._cause_reader.read(error, tool))

    async def begin_model_call(self, *, may_ask: bool = False) -> Ask | None:
        may_ask = may_ask and self.spec.purpose is None
        return await self._gate.budgets.check(self, may_ask=may_ask)

    async def report_model_failure(self, model_id: str, code: str) -> None:
        await self._gate.breakers.count_failure("model", model_id, code)

    @property
    def scopes(self) -> frozenset[Scope]:
        """The scopes of halts that stop the run: its own, and those of the runs above it."""
        user_id = self.spec.user_id
        if self._scopes is None or self._scopes[0] != user_id:
            scopes = build_scopes(self.component, user_id)
            if self.parent is not None:
                scopes |= self.parent.scopes
            self._scopes = (user_id, scopes)
        return self._scopes[1]

    def find_halt(self, *, tool: str | None = None, models: Sequence[str] = ()) -> Halting | None:
        if self._gate.halts.is_clear:
            return None
        return self._gate.find(self.scopes, tool, models)

    async def wait_while_halted(
        self, *, tool: str | None = None, models: Sequence[str] = ()
    ) -> None:
        if self.find_halt(tool=tool, models=models) is None:
            return
        with self._holding():
            await self._gate.wait(self.scopes, tool, models)
        self.checkpoint()

    def starting(self, seconds: float) -> AbstractContextManager[None]:
        return self._gate.halts.starting(seconds)

    @contextmanager
    def _holding(self) -> Iterator[None]:
        """Stop the time limits of the run, and of the runs above it, while the block lasts."""
        runs = list[LiveRun]()
        ancestor: LiveRun | None = self
        while ancestor is not None:
            runs.append(ancestor)
            ancestor = ancestor.parent

        for run in runs:
            if not run._holders:
                run._held_since = run._clock()
            run._holders += 1
        try:
            yield
        finally:
            for run in runs:
                run._holders -= 1
                if not run._holders:
                    run._held_seconds += run._clock() - run._held_since

    @property
    def is_held(self) -> bool:
        """True while a halt holds the run, or a run below it."""
        return self._holders > 0

    @property
    def held_seconds(self) -> float:
        """The time that halts have held the run, or a run below it, until now."""
        current = self._clock() - self._held_since if self._holders else 0.0
        return self._held_seconds + current

    async def measure_usage(self) -> tuple[int, int]:
        """Return the tokens and the cost that count for budgets while it waits.

        Both are 0 without a budget for its component.
        """
        tokens, cost, _ = await self._gate.budgets.measure(self)
        return tokens, cost

    async def measure_cost(self) -> Cost:
        """Return what its tokens have cost so far; `NO_COST` if no price can be found."""
        try:
            return await self._gate.budgets.measure_cost(self.transcript)
        except Exception:
            # A price must not keep an end from being stored.
            _log.exception("run %s: its cost is not known", self.run_id)
            return NO_COST

    def add_usage(self, usage: Mapping[str, int], model: str | None = None) -> None:
        if not self.has_ended:
            self.transcript.add_usage(usage, model)
            self._gate.budgets.watch(self)

    def checkpoint(self) -> None:
        if self.is_stopping:
            raise asyncio.CancelledError

    async def is_first_of_session(self) -> bool:
        if self.parent is not None or self.is_first:
            return self.is_first
        oldest = await self._read(run_reads.list_in_session(self.spec.session_id, limit=1))
        return not oldest or oldest[0].run_id == self.run_id

    async def run_member(
        self,
        component: Component,
        message: str,
        *,
        run_id: str | None = None,
        keeps_input: bool = False,
    ) -> MemberResult:
        self.checkpoint()
        call = current_call.get()
        if call is None:
            call = CurrentCall(f"{MEMBER_PREFIX}{component.id}", component.id)
        if self.journal is not None and run_id is None:
            run_id = self.journal.find_member(call.id)
        return await self._members.run(self, component, message, call, run_id, keeps_input)

    def report_member(
        self, kind: ComponentKind, name: str, task: str, *, call_id: str | None = None
    ) -> ReportedRun:
        self.checkpoint()
        return self._members.report(self, self._build_reported(kind, name), task, call_id)

    async def continue_reported(
        self, kind: ComponentKind, name: str, run_id: str
    ) -> ReportedRun | None:
        self.checkpoint()
        component = self._build_reported(kind, name)
        return await self._members.continue_reported(self, component, run_id)

    def note_messages(self) -> None:
        """Report that messages wait for the run; its next model call gets them."""
        self.has_messages = True
        if self.on_messages is not None:
            self.on_messages()

    async def take_messages(self, *, for_code: bool = False) -> Sequence[MessageDelivered]:
        if not self.has_messages:
            return ()
        # Before the read: a message that comes after it sets this again.
        self.has_messages = False

        call_id = None if for_code else self.transcript.spans.next_call_id
        known_ids = self.transcript.message_ids
        deliver = run_messages.deliver(self.run_id, self.attempt, call_id, known_ids, now())
        delivered = await self._write(deliver)
        if delivered is None:
            await self.stop_as_stored()
        return [MessageDelivered(row.message_id, row.content, call_id) for row in delivered]

    async def name_model_call(self, message_id: str, call_id: str | None) -> None:
        await self._write(run_messages.name_call(message_id, self.attempt, call_id))

    def _build_reported(self, kind: ComponentKind, name: str) -> Component:
        return replace(
            self.component, kind=kind, id=name, name=name, description="", history_runs=0
        )

    async def begin_call(self, approval_id: str) -> None:
        """Store that an approved call begins.

        A write with an unknown outcome is repeated, and finds what it has committed. If it cannot
        be repeated, because the run stops or the database stays away, nothing is called, and the
        end of the run stores that.
        """
        await self.wait_while_halted()
        self.checkpoint()
        # One time for all attempts: by it, a repetition knows its own write.
        at = now()
        self.begins_in_doubt[approval_id] = at
        begin = _begin_call(self.run_id, self.root.run_id, self.attempt, approval_id, at)
        has_begun = await self._write(begin)
        del self.begins_in_doubt[approval_id]
        if not has_begun:
            await self.stop_as_stored()

    async def end_call(self, approval_id: str, result: str, *, failed: bool) -> None:
        text = orjson.dumps(replace_unstorable(result)).decode()
        execution = "failed" if failed else "done"
        await self._write(approvals.end_execution(approval_id, self.run_id, execution, text, now()))

    async def begin_effect(self, tool: str | None = None) -> None:
        await self.wait_while_halted(tool=tool)
        if tool is not None:
            # The library makes the call a moment after this returns.
            self._gate.halts.note_start(LIBRARY_START_SECONDS)
        root = self.root
        if root.attempt == 1 or self.journal is not None:
            return

        # One mark for the whole tree: the leg of the root run is returned with its members.
        if root._effects is None or _has_failed(root._effects):
            mark = runs.mark_effects(root.run_id, root.attempt)
            # A call that is cancelled does not interrupt the write: other calls wait for it, too.
            root._effects = asyncio.create_task(root._write(mark))
            root._effects.add_done_callback(retrieve_exception)
        if not await asyncio.shield(root._effects):
            await self.stop_as_stored()

    async def stop_as_stored(self) -> NoReturn:
        """Stop after a refused write: the row has a cancel, or an end, that is not known here yet.

        The whole tree stops if the reason is the reason of its root: no member is cancelled alone
        then, and nothing above it continues.

        Raises:
            CancelledError: always, unless the database stays away.
            Unavailable: the reason cannot be read.
        """
        for run in (self.root, self):
            state = await self._read(run_reads.get_state(run.run_id))
            if state is None or (state.status, state.attempt) != ("RUNNING", run.attempt):
                self.root.stop(WORKER_LOST)
            elif state.cancel_requested_at is not None:
                run.stop(Ending.requested(state))
        raise asyncio.CancelledError

    async def _read(self, work: Work[T]) -> T:
        """Read what the run needs, and wait for the database (`retry_until_stopped`)."""
        return await retry_until_stopped(lambda: self.database.read(work), self.stop_requested)

    async def _write(self, work: Work[T]) -> T:
        """Write what the run has to store, and wait for the database (`retry_until_stopped`).

        Args:
            work: is repeated after an unknown outcome, so a second execution of it must have the
                result of the first one, and no further effect.
        """
        return await retry_until_stopped(lambda: self.database.write(work), self.stop_requested)


def _has_failed(task: asyncio.Task[Any]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)


class ReportedRun(LiveRun):
    """The run of a member that a library executes inside the run of its parent.

    Its work only waits for the end that the runner of the library reports, so that the run is
    stored, published, cancelled and recovered as other runs. Later events of its tree are published
    after its start and its end, which wait for their commit. A stop of this run alone stops its
    parent: the library cannot stop one member.
    """

    result: asyncio.Task[MemberResult]
    """Waits for the stored end; set by `wait_for_result`."""

    def __init__(
        self,
        spec: RunSpec,
        component: Component,
        services: RunServices,
        parent: LiveRun,
        *,
        start: LegInput | None = None,
    ) -> None:
        super().__init__(spec, component, services, parent, start=start)
        loop = asyncio.get_running_loop()
        self.begun: asyncio.Future[None] = loop.create_future()
        """Done when the row is committed and the start is published."""

        self._report: asyncio.Future[None] = loop.create_future()
        # A stop may be requested before `execute` is called; the library works on all the same.
        self.transcript.unstopped.add(self._report, has_result=False)
        self.start_place = self.stream.reserve()
        parent.reported.append(self)

    @property
    def is_reported(self) -> bool:
        """True once the runner has reported the end."""
        return self._report.done()

    @property
    def has_failed(self) -> bool:
        """True if the runner has reported a failure."""
        return self._report.done() and isinstance(self._report.exception(), ExecutionError)

    def stop(self, ending: Ending) -> None:
        super().stop(ending)
        parent = self.parent
        if parent is not None and not parent.is_stopping and _concerns_parent(ending):
            parent.stop(ending)

    def end_report(self, failure: BaseException | None = None) -> None:
        """Report that the member has ended. The first report counts.

        Args:
            failure: the exception with which its run ends; None if it has completed.
        """
        if self._report.done():
            return

        # Now: later events of the tree must follow its end, which is not stored yet.
        self.end_place = self.stream.reserve()
        if failure is None:
            self._report.set_result(None)
        else:
            self._report.set_exception(failure)

    def wait_for_result(self, result: asyncio.Task[MemberResult]) -> None:
        """Set the task that waits for the stored end."""
        self.result = result
        # Without a row or an end, later events do not wait any longer.
        result.add_done_callback(lambda _: self.stream.leave(self.start_place, self.end_place))

    async def wait_until_stored(self) -> None:
        await asyncio.wait({self.result})

    async def execute(self) -> None:
        """Wait for the end of the member; raise its failure.

        A cancel is complete when the runner of the parent has ended: until then the library may
        work on this member.
        """
        self.begun.set_result(None)
        try:
            await asyncio.wait({self._report})
            if self.reported:
                await asyncio.wait({child.result for child in self.reported})
        except asyncio.CancelledError:
            await asyncio.wait({self._report})
            raise
        self._report.result()


def _concerns_parent(ending: Ending) -> bool:
    """Return True if the end of a member of a library also ends its parent.

    A cancel of the member itself, or an exhausted budget, ends the whole run. A cancel that comes
    from the parent, or a lost worker, does not.
    """
    if ending.error_code == "BUDGET_EXCEEDED":
        return True
    return ending.status == "CANCELLED" and ending.actor != "system:parent"


@unit
def _begin_call(
    run_id: str, root_run_id: str, attempt: int, approval_id: str, at: int
) -> Steps[bool]:
    """Store that an approved call begins, once.

    Args:
        at: the time of the begin, by which a repetition of this write finds what it has committed.

    Returns:
        False if the call must not be made: it has begun before, the run stops, or another process
        has it.
    """
    # The root run first, as a cancel locks it.
    root = yield from run_reads.lock_state(root_run_id)
    run = root
    if run_id != root_run_id:
        run = yield from run_reads.lock_state(run_id)
    if run is None or root is None or run.attempt != attempt or run.status != "RUNNING":
        return False

    row = yield from approvals.get(approval_id, EVERYONE)
    has_begun = row is not None and (row.execution, row.executing_at) == ("executing", at)
    if root.cancel_requested_at is not None or run.cancel_requested_at is not None:
        if has_begun:
            # An attempt with an unknown outcome was committed, and the cancel came after it. The
            # call is not made, and the record says so.
            yield from approvals.forget_execution(approval_id)
        return False

    if has_begun:
        return True
    return (yield from approvals.begin_execution(approval_id, run_id, at))
