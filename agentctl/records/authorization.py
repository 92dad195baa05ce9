"""Records of `auth explain`: the decision on a request, check by check."""

from __future__ import annotations

from typing import Literal

from typing_extensions import TypedDict

CheckOutcome = Literal["passed", "failed", "skipped"]


class ExplainStep(TypedDict):
    """One check.

    `found` describes the observation, never the credential or a key. `cause` and `remedy` are
    present if the check failed: the reason, and a setting, claim or request that satisfies it.
    """

    name: str
    outcome: CheckOutcome
    found: str
    cause: str | None
    remedy: str | None


class ExplainRecord(TypedDict):
    """The response of POST `/auth/explain`.

    `status` is the status of the request, 200 if every check passed; the operation itself may
    still reject parameters and body. `operation` is null if the path has no operation; `principal`
    is null if no caller was identified. Any one of `required_scopes` suffices, or the admin scope.
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
