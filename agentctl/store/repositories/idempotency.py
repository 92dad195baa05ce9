"""Idempotency keys: the run that the first request with a key has created, for 24 hours.

The key is stored in the transaction that creates the run, so that there is never one without the
other (docs/contract.md "Runs").
"""

from __future__ import annotations

from dataclasses import dataclass

from agentctl.records.times import DAY
from agentctl.store.database import Sql, Statement, Steps, Value, Work, single_unit, unit

KEY_LIFETIME = DAY
"""Lifetime of a key, in microseconds."""

DELETE_BATCH = 500
"""Maximum number of rows that one unit of `delete_older` deletes: other writers wait for it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The run of a key, and a hash of the request that created it."""

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

# `MATERIALIZED`, so that the batch is selected once; see events.py.
_DELETE_OLDER = Sql(
    "WITH batch AS MATERIALIZED (SELECT principal, key FROM idempotency"
    f" WHERE created_at < :before LIMIT {DELETE_BATCH} FOR UPDATE SKIP LOCKED)"
    " DELETE FROM idempotency WHERE (principal, key) IN (SELECT principal, key FROM batch)"
    " RETURNING key"
)


@unit
def claim_key(
    principal: str, key: str, body_hash: str, run_id: str, now: int
) -> Steps[Claim | None]:
    """Claim a key for a run.

    Args:
        principal: the owner of the key. Equal keys of two principals are different keys.

    Returns:
        None if the key belongs to this run now. Otherwise the claim of an earlier request, younger
        than `KEY_LIFETIME`, without a change.
    """
    key_values: dict[str, Value] = {"principal": principal, "key": key}
    new_values: dict[str, Value] = {"body_hash": body_hash, "run_id": run_id, "now": now}
    if (yield Statement(_CLAIM, {**key_values, **new_values, "expired": now - KEY_LIFETIME})):
        return None

    claims = yield Statement(_GET_CLAIM, key_values)
    if not claims:
        # The claim was deleted between the two statements. That cannot happen on SQLite.
        return (yield from claim_key(principal, key, body_hash, run_id, now))
    return Claim(*claims[0])


@single_unit
def get_claim(principal: str, key: str, now: int) -> Steps[Claim | None]:
    """Return the claim of a key that is younger than `KEY_LIFETIME`, or None."""
    claims = yield Statement(_GET_CLAIM, {"principal": principal, "key": key})
    if not claims:
        return None

    claim = Claim(*claims[0])
    return claim if claim.created_at > now - KEY_LIFETIME else None


@unit
def is_claimed(principal: str, key: str, now: int) -> Steps[bool]:
    """Return True if a key belongs to a run."""
    return (yield from get_claim(principal, key, now)) is not None


def has_older(before: int) -> Work[bool]:
    """Return True if `delete_older` has rows to delete."""
    return _ANY_OLDER.has_rows(before=before)


def delete_older(before: int) -> Work[int]:
    """Delete a batch of the keys that were claimed before a time.

    Call it again until it returns 0.
    """
    return _DELETE_OLDER.count_rows(before=before)
