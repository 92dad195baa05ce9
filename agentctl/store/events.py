"""The events of runs, in batches: one row holds the events from `first_seq` to `last_seq`."""

from __future__ import annotations

from dataclasses import dataclass

from agentctl.store.database import Sql, Statement, Work

__all__ = ["EventRow", "after", "append", "delete_older"]

DELETED_AT_ONCE = 500
"""Rows that one unit of `delete_older` removes at most: other writers wait meanwhile."""


@dataclass(frozen=True, slots=True)
class EventRow:
    """A batch. `events` is the text that was appended."""

    run_id: str
    first_seq: int
    last_seq: int
    events: str


# A run that was deleted takes no more events: a late write finds no row and is dropped.
_APPEND = Sql(
    "INSERT INTO run_events (run_id, first_seq, last_seq, events)"
    " SELECT run_id, cast(:first_seq as bigint), cast(:last_seq as bigint), cast(:events as text)"
    " FROM runs WHERE run_id = :run_id RETURNING run_id"
)

_AFTER = Sql(
    "SELECT run_id, first_seq, last_seq, events FROM run_events"
    " WHERE run_id = :run_id AND last_seq > :seq ORDER BY first_seq"
)

_DELETE_OLDER = Sql(
    "DELETE FROM run_events WHERE run_id IN (SELECT run_events.run_id FROM run_events"
    " JOIN runs ON runs.run_id = run_events.run_id WHERE runs.finished_at < :finished_before"
    f" LIMIT {DELETED_AT_ONCE}) RETURNING first_seq"
)


def append(run_id: str, first_seq: int, last_seq: int, events: str) -> Work[bool]:
    """Store a batch; False when the run has been deleted."""
    rows = yield Statement(
        _APPEND,
        {"run_id": run_id, "first_seq": first_seq, "last_seq": last_seq, "events": events},
    )
    return bool(rows)


def after(run_id: str, seq: int) -> Work[list[EventRow]]:
    """The batches of a run with any event behind number `seq`, in order; -1 for all of them."""
    rows = yield Statement(_AFTER, {"run_id": run_id, "seq": seq})
    return [EventRow(*row) for row in rows]


def delete_older(finished_before: int) -> Work[int]:
    """Remove events of runs that ended before a time, some at once; repeat until it returns 0."""
    rows = yield Statement(_DELETE_OLDER, {"finished_before": finished_before})
    return len(rows)
