"""The copy of a SQLite file to a PostgreSQL database while servers work with the file.

Triggers of the source record the key of each changed row. The rows are copied table by table in
the order of their keys. Before each batch the recorded changes of the same snapshot are copied, so
that the target always has a state of the source: complete tables, one table up to a key, and
nothing of the others. What a change beyond that key has made is read with its batch.

Each transaction of the target contains the progress. A change is forgotten only after the target
has it, and to copy it twice does no harm. So a copy can end at any moment and go on later.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar, cast

from agentctl import errors
from agentctl.records.text import new_id
from agentctl.records.times import now
from agentctl.store.copying import state
from agentctl.store.copying.tables import (
    Batches,
    Key,
    Table,
    TableSum,
    add_up,
    load_tables,
    read_key,
)
from agentctl.store.listing import GROUP_SIZE
from agentctl.store.repositories import search

if TYPE_CHECKING:
    from agentctl.store.copying.postgres import PostgresTarget
    from agentctl.store.copying.sqlite import SqliteSource
    from agentctl.store.search import Tokenizer
    from agentctl.store.sqlite.backup import ReportCopyProgress

T = TypeVar("T")

CHANGES = 100_000
"""Recorded changes that are copied together before the comparison: their keys are in memory."""

KEYS = 1_000
"""Rows that are read and written by key at a time."""

GROUPS = 50
"""Groups of sessions whose texts are indexed in one transaction."""

TOKENIZER: Tokenizer = "words"
"""The only tokenizer of the search of PostgreSQL."""

FEW_CHANGES = 500
"""Number of recorded changes below which a finishing copy stops the start of runs."""

ROUNDS = 20
"""Maximum number of attempts to get below `FEW_CHANGES`: servers may write faster than the copy."""

DRAIN_SECONDS = 5.0
"""Time for which one request stops the start of runs. It is repeated until the copy is finished, so
runs start again if this process dies."""

POLL_SECONDS = 0.1


Sums = Mapping[str, TableSum]
"""The sum of each table, which is the same in the source and in the target."""


class Copier:
    """A process that copies. The last one that began is the only one that may write to the target.

    Args:
        source, target: databases with the schema of this code.
        indexes_texts: True to build the index of a search in the target.

    Attributes:
        tables: the tables in the order of their references.
    """

    def __init__(
        self,
        source: SqliteSource,
        target: PostgresTarget,
        report: ReportCopyProgress,
        indexes_texts: bool,
    ) -> None:
        self.source = source
        self.target = target
        self.tables = load_tables()
        self._report = report
        self._indexes_texts = indexes_texts
        self._id = new_id()
        self._copy_id = ""
        self._copied = dict[str, state.CopiedTable]()

    async def begin(self) -> None:
        """Begin a new copy, or go on with one that the target does not know yet."""
        at = now()
        present = await self.source.read(state.get_state())
        if present is not None and present.role == "source":
            copy_id = present.copy_id
        else:
            copy_id = new_id()
            async with self.source.locked():
                place = self.target.place
                await self.source.write(state.begin(copy_id, "source", place, at, self.tables))
                await self.source.record_changes(self.tables)
        async with self.target.transaction():
            place = self.source.place
            indexed = self._indexes_texts
            work = state.begin(copy_id, "target", place, at, self.tables, indexed=indexed)
            await self.target.write(work)
            await self.target.alter_guards("DISABLE")

    async def copy_rows(self) -> None:
        """Copy all rows, from the place where an earlier process ended."""
        await self.target.write(state.take_over(self._id))
        present = await self.target.read(state.get_state())
        self._copy_id = "" if present is None else present.copy_id
        self._copied = await self.target.read(state.list_copied())
        total = 0
        for table in self.tables:
            total += await self.source.count(table)
        for table in self.tables:
            while not self._copied[table.name].is_complete:
                async with self.source.snapshot():
                    await self._catch_up(forget=True)
                    last = self._copied[table.name].key
                    rows = await self.source.read_batch(table, last)
                async with self._writing():
                    await self.target.insert(table, rows)
                    key = table.key_of(rows[-1]) if rows else last
                    await self.target.write(
                        state.advance(table.name, key, len(rows), is_complete=not rows)
                    )
                self._copied = await self.target.read(state.list_copied())
                done = sum(each.copied_rows for each in self._copied.values())
                self._report("rows copied", done, max(total, done))
        await self._index_texts()

    async def finish(self, *, wait: float, interrupt: bool) -> dict[str, object]:
        """Copy the rest, compare everything, and let the target take the place of the source.

        Returns:
            The number of rows, the seconds in which no run could start and in which nothing could
            be written to either database, and the rows and the digest of each table.
        """
        await self.copy_rows()
        sums = await self._compare()
        for _ in range(ROUNDS):
            if await self._copy_new_changes(sums) < FEW_CHANGES:
                break
        began = time.monotonic()
        try:
            locked = await self._finish_without_live_runs(sums, began + wait, interrupt)
        except BaseException:
            with contextlib.suppress(Exception):
                await self.source.write(state.drain(now(), 0))
            raise
        await self.open_target()
        ended = time.monotonic()
        return {
            "rows": sum(each.rows for each in sums.values()),
            "starts_refused": round(ended - began, 3),
            "writes_refused": round(ended - locked, 3),
            "tables": [
                {"table": name, "rows": each.rows, "digest": each.digest}
                for name, each in sums.items()
            ],
        }

    async def open_target(self) -> None:
        """Let the target of a source that has moved be served."""
        await self.target.write(state.take_over(self._id))
        counters = await self.source.read_counters()
        async with self._writing():
            await self.target.set_counters(counters)
            await self.target.alter_guards("ENABLE")
            await self.target.write(state.open_target(now()))

    async def _finish_without_live_runs(
        self, sums: Sums, deadline: float, interrupt: bool
    ) -> float:
        """Wait for the end of the live runs and close the source. Return the time of its lock."""
        while True:
            await self.source.write(state.drain(now(), int(DRAIN_SECONDS * 1_000_000)))
            await self.source.read(state.check_source(self._copy_id))
            await self._copy_new_changes(sums)  # live runs write until their end
            live = await self.source.read(state.count_live())
            late = time.monotonic() >= deadline
            if live and late and not interrupt:
                raise errors.Conflict(
                    "Runs are live",
                    cause=f"{live} have not ended; nothing was changed",
                    hint="try again, wait longer with --wait, or end them with --interrupt",
                )
            if live and not late:
                self._report("live runs, waiting for their end", live, 0)
                await asyncio.sleep(POLL_SECONDS)
                continue

            began = time.monotonic()
            async with self.source.locked():
                # Nothing here may take longer for a larger database.
                if (late and interrupt) or not await self.source.read(state.count_live()):
                    await self._catch_up(sums, forget=False)
                    await self.source.refuse_writes(self.tables)
                    await self.source.write(state.close_source(now()))
                    return began

    async def _compare(self) -> Sums:
        """Read all rows of both databases at one state of the source, and compare their sums."""
        async with self.source.snapshot():
            await self._catch_up(forget=True)
            in_source = await self._add_up(self.source.scan, "rows read")
        async with self.target.snapshot():
            in_target = await self._add_up(self.target.scan, "rows compared")
        _check_equal(in_source, in_target)
        return in_source

    async def _add_up(self, scan: Callable[[Table], Batches], text: str) -> dict[str, TableSum]:
        sums = {table.name: TableSum() for table in self.tables}
        total = sum(each.copied_rows for each in self._copied.values())
        for table in self.tables:
            async for rows in scan(table):
                sums[table.name].add(rows)
                done = sum(each.rows for each in sums.values())
                self._report(text, done, max(done, total))
        return sums

    async def _index_texts(self) -> None:
        """Build the index of a search, the newest sessions first.

        A session that changes later is indexed with that change.
        """
        total = self._copied["sessions"].copied_rows
        done = 0
        while (
            self._indexes_texts
            and (texts := self._copied.get(state.TEXTS))
            and not texts.is_complete
        ):
            after = cast("tuple[int, str]", texts.key or search.NEWEST)
            async with self._writing():
                for _ in range(GROUPS):
                    found = await self.target.read(search.find_missing(after, TOKENIZER))
                    if found is None:
                        break
                    group, after = found
                    await self.target.write(search.add_missing(group, TOKENIZER))
                    done += len(group.session_ids)
                await self.target.write(
                    state.advance(state.TEXTS, after, 0, is_complete=found is None)
                )
            self._copied = await self.target.read(state.list_copied())
            self._report("sessions indexed", done, max(done, total))

    async def _copy_new_changes(self, sums: Sums) -> int:
        async with self.source.snapshot():
            return await self._catch_up(sums, forget=True)

    async def _catch_up(self, sums: Sums | None = None, *, forget: bool) -> int:
        """Copy the changes that were recorded until the present state of the source.

        Args:
            sums: are kept up to date.

        Returns:
            The number of changes.
        """
        after = count = 0
        # Deletions that cascade must be in the same part as their records: else a sum would miss
        # rows. After the comparison, there is one part: that of some minutes.
        limit = CHANGES if sums is None else 1 << 62
        # Without this copy nothing records the changes.
        await self.source.read(state.check_source(self._copy_id))
        while changes := await self.source.read(state.list_changes(after, limit)):
            await self._copy_changes(changes, sums)
            after = changes[-1].seq
            count += len(changes)
            if forget:
                for part in _split([change.seq for change in changes], KEYS):
                    await self.source.forget_changes(part)
        return count

    async def _copy_changes(self, changes: Sequence[state.ChangedRow], sums: Sums | None) -> None:
        changed = {table.name: dict[Key, None]() for table in self.tables}
        for change in changes:
            key = read_key(change.key)
            if self._has_reached(change.table, key):
                changed[change.table][key] = None
        present = dict[str, list[Key]]()
        for table in reversed(self.tables):
            keys = list(changed[table.name])
            kept = set[Key]()
            for part in _split(keys, KEYS):
                kept |= set(await self.source.read_rows(table.only_key(), part))
            for part in _split([key for key in keys if key not in kept], KEYS):
                await self._delete(table, part, sums)
            present[table.name] = [key for key in keys if key in kept]
        for table in self.tables:
            for part in _split(present[table.name], KEYS):
                await self._replace(table, part, sums)
        if self._indexes_texts:
            # The end of a run and a new name change the row of the session.
            changed_ids = [str(session_id) for (session_id,) in present["sessions"]]
            for ids in _split(changed_ids, GROUP_SIZE):
                async with self._writing():
                    await self.target.write(search.index_sessions(ids, TOKENIZER))

    async def _delete(self, table: Table, keys: Sequence[Key], sums: Sums | None) -> None:
        if sums is not None:
            sums[table.name].remove(await self.target.read_rows(table, keys))
        async with self._writing():
            await self.target.delete(table, keys)

    async def _replace(self, table: Table, keys: Sequence[Key], sums: Sums | None) -> None:
        former = [] if sums is None else await self.target.read_rows(table, keys)
        rows = await self.source.read_rows(table, keys)
        async with self._writing():
            await self.target.upsert(table, rows)
        if sums is not None:
            written = await self.target.read_rows(table, keys)
            _check_equal({table.name: add_up(rows)}, {table.name: add_up(written)})
            sums[table.name].remove(former)
            sums[table.name].add(rows)

    def _has_reached(self, table: str, key: Key) -> bool:
        """Return True if the target has the rows of a table up to this key."""
        copied = self._copied[table]
        return bool(copied.is_complete) or ((last := copied.key) is not None and key <= last)

    @contextlib.asynccontextmanager
    async def _writing(self) -> AsyncIterator[None]:
        async with self.target.transaction():
            await self.target.write(state.check_copier(self._id))
            yield


def _split(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


def _check_equal(source: Sums, target: Sums) -> None:
    different = [name for name in source if source[name] != target[name]]
    if different:
        raise errors.Unavailable(
            "The copy is not equal to the database",
            cause=f"tables: {', '.join(different)}; the source was not changed",
            hint="abandon the copy with --abandon, and begin again with an empty target",
        )
