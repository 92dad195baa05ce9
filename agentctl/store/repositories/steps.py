"""The journal of durable runs: one row for each step (docs/durable.md).

Only the process that executes a run writes its journal: every write locks the row of the run and
names its attempt, so that a process which has lost the run changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from agentctl.store.database import Sql, Statement, Steps, Work, build_insert, unit
from agentctl.store.states import STEP, change


@dataclass(slots=True)
class StepRow:
    """A stored step. Times are microseconds UTC."""

    run_id: str
    seq: int
    attempt: int

    kind: str
    """`answer` of the model, `tool` for a call, `step` of a function, `member` for a member run."""

    call_id: str | None
    """Id of the call; None for an answer."""

    name: str | None
    """Name of the tool, function or member; None for an answer."""

    arguments_hash: str | None
    """Hash of the arguments of the call; None for an answer."""

    state: str
    """`started`, `done` or `failed`; `unknown` if its process died during the call.

    `again` after a person has decided that an unknown call is made again.
    """

    idempotent: int
    """1 if the call may be made again with its id."""

    started_at: int
    ended_at: int | None

    body: str | None
    """JSON: the answer, or the result of the call."""

    root_attempt: int | None = None
    """The attempt of the root run at that time; None in older rows."""


_NAMES = tuple(field.name for field in fields(StepRow))
_COLUMNS = ", ".join(_NAMES)

_LOCK = Sql(
    "SELECT run_id FROM runs WHERE run_id = :run_id AND attempt = :attempt AND status = 'RUNNING'"
    " AND cancel_requested_at IS NULL FOR UPDATE"
)
_KEEP = change(STEP, "keep")(
    build_insert("run_steps", _NAMES)
    + " ON CONFLICT (run_id, seq) DO UPDATE SET attempt = excluded.attempt, state = excluded.state,"
    " started_at = excluded.started_at, ended_at = excluded.ended_at, body = excluded.body,"
    " root_attempt = excluded.root_attempt"
)
_END = change(STEP, "end")(
    "UPDATE run_steps SET state = :state, ended_at = :at, body = :body"
    " WHERE run_id = :run_id AND seq = :seq AND {where} AND EXISTS (SELECT 1 FROM runs"
    " WHERE runs.run_id = :run_id AND runs.attempt = :attempt AND status = 'RUNNING')"
    " RETURNING seq"
)
_LIST = Sql(f"SELECT {_COLUMNS} FROM run_steps WHERE run_id = :run_id ORDER BY seq")
_DOUBT = change(STEP, "doubt")(
    "UPDATE run_steps SET state = 'unknown' WHERE run_id = :run_id AND {where}"
    f" AND kind IN ('tool', 'step') AND idempotent = 0 RETURNING {_COLUMNS}"
)
_SETTLE = change(STEP, "settle")(
    "UPDATE run_steps SET state = :state, ended_at = :at, body = :body"
    " WHERE run_id = :run_id AND call_id = :call_id AND {where} RETURNING seq"
)
_REPEAT_DOUBT = change(STEP, "doubt restored")(
    "UPDATE run_steps SET state = 'unknown'"
    " WHERE run_id = :run_id AND call_id = :call_id AND {where} RETURNING seq"
)
_FIND = Sql(
    f"SELECT {_COLUMNS} FROM run_steps WHERE run_id = :run_id AND call_id = :call_id"
    " AND state = 'unknown'"
)
_PROGRESS = Sql(
    "WITH RECURSIVE tree (run_id) AS (SELECT run_id FROM runs WHERE run_id = :run_id"
    " UNION ALL SELECT runs.run_id FROM runs JOIN tree ON runs.parent_run_id = tree.run_id)"
    " SELECT coalesce(root_attempt, attempt) AS root_attempt, ended_at FROM run_steps"
    " JOIN tree ON tree.run_id = run_steps.run_id WHERE state IN ('done', 'failed')"
    " OR state = 'started' AND ended_at IS NOT NULL ORDER BY 1 DESC, 2 DESC LIMIT 1"
)
_DROP = change(STEP, "delete")("DELETE FROM run_steps WHERE run_id = :run_id")


@unit
def keep(run_id: str, attempt: int, rows: Sequence[StepRow]) -> Steps[bool]:
    """Store new steps of a running run; steps that have begun before begin again.

    Returns:
        False, without a change, if the run does not execute this attempt, or its cancel has been
        requested.
    """
    if not (yield Statement(_LOCK, {"run_id": run_id, "attempt": attempt})):
        return False
    for row in rows:
        yield Statement(_KEEP, {name: getattr(row, name) for name in _NAMES})
    return True


def end(row: StepRow) -> Work[bool]:
    """Store the end of a step: its state, its end and its body.

    Returns:
        False, without a change, if the run does not execute the attempt of the step any more.
    """
    return _END.has_rows(
        run_id=row.run_id,
        seq=row.seq,
        attempt=row.attempt,
        state=row.state,
        at=row.ended_at,
        body=row.body,
    ).as_repeatable()


def list_of_run(run_id: str) -> Work[list[StepRow]]:
    """Return the steps of a run in their order."""
    return _LIST.rows(StepRow, run_id=run_id)


@unit
def mark_unknown(run_id: str) -> Steps[list[StepRow]]:
    """Mark the calls that a dead process has begun and that must not be repeated; return them."""
    rows = yield Statement(_DOUBT, {"run_id": run_id})
    return sorted((StepRow(*row) for row in rows), key=lambda row: row.seq)


def doubt(run_id: str, call_id: str) -> Work[bool]:
    """Mark a step that is to be made again as unknown; return False if there is none."""
    return _REPEAT_DOUBT.has_rows(run_id=run_id, call_id=call_id)


def find_unknown(run_id: str, call_id: str) -> Work[StepRow | None]:
    """Return the step of a call whose outcome is unknown; None if it is known."""
    return _FIND.first(StepRow, run_id=run_id, call_id=call_id)


def settle(run_id: str, call_id: str, state: str, body: str | None, at: int | None) -> Work[bool]:
    """Store what a person knows about a call whose outcome is unknown."""
    return _SETTLE.has_rows(run_id=run_id, call_id=call_id, state=state, body=body, at=at)


class LastStep(NamedTuple):
    """The last step that has ended: the attempt of the root run, and the end (microseconds UTC)."""

    attempt: int
    ended_at: int


def find_progress(run_id: str) -> Work[LastStep | None]:
    """Return the last ended step of a root run and its members; None if no step has ended.

    The steps of a member are deleted at its end: `RunJournal.end_member` keeps the last time.
    """
    return _PROGRESS.first(LastStep, run_id=run_id)


def drop(run_id: str) -> Work[None]:
    """Delete the steps of a run that has ended."""
    return _DROP.execute(run_id=run_id)
