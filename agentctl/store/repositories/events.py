"""The events of runs, in batches: one row has the events from `first_seq` to `last_seq`."""

from __future__ import annotations

from dataclasses import dataclass

from agentctl.records.ids import lower_bound_id
from agentctl.store.database import Sql, Statement, Steps, Value, Work, single_unit

DELETE_BATCH = 500
"""Maximum number of rows that one unit of `delete_older` looks for: other writers wait for it.

It deletes the events of whole runs, and the last run may have more rows.
"""


@dataclass(frozen=True, slots=True)
class EventRow:
    """A batch of events. `events` is the text that was appended."""

    run_id: str
    first_seq: int
    last_seq: int
    events: str


# A late batch is dropped: one of a run that is deleted, has ended, or has another attempt. The lock
# on the row of the run prevents its end before the batch is stored. A batch that is appended again
# after an unknown outcome is stored once.
_APPEND = Sql(
    "INSERT INTO run_events (run_id, first_seq, last_seq, events)"
    " SELECT run_id, cast(:first_seq as bigint), cast(:last_seq as bigint), cast(:events as text)"
    " FROM runs WHERE run_id = :run_id AND attempt = :attempt"
    " AND status IN ('PENDING', 'RUNNING', 'PAUSED') FOR UPDATE"
    " ON CONFLICT (run_id, first_seq) DO UPDATE"
    " SET last_seq = excluded.last_seq, events = excluded.events RETURNING run_id"
)

# Batches are consecutive, so of those that begin at `seq` or before only the last one can contain
# later events: the rows that were read before are not read again.
_AFTER = Sql(
    "SELECT run_id, first_seq, last_seq, events FROM run_events"
    " WHERE run_id = :run_id AND first_seq >= coalesce((SELECT max(first_seq) FROM run_events"
    " WHERE run_id = :run_id AND first_seq <= :seq), :seq)"
    " AND last_seq > :seq ORDER BY first_seq LIMIT :limit"
)

_LAST_SEQ = Sql(
    "SELECT last_seq FROM run_events WHERE run_id = :run_id ORDER BY first_seq DESC LIMIT 1"
)

# The ids of runs begin with their creation time (RFC 9562 5.7). So the events of old runs come
# first in the index, and those of younger runs are not read. `CROSS JOIN` keeps SQLite in
# this order: it would read the index of the times of ends, where nearly every run matches.
_OLDER = (
    "SELECT run_events.run_id FROM run_events CROSS JOIN runs"
    " WHERE runs.run_id = run_events.run_id AND run_events.run_id < :made_before"
    " AND runs.finished_at < :finished_before"
)

_ANY_OLDER = Sql(f"{_OLDER} LIMIT 1")

_DELETE_OLDER = Sql(
    f"DELETE FROM run_events WHERE run_id IN ({_OLDER} LIMIT {DELETE_BATCH}) RETURNING first_seq"
)


def append_batch(
    run_id: str, attempt: int, first_seq: int, last_seq: int, events: str
) -> Work[bool]:
    """Store a batch of events of a live run.

    The last batch must be appended before the end of the run is stored, in the same transaction.

    Args:
        attempt: the attempt of the run that has the events.
        first_seq, last_seq: numbers of the first and last event; batches are consecutive.

    Returns:
        False, without a change, if the run has ended, was deleted, or has another attempt.
    """
    return _APPEND.has_rows(
        run_id=run_id, attempt=attempt, first_seq=first_seq, last_seq=last_seq, events=events
    )


def list_after(run_id: str, seq: int, limit: int = 64) -> Work[list[EventRow]]:
    """Return the batches of a run with any event after number `seq`, in order.

    Args:
        seq: the number of an event; -1 returns batches from the first one.
        limit: maximum number of batches. The next ones follow the `last_seq` of the last.
    """
    return _AFTER.rows(EventRow, run_id=run_id, seq=seq, limit=limit)


@single_unit
def get_last_seq(run_id: str) -> Steps[int]:
    """Return the number of the last stored event of a run; -1 if there is none."""
    rows = yield Statement(_LAST_SEQ, {"run_id": run_id})
    return rows[0][0] if rows else -1


def has_older(finished_before: int) -> Work[bool]:
    """Return True if `delete_older` has rows to delete."""
    return _ANY_OLDER.has_rows(**_cutoff_parameters(finished_before))


def delete_older(finished_before: int) -> Work[int]:
    """Delete a batch of the events of runs that ended before a time.

    Call it again until it returns 0.
    """
    return _DELETE_OLDER.count_rows(**_cutoff_parameters(finished_before))


def _cutoff_parameters(finished_before: int) -> dict[str, Value]:
    made_before = lower_bound_id(finished_before // 1000 + 1)
    return {"finished_before": finished_before, "made_before": made_before}
