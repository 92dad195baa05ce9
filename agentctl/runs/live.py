"""A run while this process executes it: its specification, its state, and the component's view."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from agentctl.config.settings import Limits
from agentctl.records.times import now
from agentctl.runs import event_format
from agentctl.runs.recorder import Recorder
from agentctl.runs.states import Ending
from agentctl.runs.stream import Stream
from agentctl.runtime.component import Component
from agentctl.runtime.context import MemberResult
from agentctl.runtime.events import RunEvent
from agentctl.runtime.transcript import Transcript
from agentctl.store.database import Database

__all__ = ["LiveRun", "MemberRunner", "RunSpec"]

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
        limits: size limits in bytes.
        time_limit: maximum seconds of the whole work.
        tool_timeout: maximum seconds of one tool call.
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


class LiveRun:
    """The state of a run in this process; the `runtime.context.RunEnvironment` of its component.

    A member's run shares the stream of its root. The transcript is filled as data arrives, so that
    a run that is stopped keeps its partial result. All attributes are set by the methods of this
    class only, except `previous_instructions`.

    Args:
        parent: the run that requested this one, or None for a root run.
        run_member: the engine's function that executes a member's run.

    Attributes:
        root: the root run of its tree; the run itself if it has no parent.
        identity: the fields that all events of the run have.
        worker_id, user_id: owner and user in the row of the run, once it is committed.
        recorder: stores the events of a recorded root run, once its row is committed.
        children: the runs of members that were started.
        requested_end: the ending that the first stop request asks for; None before that.
        stop_requested: done when `requested_end` is set.
        finished_at: time when the work ended or was abandoned, in microseconds. The row, the stored
            event and the published event have the same time.
        ended: the stored ending, or the expected one if the database has not stored it yet.
        previous_instructions: system message of the session's previous run, if any.
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
        self.recorder: Recorder | None = None
        self.children: list[LiveRun] = []
        self.requested_end: Ending | None = None
        self.finished_at: int | None = None
        self.previous_instructions: str | None = None
        loop = asyncio.get_running_loop()
        self.stop_requested: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[Ending] = loop.create_future()
        self._run_member = run_member
        self._transcript = Transcript()
        self._detached = False

    @property
    def run_id(self) -> str:
        return self.spec.run_id

    @property
    def session_id(self) -> str:
        return self.spec.session_id

    @property
    def transcript(self) -> Transcript:
        return self._transcript

    @property
    def tool_timeout(self) -> float:
        return self.spec.tool_timeout

    @property
    def limits(self) -> Limits:
        return self.spec.limits

    def mark_stored(self, worker_id: str, user_id: str | None) -> None:
        """Set the owner and the user of the committed row, and start recording events."""
        self.worker_id = worker_id
        self.user_id = user_id
        if self.parent is not None:
            self.parent.children.append(self)
        elif self.stream.recorded:
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
        self.finished_at = now()

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
        if self.requested_end is not None or self._detached:
            raise asyncio.CancelledError

    async def run_member(self, component: Component, message: str) -> MemberResult:
        """Execute a member or a step as a run under this one."""
        self.checkpoint()
        return await self._run_member(self, component, message)
