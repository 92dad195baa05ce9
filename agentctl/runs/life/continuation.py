"""The start of a leg of a run."""

from __future__ import annotations

from collections.abc import Sequence

from agentctl.light_dataclass import dataclass
from agentctl.runtime.context import EarlierRun
from agentctl.runtime.pauses import Leg
from agentctl.runtime.transcript.history import StateChanges
from agentctl.runtime.transcript.transcript import Transcript
from agentctl.store.repositories.steps import StepRow


@dataclass(frozen=True, slots=True)
class Continuation:
    """The start of a leg that this process has claimed; the defaults are those of a first leg.

    Attributes:
        leg: the state and the decisions for the component; None if the run begins.
        first_step: number of the first step after the checkpoint.
        session_changes: the changes of the state of the session since the checkpoint.
        changed_at: their time, in microseconds.
        version_change: JSON of the change of the version of its component; None for none.
    """

    attempt: int
    leg: Leg | None
    transcript: Transcript
    first_event: int = 0
    steps: Sequence[StepRow] = ()
    first_step: int = 0
    session_changes: StateChanges | None = None
    changed_at: int = 0
    earlier_runs: Sequence[EarlierRun] = ()
    summary: str | None = None
    previous_instructions: str | None = None
    is_first: bool = False
    version_change: str | None = None
