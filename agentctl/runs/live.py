"""A run while this process executes it: its specification, its state, and the component's view."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentctl.config.settings import Limits
from agentctl.records.times import now
from agentctl.runs import event_format
from agentctl.runs.memories import RunMemories
from agentctl.runs.recorder import Recorder
from agentctl.runs.states import Ending
from agentctl.runs.stream import Stream
from agentctl.runtime.component import Component
from agentctl.runtime.components.background import Purpose
from agentctl.runtime.context import EarlierRun, MemberResult
from agentctl.runtime.events import RunEvent
from agentctl.runtime.session_state import SessionState, StateChanges
from agentctl.runtime.transcript import Transcript
from agentctl.store.database import Database
from agentctl.store.repositories import run_reads

MemberRunner = Callable[["LiveRun", Component, str], Awaitable[MemberResult]]
"""Creates a member's run under the given run, executes it, and returns its result."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """The work and the limits of a run. They never change.

    Attributes:
        parent_run_id: the run that requested this member's run; None for a root run.
        message: input of the component.
        recorded: True if the events of a root run are stored; a member's events are stored with
            those of its root.
        survives_disconnect: True if the run is executed although its client did not get its id.
        database: database with the row of the run.
        system_database: database with the memories of users.
        limits: size limits in bytes.
        time_limit: maximum seconds of the whole work.
        tool_timeout: maximum seconds of one tool call.
        metadata: metadata of the request as JSON, or None.
        output_schema: JSON Schema of the request for its result, or None.
        dependencies: dependencies of the request as JSON, or None.
        claims: verified claims of the caller as JSON, or None.
        earlier_messages: neutral messages that the request gives to its component, after those of
            the session.
        is_claimed: True if the row of the run is RUNNING from the start.
        purpose: the purpose of background work; None for every other run.
        covered: the number of the last run that a summary covers.
        request_id: the id of the request that started the root run, or None.
    """

    run_id: str
    session_id: str
    parent_run_id: str | None
    component: Component
    message: str
    recorded: bool
    survives_disconnect: bool
    database: Database
    limits: Limits
    time_limit: float
    tool_timeout: float
    system_database: Database
    metadata: str | None = None
    output_schema: str | None = None
    dependencies: str | None = None
    claims: bytes | None = field(default=None, repr=False)
    earlier_messages: tuple[Mapping[str, Any], ...] = ()
    is_claimed: bool = False
    purpose: Purpose | None = None
    covered: int = 0
    request_id: str | None = None


class LiveRun:
    """The state of a run in this process; the `runtime.context.RunEnvironment` of its component.

    A member's run shares the stream of its root. The transcript is filled as data arrives, so that
    a run that is stopped keeps its partial result. All attributes are set by the methods of this
    class only, except `previous_instructions`, `earlier_runs` and `summary`.

    Args:
        parent: the run that requested this one, or None for a root run.
        run_member: the engine's function that executes a member's run.

    Attributes:
        root: the root run of its tree; the run itself if it has no parent.
        identity: the fields that all events of the run have.
        worker_id, user_id: owner and user in the row of the run, once it is committed.
        is_first: True if the session of a root run was created with the run.
        recorder: stores the events of a recorded root run, once its row is committed.
        children: the runs of members that were started.
        requested_end: the ending that the first stop request asks for; None before that.
        stop_requested: done when `requested_end` is set.
        finished_at: time when the work ended or was abandoned, in microseconds. The row, the stored
            event and the published event have the same time.
        ended: the stored ending, or the expected one if the database has not stored it yet.
        previous_instructions: system message of the session's previous run, if any.
        earlier_runs: the runs of the session that the component receives, oldest first.
        summary: the summary of the runs of the session that are not among `earlier_runs`, or None.
        state: the state of the session, that of the root.
        state_changes: the changes of a root run to the state, once the work has ended.
    """

    attempt = 1

    def __init__(self, spec: RunSpec, parent: LiveRun | None, run_member: MemberRunner) -> None:
        self.spec = spec
        self.parent = parent
        self.root: LiveRun = parent.root if parent is not None else self
        self.stream: Stream
        self.stream = parent.stream if parent is not None else Stream(recorded=spec.recorded)
        self.identity = event_format.RunIdentity(
            spec.run_id,
            spec.session_id,
            spec.parent_run_id,
            spec.component.kind,
            spec.component.id,
            spec.component.name,
        )
        self.worker_id = ""
        self.user_id: str | None = None
        self.is_first = False
        self.recorder: Recorder | None = None
        self.children: list[LiveRun] = []
        self.requested_end: Ending | None = None
        self.finished_at: int | None = None
        self.previous_instructions: str | None = None
        self.earlier_runs: Sequence[EarlierRun] = ()
        self.summary: str | None = None
        self.state: SessionState
        self.state = parent.state if parent is not None else SessionState(None, 0)
        self.state_changes: StateChanges | None = None
        loop = asyncio.get_running_loop()
        self.stop_requested: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[Ending] = loop.create_future()
        self._run_member = run_member
        self._transcript = Transcript()
        self._detached = False
        self._stored_at = 0

    @property
    def run_id(self) -> str:
        return self.spec.run_id

    @property
    def session_id(self) -> str:
        return self.spec.session_id

    @property
    def component_id(self) -> str:
        return self.spec.component.id

    @property
    def claims(self) -> bytes | None:
        return self.spec.claims

    @property
    def metadata(self) -> str | None:
        return self.spec.metadata

    @property
    def dependencies(self) -> str | None:
        return self.spec.dependencies

    @property
    def memories(self) -> RunMemories | None:
        if self.user_id is None:
            return None
        spec = self.spec
        return RunMemories(spec.system_database, self.user_id, spec.component, spec.run_id)

    @property
    def output_schema(self) -> str | None:
        """The JSON Schema of the request for its result."""
        return self.spec.output_schema

    @property
    def history(self) -> Sequence[Mapping[str, Any]]:
        return [message for run in self.earlier_runs for message in run.messages]

    @property
    def is_member(self) -> bool:
        return self.parent is not None

    @property
    def is_stopping(self) -> bool:
        return self.requested_end is not None or self._detached

    @property
    def has_ended(self) -> bool:
        return self._detached

    @property
    def transcript(self) -> Transcript:
        return self._transcript

    @property
    def tool_timeout(self) -> float:
        return self.spec.tool_timeout

    @property
    def limits(self) -> Limits:
        return self.spec.limits

    def mark_stored(
        self,
        worker_id: str,
        user_id: str | None,
        session_state: str | None,
        *,
        is_first: bool = False,
    ) -> None:
        """Set the owner, the user and the state of the committed row; start recording events."""
        self.worker_id = worker_id
        self.user_id = user_id
        self.is_first = is_first
        self._stored_at = now()
        if self.parent is not None:
            self.parent.children.append(self)
            return
        self.state = SessionState(session_state, self.limits.state_bytes)
        if self.stream.recorded:
            self.recorder = Recorder(self.run_id, self.attempt, self.stream, self.spec.database)

    def stop(self, ending: Ending) -> None:
        """Request that this run and its members' runs end this way. The first request counts."""
        if self.requested_end is None:
            self.requested_end = ending
            self.stop_requested.set_result(None)
        for child in self.children:
            child.stop(ending)

    def detach(self) -> None:
        """Set `finished_at` and ignore all further events of the work."""
        self._detached = True
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
        self._transcript = Transcript(self._transcript.unstopped)

    def emit(self, event: RunEvent) -> None:
        """Publish an event of the component."""
        if self.stream.recorded and not self._detached:
            self.stream.publish(*event_format.format_event(self.identity, event))

    def checkpoint(self) -> None:
        """Refuse a model call or a tool call of a run that has to stop.

        Raises:
            asyncio.CancelledError: a stop was requested or the run has ended.
        """
        if self.is_stopping:
            raise asyncio.CancelledError

    async def is_first_of_session(self) -> bool:
        if self.parent is not None or self.is_first:
            return self.is_first
        oldest = await self.spec.database.read(run_reads.list_in_session(self.session_id, limit=1))
        return not oldest or oldest[0].run_id == self.run_id

    async def run_member(self, component: Component, message: str) -> MemberResult:
        """Execute a member or a step as a run under this one."""
        self.checkpoint()
        return await self._run_member(self, component, message)
