"""The states of a run: `PENDING -> RUNNING -> COMPLETED | ERROR | CANCELLED`.

A run that waits for a person is PAUSED between two legs: `RUNNING -> PAUSED -> PENDING -> RUNNING`.
It has no owner, no task and no slot then. Each leg has a new attempt, so that late writes of an
earlier one are refused (docs/decisions/0079).

A background run begins as PENDING, every other run as RUNNING (docs/decisions/0051). A cancel
request is a column of the run's row and not a state. A final status never changes: every transition
is one conditional update on (status, attempt), and the number of affected rows decides which writer
succeeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar, Literal

from agentctl.light_dataclass import dataclass
from agentctl.records.runs import FINAL_STATUSES, FinalStatus
from agentctl.runtime.pauses import Ask

CLIENT_DISCONNECTED = "The client disconnected"
"""Cancel reason of a run whose client did not wait for its end."""


def is_final(status: str) -> bool:
    return status in FINAL_STATUSES


def is_settled(status: str) -> bool:
    """Return True for a run that is final or paused: nothing happens without a decision."""
    return is_final(status) or status == "PAUSED"


@dataclass(frozen=True, slots=True)
class Pause:
    """The end of a leg: the run waits.

    Attributes:
        asks: what the component asks for; empty if only members of the run do.
        state: the JSON value that the next leg of the component gets.
        event: name and data of `RunPaused`, once the pause is stored.
        continues: True if everything was decided before the pause was stored.
    """

    asks: Sequence[Ask] = ()
    state: Any = None
    event: tuple[str, bytes] | None = None
    continues: bool = False

    status: ClassVar[Literal["PAUSED"]] = "PAUSED"
    error_code: ClassVar[None] = None
    error_detail: ClassVar[None] = None


@dataclass(frozen=True, slots=True)
class Ending:
    """A final status and its cause.

    Attributes:
        status: the final status.
        error_code, error_detail: cause of an ERROR (docs/contract.md "Failures of a run"); public
        actor, reason: principal that requested the cancel, and its reason, of a CANCELLED.
        requested_at: time of the cancel request in microseconds, once it was read from the row. It
            is ignored when two endings are compared.
    """

    status: FinalStatus
    error_code: str | None = None
    error_detail: str | None = None
    actor: str | None = None
    reason: str | None = None
    requested_at: int | None = field(default=None, compare=False)

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


PARENT_ENDED = Ending.cancelled("system:parent", "The parent run ended")
"""The end of a member that works when its parent run ends."""

WORKER_LOST = Ending.failed("WORKER_LOST", "The worker of the run was declared dead")
"""The end of a run that another process has ended, or goes on with."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """The end of a leg of a durable run whose process ends: another process goes on.

    Attributes:
        lost: True if it was interrupted in a step; False if it is between two.
    """

    lost: bool = False

    status: ClassVar[Literal["PENDING"]] = "PENDING"
    error_code: ClassVar[None] = None
    error_detail: ClassVar[None] = None


LegEnd = Ending | Pause | HandOver
"""The end of a leg of a run."""


class AlreadyFinished(Exception):
    """Rolls back an end: the run already has another final status, or its row was deleted."""
