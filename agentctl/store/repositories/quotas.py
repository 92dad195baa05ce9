"""Quotas: bounds for the data of one owner in one database (docs/limits.md "Quotas").

A check is the last step of the transaction that adds data, so that it counts the added rows. It
locks the owner first: two transactions of one owner cannot both take the last place.
"""

from __future__ import annotations

from typing import Literal

from agentctl.config.upkeep import Quotas
from agentctl.errors import QuotaExceeded
from agentctl.records.runs import TEXT_COLUMNS
from agentctl.store.database import Sql, Statement, Steps, unit

_Table = Literal["sessions", "runs", "memories"]

_LOCK = Sql("SELECT exclusive(:owner)")

_SIZES: dict[_Table, tuple[str, ...]] = {
    "sessions": ("session_state", "metadata", "summary", "component_data"),
    "runs": TEXT_COLUMNS,
    "memories": ("memory", "topics"),
}
"""The texts of an owner, by table. Their sizes are known without reading them."""

_OWNED = "user_id = :owner"
_UNOWNED = "user_id IS NULL AND cast(:owner as text) = ''"


def _build_count(table: str, owned: str) -> Sql:
    rows = f"SELECT 1 AS found FROM {table} WHERE {owned} LIMIT :limit"
    return Sql(f"SELECT count(*) FROM ({rows}) AS counted")


def build_size(table: _Table) -> str:
    """Build the expression for the bytes of the texts of a row."""
    return " + ".join(
        f"cast(coalesce(octet_length({column}), 0) as bigint)" for column in _SIZES[table]
    )


def _build_bytes(owned: str, *tables: _Table) -> Sql:
    union = " UNION ALL ".join(
        f"SELECT cast(sum({build_size(table)}) as bigint) AS size FROM {table} WHERE {owned}"
        for table in tables
    )
    return Sql(f"SELECT cast(coalesce(sum(size), 0) as bigint) FROM ({union}) AS sizes")


# Separate statements, because `IS NOT DISTINCT FROM` uses no index on PostgreSQL. A memory has an
# owner.
_COUNTS = {
    ("sessions", _OWNED): _build_count("sessions", _OWNED),
    ("sessions", _UNOWNED): _build_count("sessions", _UNOWNED),
    ("memories", _OWNED): _build_count("memories", _OWNED),
}
_BYTES = {
    _OWNED: _build_bytes(_OWNED, *_SIZES),
    _UNOWNED: _build_bytes(_UNOWNED, "sessions", "runs"),
}


@unit
def check_added(
    quotas: Quotas, owner: str | None, added: Literal["sessions", "memories"] | None = None
) -> Steps[None]:
    """Check the quotas of an owner after data was added. Without quotas there is no statement.

    Args:
        owner: the user id of the data; None for data without an owner, which has the same quotas.
        added: the rows that were added, whose number is checked; None for others.

    Raises:
        QuotaExceeded: the owner has more than a quota allows.
    """
    numbers = {"sessions": quotas.sessions_per_user, "memories": quotas.memories_per_user}
    maximum = numbers[added] if added is not None else 0
    if not maximum and not quotas.bytes_per_user:
        return
    owned, values = _UNOWNED if owner is None else _OWNED, {"owner": owner or ""}
    yield Statement(_LOCK, values)
    if added is not None and maximum:
        counted = yield Statement(_COUNTS[added, owned], {**values, "limit": maximum + 1})
        if counted[0][0] > maximum:
            raise QuotaExceeded(f"{maximum} {added}", f"{added}_per_user")
    if quotas.bytes_per_user:
        stored = yield Statement(_BYTES[owned], values)
        if stored[0][0] > quotas.bytes_per_user:
            raise QuotaExceeded(f"{quotas.bytes_per_user} bytes", "bytes_per_user")
