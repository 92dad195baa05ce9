"""The events of runs, in batches: one row has the events from `first_seq` to `last_seq`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

from agentctl.records.text import lower_bound_id
from agentctl.store.database import Sql, Statement, Steps, Value, Work, single_unit
from agentctl.store.states import IS_OPEN

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
    session_id: str


class Batch(NamedTuple):
    """Events of one run to append."""

    run_id: str | None

    attempt: int
    """The attempt of the run that has the events."""

    first_seq: int
    """Number of the first event: one more than the last number of the batch before it."""

    last_seq: int
    """Number of the last event."""

    events: str
    """Their text."""


_NO_BATCH = Batch(None, 0, 0, 0, "")


def _build_append(count: int) -> Sql:
    """Build the statement that appends batches.

    A late batch is dropped: its run is deleted, has ended, or has another attempt. The lock on the
    row of the run prevents its end before the batch is stored. A batch that is appended again after
    an unknown outcome is stored once.
    """
    first_row = ", ".join(
        f"cast(:{name}_0 as {'text' if name in ('run_id', 'events') else 'bigint'})"
        for name in Batch._fields
    )
    next_rows = (
        ", ".join(f":{name}_{index}" for name in Batch._fields) for index in range(1, count)
    )
    rows = ", ".join(f"({row})" for row in (first_row, *next_rows))
    return Sql(
        f"WITH batches ({', '.join(Batch._fields)}) AS (VALUES {rows})"
        " INSERT INTO run_events (run_id, first_seq, last_seq, events)"
        " SELECT runs.run_id, first_seq, last_seq, events FROM batches"
        " JOIN runs ON runs.run_id = batches.run_id AND runs.attempt = batches.attempt"
        f" WHERE {IS_OPEN} FOR UPDATE OF runs"
        " ON CONFLICT (run_id, first_seq) DO UPDATE"
        " SET last_seq = excluded.last_seq, events = excluded.events RETURNING run_id"
    )


MAXIMUM_FOLLOWED_ROWS = 512
"""Maximum number of rows of one `list_followed` and of one `read_part`."""

PART_BYTES = 65_536
"""Maximum size of the stored batches of one `read_part`, unless a single batch is larger."""

LAST_POSITION = 2**62
"""A position after all events."""


class FollowedRow(NamedTuple):
    """A run of `list_followed`, with a batch of its events or none."""

    number: int
    """The index of the run in the request."""

    status: str
    owner: str | None
    batch: EventRow | None


def _build_followed(count: int) -> Sql:
    """Build the statement that reads the states and the new batches of some runs.

    One statement is one snapshot: a run that has settled in it has all its events in it.
    """
    first_row = "0, cast(:run_id_0 as text), cast(:seq_0 as bigint)"
    next_rows = (f"{index}, :run_id_{index}, :seq_{index}" for index in range(1, count))
    rows = ", ".join(f"({row})" for row in (first_row, *next_rows))
    return Sql(
        f"WITH asked (number, run_id, known) AS (VALUES {rows}),"
        " followed AS MATERIALIZED (SELECT number, run_id, known, coalesce((SELECT max(first_seq)"
        " FROM run_events WHERE run_events.run_id = asked.run_id AND first_seq <= known), known)"
        " AS start FROM asked)"
        " SELECT number, status, owner, followed.run_id, first_seq, last_seq, events, session_id"
        " FROM followed"
        " JOIN runs ON runs.run_id = followed.run_id LEFT JOIN run_events"
        " ON run_events.run_id = followed.run_id AND first_seq >= start AND last_seq > known"
        f" ORDER BY number, first_seq LIMIT {MAXIMUM_FOLLOWED_ROWS}"
    )


# By the number of their batches. Few statements: each connection prepares them once.
_APPENDS = {1 << power: _build_append(1 << power) for power in range(7)}

MAXIMUM_BATCHES = max(_APPENDS)
"""Maximum number of batches of one `append_batches`."""

# By the number of their runs, in steps of four.
_FOLLOWED = {1 << power: _build_followed(1 << power) for power in range(0, 11, 2)}

MAXIMUM_FOLLOWED = max(_FOLLOWED)
"""Maximum number of runs of one `list_followed`."""

# Batches are consecutive, so of those that begin at `seq` or before only the last one can contain
# later events: the rows that were read before are not read again.
_FIRST_AFTER = (
    " FROM run_events WHERE run_id = :run_id AND first_seq >= coalesce((SELECT max(first_seq)"
    " FROM run_events WHERE run_id = :run_id AND first_seq <= :seq), :seq)"
    " AND last_seq > :seq ORDER BY first_seq"
)

_AFTER = Sql(
    "SELECT run_id, first_seq, last_seq, events,"
    f" (SELECT session_id FROM runs WHERE runs.run_id = :run_id){_FIRST_AFTER} LIMIT :limit"
)

_LAST_SEQ = Sql(
    "SELECT last_seq FROM run_events WHERE run_id = :run_id ORDER BY first_seq DESC LIMIT 1"
)

# The sizes are summed over a bounded number of rows: a sum has no limit.
_PART = Sql(
    f"WITH found AS (SELECT first_seq, last_seq, events{_FIRST_AFTER}"
    f" LIMIT {MAXIMUM_FOLLOWED_ROWS}), summed AS (SELECT first_seq, last_seq, events,"
    " row_number() OVER (ORDER BY first_seq) AS number,"
    " sum(octet_length(events)) OVER (ORDER BY first_seq) AS size FROM found)"
    f" SELECT status, ({_LAST_SEQ}), run_id, first_seq, last_seq, events, session_id"
    f" FROM runs LEFT JOIN summed ON number = 1 OR size <= {PART_BYTES} WHERE run_id = :run_id"
)

# The ids of runs begin with their creation time (RFC 9562 5.7). So the events of old runs come
# first in the index, and the events of younger runs are not read. `CROSS JOIN` keeps SQLite in
# this order: it would read the index of the times of ends, where nearly every run matches.
_OLDER = (
    "SELECT run_events.run_id FROM run_events CROSS JOIN runs"
    " WHERE runs.run_id = run_events.run_id AND run_events.run_id < :made_before"
    " AND runs.finished_at < :finished_before"
)

_ANY_OLDER = Sql(f"{_OLDER} LIMIT 1")

# In the order of runs: the rows of runs that worked at the same time are mixed. The first rows of a
# table in PostgreSQL could belong to hundreds of runs, whose events would all be deleted at once.
#
# PostgreSQL may compare each row of the table with the batch. Without `MATERIALIZED` it would then
# select the batch again for each row. Even so it selects no further than it has compared, and skips
# rows that it has deleted by then, which would make room for the next ones. The greatest id of the
# batch is known once the batch is complete, and no row is compared before.
_DELETE_OLDER = Sql(
    f"WITH batch AS MATERIALIZED ({_OLDER} ORDER BY run_events.run_id LIMIT {DELETE_BATCH}"
    " FOR UPDATE OF run_events SKIP LOCKED)"
    " DELETE FROM run_events WHERE run_id IN (SELECT run_id FROM batch)"
    " AND run_id <= (SELECT max(run_id) FROM batch) RETURNING first_seq"
)


def append_batch(
    run_id: str, attempt: int, first_seq: int, last_seq: int, events: str
) -> Work[bool]:
    """Store a batch of events of a live run; see `Batch`.

    The last batch must be appended before the end of the run is stored, in the same transaction.

    Returns:
        False, without a change, if the run has ended, was deleted, or has another attempt.
    """
    sql, values = _append([Batch(run_id, attempt, first_seq, last_seq, events)])
    return sql.has_rows(**values)


def append_batches(batches: Sequence[Batch]) -> Work[list[str]]:
    """Store a batch of each of some live runs, in one statement that may be repeated.

    Args:
        batches: 1 to `MAXIMUM_BATCHES`, of different runs.

    Returns:
        The ids of the runs whose batch is stored; see `append_batch` for the other runs.
    """
    sql, values = _append(batches)
    return sql.column(**values).as_repeatable()


def _append(batches: Sequence[Batch]) -> Statement:
    """Build the statement that appends some batches."""
    # The next power of two: the rows that are too many have no run.
    count = 1 << (len(batches) - 1).bit_length()
    filled_batches = [*batches, *[_NO_BATCH] * (count - len(batches))]

    values: dict[str, Value] = {}
    for index, batch in enumerate(filled_batches):
        for name, value in zip(Batch._fields, batch, strict=True):
            values[f"{name}_{index}"] = value
    return Statement(_APPENDS[count], values)


def list_after(run_id: str, seq: int, limit: int = 64) -> Work[list[EventRow]]:
    """Return the batches of a run with any event after number `seq`, in order.

    Args:
        seq: the number of an event; -1 returns batches from the first one.
        limit: maximum number of batches. The next batches follow the `last_seq` of the last one.
    """
    return _AFTER.rows(EventRow, run_id=run_id, seq=seq, limit=limit)


@single_unit
def list_followed(positions: Sequence[tuple[str, int]]) -> Steps[list[FollowedRow]]:
    """Return the states and the new batches of some runs, in their order; deleted runs are missing.

    If there are `MAXIMUM_FOLLOWED_ROWS` rows, the last runs may lack batches, or be missing.

    Args:
        positions: 1 to `MAXIMUM_FOLLOWED` runs, each with the number of the last known event.
    """
    count = next(count for count in _FOLLOWED if count >= len(positions))
    filled_positions = [*positions, *[("", 0)] * (count - len(positions))]

    values: dict[str, Value] = {}
    for index, (run_id, seq) in enumerate(filled_positions):
        values[f"run_id_{index}"] = run_id
        values[f"seq_{index}"] = seq

    followed_rows = list[FollowedRow]()
    for number, status, owner, *columns in (yield Statement(_FOLLOWED[count], values)):
        # The row of a run without new events has no batch.
        batch = None if columns[1] is None else EventRow(*columns)
        followed_rows.append(FollowedRow(number, status, owner, batch))
    return followed_rows


class StoredPart(NamedTuple):
    """Consecutive batches of a run, in one snapshot with its state."""

    status: str | None
    """The status of the run; None if the run does not exist."""

    newest: int
    """Number of its last stored event; -1 without events."""

    batches: Sequence[EventRow]
    """The batches after the position of the request, in order."""


@single_unit
def read_part(run_id: str, seq: int) -> Steps[StoredPart]:
    """Read as many batches with any event after number `seq` as fit into `PART_BYTES`."""
    rows = yield Statement(_PART, {"run_id": run_id, "seq": seq})
    if not rows:
        return StoredPart(None, -1, ())

    status, newest, *_ = rows[0]
    if newest is None:
        newest = -1
    batches = [EventRow(*batch) for _, _, *batch in rows if batch[1] is not None]
    batches.sort(key=attrgetter("first_seq"))
    return StoredPart(status, newest, batches)


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
