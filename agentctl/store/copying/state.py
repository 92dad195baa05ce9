"""The row about a copy in its source and in its target: its statements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentctl.store.copying.tables import Table
from agentctl.store.database import Sql, Statement, Steps, Work, unit
from agentctl.store.schema import CLOSED_FROM
from agentctl.store.versions import exclude_earlier_programs

Role = Literal["source", "target"]
State = Literal["copying", "moved", "complete"]


@dataclass(frozen=True, slots=True)
class CopyState:
    """The copy of a database: its row in `copy_state`."""

    copy_id: str
    role: Role

    other: str
    """The place of the other database, without a password."""

    state: State
    """`moved` is a closed source. A target has all rows.

    It is `copying` until the source is closed, and `complete` when it can be served.
    """


_STATE = Sql("SELECT copy_id, role, other, state FROM copy_state")
_DELETE_STATE = Sql("DELETE FROM copy_state")
# The columns without a use: see migration 28.
_INSERT_STATE = Sql(
    "INSERT INTO copy_state (id, copy_id, role, other, state, copier, compatible_from,"
    " drains_until, started_at, finished_at)"
    " VALUES (1, :copy_id, :role, :other, :state, NULL,"
    " (SELECT compatible_from FROM schema_version WHERE version = 1), 0, :at, NULL)"
)
_COMPLETE = Sql("UPDATE copy_state SET state = 'complete', finished_at = :at")
_CLOSE = Sql(f"UPDATE schema_version SET compatible_from = {CLOSED_FROM} WHERE version = 1")
_OPEN = Sql(
    "UPDATE schema_version SET compatible_from = (SELECT compatible_from FROM copy_state)"
    " WHERE version = 1"
)
_WORKING = Sql("SELECT count(*) FROM workers WHERE beat > clock(:now) - :microseconds")


def get_state() -> Work[CopyState | None]:
    """Return the state of the copy of a database; None if it was never copied."""
    return _STATE.first(CopyState)


def count_working(now: int, microseconds: int) -> Work[int]:
    """Return the number of workers with a heartbeat in the last time."""
    return _WORKING.value(now=now, microseconds=microseconds)


@unit
def remove_rows(tables: tuple[Table, ...]) -> Steps[None]:
    """Delete the rows that the migrations have inserted into a target."""
    for table in reversed(tables):
        yield Statement(Sql(f"DELETE FROM {table.name}"))


def close_target(copy_id: str, source: str, at: int) -> Work[None]:
    """Let no program serve a target, which has all rows, until `open_target`."""
    return _close(copy_id, "target", source, "copying", at)


def close_source(copy_id: str, target: str, at: int) -> Work[None]:
    """Let no program of any version serve a source any more."""
    return _close(copy_id, "source", target, "moved", at)


@unit
def _close(copy_id: str, role: Role, other: str, state: State, at: int) -> Steps[None]:
    yield Statement(_DELETE_STATE)
    yield from _INSERT_STATE.execute(copy_id=copy_id, role=role, other=other, state=state, at=at)
    yield Statement(_CLOSE)


@unit
def open_target(at: int) -> Steps[None]:
    """Let servers use a target, if they read every row of a new database."""
    yield Statement(_OPEN)
    yield from exclude_earlier_programs()
    yield Statement(_COMPLETE, {"at": at})
