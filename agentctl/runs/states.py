"""The states of a run: `PENDING -> RUNNING -> COMPLETED | ERROR | CANCELLED`.

A cancel request is a column and not a state. Terminal states are write-once: every transition is
one conditional update on (status, attempt), and the count of affected rows decides the winner.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["FINAL", "Ending", "FinalStatus", "cancelled", "completed", "failed", "is_final"]

FinalStatus = Literal["COMPLETED", "ERROR", "CANCELLED"]

FINAL: frozenset[str] = frozenset({"COMPLETED", "ERROR", "CANCELLED"})


def is_final(status: str) -> bool:
    """Whether a run in this state never changes again."""
    return status in FINAL


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run is to end.

    Attributes:
        status: the terminal state.
        error_code, error_detail: why it ended as ERROR (contract.md 5); public.
        actor, reason: who asked for the cancel, and why, when it ends as CANCELLED.
        requested_at: when, in microseconds, once that was read back; no part of what it is.
    """

    status: FinalStatus
    error_code: str | None = None
    error_detail: str | None = None
    actor: str | None = None
    reason: str | None = None
    requested_at: int | None = field(default=None, compare=False)


def completed() -> Ending:
    """The work was done."""
    return Ending("COMPLETED")


def failed(code: str, detail: str) -> Ending:
    """The work could not be done; `code` is one of contract.md 5."""
    return Ending("ERROR", error_code=code, error_detail=detail)


def cancelled(actor: str, reason: str | None, requested_at: int | None = None) -> Ending:
    """Somebody asked for it to stop."""
    return Ending("CANCELLED", actor=actor, reason=reason, requested_at=requested_at)
