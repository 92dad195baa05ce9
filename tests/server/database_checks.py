"""Checks of a database file, with nothing of the code that wrote it but the decoder of events."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import apsw
import orjson

from agentctl.runs.log.event_rows import LOST_SEQ_STEP, decode_events
from agentctl.store.repositories.events import EventRow
from tests.kit.concurrent_callers import ENDS, Event

__all__ = [
    "check_events",
    "check_integrity",
    "open_read_only",
    "parse_row",
    "statuses",
    "stored_events",
]


@contextmanager
def open_read_only(path: Path) -> Iterator[apsw.Connection]:
    """Open the file read-only."""
    with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        connection.set_busy_timeout(10_000)
        with connection:  # one snapshot for all that is asked
            yield connection


def rows(connection: apsw.Connection, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    return connection.execute(sql, values).fetchall()


def statuses(connection: apsw.Connection) -> dict[str, str]:
    """Return the status of each run by its id."""
    return dict(rows(connection, "SELECT run_id, status FROM runs"))


def check_integrity(connection: apsw.Connection) -> None:
    """Check the integrity of the file and the consistency of its tables."""
    assert rows(connection, "PRAGMA integrity_check") == [("ok",)]
    assert rows(connection, "PRAGMA foreign_key_check") == []
    counted = """
        SELECT s.session_id, s.run_count, count(r.run_id)
        FROM sessions s LEFT JOIN runs r ON r.session_id = s.session_id
        GROUP BY s.session_id
    """
    assert [row for row in rows(connection, counted) if row[1] != row[2]] == []
    final = "status IN ('COMPLETED', 'CANCELLED', 'ERROR')"
    halves = f"SELECT run_id FROM runs WHERE {final} <> (finished_at IS NOT NULL)"
    assert rows(connection, halves) == []


def stored_events(connection: apsw.Connection, run_id: str) -> list[Event]:
    """Return the stored events of a run."""
    found = list[Event]()
    sql = (
        "SELECT e.run_id, first_seq, last_seq, events, session_id FROM run_events e"
        " JOIN runs ON runs.run_id = e.run_id WHERE e.run_id = ? ORDER BY first_seq"
    )
    for values in rows(connection, sql, run_id):
        row = EventRow(*values)
        batch = parse_row(row)
        assert row.last_seq - row.first_seq + 1 == len(batch)
        found += batch
    return found


def parse_row(row: EventRow) -> list[Event]:
    """Return the events of a stored row."""
    return [Event(event.seq, event.name, orjson.loads(event.data)) for event in decode_events(row)]


def check_events(found: list[Event], run_id: str, status: str, after: int = -1) -> None:
    """Check the events of a final run after a number: no gap, no repeat, one end.

    The end of a run whose worker died has a much larger number than the other events.
    """
    *before, end = found
    numbers = [event.number for event in before]
    assert numbers == list(range(after + 1, after + 1 + len(before)))
    behind = numbers[-1] if numbers else after
    if end.number != behind + 1:
        # It comes after the stored events, which may be fewer than the delivered ones.
        assert LOST_SEQ_STEP - 1 <= end.number <= behind + LOST_SEQ_STEP, (after, numbers, end)
        assert numbers == [] or end.number == behind + LOST_SEQ_STEP
    assert ENDS[end.name] == status
    assert end.data["run_id"] == run_id
    assert not [event for event in before if event.name in ENDS and event.data["run_id"] == run_id]
