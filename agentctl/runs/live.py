"""One run while it is worked on in this process: what its component may ask of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from agentctl.config.settings import Limits
from agentctl.runs import event_format
from agentctl.runs.recorder import Recorder
from agentctl.runs.states import Ending
from agentctl.runs.stream import Stream
from agentctl.runtime.catalog import Component
from agentctl.runtime.context import MemberResult
from agentctl.runtime.events import RunEvent
from agentctl.runtime.transcript import Transcript
from agentctl.store.database import Database

__all__ = ["LiveRun", "SpawnMember"]

SpawnMember = Callable[["LiveRun", Component, str], Awaitable[MemberResult]]
"""Makes a member's run under the given one, works it, and returns how it went."""


class LiveRun:
    """A run of this process; the `runtime.context.RunContext` of its component.

    A member's run shares its root's stream and database. What has arrived stands in `transcript`,
    so that a run that is stopped half way keeps it.

    Args:
        parent: the run that asked for this one, or None for a root.
        recorded: whether a root's events are kept for those who follow it; a member's go with it.
        goes_on: whether it is worked on although its caller was not told of it.
        database: where the run's row is.
        spawn: how the engine makes a member's run.
        time_limit: seconds that the work may take.
        tool_timeout: seconds that one tool call may take.

    Attributes:
        identity: what its events say of it.
        owner: the worker that its row names.
        recorder: stores the events of a root that is recorded, once its row is there.
        in_doubt: nobody knows whether its row is there.
        finished_at: when its work had ended or was given up, in microseconds: one time for its
            row, for the event that is stored, and for the one that is told.
    """

    attempt = 1

    def __init__(
        self,
        run_id: str,
        session_id: str,
        component: Component,
        message: str,
        *,
        user_id: str | None,
        parent: LiveRun | None,
        recorded: bool,
        goes_on: bool = False,
        database: Database,
        spawn: SpawnMember,
        limits: Limits,
        time_limit: float,
        tool_timeout: float,
    ) -> None:
        self.run_id = run_id
        self.session_id = session_id
        self.component = component
        self.message = message
        self.user_id = user_id
        self.goes_on = goes_on
        self.parent = parent
        self.database = database
        self.limits = limits
        self.time_limit = time_limit
        self.tool_timeout = tool_timeout
        self.transcript = Transcript()
        self.stream: Stream = parent.stream if parent is not None else Stream(recorded=recorded)
        self.recorder: Recorder | None = None
        self.owner = ""
        self.row_uncertain = False
        self.finished_at: int | None = None
        self.previous_system: str | None = None
        self.children: list[LiveRun] = []
        self.stopping: Ending | None = None
        loop = asyncio.get_running_loop()
        self.stop_requested: asyncio.Future[None] = loop.create_future()
        self.ended: asyncio.Future[Ending] = loop.create_future()
        self.identity = event_format.RunIdentity(
            run_id,
            session_id,
            parent.run_id if parent is not None else None,
            component.kind,
            component.id,
            component.name,
        )
        self._detached = False
        self._spawn = spawn

    def stop(self, ending: Ending) -> None:
        """Ask this run and the runs that it asked for to end so. The first request stands."""
        if self.stopping is None:
            self.stopping = ending
            self.stop_requested.set_result(None)
        for child in self.children:
            child.stop(ending)

    def begin(self, owner: str) -> None:
        """The row is there, in the name of a worker: what happens from now on is kept."""
        self.owner = owner
        if self.parent is not None:
            self.parent.children.append(self)
        elif self.stream.recorded:
            self.recorder = Recorder(self.run_id, self.attempt, self.stream, self.database)

    def detach(self) -> None:
        """From now on nothing that the work still does is heard: its end is settled."""
        self._detached = True

    def emit(self, event: RunEvent) -> None:
        """Tell followers of an event of the work."""
        if self.stream.recorded and not self._detached:
            self.stream.publish(*event_format.format_event(self.identity, event))

    def checkpoint(self) -> None:
        """Called before every model call and every tool call.

        Raises:
            asyncio.CancelledError: the run is to stop, so the call must not be made.
        """
        if self.stopping is not None or self._detached:
            raise asyncio.CancelledError

    async def run_member(self, component: Component, message: str) -> MemberResult:
        """Have a member do a task, as a run of its own under this one."""
        self.checkpoint()
        return await self._spawn(self, component, message)
