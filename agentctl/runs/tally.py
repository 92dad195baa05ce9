"""What the runs of a process came to: counted where they begin and end, read by who shows it."""

from __future__ import annotations

from collections import Counter

from agentctl.records.durations import Durations
from agentctl.records.kinds import Kind
from agentctl.runs.states import FinalStatus

__all__ = ["RunTally"]

CANCEL_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Seconds around what a cancel may take (design.md "Speed")."""


class RunTally:
    """Counts since the process started, members' runs included.

    Attributes:
        started: by the kind of the component.
        ended: by kind and final state, once that is stored; by this process, so not what others
            ended when it was taken for dead.
        cancels: from the request, on the clock of whoever made it, to the final row.
    """

    def __init__(self) -> None:
        self.started = Counter[Kind]()
        self.ended = Counter[tuple[Kind, FinalStatus]]()
        self.cancels = Durations(CANCEL_BOUNDS)

    def begin(self, kind: Kind) -> None:
        """A run's row is there."""
        self.started[kind] += 1

    def end(self, kind: Kind, status: FinalStatus, cancel_seconds: float | None) -> None:
        """A run is final; so long after it was asked to stop, when it was."""
        self.ended[kind, status] += 1
        if cancel_seconds is not None:
            self.cancels.add(max(cancel_seconds, 0.0))
