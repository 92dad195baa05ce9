"""Lists that commands print: one page of the requested length, with `--all` every page.

Rows are written as their pages arrive, so that a list of any length needs the memory of some pages
only, in every format (docs/cli.md "Long lists").
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from agentctl.cli.durations import microseconds_ago
from agentctl.cli.io import current_io
from agentctl.cli.parameters import flag, option
from agentctl.cli.show.output import (
    ColumnChoice,
    FieldsOutput,
    choose_columns,
    pick_values,
    to_columns,
    write_json,
)
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.terminal import note
from agentctl.cli.show.watched_list import DEFAULT_SECONDS, WatchedList, check_watch, watch_list
from agentctl.errors import AgentctlError
from agentctl.interface.requests import MAXIMUM_LIMIT
from agentctl.interface.requests.lists import (
    F,
    Read,
    ReadAt,
    Row,
    build_endless_list_error,
    walk_pages,
    with_page,
)
from agentctl.records.kinds import Record
from agentctl.records.text import format_count

if TYPE_CHECKING:
    from agentctl.cli.target import Target
    from agentctl.records.document import Document

MAXIMUM_ROWS = 1_000_000
"""Rows of one list that a command keeps in memory."""

TABLE_ROWS = 1_000
"""Rows of one table: the widths of its columns are those of these rows."""


def build_age_option(flags: str, what: str) -> Any:
    """Return an option for an age: `created more` than AGE ago."""
    return option(flags, "AGE", f"Filter by age: {what} than AGE ago, such as 10m, 2h or 7d")


@dataclass(frozen=True, slots=True)
class AgeOptions:
    """The options for the age of records. An age is that of the read: `--watch` repeats it."""

    older_than: Annotated[str | None, build_age_option("--older-than", "created more")] = None
    newer_than: Annotated[str | None, build_age_option("--newer-than", "created less")] = None

    def limit(self, filter: Any) -> Any:
        """Return a filter with the times of the ages, counted from now."""
        return replace(
            filter,
            created_after=microseconds_ago("--newer-than", self.newer_than),
            created_before=microseconds_ago("--older-than", self.older_than),
        )

    def limit_each(self, read: Read[F]) -> Read[F]:
        """Return a read of pages with filters that `limit` has completed."""

        async def read_limited(filter: F) -> Document[Any]:
            return await read(self.limit(filter))

        return read_limited


NO_AGES = AgeOptions()


@dataclass(frozen=True, slots=True)
class ListOutput(FieldsOutput):
    """The options of a list: those of its output, and `--all`."""

    all_pages: Annotated[bool, flag("--all", "List every page, in the order of creation")] = False

    async def show(
        self,
        target: Target,
        read: Read[F],
        filter: F,
        columns: ColumnChoice,
        id_field: str,
        *,
        noun: str = "rows",
        note_rest: Callable[[Document[Any]], None] | None = None,
    ) -> None:
        """Show the page of a list that a filter selects, or every page from there on.

        Args:
            read: the operation, such as `target.operations.runs.list`.
            filter: its filter, with a `page` or with the fields of one.
        """
        page: Any = getattr(filter, "page", filter)
        if self.all_pages:
            # A row that changes while the pages are read keeps its place in the order of creation.
            created = {"sort_by": "created_at"} if hasattr(page, "sort_by") else {}
            whole = with_page(filter, limit=MAXIMUM_LIMIT, **created)
            writer = ListWriter(self, columns, id_field)
            await writer.write_pages(
                target, lambda cursor: read(with_page(whole, cursor=cursor)), page.cursor
            )
            return

        document = await read_page(target, read, filter)
        self.show_page(document, columns, id_field, noun)
        if note_rest is not None:
            note_rest(document)


@dataclass(frozen=True, slots=True)
class WatchedOutput(ListOutput):
    """The options of a list that can be watched."""

    watch: Annotated[bool, flag("--watch -w", "Refresh until Ctrl-C (-o jsonl prints changes)")] = (
        False
    )
    every: Annotated[
        float | None,
        option(
            "--every",
            "SECONDS",
            "Seconds between two reads with --watch (default: 2)",
            min=0.1,
            max=86_400,
        ),
    ] = None

    def check(self) -> None:
        """Check the options before anything is read; see `check_watch`."""
        check_watch(self.watch, self.every, self.format)

    async def show(
        self,
        target: Target,
        read: Read[F],
        filter: F,
        columns: ColumnChoice,
        id_field: str,
        *,
        noun: str = "rows",
        note_rest: Callable[[Document[Any]], None] | None = None,
    ) -> None:
        """Show the list once, or with `--watch` again and again."""
        if not self.watch:
            await ListOutput.show(
                self, target, read, filter, columns, id_field, noun=noun, note_rest=note_rest
            )
            return

        again = partial(read_page, target, read, filter)
        seconds = self.every or DEFAULT_SECONDS
        await watch_list(WatchedList(target, again, self, columns, id_field, seconds))


async def read_page(target: Target, read: Read[F], filter: F) -> Document[Any]:
    """Return the page of a list that a filter selects.

    A server compares a bounded number of rows with some filters (docs/contract.md "Lists"). It is
    asked again until the page has its length, or the list has ended.
    """
    from agentctl.records.document import build_document

    document = await read(filter)
    page: Any = getattr(filter, "page", filter)
    rows = document.value["data"]
    meta = document.value["meta"]
    if len(rows) >= page.limit or not meta.get("next_cursor"):
        return document

    # The first answer ended before the page was full.
    meta.pop("searched_until", None)
    page_rows = list[Row](rows)
    next_cursor = meta["next_cursor"]

    def read_rest(cursor: str | None) -> Awaitable[Document[Any]]:
        return read(with_page(filter, cursor=cursor, limit=page.limit - len(page_rows)))

    async with showing_progress("searching"):
        async for more_rows, cursor in walk_pages(read_rest, next_cursor):
            page_rows += more_rows
            next_cursor = cursor
            if len(page_rows) >= page.limit:
                break

    known: dict[str, Any] = {"next_cursor": next_cursor}
    if "total_count" in meta:
        known["total_count"] = max(meta["total_count"], len(page_rows))
        if next_cursor is None and page.cursor is None:
            # The whole list was read, and it is this page.
            known |= {"total_is_capped": False, "total_pages": 1}
    return build_document({"data": page_rows, "meta": {**meta, **known}})


def note_unindexed(target: Target, document: Document[Any], noun: str) -> None:
    """Note that a search without a result finds no texts that are not indexed."""
    if not document.value["data"]:
        # Only `doctor` counts sessions that are not indexed: the count is slow.
        place = "" if target.local is not None else " on the server"
        note(
            f"no {noun} matches; runs that ended before search was enabled are found after"
            f" `agentctl db index`{place}"
        )


class ListWriter:
    """Writes a list in parts.

    `json` is an object with `data` and the number of rows in `meta`, as that of a page, one row in
    each line. A table has `TABLE_ROWS` rows; a longer list is several tables with headings.

    Args:
        is_array: `json` is an array, as of the operations that have no pages.
    """

    def __init__(
        self, out: FieldsOutput, columns: ColumnChoice, id_field: str, *, is_array: bool = False
    ) -> None:
        out.check_fields()
        self._out = out
        self._columns = to_columns(columns)
        self._id_field = id_field
        self._is_array = is_array
        self._count = 0
        self._waiting: list[Record] = []

    async def write_pages(
        self, target: Target, read: ReadAt, start: str | None, option: str = "--cursor"
    ) -> None:
        """Write all rows of a list as their pages arrive.

        Args:
            start: the cursor of the first page to read; None for that of the list.

        Raises:
            AgentctlError: a page cannot be read. A note has the cursor that continues the list.
        """
        import asyncio

        counter = Counter("rows read")
        reached = start
        # On a terminal the rows themselves show the progress.
        progress = nullcontext() if current_io().out_is_terminal else showing_progress(counter)
        try:
            async with progress:
                async for rows, cursor in walk_pages(read, start):
                    self._add(rows)
                    counter.done = self._count
                    reached = cursor
        except (AgentctlError, asyncio.CancelledError):
            self._flush()
            if reached is not None:
                written = format_count(self._count, "row")
                note(f"interrupted after {written}; continue with: --all {option} {reached}")
            raise
        self._finish()

    def _add(self, rows: Sequence[Record]) -> None:
        if not rows:
            return

        # Only a row shows which fields there are.
        is_first = not self._count
        if self._out.fields is not None and is_first:
            self._columns = choose_columns(rows, self._columns, self._out.fields)
        self._count += len(rows)

        if self._out.is_table:
            self._waiting += rows
            if len(self._waiting) >= TABLE_ROWS:
                self._flush()
        elif self._out.format == "json":
            self._write_array(rows, is_first=is_first)
        else:
            if self._out.format == "jsonl" and self._out.fields is not None:
                rows = [pick_values(row, self._columns.tsv) for row in rows]
            self._out.show_records(rows, self._columns, self._id_field, heading=is_first)

    def _flush(self) -> None:
        """Write the rows of a table that has not its whole length."""
        if self._waiting:
            self._out.show_records(self._waiting, self._columns, self._id_field)
            self._waiting = []

    def _finish(self) -> None:
        self._flush()
        if self._out.format == "json":
            if not self._count:
                write_json(b"[" if self._is_array else b'{"data":[')
            meta = b'],"meta":{"total_count":%d,"next_cursor":null}}' % self._count
            write_json(b"]" if self._is_array else meta)
        elif not self._count:
            self._out.show_records([], self._columns, self._id_field)

    def _write_array(self, rows: Sequence[Record], *, is_first: bool) -> None:
        import orjson

        if self._out.fields is not None:
            rows = [pick_values(row, self._columns.tsv) for row in rows]
        if is_first:
            write_json(b"[" if self._is_array else b'{"data":[')
        write_json((b"" if is_first else b",") + b"\n,".join(map(orjson.dumps, rows)))


def check_row_count(rows: list[Row]) -> None:
    """Raise InvalidResponse if a command has gathered more than `MAXIMUM_ROWS` rows."""
    if len(rows) > MAXIMUM_ROWS:
        raise build_endless_list_error(f"it has more than {MAXIMUM_ROWS:,} rows")
