"""The work of `agentctl db copy`: a SQLite database moves to PostgreSQL while no server works.

The rows are written and compared in one transaction of the target, while no other process can use
the source. Then the source is closed, and the target is opened. A process that is killed before the
end of the transaction has changed nothing. After it, a target with all rows is left that no server
uses, and the next copy does the missing steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from agentctl import errors
from agentctl.admin.databases import INDEX_COMMAND
from agentctl.admin.restores import build_servers_work
from agentctl.config.databases import display_url, is_sqlite_url
from agentctl.config.settings import Database
from agentctl.records.text import new_id
from agentctl.records.times import now
from agentctl.runs.workers.liveness import DEAD_AFTER_SECONDS
from agentctl.store import migrating
from agentctl.store.copying import state
from agentctl.store.copying.postgres import PostgresTarget, open_target
from agentctl.store.copying.sqlite import SqliteSource, open_source
from agentctl.store.copying.tables import Batches, Table, TableSum, load_tables
from agentctl.store.schema import SCHEMA_VERSION
from agentctl.store.sqlite.backup import ReportCopyProgress
from agentctl.store.sqlite.schema import build_in_memory

EMPTY_TARGET = "name an empty database, or another schema in search_path"

Sums = Mapping[str, TableSum]
"""The number of rows of each table, and the sum of their hashes."""


def check_engines(source: Database, target: Database) -> None:
    """Check that a copy is from SQLite to PostgreSQL. Raises UsageError."""
    if not is_sqlite_url(source.url):
        raise errors.UsageError(
            "db copy copies only from SQLite to PostgreSQL",
            cause=f"the source {display_url(source.url)} is a PostgreSQL database",
            hint="copy it to another PostgreSQL database with pg_dump and pg_restore, as db backup"
            " prints them; there is no way back to SQLite",
        )
    if is_sqlite_url(target.url):
        raise errors.UsageError(
            "db copy copies only from SQLite to PostgreSQL",
            cause=f"the target {display_url(target.url)} is a SQLite file",
            hint="name a PostgreSQL database with --to; for another file use db backup FILE",
        )


async def copy_database(
    source: Database, target: Database, report: ReportCopyProgress
) -> dict[str, object]:
    """Copy all rows, compare them, and close the source; missing tables of the target are created.

    Can be repeated after a failure, an interruption or a kill. Before the source is closed nothing
    of it is changed.

    Args:
        source, target: databases that `check_engines` allows. `index_texts` builds the index of a
            search in the target.

    Returns:
        The places of both, the number of rows, the seconds, and the rows and the digest of each
        table.

    Raises:
        Conflict: a server works with one of them, or the target is not empty.
        Unavailable: a database cannot be used, the source has moved already, or both differ.
        SchemaMismatch: one does not have the schema of this code.
    """
    began = time.monotonic()
    async with open_source(source) as opened_source:
        source_state = await opened_source.run(state.get_state())
        moved = None
        if source_state is not None and source_state.state == "moved":
            moved = source_state

        if await migrating.read_version(target) is None:
            if moved is not None:
                raise _build_moved_already(opened_source, moved)
            await migrating.migrate(target, lambda _: None)

        async with open_target(target) as opened_target:
            copy = _Copy(opened_source, opened_target, report)
            sums = await copy.copy(moved)

    return {
        "from": opened_source.place,
        "to": opened_target.place,
        "rows": sum(table_sum.rows for table_sum in sums.values()),
        "seconds": round(time.monotonic() - began, 3),
        "tables": [
            {"table": name, "rows": table_sum.rows, "digest": table_sum.digest}
            for name, table_sum in sums.items()
        ],
    }


class _Copy:
    """A copy to a target. No other process can use the source."""

    def __init__(
        self, source: SqliteSource, target: PostgresTarget, report: ReportCopyProgress
    ) -> None:
        self._source = source
        self._target = target
        self._tables = load_tables()
        self._report = report
        self._total: int | None = None

    async def copy(self, moved: state.CopyState | None) -> Sums:
        """Do the missing steps of the copy. Return the sums of its tables.

        Args:
            moved: the state of a source that is closed already; None for any other source.
        """
        stored_state = await self._target.run(state.get_state())
        if stored_state is not None and self._is_interrupted(stored_state, moved):
            copy_id = stored_state.copy_id
            sums = await self._compare_again()
        elif moved is not None:
            raise _build_moved_already(self._source, moved)
        elif stored_state is not None:
            raise errors.Conflict(
                "The target belongs to another copy",
                cause=f"{self._target.place} has the rows of {stored_state.other}",
                hint=EMPTY_TARGET,
            )
        else:
            copy_id = new_id()
            sums = await self._fill(copy_id)

        # Close the source first: at no time can both be served.
        if moved is None:
            await self._source.run(state.close_source(copy_id, self._target.place, now()))
            await self._source.commit()

        async with self._target.transaction():
            await self._target.run(state.open_target(now()))

        return sums

    def _is_interrupted(self, present: state.CopyState, moved: state.CopyState | None) -> bool:
        """Return True if the target has all rows of the source, but is not opened yet."""
        if present.state != "copying":
            return False
        if moved is not None:
            return present.copy_id == moved.copy_id
        return present.other == self._source.place

    async def _fill(self, copy_id: str) -> Sums:
        """Write and compare all rows in one transaction, at whose end the target is closed."""
        target = self._target
        async with target.transaction():
            await target.lock(self._tables)
            await self._check_unused()
            await target.run(state.remove_rows(self._tables))
            sums = await self._add_up(self._source.scan, "rows copied", inserts=True)
            await target.set_counters(await self._source.read_counters())
            copied_sums = await self._add_up(target.scan, "rows compared")
            self._check_equal(sums, copied_sums, "repeat the command; the target has no rows")
            await target.run(state.close_target(copy_id, self._source.place, now()))
        return sums

    async def _compare_again(self) -> Sums:
        """Compare the rows of an interrupted copy: servers may have used the source since then."""
        sums = await self._add_up(self._source.scan, "rows read")
        async with self._target.transaction():
            copied_sums = await self._add_up(self._target.scan, "rows compared")
        hint = "delete the target, which is of an earlier copy, and repeat the command"
        self._check_equal(sums, copied_sums, hint)
        return sums

    async def _check_unused(self) -> None:
        """Check that no server works with the target, and that it has only the rows of migrations.

        Call it with the lock: a server that begins to work would write its worker first.
        """
        recent = int(DEAD_AFTER_SECONDS * 1_000_000)
        worker_count = await self._target.run(state.count_working(now(), recent))
        if worker_count:
            raise build_servers_work(worker_count)

        migrated = build_in_memory(SCHEMA_VERSION)
        for table in self._tables:
            sql = f"SELECT {', '.join(table.columns)} FROM {table.name}"
            expected_rows = migrated.execute(sql).fetchall()
            # One more row is enough to see that the target has others.
            rows = await self._target.read_first(table, len(expected_rows) + 1)
            if sorted(rows, key=repr) != sorted(expected_rows, key=repr):
                raise errors.Conflict(
                    "The target of a copy must be empty",
                    cause=f"{self._target.place} has rows in the table {table.name};"
                    " nothing was changed",
                    hint=EMPTY_TARGET,
                )

    async def _add_up(
        self, scan: Callable[[Table], Batches], text: str, *, inserts: bool = False
    ) -> Sums:
        """Return the sums of all rows of a database.

        Args:
            scan: reads the rows of a table.
            text: the name of the step, for its progress.
            inserts: True to write the rows into the target, too.
        """
        sums = {table.name: TableSum() for table in self._tables}
        total = await self._count_rows()
        done = 0
        for table in self._tables:
            async for rows in scan(table):
                if inserts:
                    await self._target.insert(table, rows)
                sums[table.name].add(rows)
                done += len(rows)
                self._report(text, done, total)
        return sums

    async def _count_rows(self) -> int:
        """Return the number of rows to copy, which cannot change meanwhile."""
        if self._total is None:
            self._total = sum([await self._source.count(table) for table in self._tables])
        return self._total

    def _check_equal(self, source: Sums, target: Sums, hint: str) -> None:
        different = [name for name in source if source[name] != target[name]]
        if different:
            raise errors.Unavailable(
                "The copy is not equal to the database",
                cause=f"{self._target.place} differs from {self._source.place} in the tables"
                f" {', '.join(different)}; the source was not changed",
                hint=hint,
            )


def _build_moved_already(source: SqliteSource, moved: state.CopyState) -> errors.Unavailable:
    return errors.Unavailable(
        "The database has moved already",
        cause=f"{source.place} was copied to {moved.other}",
        hint=f"name that place in [[databases]] url; `{INDEX_COMMAND}` completes its search",
    )
