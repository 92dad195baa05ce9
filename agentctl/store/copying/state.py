"""The rows about a copy in its source and in its target: their statements."""

from __future__ import annotations

from typing import Literal, NamedTuple

from agentctl import errors
from agentctl.light_dataclass import dataclass
from agentctl.store.copying.tables import Key, Table, read_key, write_key
from agentctl.store.database import Sql, Statement, Steps, Work, unit
from agentctl.store.schema import CLOSED_FROM
from agentctl.store.states import IS_LIVE
from agentctl.store.versions import exclude_earlier_programs

Role = Literal["source", "target"]
State = Literal["copying", "moved", "complete"]


@dataclass(frozen=True, slots=True)
class CopyState:
    """The copy of a database: its row in `copy_state`."""

    copy_id: str
    role: Role
    other: str
    state: State
    copier: str | None
    started_at: int
    finished_at: int | None


class ChangedRow(NamedTuple):
    """A changed row of a source that the target may not have."""

    seq: int
    table: str
    key: str


TEXTS = "search_texts"
"""The table of the index of a search, which a target builds from its own rows."""


class CopiedTable(NamedTuple):
    """The copied part of a table. `cursor`: the key of the last row as JSON, None without one."""

    name: str
    cursor: str | None
    copied_rows: int
    is_complete: int

    @property
    def key(self) -> Key | None:
        """The key of the last row that was copied."""
        return None if self.cursor is None else read_key(self.cursor)


_STATE = Sql("SELECT copy_id, role, other, state, copier, started_at, finished_at FROM copy_state")
_HAS_MOVED = Sql("SELECT 1 FROM copy_state WHERE role = 'source' AND state = 'moved'")
_LOCKED_STATE = Sql(f"{_STATE} FOR UPDATE")
_DELETE_STATE = Sql("DELETE FROM copy_state")
_INSERT_STATE = Sql(
    "INSERT INTO copy_state (id, copy_id, role, other, state, copier, compatible_from,"
    " drains_until, started_at, finished_at)"
    " VALUES (1, :copy_id, :role, :other, 'copying', NULL,"
    " (SELECT compatible_from FROM schema_version WHERE version = 1), 0, :at, NULL)"
)
_TAKE_OVER = Sql("UPDATE copy_state SET copier = :copier")
_END = Sql("UPDATE copy_state SET state = :state, finished_at = :at")
_DRAIN = Sql("UPDATE copy_state SET drains_until = clock(:now) + :duration")
_CLOSE = Sql(f"UPDATE schema_version SET compatible_from = {CLOSED_FROM} WHERE version = 1")
_OPEN = Sql(
    "UPDATE schema_version SET compatible_from = (SELECT compatible_from FROM copy_state)"
    " WHERE version = 1"
)
_LIST_TABLES = Sql("SELECT table_name, cursor, copied_rows, is_complete FROM copy_tables")
_DELETE_TABLES = Sql("DELETE FROM copy_tables")
_INSERT_TABLE = Sql(
    "INSERT INTO copy_tables (table_name, cursor, copied_rows, is_complete)"
    " VALUES (:name, NULL, 0, 0)"
)
_ADVANCE = Sql(
    "UPDATE copy_tables SET cursor = :cursor, copied_rows = copied_rows + :rows,"
    " is_complete = :is_complete WHERE table_name = :name"
)
_CHANGES = Sql(
    "SELECT seq, table_name, row_key FROM copy_changes WHERE seq > :after ORDER BY seq LIMIT :limit"
)
_COUNT_CHANGES = Sql("SELECT count(*) FROM copy_changes")
_FORGET_CHANGES = Sql("DELETE FROM copy_changes")
_LIVE = Sql(f"SELECT count(*) FROM runs WHERE {IS_LIVE} AND owner IS NOT NULL")


def get_state() -> Work[CopyState | None]:
    """Return the state of the copy of a database; None without one."""
    return _STATE.first(CopyState)


def has_moved() -> Work[bool]:
    """Return True if another database has taken the place of this one."""
    return _HAS_MOVED.has_rows()


@unit
def begin(
    copy_id: str,
    role: Role,
    other: str,
    at: int,
    tables: tuple[Table, ...],
    *,
    indexed: bool = False,
) -> Steps[None]:
    """Write the row of a new copy; close a target until the copy is complete.

    Args:
        indexed: True if the target builds the index of a search.
    """
    yield Statement(_DELETE_STATE)
    yield Statement(_INSERT_STATE, {"copy_id": copy_id, "role": role, "other": other, "at": at})
    yield Statement(_FORGET_CHANGES)
    yield Statement(_DELETE_TABLES)
    if role == "target":
        for table in reversed(tables):
            yield Statement(Sql(f"DELETE FROM {table.name}"))  # those that the migrations insert
            yield Statement(_INSERT_TABLE, {"name": table.name})
        if indexed:
            yield Statement(_INSERT_TABLE, {"name": TEXTS})
        yield Statement(_CLOSE)


@unit
def check_source(copy_id: str) -> Steps[None]:
    """Check that a source still records its changes for a copy.

    Raises:
        Conflict: the copy was abandoned, or has been finished by another process.
    """
    rows = yield Statement(_STATE)
    present = CopyState(*rows[0]) if rows else None
    if present is None or (present.copy_id, present.state) != (copy_id, "copying"):
        raise errors.Conflict(
            "The copy has ended meanwhile",
            cause="another process has abandoned or finished it; this one has changed nothing more",
            hint="the same command with --status instead of --finish shows the stage",
        )


def take_over(copier: str) -> Work[None]:
    """Let no other process than this one write to a target."""
    return _TAKE_OVER.execute(copier=copier)


@unit
def check_copier(copier: str) -> Steps[None]:
    """Check, in a transaction, that no other process has taken over the copy to a target.

    Raises:
        Conflict: another process copies now.
    """
    rows = yield Statement(_LOCKED_STATE)
    if not rows or CopyState(*rows[0]).copier != copier:
        raise errors.Conflict(
            "Another process continues this copy", cause="it was started after this one"
        )


@unit
def list_copied() -> Steps[dict[str, CopiedTable]]:
    """Return the copied part of each table of a target."""
    return {row[0]: CopiedTable(*row) for row in (yield Statement(_LIST_TABLES))}


def advance(name: str, key: Key | None, rows: int, *, is_complete: bool) -> Work[None]:
    """Record that rows of a table were copied, up to a key."""
    cursor = None if key is None else write_key(key)
    return _ADVANCE.execute(name=name, cursor=cursor, rows=rows, is_complete=int(is_complete))


def list_changes(after: int, limit: int) -> Work[list[ChangedRow]]:
    """Return recorded changes in the order in which they were made."""
    return _CHANGES.rows(ChangedRow, after=after, limit=limit)


def count_changes() -> Work[int]:
    """Return the number of recorded changes that may not be in the target."""
    return _COUNT_CHANGES.value()


def count_live() -> Work[int]:
    """Return the number of runs that a server works on."""
    return _LIVE.value()


def drain(now: int, duration: int) -> Work[None]:
    """Let no run start for a time in microseconds; 0 ends that."""
    return _DRAIN.execute(now=now, duration=duration)


@unit
def close_source(at: int) -> Steps[None]:
    """Mark a source as moved: no program of any version serves it."""
    yield Statement(_CLOSE)
    yield Statement(_FORGET_CHANGES)
    yield Statement(_END, {"state": "moved", "at": at})


@unit
def open_target(at: int) -> Steps[None]:
    """Mark a target as complete: servers may use it, if they read every row of a new database."""
    yield Statement(_OPEN)
    yield from exclude_earlier_programs()
    yield Statement(_DELETE_TABLES)
    yield Statement(_END, {"state": "complete", "at": at})


@unit
def forget() -> Steps[None]:
    """Delete the rows of an abandoned copy from its source."""
    yield Statement(_FORGET_CHANGES)
    yield Statement(_DELETE_STATE)
