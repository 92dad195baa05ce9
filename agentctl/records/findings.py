"""Findings of checks: something in order, a note, or a problem."""

from __future__ import annotations

import os
from typing import Literal

from agentctl.errors import AgentctlError
from agentctl.light_dataclass import dataclass

Verdict = Literal["ok", "note", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. The texts are for people and contain no secret.

    Attributes:
        check: the subject: `keys`, `database main`.
        verdict: `ok`; `note`, which may be intended; or `wrong`, which has to be fixed.
        remedy: a command or setting that helps, if there is one.
    """

    check: str
    verdict: Verdict
    what: str
    remedy: str | None = None


def ok(check: str, what: str) -> Finding:
    """Build a finding that needs no action."""
    return Finding(check, "ok", what)


def note(check: str, what: str, remedy: str | None = None) -> Finding:
    """Build a finding that may be intended."""
    return Finding(check, "note", what, remedy)


def wrong(check: str, what: str, remedy: str | None = None) -> Finding:
    """Build a finding that has to be fixed."""
    return Finding(check, "wrong", what, remedy)


def from_failure(check: str, failure: AgentctlError) -> Finding:
    """Build the finding of a check that failed with an error."""
    what = failure.detail if failure.cause is None else f"{failure.detail}: {failure.cause}"
    return Finding(check, "wrong", what, failure.hint)


def from_os_error(check: str, failure: OSError) -> Finding:
    """Build the finding of a file that cannot be used."""
    reason = os.strerror(failure.errno or 0).lower()
    return Finding(check, "wrong", f"{failure.filename}: {reason}")
