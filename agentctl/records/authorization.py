"""What the authorization of a request comes to, and why."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

__all__ = ["CheckOutcome", "ExplainRecord", "ExplainStep"]

CheckOutcome = Literal["passed", "failed", "skipped"]


class ExplainStep(TypedDict):
    """One check of the chain.

    `found` says what it met, never the credential nor a key; `cause` and `remedy` are there where
    it failed: why, and which setting, claim or request would satisfy it.
    """

    name: str
    outcome: CheckOutcome
    found: str
    cause: str | None
    remedy: str | None


class ExplainRecord(TypedDict):
    """POST `/auth/explain`: what a request would be answered, and which check decides it.

    `status` is 200 where every check is passed; what the operation itself makes of parameters and
    body comes behind them. `operation` is null where the path has none; `principal` where nobody
    was identified. Any one of `required_scopes` would do; the admin scope always does.
    """

    method: str
    path: str
    operation: str | None
    allowed: bool
    status: int
    decided_by: str
    principal: str | None
    required_scopes: list[str]
    steps: list[ExplainStep]
