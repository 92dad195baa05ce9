"""Idempotency keys: which run the first request with a key has made, for 24 hours.

A claim is made in the transaction of its run's row, so that neither is there without the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentctl.store.database import Sql, Statement, Steps, Value, single_unit, unit

__all__ = ["KEY_LIFETIME", "Claim", "claim_key", "delete_older", "has_older", "is_claimed"]

KEY_LIFETIME = 24 * 60 * 60 * 1_000_000
"""How long a key stands for its run, in microseconds."""

DELETE_BATCH = 500
"""Rows that one unit of `delete_older` removes at most: other writers wait meanwhile."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The run that a key stands for, and a hash of what was asked for with it."""

    run_id: str
    body_hash: str
    created_at: int


_CLAIM = Sql(
    "INSERT INTO idempotency (principal, key, body_hash, run_id, created_at)"
    " VALUES (:principal, :key, :body_hash, :run_id, :now)"
    " ON CONFLICT (principal, key) DO UPDATE SET body_hash = excluded.body_hash,"
    " run_id = excluded.run_id, created_at = excluded.created_at"
    " WHERE idempotency.created_at <= :expired RETURNING run_id"
)

_GET_CLAIM = Sql(
    "SELECT run_id, body_hash, created_at FROM idempotency"
    " WHERE principal = :principal AND key = :key"
)

_ANY_OLDER = Sql("SELECT key FROM idempotency WHERE created_at < :before LIMIT 1")

_DELETE_OLDER = Sql(
    "DELETE FROM idempotency WHERE (principal, key) IN (SELECT principal, key FROM idempotency"
    f" WHERE created_at < :before LIMIT {DELETE_BATCH}) RETURNING key"
)


@unit
def claim_key(
    principal: str, key: str, body_hash: str, run_id: str, now: int
) -> Steps[Claim | None]:
    """Let a key stand for a run.

    Args:
        principal: whose key it is; another's equal key is another key.

    Returns:
        None: it stands for this run now, unless the transaction fails. Else what it stands for
        since less than `KEPT`, and nothing was changed.
    """
    values: dict[str, Value] = {"principal": principal, "key": key}
    new: dict[str, Value] = {"body_hash": body_hash, "run_id": run_id, "now": now}
    if (yield Statement(_CLAIM, {**values, **new, "expired": now - KEY_LIFETIME})):
        return None
    found = yield Statement(_GET_CLAIM, values)
    if not found:
        # Removed between the two statements; SQLite cannot get here.
        return (yield from claim_key(principal, key, body_hash, run_id, now))
    return Claim(*found[0])


@single_unit
def is_claimed(principal: str, key: str, now: int) -> Steps[bool]:
    """Whether a key stands for a run."""
    found = yield Statement(_GET_CLAIM, {"principal": principal, "key": key})
    return bool(found) and Claim(*found[0]).created_at > now - KEY_LIFETIME


@single_unit
def has_older(before: int) -> Steps[bool]:
    """Whether `delete_older` has anything to remove. It may look at every row: for `large` reads,
    which keep nobody else waiting."""
    return bool((yield Statement(_ANY_OLDER, {"before": before})))


@single_unit
def delete_older(before: int) -> Steps[int]:
    """Remove keys that were claimed before a time, some at once; repeat until it returns 0."""
    return len((yield Statement(_DELETE_OLDER, {"before": before})))
