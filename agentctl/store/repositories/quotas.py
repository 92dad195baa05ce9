"""Quotas of owners (docs/limits.md "Quotas"), and the usage of live runs with a budget.

The check of a quota is the last step of the transaction that adds data, so that it counts the added
rows. It locks the owner first: two transactions of one owner cannot both take the last place.

The row of a live run counts until the transaction that ends the run, which writes its row in
`usage_ends`. So each run counts once. Nothing is reserved, since the tokens of a call are not
known before it: a run reports its use, and then reads the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from agentctl.config.quotas import Quotas
from agentctl.errors import QuotaExceeded
from agentctl.records.runs import TEXT_COLUMNS
from agentctl.store.blobs import build_owner_key
from agentctl.store.database import Sql, Statement, Steps, Value, unit
from agentctl.store.listing import Conditions
from agentctl.store.repositories import usage_reads
from agentctl.store.repositories.usage import CostOf, Sums
from agentctl.store.repositories.usage_reads import UsageScope
from agentctl.store.states import IS_OPEN

_Table = Literal["sessions", "runs", "memories", "store_items", "files"]

LOCK_OWNER = Sql("SELECT exclusive(:owner)")
"""Lets no other transaction add data of an owner until the end of this one."""

_SIZES: dict[_Table, tuple[str, ...]] = {
    "sessions": ("session_state", "metadata", "summary", "component_data"),
    "runs": TEXT_COLUMNS,
    "memories": ("memory", "topics"),
    "store_items": ("value",),
    "files": (),
}
"""The texts of an owner, by table.

Their sizes are known without reading the texts, and the size of a file is a column of its row.
"""

_OWNED = "user_id = :owner"
_UNOWNED = "user_id IS NULL AND cast(:owner as text) = ''"

_RESERVED = "blob > :first_key AND blob < :last_key"
"""The bytes of an owner for which an upload has reserved a place, before they have a file."""


def _build_count(table: str, owned: str) -> Sql:
    rows = f"SELECT 1 AS found FROM {table} WHERE {owned} LIMIT :limit"
    return Sql(f"SELECT count(*) FROM ({rows}) AS counted")


def build_size(table: _Table) -> str:
    """Build the expression for the bytes of the texts of a row, or of a file."""
    if table == "files":
        return "size"
    return " + ".join(
        f"cast(coalesce(octet_length({column}), 0) as bigint)" for column in _SIZES[table]
    )


def _build_bytes(owned: str, *tables: _Table) -> Sql:
    parts = [
        f"SELECT cast(sum({build_size(table)}) as bigint) AS size FROM {table} WHERE {owned}"
        for table in tables
    ]
    parts.append(f"SELECT cast(sum(size) as bigint) AS size FROM blob_checks WHERE {_RESERVED}")
    union = " UNION ALL ".join(parts)
    return Sql(f"SELECT cast(coalesce(sum(size), 0) as bigint) FROM ({union}) AS sizes")


# Separate statements, because `IS NOT DISTINCT FROM` uses no index on PostgreSQL. A memory and
# an item have an owner.
_COUNTS = {
    ("sessions", _OWNED): _build_count("sessions", _OWNED),
    ("sessions", _UNOWNED): _build_count("sessions", _UNOWNED),
    ("memories", _OWNED): _build_count("memories", _OWNED),
    ("store_items", _OWNED): _build_count("store_items", _OWNED),
}
_BYTES = {
    _OWNED: _build_bytes(_OWNED, *_SIZES),
    _UNOWNED: _build_bytes(_UNOWNED, "sessions", "runs", "files"),
}


@unit
def check_added(
    quotas: Quotas,
    owner: str | None,
    added: Literal["sessions", "memories", "store_items"] | None = None,
) -> Steps[None]:
    """Check the quotas of an owner after data was added. Without quotas, nothing is executed.

    Args:
        owner: the user id of the data; None for data without an owner, which has the same quotas.
        added: the rows that were added, whose number is checked; None for other rows.

    Raises:
        QuotaExceeded: the owner has more than a quota allows.
    """
    maximum = 0
    if added is not None:
        maximum = getattr(quotas, f"{added}_per_user")
    if not maximum and not quotas.bytes_per_user:
        return

    owner_condition = _UNOWNED if owner is None else _OWNED
    values = {"owner": owner or ""}
    yield Statement(LOCK_OWNER, values)

    if added is not None and maximum:
        ((count,),) = yield Statement(
            _COUNTS[added, owner_condition], {**values, "limit": maximum + 1}
        )
        if count > maximum:
            raise QuotaExceeded(f"{maximum} {added}", f"quotas.{added}_per_user")

    yield from check_bytes(quotas, owner)


def check_bytes(quotas: Quotas, owner: str | None, added: int = 0) -> Steps[None]:
    """Check the bytes of an owner, including bytes that uploads have reserved.

    The result is reliable only if the transaction has locked the owner.

    Args:
        added: bytes that are not stored yet.

    Raises:
        QuotaExceeded: the owner has more than the quota allows.
    """
    if not quotas.bytes_per_user:
        return

    prefix = build_owner_key(owner)
    values: dict[str, Value] = {
        "owner": owner or "",
        "first_key": f"{prefix}/",
        "last_key": f"{prefix}/~",
    }

    owner_condition = _UNOWNED if owner is None else _OWNED
    ((stored_bytes,),) = yield Statement(_BYTES[owner_condition], values)
    if stored_bytes + added > quotas.bytes_per_user:
        raise QuotaExceeded(f"{quotas.bytes_per_user} bytes", "quotas.bytes_per_user")


_REPORT = Sql(
    "INSERT INTO live_usage (run_id, user_id, component_type, component_id, tokens, cost)"
    " SELECT run_id, user_id, component_type, component_id, cast(:tokens as bigint),"
    f" cast(:cost as bigint) FROM runs WHERE run_id = :run_id AND {IS_OPEN}"
    " ON CONFLICT (run_id) DO UPDATE SET tokens = excluded.tokens, cost = excluded.cost"
)

_KEEP = Sql(
    "UPDATE runs SET metrics = :metrics, model_metrics = :model_metrics"
    f" WHERE run_id = :run_id AND {IS_OPEN}"
)

_COUNTERS = Sql("SELECT metrics, model_metrics FROM runs WHERE run_id = :run_id")

_FORGET = Sql(
    "DELETE FROM live_usage WHERE run_id IN (SELECT runs.run_id FROM runs, live_usage"
    " WHERE runs.run_id = live_usage.run_id AND runs.finished_at IS NOT NULL)"
)


class Counters(NamedTuple):
    """The token counters of a live run, and of each of its models, as JSON objects."""

    metrics: str | None = None
    model_metrics: str | None = None


class Used(NamedTuple):
    """The tokens and the cost of some runs, in billionths of a US dollar."""

    tokens: int = 0
    cost: int = 0

    live_tokens: int = 0
    """The part of `tokens` that live runs used."""

    live_cost: int = 0
    """The part of `cost` that live runs used."""

    unpriced_tokens: int = 0
    """The part of `tokens` whose price is not known."""

    def add(self, other: Used) -> Used:
        """Return the sum with other usage."""
        return Used(
            self.tokens + other.tokens,
            self.cost + other.cost,
            self.live_tokens + other.live_tokens,
            self.live_cost + other.live_cost,
            self.unpriced_tokens + other.unpriced_tokens,
        )


@unit
def report(run_id: str, tokens: int, cost: int, counters: Counters | None = None) -> Steps[None]:
    """Store what a live run has used so far; nothing if it has ended.

    Args:
        counters: None if they are stored already.
    """
    if counters is not None:
        yield Statement(_KEEP, {"run_id": run_id, **counters._asdict()})
    yield Statement(_REPORT, {"run_id": run_id, "tokens": tokens, "cost": cost})


@unit
def read_counters(run_id: str) -> Steps[Counters]:
    """Read what a live run has stored of its use: it counts if its process is lost."""
    rows = yield Statement(_COUNTERS, {"run_id": run_id})
    return Counters(*rows[0]) if rows else Counters()


@unit
def forget_ended() -> Steps[None]:
    """Delete the rows of runs that have ended: they do not count any more."""
    yield Statement(_FORGET, {})


@unit
def read_used(scope: UsageScope, by: tuple[str, ...], cost_of: CostOf) -> Steps[Mapping[str, Used]]:
    """Return the usage of the runs of a scope, live runs included, by user, component or in all.

    Args:
        by: `("user_id",)`, `("component_id",)` or `()`.

    Returns:
        The usage by user or component. The key is "" for runs without a user, and for all runs.
    """
    # Read live runs first: a run that ends in between counts twice rather than not at all.
    conditions = Conditions().with_condition("finished_at IS NULL")
    for number, user in enumerate(scope.users):
        conditions = conditions.with_condition(
            f"coalesce(live_usage.user_id, '') = :user_{number}", **{f"user_{number}": user}
        )
    conditions = conditions.with_present(
        "live_usage.component_id = :component_id", component_id=scope.component_id
    )

    group = f"coalesce(live_usage.{by[0]}, '')" if by else "''"
    sql = Sql(
        f"SELECT {group}, cast(sum(tokens) as bigint), cast(sum(cost) as bigint) FROM live_usage"
        f" JOIN runs ON runs.run_id = live_usage.run_id WHERE {' AND '.join(conditions.texts)}"
        " GROUP BY 1"
    )

    usage = {
        name: Used(tokens, cost, tokens, cost)
        for name, tokens, cost in (yield Statement(sql, conditions.values))
    }

    ended_sums = yield from usage_reads.read_groups(scope, by, cost_of)
    for key, sums in ended_sums.items():
        name = str(key[0]) if key else ""
        usage[name] = usage.get(name, Used()).add(_convert(sums))

    return usage


def _convert(sums: Sums) -> Used:
    return Used(sums.total_tokens, sums.cost, unpriced_tokens=sums.unpriced_tokens)
