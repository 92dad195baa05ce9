"""The data of a person: its tables, its rows, and their erasure in units.

`PERSONAL_TABLES` names every table with rows of a person, `OTHER_TABLES` the rest of the schema
(decision 120). Whole sessions are removed by `retention.remove_sessions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple
from urllib.parse import quote

import orjson

from agentctl.records.personal_data import ErasureKind
from agentctl.store.database import OVERWRITE_DELETED, Sql, Statement, Steps, Value, Work, unit
from agentctl.store.listing import ID_GROUP, as_columns, group_ids, read_by_ids, read_group
from agentctl.store.repositories import retention, usage
from agentctl.store.repositories.audit import AuditRow
from agentctl.store.repositories.usage import STORED, SumKey, Sums, build_stored
from agentctl.store.states import IS_LIVE

ERASED_SESSIONS = 100
"""Sessions that one unit removes."""

ERASED_ROWS = 500
"""Rows of other tables that one unit deletes."""

ERASED_TEXTS = 100
"""Memories, or items of a store, that one unit deletes with their words."""

SCANNED_ROWS = 200
"""Deliveries that are searched at once: a body has at most 20 KB."""

COUNTED_ROWS = 10_000
"""Rows of a table that are counted at most."""

COUNTED_RUNS = 200
"""Runs or sessions whose rows in other tables are counted at most."""

AUDIT_WINDOW = 5_000
"""Numbers of audit entries that one statement searches."""

OPEN_RUNS = 20
"""Open runs that one request cancels."""


@dataclass(frozen=True, slots=True)
class PersonalTable:
    """A table with rows of a person."""

    name: str

    rows: str
    """The condition of the rows of the person `:user_id`."""

    erasure: ErasureKind = "delete"
    """The treatment of the rows by an erasure."""

    is_system: bool = False
    """True if only the system database has such rows."""

    of_sessions: Literal["", "session_id", "run_id"] = ""
    """The column by which the rows are removed with the sessions of the person.

    "" if they are not removed with them.
    """

    of_runs: bool = False
    """True if they are counted for `COUNTED_RUNS` runs or sessions of the person."""


_BY_USER = "user_id = :user_id"
_OF_RUNS = f"run_id IN (SELECT run_id FROM runs WHERE {_BY_USER} LIMIT {COUNTED_RUNS})"

PERSONAL_TABLES = (
    PersonalTable("sessions", _BY_USER, of_sessions="session_id"),
    PersonalTable("runs", _BY_USER, of_sessions="session_id"),
    *(
        PersonalTable(name, _OF_RUNS, of_sessions="run_id", of_runs=True)
        for name in ("run_events", "run_checkpoints", "run_steps", "run_messages", "live_usage")
    ),
    PersonalTable("approvals", _BY_USER, of_sessions="run_id"),
    PersonalTable(
        "search_texts",
        f"session_id IN (SELECT session_id FROM sessions WHERE {_BY_USER} LIMIT {COUNTED_RUNS})",
        of_sessions="session_id",
        of_runs=True,
    ),
    PersonalTable("webhook_deliveries", _OF_RUNS, of_sessions="run_id", of_runs=True),
    PersonalTable(
        "idempotency", f"(principal = :user_id OR {_OF_RUNS})", of_sessions="run_id", of_runs=True
    ),
    PersonalTable("files", _BY_USER, of_sessions="session_id"),
    PersonalTable("usage_ends", _BY_USER, "anonymise"),
    PersonalTable("usage_hourly", f"everyone = 0 AND {_BY_USER}", "anonymise"),
    PersonalTable("usage_daily", f"everyone = 0 AND {_BY_USER}", "anonymise"),
    PersonalTable("memories", _BY_USER, is_system=True),
    PersonalTable("memory_terms", _BY_USER, is_system=True),
    PersonalTable("store_items", _BY_USER, is_system=True),
    PersonalTable("store_terms", _BY_USER, is_system=True),
    PersonalTable("service_accounts", "created_by = :user_id", "keep", is_system=True),
    PersonalTable("audit_log", "principal = :user_id", "keep", is_system=True),
    PersonalTable(
        "halts",
        "(created_by = :user_id OR ended_by = :user_id OR scope = 'user' AND scope_id = :user_id)",
        "keep",
        is_system=True,
    ),
)
"""The tables with rows of a person."""

OTHER_TABLES = frozenset(
    {
        "audit_heads",
        "blob_checks",
        "breaker_failures",
        "budget_periods",
        "component_versions",
        "copy_changes",
        "copy_state",
        "copy_tables",
        "disabled_webhooks",
        "file_days",
        "leases",
        "removals",
        "schema_version",
        "workers",
    }
)
"""The tables without rows of a person."""

_COUNTS = {
    table.name: Sql(
        f"SELECT count(*) FROM (SELECT 1 FROM {table.name} WHERE {table.rows}"
        f" LIMIT {COUNTED_ROWS + 1}) AS counted"
    )
    for table in PERSONAL_TABLES
}

_OF_SESSIONS = {table.name: table.of_sessions for table in PERSONAL_TABLES if table.of_sessions}

_THEIR_RUNS = f"run_id IN (SELECT run_id FROM runs WHERE session_id IN ({ID_GROUP}))"

# Before the removal of sessions, because rows that follow by ON DELETE CASCADE are not reported.
_COUNT_OF_SESSIONS = Sql(
    "SELECT "
    + ", ".join(
        f"(SELECT count(*) FROM {name} WHERE"
        f" {f'session_id IN ({ID_GROUP})' if column == 'session_id' else _THEIR_RUNS})"
        for name, column in _OF_SESSIONS.items()
    )
)

_NEXT_SESSIONS = Sql(
    f"SELECT session_id FROM sessions WHERE {_BY_USER} AND hold IS NULL"
    f" ORDER BY created_at, session_id LIMIT {ERASED_SESSIONS}"
)

_HELD = f"FROM sessions WHERE {_BY_USER} AND hold IS NOT NULL"
_COUNT_HELD = Sql(f"SELECT count(*) FROM (SELECT 1 {_HELD} LIMIT {COUNTED_ROWS}) AS counted")
_LIST_HELD = Sql(f"SELECT session_id {_HELD} ORDER BY created_at, session_id LIMIT 100")

# Background work counts: it stores memories when it ends. The open runs of all users are few, so
# the condition on the user must not choose an index.
_OPEN = (
    f"FROM (SELECT * FROM runs WHERE {IS_LIVE}"
    " UNION ALL SELECT * FROM runs WHERE status = 'PAUSED') AS open"
    " WHERE user_id || '' = :user_id AND (parent_run_id IS NULL OR purpose IS NOT NULL)"
    " AND NOT EXISTS (SELECT 1 FROM sessions"
    " WHERE sessions.session_id = open.session_id AND hold IS NOT NULL)"
)
_COUNT_OPEN = Sql(f"SELECT count(*) {_OPEN}")
_LIST_OPEN = Sql(f"SELECT run_id {_OPEN} LIMIT {OPEN_RUNS}")

_DELETE_KEYS = Sql(
    "DELETE FROM idempotency WHERE principal = :user_id AND key IN (SELECT key FROM idempotency"
    f" WHERE principal = :user_id LIMIT {ERASED_ROWS}) RETURNING key"
)

# The files of a held session stay with it.
_DELETE_FILES = Sql(
    "DELETE FROM files WHERE file_id IN (SELECT file_id FROM files"
    f" WHERE {_BY_USER} AND session_id IS NULL LIMIT {ERASED_ROWS}) RETURNING file_id"
)

_TEXTS = {
    "memories": ("memory_id", "memory_terms", "created_at, memory_id"),
    "store_items": ("item_id", "store_terms", "namespace, key"),
}
"""The id of the rows of a table with words, the table of the words, and the order of an index."""

_NEXT_TEXTS = {
    name: f"{key} IN (SELECT {key} FROM {name} WHERE {_BY_USER} ORDER BY {order}"
    f" LIMIT {ERASED_TEXTS})"
    for name, (key, _, order) in _TEXTS.items()
}
_COUNT_TERMS = {
    name: Sql(f"SELECT count(*) FROM {terms} WHERE {_NEXT_TEXTS[name]}")
    for name, (_, terms, _) in _TEXTS.items()
}
_DELETE_TEXTS = {
    name: Sql(f"DELETE FROM {name} WHERE {_NEXT_TEXTS[name]} RETURNING {key}")
    for name, (key, _, _) in _TEXTS.items()
}

# Not with EXISTS, for which PostgreSQL reads the ids of all runs for each page.
_RUN_OF_DELIVERY = "SELECT runs.run_id FROM runs WHERE runs.run_id = webhook_deliveries.run_id"
_OF_DELETED_RUN = f"({_RUN_OF_DELIVERY}) IS NULL"
_DELIVERIES = Sql(
    "SELECT delivery_id, webhook_id, type, run_id, state, created_at, delivered_at, body,"
    f" {_OF_DELETED_RUN} FROM webhook_deliveries WHERE delivery_id > :after"
    " ORDER BY delivery_id LIMIT :limit"
)
# The deliveries of a held session stay with it.
_DELETE_DELIVERIES = Sql(
    f"DELETE FROM webhook_deliveries WHERE delivery_id IN ({ID_GROUP}) AND {_OF_DELETED_RUN}"
    " RETURNING delivery_id"
)

_DECISIONS = Sql(
    "SELECT approval_id, kind, status, decided_at, note, decided_by = :user_id"
    " AND user_id IS DISTINCT FROM cast(:user_id as text) FROM (SELECT * FROM approvals"
    " WHERE approval_id > :after ORDER BY approval_id LIMIT :limit) AS page ORDER BY approval_id"
)

_DAYS = Sql(
    f"SELECT {', '.join(STORED)} FROM usage_daily WHERE everyone = 0 AND {_BY_USER}"
    " AND start IN (SELECT DISTINCT start FROM usage_daily WHERE everyone = 0"
    f" AND {_BY_USER} AND start > :after ORDER BY start LIMIT :limit)"
    " ORDER BY start, component_type, component_id, model"
)

# Two queries: SQLite reads the whole index for both ends in one.
_AUDIT_BOUNDS = Sql("SELECT (SELECT min(seq) FROM audit_log), (SELECT max(seq) FROM audit_log)")
_AUDIT = Sql(
    f"SELECT {', '.join(AuditRow._fields)} FROM audit_log WHERE seq >= :first AND seq < :before"
    " AND (principal = :user_id OR resource LIKE '%user:%') ORDER BY seq"
)


class OpenData(NamedTuple):
    """The open runs and the held sessions of a person."""

    open_runs: int
    """Number of open runs."""

    held_count: int
    """Number of held sessions, at most `COUNTED_ROWS`."""

    held: list[str]
    """Ids of held sessions, at most 100."""


class Delivery(NamedTuple):
    """A stored delivery with its body, a JSON text. Times are microseconds UTC."""

    delivery_id: str
    webhook_id: str
    type: str
    run_id: str
    state: str
    created_at: int
    delivered_at: int | None
    body: str


class DecisionOnOthers(NamedTuple):
    """A decision about an approval of another user."""

    approval_id: str
    kind: str
    status: str
    decided_at: int | None
    note: str | None


@dataclass(slots=True)
class Erased:
    """The result of an erasure."""

    rows: dict[str, int] = field(default_factory=dict)
    """Numbers of erased rows, by table."""

    busy: list[str] = field(default_factory=list)
    """Sessions that were left because they have a live run."""


def count_rows(user_id: str, table: PersonalTable) -> Work[int]:
    """Count the rows of a person in a table, up to `COUNTED_ROWS` + 1."""
    return _COUNTS[table.name].value(user_id=user_id)


@unit
def find_open(user_id: str) -> Steps[OpenData]:
    """Find what an erasure cancels first, or leaves."""
    values: dict[str, Value] = {"user_id": user_id}
    ((open_count,),) = yield Statement(_COUNT_OPEN, values)
    ((held_count,),) = yield Statement(_COUNT_HELD, values)
    held_rows = yield Statement(_LIST_HELD, values)
    return OpenData(open_count, held_count, [session_id for (session_id,) in held_rows])


def list_open_runs(user_id: str) -> Work[list[str]]:
    """Return some live and paused root runs of a person, and background work after them.

    Those of held sessions are left out.
    """
    return _LIST_OPEN.column(user_id=user_id)


@unit
def erase_sessions(user_id: str) -> Steps[Erased]:
    """Remove some sessions of a person that are not held, with all that belongs to them.

    Call it again until it removes none.
    """
    yield Statement(OVERWRITE_DELETED)
    session_rows = yield Statement(_NEXT_SESSIONS, {"user_id": user_id})
    session_ids = [session_id for (session_id,) in session_rows]
    erased = Erased(dict.fromkeys(_OF_SESSIONS, 0))

    for group in group_ids(session_ids):
        (counts_before,) = yield Statement(_COUNT_OF_SESSIONS, group)
        removal = yield from retention.remove_sessions(read_group(group), spares_background=True)
        (counts_after,) = yield Statement(_COUNT_OF_SESSIONS, group)
        for table, before, after in zip(_OF_SESSIONS, counts_before, counts_after, strict=True):
            erased.rows[table] += before - after
        erased.busy += removal["busy"]

    return erased


@unit
def erase_keys(user_id: str) -> Steps[Erased]:
    """Delete some idempotency keys of a person. Call it again until it deletes none."""
    yield Statement(OVERWRITE_DELETED)
    deleted_rows = yield Statement(_DELETE_KEYS, {"user_id": user_id})
    return Erased({"idempotency": len(deleted_rows)})


@unit
def erase_files(user_id: str) -> Steps[Erased]:
    """Delete some files of a person without a session. Call it again until it deletes none."""
    yield Statement(OVERWRITE_DELETED)
    deleted_rows = yield Statement(_DELETE_FILES, {"user_id": user_id})
    return Erased({"files": len(deleted_rows)})


@unit
def erase_texts(user_id: str, table: str) -> Steps[Erased]:
    """Delete some memories or items of a person. Call it again until it deletes none."""
    yield Statement(OVERWRITE_DELETED)
    # Before the rows: their terms go with them.
    ((term_count,),) = yield Statement(_COUNT_TERMS[table], {"user_id": user_id})
    deleted_rows = yield Statement(_DELETE_TEXTS[table], {"user_id": user_id})
    _, terms_table, _ = _TEXTS[table]
    return Erased({table: len(deleted_rows), terms_table: term_count})


@unit
def anonymise_usage(user_id: str) -> Steps[Erased]:
    """Remove a person from some sums of usage. Call it again until it changes none."""
    return Erased((yield from usage.anonymise(user_id)))


@unit
def erase_deliveries(delivery_ids: Sequence[str]) -> Steps[Erased]:
    """Delete deliveries whose run does not exist any more."""
    yield Statement(OVERWRITE_DELETED)
    deleted_rows = yield from read_by_ids(_DELETE_DELIVERIES, delivery_ids, as_columns)
    return Erased({"webhook_deliveries": len(deleted_rows)})


@unit
def find_deliveries(
    user_id: str, after: str, *, of_deleted: bool = False
) -> Steps[tuple[list[Delivery], str | None]]:
    """Search some deliveries, in the order of their ids, for deliveries about runs of a person.

    Their runs may be deleted, so the body decides.

    Args:
        of_deleted: True to search only deliveries of deleted runs.

    Returns:
        The deliveries, and the last id that was searched; None if there are no more.
    """
    rows = yield Statement(_DELIVERIES, {"after": after, "limit": SCANNED_ROWS})
    deliveries = list[Delivery]()
    for *values, is_of_deleted in rows:
        if of_deleted and not is_of_deleted:
            continue
        delivery = Delivery(*values)
        if orjson.loads(delivery.body)["data"].get("user_id") == user_id:
            deliveries.append(delivery)

    last_id: str | None = None
    if len(rows) == SCANNED_ROWS:
        last_id = rows[-1][0]
    return deliveries, last_id


@unit
def find_decisions(user_id: str, after: str) -> Steps[tuple[list[DecisionOnOthers], str | None]]:
    """Search some approvals, in the order of their ids, for decisions about other users' approvals.

    Returns:
        The decisions of the person, and the last id that was searched; None if there are no more.
    """
    values: dict[str, Value] = {"user_id": user_id, "after": after, "limit": SCANNED_ROWS}
    rows = yield Statement(_DECISIONS, values)
    decisions = [DecisionOnOthers(*row) for *row, is_about_others in rows if is_about_others]
    last_id: str | None = None
    if len(rows) == SCANNED_ROWS:
        last_id = rows[-1][0]
    return decisions, last_id


def list_days(user_id: str, after: int, limit: int) -> Work[list[tuple[SumKey, Sums]]]:
    """Return the sums of usage of a person on some days with usage, the oldest first.

    Args:
        after: only days after this one, microseconds UTC.
    """
    return _DAYS.rows(lambda *row: build_stored(row), user_id=user_id, after=after, limit=limit)


@unit
def find_audit_entries(user_id: str, after: int) -> Steps[tuple[list[AuditRow], int | None]]:
    """Search a window of audit entries for entries by a person, and entries that name the person.

    Args:
        after: only entries with a larger number.

    Returns:
        The entries, and the last number that was searched; None if there are no more.
    """
    ((lowest, highest),) = yield Statement(_AUDIT_BOUNDS)
    if lowest is None:
        return [], None

    first = max(after + 1, lowest)
    window: dict[str, Value] = {"first": first, "before": first + AUDIT_WINDOW}
    rows = yield Statement(_AUDIT, {**window, "user_id": user_id})
    entries = [entry for entry in map(AuditRow._make, rows) if _is_about(entry, user_id)]

    last: int | None = first + AUDIT_WINDOW - 1
    if last >= highest:
        last = None
    return entries, last


def _is_about(entry: AuditRow, user_id: str) -> bool:
    names = {f"user:{user_id}", f"user:{quote(user_id, '@')}"}
    return entry.principal == user_id or not names.isdisjoint((entry.resource or "").split(","))
