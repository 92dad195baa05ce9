"""The forms of scopes `resource:action`, `resource:<id>:action`, `resource:*:action`, by name, and
the records of `auth explain`: the decision on a request, check by check.

The rules are in docs/contract.md "Scopes"; `auth.principal` has what scopes allow.
"""

from __future__ import annotations

import re
from typing import Literal

from typing_extensions import TypedDict

from agentctl.records.text import suggest_name

RESOURCES_WITH_IDS = frozenset(
    {"agents", "teams", "workflows", "approvals", "sessions", "memories"}
)
"""The resources whose scopes may have an id or `*`."""

KNOWN_SCOPES: tuple[str, ...] = (
    "agents:read",
    "agents:run",
    "approvals:read",
    "approvals:write",
    "audit:read",
    "config:read",
    "halts:read",
    "halts:write",
    "memories:delete",
    "memories:read",
    "memories:write",
    "runs:debug",
    "service_accounts:delete",
    "service_accounts:read",
    "service_accounts:write",
    "sessions:delete",
    "sessions:read",
    "sessions:write",
    "system:read",
    "teams:read",
    "teams:run",
    "usage:read",
    "webhooks:read",
    "webhooks:write",
    "workflows:read",
    "workflows:run",
)
"""Every scope that an operation requires, without ids; the admin scope is configured."""

_ACTIONS = frozenset(scope.partition(":")[2] for scope in KNOWN_SCOPES)

MAXIMUM_SCOPES = 256
"""Scopes of a token or a service account; a JWT with more grants nothing."""

_SCOPE_PATTERN = re.compile(
    r"[A-Za-z][A-Za-z0-9_-]{0,63}(?::(?:\*|[A-Za-z0-9._~@-]{1,128}))?:[A-Za-z][A-Za-z0-9_-]{0,63}"
)


def is_well_formed(scope: str) -> bool:
    """Return True if `scope` has one of the three forms; other texts grant nothing."""
    return _SCOPE_PATTERN.fullmatch(scope) is not None


def is_known_scope(scope: str) -> bool:
    """Return True if an operation requires `scope`, with an id or `*` where one is allowed."""
    resource, *rest = scope.split(":")
    if len(rest) == 2 and resource in RESOURCES_WITH_IDS:
        return is_well_formed(scope) and f"{resource}:{rest[1]}" in KNOWN_SCOPES
    return scope in KNOWN_SCOPES


def list_scopes_of(scope: str) -> list[str]:
    """Return the known scopes of the resource of a scope; empty for an unknown resource."""
    resource = scope.partition(":")[0].lower()
    return [known for known in KNOWN_SCOPES if known.partition(":")[0] == resource]


def suggest_scope(scope: str, *others: str) -> str | None:
    """Return the known scope that is most similar to `scope`, with its id; None without one.

    A scope with a known action that its resource does not have gets none (`list_scopes_of`).

    Args:
        others: additional known scopes, such as the admin scope.
    """
    parts = scope.split(":")
    action = parts[-1].lower()
    general = f"{parts[0]}:{action}".lower()
    if list_scopes_of(scope) and action in _ACTIONS and general not in KNOWN_SCOPES:
        # Neither word is mistyped: agents:write must lead to no other resource or action.
        return None

    near = suggest_name(general, (*others, *KNOWN_SCOPES), cutoff=0.6)
    if near is None or near in others:
        return near
    if len(parts) != 3:
        return near

    near_resource, near_action = near.split(":")
    with_id = f"{near_resource}:{parts[1]}:{near_action}"
    return with_id if is_known_scope(with_id) else near


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
