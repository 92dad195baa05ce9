"""What a check found: that it is as it should be, something to know, or something wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentctl.errors import AgentctlError

__all__ = ["Finding", "Verdict", "from_failure", "note", "ok", "wrong"]

Verdict = Literal["ok", "note", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. The texts are for people and hold no secret.

    Attributes:
        check: what was looked at: `keys`, `database main`.
        verdict: `wrong` is what has to be mended; a `note` may be meant that way.
        what: what there is.
        remedy: the command to type or the key to set, where there is something to do.
    """

    check: str
    verdict: Verdict
    what: str
    remedy: str | None = None


def ok(check: str, what: str) -> Finding:
    """As it should be."""
    return Finding(check, "ok", what)


def note(check: str, what: str, remedy: str | None = None) -> Finding:
    """To be known."""
    return Finding(check, "note", what, remedy)


def wrong(check: str, what: str, remedy: str | None = None) -> Finding:
    """To be mended."""
    return Finding(check, "wrong", what, remedy)


def from_failure(check: str, failure: AgentctlError) -> Finding:
    """What kept a check from going on is what it found."""
    what = failure.detail if failure.cause is None else f"{failure.detail}: {failure.cause}"
    return Finding(check, "wrong", what, failure.hint)
