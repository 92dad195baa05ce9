"""The interface of the tracer of runs (`telemetry/tracer.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from agentctl.records.logs import TraceContext
    from agentctl.records.run_spec import RunSpec
    from agentctl.runs.desk.end import EndedRun
    from agentctl.runs.life.live import LiveRun
    from agentctl.runs.states import LegEnd
    from agentctl.runtime.tracing import LegTrace, Span


class RunTracer(Protocol):
    """Gives runs their place in a trace, and exports their spans.

    No method waits, and none of them raises: a run does not depend on its trace.
    """

    @property
    def dropped(self) -> int:
        """The number of spans that were not exported, of the server and of libraries."""

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

    def end_lost(self, lost: EndedRun) -> None:
        """Export the spans of the last leg of a run whose worker died."""
