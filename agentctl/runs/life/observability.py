"""Observation of runs: their counts, for the metrics, and the interface of their traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from agentctl.records.approvals import ApprovalRow, ApprovalStatus
from agentctl.records.kinds import ComponentKind
from agentctl.records.runs import FinalStatus
from agentctl.records.times import DurationHistogram, now
from agentctl.runs.states import Ending
from agentctl.store.repositories.approvals import WaitingCounts

if TYPE_CHECKING:
    from agentctl.records.logs import TraceContext
    from agentctl.records.run_spec import RunSpec
    from agentctl.runs.life.live import LiveRun
    from agentctl.runs.states import LegEnd
    from agentctl.runs.workers.recovery import LostRun
    from agentctl.runtime.tracing import LegTrace, Span


CANCEL_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Bounds of the cancel histogram in seconds; docs/cancellation.md has the guaranteed times."""

WAIT_BUCKETS = (1.0, 10.0, 60.0, 300.0, 1_800.0, 7_200.0, 28_800.0, 86_400.0, 604_800.0)
"""Bounds of the histograms of waits in the queue and for a decision, in seconds."""


class RunCounters:
    """Counts of runs since the process started, runs of members included.

    Attributes:
        started: committed rows, by kind of component.
        finished: by kind and final status, once that is stored by this process. Runs that another
            process ended after it declared this one dead are not counted.
        waiting: what waits in each open database, by its id; empty without metrics.
        decided: decisions that this process has stored, by the status that they gave.
        wait_seconds: from the pause of a run to a decision about what it waits for.
        queue_seconds: from the time at which a run began to wait in the queue to its begin.
        deleted: rows that this process has deleted for their age, by their kind.
        cancel_seconds: from the cancel request, on the clock of the process that recorded it, to
            the stored final status.
    """

    def __init__(self) -> None:
        self.started = Counter[ComponentKind]()
        self.finished = Counter[tuple[ComponentKind, FinalStatus]]()
        self.cancel_seconds = DurationHistogram(CANCEL_BUCKETS)
        self.waiting: dict[str, WaitingCounts] = {}
        self.decided = Counter[ApprovalStatus]()
        self.deleted = Counter[str]()
        self.wait_seconds = DurationHistogram(WAIT_BUCKETS)
        self.queue_seconds = DurationHistogram(WAIT_BUCKETS)

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


class RunTracer(Protocol):
    """Gives runs their place in a trace, and exports their spans.

    No method waits, and none of them raises: a run does not depend on its trace.

    Attributes:
        dropped: number of spans that were not exported, of the server and of libraries.
    """

    @property
    def dropped(self) -> int: ...

    def install(self) -> None:
        """Export the spans of libraries and of agents in code too, which are imported already."""

    def place(self, spec: RunSpec, cause: TraceContext | None = None) -> RunSpec:
        """Return the specification of a new root run, or of background work, with its trace.

        Args:
            cause: the span to link to; None for the caller of the current request.
        """

    def begin_leg(self, run: LiveRun) -> LegTrace | None:
        """Return the trace of a leg that begins; None if the run is not traced."""

    def end_leg(self, run: LiveRun, ending: LegEnd, calls: Sequence[Span]) -> None:
        """Export the spans of a leg that has ended."""

    def end_lost(self, lost: LostRun) -> None:
        """Export the spans of the last leg of a run whose worker died."""
