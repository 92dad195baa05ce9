"""The failures that breakers count, in the system database (docs/halts.md "Breakers")."""

from __future__ import annotations

from typing import NamedTuple

from agentctl.records.halts import HaltScope
from agentctl.store.database import Sql, Statement, Steps, Work, unit


class Failure(NamedTuple):
    """A failed run of a component, or a failed call of a model."""

    scope: HaltScope
    """The kind of what has failed: `agent`, `team`, `workflow` or `model`."""

    scope_id: str
    """The id of the component or model."""

    failed_at: int
    """The time of the failure, microseconds UTC."""

    failure_id: str
    """The id of the run, or a new id for a call: a failure that is stored again counts once."""

    error_code: str


_SCOPE = "scope = :scope AND scope_id = :scope_id"

_FORGET_EARLIER = Sql(f"DELETE FROM breaker_failures WHERE {_SCOPE} AND failed_at <= :until")

_ADD = Sql(
    "INSERT INTO breaker_failures (scope, scope_id, failed_at, failure_id, error_code)"
    " VALUES (:scope, :scope_id, :failed_at, :failure_id, :error_code)"
    " ON CONFLICT (scope, scope_id, failed_at, failure_id) DO NOTHING"
)

_LIST_CODES = Sql(f"SELECT error_code FROM breaker_failures WHERE {_SCOPE}")

_FORGET = Sql(f"DELETE FROM breaker_failures WHERE {_SCOPE}")


@unit
def add(failure: Failure, within: int) -> Steps[list[str]]:
    """Store a failure, and delete the earlier ones of its scope that are too old to count with it.

    Args:
        within: microseconds within which failures count together.

    Returns:
        The error codes of the failures of the scope that count, this one included.
    """
    scope = {"scope": failure.scope, "scope_id": failure.scope_id}
    yield Statement(_FORGET_EARLIER, {**scope, "until": failure.failed_at - within})
    yield Statement(_ADD, failure._asdict())
    return [code for (code,) in (yield Statement(_LIST_CODES, scope))]


def forget(scope: HaltScope, scope_id: str) -> Work[None]:
    """Delete the failures of a scope: the count begins at zero."""
    return _FORGET.execute(scope=scope, scope_id=scope_id)
