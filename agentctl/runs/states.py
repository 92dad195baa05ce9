"""The states of a run, and counts of runs: `PENDING -> RUNNING -> COMPLETED | ERROR | CANCELLED`.

A run that waits for a person is PAUSED between two legs: `RUNNING -> PAUSED -> PENDING -> RUNNING`.
It has no owner, no task and no slot then. Each leg has a new attempt, so that late writes of an
earlier one are refused (decision 79).

A background run begins as PENDING, every other run as RUNNING. A cancel request is a column of the
run's row and not a state. A final status never changes: every transition is one conditional update
on (status, attempt), and the number of affected rows decides which writer succeeds.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NoReturn, Protocol, cast

from agentctl.records.approvals import ApprovalRow, ApprovalStatus
from agentctl.records.kinds import ComponentKind
from agentctl.records.runs import FINAL_STATUSES, FinalStatus, RunState
from agentctl.records.times import DurationHistogram, now

if TYPE_CHECKING:
    from agentctl.records.run_spec import RunSpec
    from agentctl.runtime.component import Component
    from agentctl.runtime.context import EarlierRun
    from agentctl.runtime.pauses import Ask
    from agentctl.runtime.transcript.events import RunEvent
    from agentctl.runtime.transcript.history import SessionState
    from agentctl.runtime.transcript.transcript import Transcript
    from agentctl.store.database import Database
    from agentctl.store.repositories.approvals import WaitingCounts

CLIENT_DISCONNECTED = "The client disconnected"
"""Cancel reason of a run whose client did not wait for its end."""

SHUTTING_DOWN = "The server is shutting down"
"""Cancel reason of the runs of a process that ends, and the error of requests that it refuses."""


def is_final(status: str) -> bool:
    """Return True for a status that never changes again."""
    return status in FINAL_STATUSES


def is_settled(status: str) -> bool:
    """Return True for a run that is final or paused: nothing happens without a decision."""
    return is_final(status) or status == "PAUSED"


@dataclass(frozen=True, slots=True)
class Pause:
    """The end of a leg: the run waits."""

    asks: Sequence[Ask] = ()
    """The questions of the component; empty if only members of the run ask."""

    state: Any = None
    """The JSON value that the next leg of the component gets."""

    event: tuple[str, bytes] | None = None
    """Name and data of `RunPaused`, once the pause is stored."""

    continues: bool = False
    """True if everything was decided before the pause was stored."""

    status: ClassVar[Literal["PAUSED"]] = "PAUSED"
    error_code: ClassVar[None] = None
    error_detail: ClassVar[None] = None


@dataclass(frozen=True, slots=True)
class Ending:
    """A final status and its cause."""

    status: FinalStatus

    error_code: str | None = None
    """The code of an ERROR (docs/contract.md "Failures of a run")."""

    error_detail: str | None = None
    """The public text of an ERROR."""

    actor: str | None = None
    """The principal that requested the cancel of a CANCELLED."""

    reason: str | None = None
    """The reason of this cancel; None without one."""

    requested_at: int | None = field(default=None, compare=False)
    """The time of the cancel request in microseconds UTC, once it was read from the row.

    It is ignored when two endings are compared.
    """

    @classmethod
    def completed(cls) -> Ending:
        return cls("COMPLETED")

    @classmethod
    def failed(cls, code: str, detail: str) -> Ending:
        """Build the ending of work that failed (docs/contract.md "Failures of a run")."""
        return cls("ERROR", error_code=code, error_detail=detail)

    @classmethod
    def cancelled(cls, actor: str, reason: str | None, requested_at: int | None = None) -> Ending:
        """Build the ending of work whose cancel was requested."""
        return cls("CANCELLED", actor=actor, reason=reason, requested_at=requested_at)

    @classmethod
    def requested(cls, state: RunState, actor: str = "system") -> Ending:
        """Build the ending that the cancel request in a row asks for.

        Args:
            actor: who requests it if the row does not name a principal.
        """
        by = state.cancel_requested_by or actor
        return cls.cancelled(by, state.cancel_reason, state.cancel_requested_at)

    @classmethod
    def stored(cls, state: RunState) -> Ending:
        """Build the ending of a row that has a final status."""
        return cls(
            cast(FinalStatus, state.status),
            error_code=state.error_code,
            error_detail=state.error_detail,
            actor=state.cancel_requested_by,
            reason=state.cancel_reason,
            requested_at=state.cancel_requested_at,
        )


PARENT_ENDED = Ending.cancelled("system:parent", "The parent run ended")
"""The end of a member that works when its parent run ends."""

WORKER_LOST = Ending.failed("WORKER_LOST", "The process that worked on the run is gone")
"""The end of a run whose worker died, or was declared dead: another process ends it."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """The end of a leg of a durable run whose process ends: another process continues the run."""

    lost: bool = False
    """True if it was interrupted in a step; False if it is between two steps."""

    status: ClassVar[Literal["PENDING"]] = "PENDING"
    error_code: ClassVar[None] = None
    error_detail: ClassVar[None] = None


LegEnd = Ending | Pause | HandOver
"""The end of a leg of a run."""


class ExecutedRun(Protocol):
    """A run that this process executes, as its journal, files and budgets read it.

    `runs.life.live.LiveRun` has the meaning of the attributes.
    """

    run_id: str
    spec: RunSpec
    component: Component
    database: Database
    attempt: int
    is_first: bool
    previous_instructions: str | None
    earlier_runs: Sequence[EarlierRun]
    summary: str | None
    transcript: Transcript
    state: SessionState
    has_ended: bool
    stop_requested: asyncio.Future[None]

    @property
    def root_attempt(self) -> int: ...

    def emit(self, event: RunEvent) -> None: ...
    def checkpoint(self) -> None: ...
    def stop(self, ending: Ending) -> None: ...
    async def stop_as_stored(self) -> NoReturn: ...


class AlreadyFinished(Exception):
    """Rolls back an end: the run already has another final status, or its row was deleted."""


CANCEL_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Bounds of the cancel histogram in seconds; docs/cancellation.md has the guaranteed times."""

WAIT_BUCKETS = (1.0, 10.0, 60.0, 300.0, 1_800.0, 7_200.0, 28_800.0, 86_400.0, 604_800.0)
"""Bounds of the histograms of waits in the queue and for a decision, in seconds."""


class RunCounters:
    """Counts of runs since the process started, runs of members included."""

    def __init__(self) -> None:
        self.started = Counter[ComponentKind]()
        """Committed rows, by kind of component."""

        self.finished = Counter[tuple[ComponentKind, FinalStatus]]()
        """Final statuses that this process has stored, by kind.

        Also of runs that waited, or that it has ended for a dead process. Runs that another process
        has ended are not counted, and neither are members that end because their parent waits and
        is ended.
        """

        self.cancel_seconds = DurationHistogram(CANCEL_BUCKETS)
        """From the cancel request to the stored end.

        The request has the clock of the process that recorded it.
        """

        self.waiting: dict[str, WaitingCounts] = {}
        """The runs and approvals that wait in each open database, by its id.

        Empty without metrics.
        """

        self.decided = Counter[ApprovalStatus]()
        """Decisions that this process has stored, by the status that they gave."""

        self.deleted = Counter[str]()
        """Rows that this process has deleted for their age, by their kind."""

        self.wait_seconds = DurationHistogram(WAIT_BUCKETS)
        """From the pause of a run to a decision about what it waits for."""

        self.queue_seconds = DurationHistogram(WAIT_BUCKETS)
        """From the time at which a run began to wait in the queue to its begin."""

    def count_decision(self, row: ApprovalRow) -> None:
        """Count a stored decision and the time that its run waited for it."""
        self.decided[row.status] += 1
        if row.decided_at is not None:
            self.wait_seconds.add(max((row.decided_at - row.created_at) / 1_000_000, 0.0))

    def count_finished(self, kind: ComponentKind, ending: Ending) -> None:
        """Count a stored final status, and the time since the request of a cancelled run."""
        self.finished[kind, ending.status] += 1
        if ending.status == "CANCELLED" and ending.requested_at is not None:
            self.cancel_seconds.add(max((now() - ending.requested_at) / 1_000_000, 0.0))
