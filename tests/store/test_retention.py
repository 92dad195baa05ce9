"""Holds, and the removal of whole sessions, on both engines."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Any, TypeVar

import pytest

from agentctl import errors
from agentctl.store.database import Database, Sql, Statement, Steps, Value, Work, unit
from agentctl.store.repositories import retention, run_reads, runs, sessions
from agentctl.store.visibility import EVERYONE
from tests.kit.rows import START, a_run, a_session, a_session_with_run, a_whole_run, an_end
from tests.store.conftest import Store

T = TypeVar("T")

RACES = 1_000 if os.environ.get("AGENTCTL_TEST_LONG") == "1" else 20

MARKER = "mark-7f3a"
"""A text in every value that belongs to the removed session."""

KEPT = {
    "audit_heads": "covers the audit log",
    "blob_checks": "hashes of bytes that the cleanup deletes",
    "breaker_failures": "failures within the window of a breaker",
    "budget_periods": "decisions about budgets of a period",
    "audit_log": "the audit log is evidence, and has its own age",
    "component_versions": "configurations",
    "copy_changes": "keys of rows that a copy of the database has to look at again",
    "copy_state": "a copy of the database",
    "copy_tables": "a copy of the database",
    "disabled_webhooks": "endpoints",
    "file_days": "counts of a user, which a deletion does not give back",
    "halts": "belong to the operator",
    "leases": "processes",
    "memories": "belong to a user",
    "memory_terms": "belong to a memory",
    "store_items": "belong to a user",
    "store_terms": "belong to an item",
    "removals": "a count",
    "schema_version": "the schema",
    "service_accounts": "callers",
    "usage_daily": "sums of users",
    "usage_ends": "is added to the sums",
    "usage_hourly": "sums of users",
    "workers": "processes",
}
"""The tables that have nothing of a session, or keep it, with the reason."""

FIXED: dict[str, dict[str, Value]] = {
    "files": {"blob": "hash"},
    "sessions": {"hold": None, "run_count": 1},
    "runs": {"status": "COMPLETED", "parent_run_id": None, "owner": None},
}
"""Values of columns that have a meaning for the removal."""


@unit
def _list_columns(is_embedded: bool) -> Steps[dict[str, dict[str, str]]]:
    """Return the columns of each table of the schema with their types, without computed ones."""
    sql = (
        "SELECT tables.name, columns.name, columns.type FROM pragma_table_list AS tables"
        " JOIN pragma_table_xinfo(tables.name) AS columns WHERE tables.type = 'table'"
        " AND tables.name NOT LIKE 'sqlite_%' AND columns.hidden = 0"
        if is_embedded
        else "SELECT table_name, column_name, data_type FROM information_schema.columns"
        " WHERE table_schema = current_schema() AND is_generated = 'NEVER'"
    )
    tables: dict[str, dict[str, str]] = {}
    for table, column, kind in (yield Statement(Sql(sql))):
        tables.setdefault(table, {})[column] = kind
    return tables


def _write(store: Store, work: Work[T]) -> T:
    """Execute statements that no repository has."""
    return store.run(store.database.write(work))


@unit
def _fill(tables: dict[str, dict[str, str]], session_id: str, number: int) -> Steps[None]:
    """Insert a row into each table, with the session in every text and a number elsewhere."""
    ids = {"run_id": f"run-{session_id}", "root_run_id": f"run-{session_id}"}
    first = [name for name in ("sessions", "runs") if name in tables]
    for table in (*first, *sorted(tables.keys() - {*first})):
        values: dict[str, Value] = {}
        for column, kind in tables[table].items():
            is_text = kind.lower() in ("text", "character varying")
            values[column] = session_id if is_text else number
            values[column] = ids.get(column, values[column])
        values |= FIXED.get(table, {})
        names = ", ".join(values)
        sql = Sql(f"INSERT INTO {table} ({names}) VALUES (:{', :'.join(values)})")
        yield Statement(sql, values)


@unit
def _find_text(tables: dict[str, dict[str, str]], text: str) -> Steps[set[str]]:
    """Return the columns that have a text in a row, as `TABLE.COLUMN`."""
    found: set[str] = set()
    for table, columns in tables.items():
        matches = [
            f"max(CASE WHEN cast({column} AS text) LIKE :text THEN 1 ELSE 0 END)"
            for column in columns
        ]
        sql = Sql(f"SELECT {', '.join(matches)} FROM {table}")
        (row,) = yield Statement(sql, {"text": f"%{text}%"})
        found |= {f"{table}.{name}" for name, has in zip(columns, row, strict=True) if has}
    return found


def test_nothing_in_the_schema_refers_to_a_removed_session(store: Store) -> None:
    tables = _write(store, _list_columns(store.is_embedded))
    # A new table has to be filled, or named above with the reason.
    filled = {name: columns for name, columns in tables.items() if name not in KEPT}
    assert KEPT.keys() <= tables.keys()
    _write(store, _fill(filled, MARKER, 1))
    _write(store, _fill(filled, "other", 2))
    found = _write(store, _find_text(tables, MARKER))
    assert {name.partition(".")[0] for name in found} == filled.keys()
    before = _write(store, _find_text(tables, "other"))
    removal = store.write(retention.remove_sessions([MARKER]))
    assert removal == {"removed": [MARKER], "held": [], "busy": [], "used": [], "missing": []}
    assert _write(store, _find_text(tables, MARKER)) == set()
    assert _write(store, _find_text(tables, "other")) == before


def test_removal_leaves_sessions_that_are_held_busy_or_used(store: Store) -> None:
    for name in ("held", "idle", "live", "paused", "used"):
        store.write(a_session_with_run(f"run-{name}", name))
        if name != "live":
            store.write(runs.claim(f"run-{name}", 1, "w1", START))
        if name not in ("live", "paused"):
            store.write(runs.finish(an_end(f"run-{name}")))
    _write(store, Sql("UPDATE runs SET status = 'PAUSED' WHERE run_id = 'run-paused'").execute())
    store.write(retention.set_hold("held", json.dumps({"reason": "claim"})))
    store.write(sessions.update("used", EVERYONE, {"session_name": "again"}, START + 100))
    names = ["used", "idle", "held", "paused", "missing", "live", "idle"]
    assert store.write(retention.remove_sessions(names, idle_before=START + 100)) == {
        "removed": ["idle"],
        "held": ["held"],
        "busy": ["live", "paused"],
        "used": ["used"],
        "missing": ["missing"],
    }
    left = [name for name in names if store.read(sessions.get(name, EVERYONE)) is not None]
    assert left == ["used", "held", "paused", "live"]
    assert store.read(run_reads.get_state("run-idle")) is None
    assert store.read(run_reads.get_state("run-held")) is not None
    # Without a time, a session that was used is removed as well; a hold that ended holds nothing.
    store.write(retention.set_hold("held", None))
    assert store.write(retention.remove_sessions(names))["removed"] == ["held", "used"]


@unit
def start_run(session_id: str) -> Steps[None]:
    """Start a run in a session, which is created if it does not exist."""
    at = START + 200
    yield from sessions.get_or_create_for_run(a_session(session_id, now=at), EVERYONE)
    yield from runs.create(a_run(f"new-{session_id}", session_id, created_at=at))


@unit
def hold(session_id: str) -> Steps[bool]:
    """Hold a session; return False if it does not exist."""
    row = yield from sessions.get_for_update(session_id, EVERYONE)
    if row is not None:
        yield from retention.set_hold(session_id, "{}")
    return row is not None


async def store_ended_run(database: Database, session_id: str) -> None:
    run_id = f"old-{session_id}"
    await database.write(a_session_with_run(run_id, session_id))
    await database.write(runs.claim(run_id, 1, "w1", START))
    await database.write(runs.finish(an_end(run_id)))


def test_race_of_a_removal_with_a_start_or_a_hold_loses_nothing(store: Store) -> None:
    async def race(number: int) -> None:
        database = store.database
        started = f"s{number}"
        held = f"h{number}"
        for session_id in (started, held):
            await store_ended_run(database, session_id)

        removal, _, is_held = await asyncio.gather(
            database.write(retention.remove_sessions([started, held], idle_before=START + 100)),
            database.write(start_run(started)),
            database.write(hold(held)),
        )

        removed = set(removal["removed"])
        assert await database.read(run_reads.get_state(f"new-{started}")) is not None
        for session_id in (started, held):
            left = await database.read(run_reads.get_state(f"old-{session_id}"))
            assert (left is None) == (session_id in removed)
        assert is_held != (held in removed)
        session = await database.read(sessions.get(held, EVERYONE))
        assert (session is None) == (held in removed)

    async def race_often() -> None:
        for number in range(RACES):
            await race(number)

    store.run(race_often())


def test_many_sessions_are_removed_and_counted(store: Store) -> None:
    names = [f"s{number:03}" for number in range(50)]

    @unit
    def create() -> Steps[None]:
        for name in names:
            yield from sessions.create(a_session(name))
            yield from a_whole_run(a_run(f"run-{name}", name), an_end(f"run-{name}"))

    store.write(create())
    before = _count_removals(store)
    assert store.write(retention.remove_sessions(names[::-1]))["removed"] == names
    assert _count_removals(store) == (before[0] + 50, before[1] + 50)


def _count_removals(store: Store) -> tuple[int, int]:
    (counted,) = _write(store, Sql("SELECT sessions, runs FROM removals").rows(lambda *row: row))
    return counted


@pytest.mark.parametrize("sql", ["DELETE FROM sessions", "DELETE FROM sessions WHERE hold <> ''"])
def test_schema_stops_every_other_deletion_of_a_held_session(store: Store, sql: str) -> None:
    store.write(a_session_with_run("r1", "s1"))
    store.write(retention.set_hold("s1", "{}"))

    @unit
    def delete_as_an_earlier_version() -> Steps[Any]:
        yield Statement(Sql("DELETE FROM runs WHERE session_id = 's1'"))
        yield Statement(Sql(sql))

    with pytest.raises(errors.AgentctlError):
        _write(store, delete_as_an_earlier_version())
    assert store.read(sessions.get("s1", EVERYONE)) is not None
    assert store.read(run_reads.get_state("r1")) is not None
