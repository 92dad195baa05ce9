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
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

from agentctl import errors
from agentctl.light_dataclass import dataclass
from agentctl.records.ids import new_id
from agentctl.records.times import now
from agentctl.store.copying import state
from agentctl.store.copying.tables import Batches, Key, Table, TableSum, read_key, write_key
from agentctl.store.listing import GROUP_SIZE
from agentctl.store.repositories import search

if TYPE_CHECKING:
    from agentctl.store.copying.postgres import PostgresTarget
    from agentctl.store.copying.sqlite import SqliteSource
    from agentctl.store.search import Tokenizer

T = TypeVar("T")

Report = Callable[[str, int, int], None]
"""Called with the name of the work, the part done and the total; a total of 0 is unknown."""

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


class TwoSums(NamedTuple):
    """The sums of the rows of a table in the source and in the target."""

    source: TableSum
    target: TableSum


Sums = Mapping[str, TwoSums]


@dataclass(frozen=True, slots=True)
class FinishedCopy:
    """A finished copy.

    Attributes:
        tables: rows and digest of each table, equal in both databases; empty if an earlier process
            has compared them.
        starts_refused: seconds in which no run could start.
        writes_refused: seconds in which nothing could be written to either database.
    """

    tables: Mapping[str, TableSum]
    starts_refused: float
    writes_refused: float


class _StillLive(Exception):
    """Runs are live although the source is locked. `runs`: their number."""

    def __init__(self, runs: int) -> None:
        super().__init__(runs)
        self.runs = runs


class Copier:
    """A process that copies. The last one that began is the only one that may write to the target.

    Args:
        source, target: databases with the schema of this code.
        tables: the tables in the order of their references.
        report: receives the progress.
        indexes_texts: True to build the index of a search in the target.
    """

    def __init__(
        self,
        source: SqliteSource,
        target: PostgresTarget,
        tables: tuple[Table, ...],
        report: Report,
        indexes_texts: bool,
    ) -> None:
        self._source = source
        self._target = target
        self._tables = tables
        self._report = report
        self._indexes_texts = indexes_texts
        self._id = new_id()
        self._copy_id = ""
        self._copied = dict[str, state.CopiedTable]()
        self._keys = dict[str, Key | None]()

    async def begin(self) -> None:
        """Begin a new copy, or go on with one that the target does not know yet."""
        at = now()
        present = await self._source.read(state.get_state())
        if present is not None and present.role == "source":
            copy_id = present.copy_id
        else:
            copy_id = new_id()
            async with self._source.locked():
                place = self._target.place
                await self._source.write(state.begin(copy_id, "source", place, at, self._tables))
                await self._source.record_changes(self._tables)
        async with self._target.transaction():
            place, indexed = self._source.place, self._indexes_texts
            work = state.begin(copy_id, "target", place, at, self._tables, indexed=indexed)
            await self._target.write(work)
            await self._target.suspend_guards()

    async def copy_rows(self) -> None:
        """Copy all rows, from the place where an earlier process ended.

        Raises:
            Conflict: a later process has taken over, or has ended the copy.
        """
        await self._target.write(state.take_over(self._id))
        present = await self._target.read(state.get_state())
        self._copy_id = "" if present is None else present.copy_id
        await self._read_progress()
        total = 0
        for table in self._tables:
            total += await self._source.count(table)
        for table in self._tables:
            while not self._copied[table.name].is_complete:
                async with self._source.snapshot():
                    await self._catch_up(forget=True)
                    rows = await self._source.read_batch(table, self._keys[table.name])
                async with self._writing():
                    await self._target.insert(table, rows)
                    key = table.key_of(rows[-1]) if rows else self._keys[table.name]
                    cursor = None if key is None else write_key(key)
                    await self._target.write(
                        state.advance(table.name, cursor, len(rows), is_complete=not rows)
                    )
                await self._read_progress()
                done = sum(each.copied_rows for each in self._copied.values())
                self._report("rows copied", done, max(total, done))
        await self._index_texts()

    async def finish(self, *, wait: float, interrupt: bool) -> FinishedCopy:
        """Copy the rest, compare everything, and let the target take the place of the source.

        Args:
            wait: maximum time in seconds to wait for the end of the live runs.
            interrupt: True to go on if runs are live then. They end, or go on from their
                checkpoints, where the target is served.

        Raises:
            Conflict: runs are live, or a later process has taken over or has ended the copy.
            Unavailable: the databases differ, or the source was not locked in time.
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
                await self._source.write(state.drain(now(), 0))
            raise
        await self.open_target()
        ended = time.monotonic()
        tables = {name: both.source for name, both in sums.items()}
        return FinishedCopy(tables, ended - began, ended - locked)

    async def open_target(self) -> None:
        """Let the target of a source that has moved be served."""
        await self._target.write(state.take_over(self._id))
        counters = await self._source.read_counters()
        async with self._writing():
            await self._target.set_counters(counters)
            await self._target.restore_guards()
            await self._target.write(state.open_target(now()))

    async def _finish_without_live_runs(
        self, sums: Sums, deadline: float, interrupt: bool
    ) -> float:
        """Wait for the end of the live runs and close the source. Return the time of its lock."""
        while True:
            await self._source.write(state.drain(now(), int(DRAIN_SECONDS * 1_000_000)))
            await self._source.read(state.check_source(self._copy_id))
            await self._copy_new_changes(sums)  # live runs write until their end
            live = await self._source.read(state.count_live())
            late = time.monotonic() >= deadline
            if live and not (late and interrupt):
                if late:
                    raise _build_live(live)
                self._report("live runs, waiting for their end", live, 0)
                await asyncio.sleep(POLL_SECONDS)
                continue
            began = time.monotonic()
            with contextlib.suppress(_StillLive):
                async with self._source.locked():
                    live = await self._source.read(state.count_live())
                    if live and not (late and interrupt):
                        raise _StillLive(live)
                    await self._close_source(sums)
                return began

    async def _close_source(self, sums: Sums) -> None:
        # Nothing here may take longer for a larger database.
        await self._catch_up(sums, forget=False)
        _check_equal(sums)
        await self._source.refuse_writes(self._tables)
        await self._source.write(state.close_source(now()))

    async def _compare(self) -> Sums:
        """Read all rows of both databases at one state of the source, and compare their sums.

        Raises:
            Unavailable: tables differ.
        """
        async with self._source.snapshot():
            await self._catch_up(forget=True)
            in_source = await self._add_up(self._source.scan, "rows read")
        async with self._target.snapshot():
            in_target = await self._add_up(self._target.scan, "rows compared")
        sums = {name: TwoSums(in_source[name], in_target[name]) for name in in_source}
        _check_equal(sums)
        return sums

    async def _add_up(self, scan: Callable[[Table], Batches], text: str) -> dict[str, TableSum]:
        sums = {table.name: TableSum() for table in self._tables}
        total = sum(each.copied_rows for each in self._copied.values())
        for table in self._tables:
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
            after = cast("tuple[int, str]", self._keys[state.TEXTS] or search.NEWEST)
            async with self._writing():
                for _ in range(GROUPS):
                    found = await self._target.read(search.find_missing(after, TOKENIZER))
                    if found is None:
                        break
                    group, after = found
                    await self._target.write(search.add_missing(group, TOKENIZER))
                    done += len(group.session_ids)
                await self._target.write(
                    state.advance(state.TEXTS, write_key(after), 0, is_complete=found is None)
                )
            await self._read_progress()
            self._report("sessions indexed", done, max(done, total))

    async def _read_progress(self) -> None:
        self._copied = await self._target.read(state.list_copied())
        self._keys = {
            name: None if each.cursor is None else read_key(each.cursor)
            for name, each in self._copied.items()
        }

    async def _copy_new_changes(self, sums: Sums) -> int:
        async with self._source.snapshot():
            return await self._catch_up(sums, forget=True)

    async def _catch_up(self, sums: Sums | None = None, *, forget: bool) -> int:
        """Copy the changes that were recorded until the present state of the source.

        Args:
            sums: are kept up to date.
            forget: True to delete the records.

        Returns:
            The number of changes.
        """
        after = count = 0
        # Deletions that cascade must be in the same part as their records: else a sum would miss
        # rows. After the comparison, there is one part: that of some minutes.
        limit = CHANGES if sums is None else 1 << 62
        # Without this copy nothing records the changes.
        await self._source.read(state.check_source(self._copy_id))
        while changes := await self._source.read(state.list_changes(after, limit)):
            await self._copy_changes(changes, sums)
            after = changes[-1].seq
            count += len(changes)
            if forget:
                for part in _split([change.seq for change in changes], KEYS):
                    await self._source.forget_changes(part)
        return count

    async def _copy_changes(self, changes: Sequence[state.ChangedRow], sums: Sums | None) -> None:
        changed = {table.name: dict[Key, None]() for table in self._tables}
        for change in changes:
            key = read_key(change.key)
            if self._has_reached(change.table, key):
                changed[change.table][key] = None
        present = dict[str, list[Key]]()
        for table in reversed(self._tables):
            keys = list(changed[table.name])
            kept = set[Key]()
            for part in _split(keys, KEYS):
                kept |= set(await self._source.read_rows(table.only_key(), part))
            for part in _split([key for key in keys if key not in kept], KEYS):
                await self._delete(table, part, sums)
            present[table.name] = [key for key in keys if key in kept]
        for table in self._tables:
            for part in _split(present[table.name], KEYS):
                await self._replace(table, part, sums)
        if self._indexes_texts:
            # The end of a run and a new name change the row of the session.
            changed_ids = [str(session_id) for (session_id,) in present["sessions"]]
            for ids in _split(changed_ids, GROUP_SIZE):
                async with self._writing():
                    await self._target.write(search.index_sessions(ids, TOKENIZER))

    async def _delete(self, table: Table, keys: Sequence[Key], sums: Sums | None) -> None:
        former = [] if sums is None else await self._target.read_rows(table, keys)
        async with self._writing():
            await self._target.delete(table, keys)
        if sums is not None:
            both = sums[table.name]
            both.source.remove(former)
            both.target.remove(former)

    async def _replace(self, table: Table, keys: Sequence[Key], sums: Sums | None) -> None:
        former = [] if sums is None else await self._target.read_rows(table, keys)
        rows = await self._source.read_rows(table, keys)
        async with self._writing():
            await self._target.upsert(table, rows)
        if sums is not None:
            both = sums[table.name]
            for added, present in (
                (both.source, rows),
                (both.target, await self._target.read_rows(table, keys)),
            ):
                added.remove(former)
                added.add(present)

    def _has_reached(self, table: str, key: Key) -> bool:
        """Return True if the target has the rows of a table up to this key."""
        if self._copied[table].is_complete:
            return True
        last = self._keys[table]
        return last is not None and key <= last

    @contextlib.asynccontextmanager
    async def _writing(self) -> AsyncIterator[None]:
        async with self._target.transaction():
            await self._target.write(state.check_copier(self._id))
            yield


def _split(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for first in range(0, len(items), size):
        yield items[first : first + size]


def _build_live(runs: int) -> errors.Conflict:
    return errors.Conflict(
        "Runs are live",
        cause=f"{runs} have not ended; nothing was changed",
        hint="try again, wait longer with --wait, or end them with --interrupt",
    )


def _check_equal(sums: Sums) -> None:
    different = [name for name, both in sums.items() if both.source != both.target]
    if different:
        raise errors.Unavailable(
            "The copy is not equal to the database",
            cause=f"tables: {', '.join(different)}; the source was not changed",
            hint="abandon the copy with --abandon, and begin again with an empty target",
        )
