"""The work of `agentctl db copy`: which databases may be copied, and the steps of a copy."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Literal

from agentctl import errors
from agentctl.config.databases import display_url, is_sqlite_url
from agentctl.config.settings import Database
from agentctl.light_dataclass import dataclass
from agentctl.records.times import Timestamp, format_optional_time
from agentctl.store import migrating
from agentctl.store.copying import state
from agentctl.store.copying.copier import Copier
from agentctl.store.copying.postgres import PostgresTarget, name_place, open_target
from agentctl.store.copying.sqlite import SqliteSource, open_source
from agentctl.store.copying.tables import Table, load_tables
from agentctl.store.database import Database as OpenDatabase
from agentctl.store.migrating import read_version
from agentctl.store.schema import SCHEMA_VERSION
from agentctl.store.sqlite.backup import ReportCopyProgress
from agentctl.store.sqlite.schema import build_in_memory

Stage = Literal["none", "copying", "copied", "moved", "finished"]
"""The stage of a copy: `copied` has all rows, `moved` has a source that refuses writes and a target
that is not served yet."""

EMPTY_TARGET = "name an empty database, or another schema in search_path"


@dataclass(frozen=True, slots=True)
class CopyStatus:
    """The status of a copy.

    Attributes:
        rows, copied: number of rows in the source, and of those that were copied. They are equal if
            the source has moved.
        changes: number of recorded changes that the target may not have.
        live_runs: number of runs that a server of the source works on; 0 if it has moved.
        finished_at: the time since which the source refuses writes; None before that.
    """

    stage: Stage
    source: str
    target: str
    rows: int
    copied: int
    changes: int
    live_runs: int
    started_at: Timestamp | None
    finished_at: Timestamp | None


async def read_copy_status(source: Database, target: Database) -> CopyStatus:
    """Check that a copy is possible and return its status. Nothing is changed.

    Raises:
        UsageError: the source is no SQLite file, or the target no PostgreSQL database.
        Conflict: the databases are part of other copies, or the target is not empty.
        Unavailable: a database cannot be used.
        SchemaMismatch: one does not have the schema of this code.
    """
    _check_engines(source, target)
    if await read_version(target) is None:
        async with open_source(source) as side:
            place = await _check_unbegun(side, target)
            return await _describe("none", side, place, 0)
    async with _open_copier(source, target, lambda *_: None) as copier:
        stage = await _find_stage(copier)
        copied = await copier.target.read(state.list_copied())
        rows = sum(each.copied_rows for each in copied.values())
        return await _describe(stage, copier.source, copier.target.place, rows)


async def copy_rows(
    source: Database, target: Database, report: ReportCopyProgress, *, indexes_texts: bool = False
) -> CopyStatus:
    """Copy all rows while servers work with the source; go on with a copy that has begun.

    Missing tables of the target are created.

    Args:
        indexes_texts: True if the target gets the index of a search.

    Raises: as `read_copy_status`, and Conflict if another process has taken over.
    """
    await _create_target(source, target)
    async with _open_copier(source, target, report, indexes_texts) as copier:
        stage = await _find_stage(copier)
        if stage in ("moved", "finished"):
            raise _build_moved_already(copier.source.place, copier.target.place)
        if stage == "none":
            await copier.begin()
        await copier.copy_rows()
    return await read_copy_status(source, target)


async def finish_copy(
    source: Database,
    target: Database,
    *,
    wait: float,
    interrupt: bool,
    report: ReportCopyProgress,
    indexes_texts: bool = False,
) -> dict[str, object]:
    """Copy the rest, compare both databases, and close the source.

    Args:
        wait: maximum time in seconds to wait for the end of the live runs.
        interrupt: True to go on if runs are live then. They end, or go on from their checkpoints,
            where the target is served.
        indexes_texts: as in `copy_rows`.

    Returns:
        The places of both, and the facts of `Copier.finish`.

    Raises: as `copy_rows`, and Conflict if runs are live, Unavailable if the databases differ.
    """
    await _create_target(source, target)
    async with _open_copier(source, target, report, indexes_texts) as copier:
        stage = await _find_stage(copier)
        facts: dict[str, object] = {"from": copier.source.place, "to": copier.target.place}

        if stage == "moved":
            await copier.open_target()
        if stage in ("moved", "finished"):
            return {**facts, "rows": None, "starts_refused": None, "writes_refused": None}

        if stage == "none":
            await copier.begin()
        return facts | await copier.finish(wait=wait, interrupt=interrupt)


async def abandon_copy(source: Database) -> str:
    """End a copy that has begun: its triggers and its records leave the source.

    Returns:
        The place of the target, which keeps the copied rows and is not served.

    Raises:
        UsageError: the database is no SQLite file.
        Conflict: no copy of the database is under way, or it has moved already.
    """
    _check_engines(source)
    async with open_source(source) as side:
        present = await side.read(state.get_state())
        if present is None or present.role != "source" or present.state != "copying":
            raise errors.Conflict(
                "No copy of the database is under way",
                cause=f"{side.place} was not changed",
                hint="a database that has moved stays closed; a backup from before can be restored",
            )
        await _forget_copy(side)
        return present.other


async def forget_lost_copy(database: OpenDatabase, entry: Database) -> None:
    """End the copy that a restored database was the source of, if there was one.

    The target has rows that were written after the time of the restored state, and the records of
    these changes are lost.
    """
    present = await database.read(state.get_state())
    if present is not None and present.role == "source":
        async with open_source(entry) as side:
            await _forget_copy(side)


async def _forget_copy(source: SqliteSource) -> None:
    async with source.locked():
        await source.drop_triggers()
        await source.write(state.forget())


def _check_engines(source: Database, target: Database | None = None) -> None:
    """Check that a copy is one from SQLite to PostgreSQL."""
    if not is_sqlite_url(source.url):
        raise errors.UsageError(
            "db copy copies only from SQLite to PostgreSQL",
            cause=f"the source {display_url(source.url)} is a PostgreSQL database",
            hint="copy it to another PostgreSQL database with pg_dump and pg_restore, as db backup"
            " prints them; there is no way back to SQLite",
        )
    if target is not None and is_sqlite_url(target.url):
        raise errors.UsageError(
            "db copy copies only from SQLite to PostgreSQL",
            cause=f"the target {display_url(target.url)} is a SQLite file",
            hint="name a PostgreSQL database with --to; for another file stop the servers and use"
            " db backup FILE",
        )


async def _find_stage(copier: Copier) -> Stage:
    source = copier.source
    target = copier.target
    ours = await source.read(state.get_state())
    theirs = await target.read(state.get_state())
    _check_source(source, target.place, ours, theirs)
    if ours and theirs and ours.copy_id == theirs.copy_id:
        if ours.state == "moved":
            return "finished" if theirs.state == "complete" else "moved"
        if theirs.state == "complete":
            raise errors.Conflict(
                "The copy was finished already",
                cause=f"{target.place} has taken the place of {source.place}, which is in a state"
                " before that",
                hint="to use the source again: agentctl db copy --abandon",
            )
        copied = await target.read(state.list_copied())
        return "copied" if all(each.is_complete for each in copied.values()) else "copying"
    await _check_empty(target, copier.tables, theirs)
    return "none"


async def _check_unbegun(source: SqliteSource, target: Database) -> str:
    """Check that a copy to a database without tables may begin. Return the place of the target."""
    place = name_place(target)
    _check_source(source, place, await source.read(state.get_state()), None)
    return place


def _check_source(
    source: SqliteSource, place: str, ours: state.CopyState | None, theirs: state.CopyState | None
) -> None:
    if ours is None:
        return
    is_same = theirs is not None and theirs.copy_id == ours.copy_id
    if is_same or (theirs is None and ours.other == place and ours.state == "copying"):
        return
    if ours.state == "moved":
        raise _build_moved_already(source.place, ours.other)
    raise errors.Conflict(
        "Another copy of the database is under way",
        cause=f"{source.place} is copied to {ours.other}",
        hint="name that target, or end the copy with: agentctl db copy --abandon",
    )


async def _check_empty(
    target: PostgresTarget, tables: tuple[Table, ...], theirs: state.CopyState | None
) -> None:
    created = build_in_memory(SCHEMA_VERSION)
    for table in tables:
        seeds = created.execute(f"SELECT {', '.join(table.columns)} FROM {table.name}").fetchall()
        async with target.snapshot(), aclosing(target.scan(table)) as batches:
            rows = await anext(batches)
        if sorted(rows, key=repr) != sorted(seeds, key=repr):
            raise errors.Conflict(
                "The target of a copy must be empty",
                cause=f"{target.place} has rows in the table {table.name}; nothing was changed",
                hint=EMPTY_TARGET,
            )
    if theirs is not None:
        raise errors.Conflict(
            "The target belongs to another copy",
            cause=f"{target.place} takes part in a copy with {theirs.other}",
            hint=EMPTY_TARGET,
        )


def _build_moved_already(source: str, place: str) -> errors.DatabaseMoved:
    return errors.DatabaseMoved(
        "The database has moved already", cause=f"{source} was copied to {place}"
    )


async def _create_target(source: Database, target: Database) -> None:
    _check_engines(source, target)
    if await read_version(target) is None:
        async with open_source(source) as side:
            await _check_unbegun(side, target)
        await migrating.migrate(target, lambda _: None)


async def _describe(stage: Stage, source: SqliteSource, place: str, copied: int) -> CopyStatus:
    rows = 0
    for table in load_tables():
        rows += await source.count(table)
    changes = await source.read(state.count_changes())
    live = await source.read(state.count_live())
    if stage in ("moved", "finished"):
        copied = rows
        live = 0
    ours = None if stage == "none" else await source.read(state.get_state())
    return CopyStatus(
        stage,
        source.place,
        place,
        rows,
        copied,
        changes,
        live,
        started_at=format_optional_time(ours.started_at if ours else None),
        finished_at=format_optional_time(ours.finished_at if ours else None),
    )


@asynccontextmanager
async def _open_copier(
    source: Database, target: Database, report: ReportCopyProgress, indexes_texts: bool = False
) -> AsyncIterator[Copier]:
    async with open_source(source) as first, open_target(target) as second:
        yield Copier(first, second, report, indexes_texts)
