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
"""Maximum number of rows of one list that a command keeps in memory."""

TABLE_ROWS = 1_000
"""Rows of one table, which decide the widths of its columns."""


def build_age_option(flags: str, what: str) -> Any:
    """Return an option for an age: `created more` than AGE ago."""
    return option(flags, "AGE", f"Filter by age: {what} than AGE ago, such as 10m, 2h or 7d")


@dataclass(frozen=True, slots=True)
class AgeOptions:
    """The options for the age of records at the time of a read, which `--watch` repeats."""

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
    """The options of a list: the options of its output, and `--all`."""

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
            list_filter = with_page(filter, limit=MAXIMUM_LIMIT)
            if hasattr(page, "sort_by"):
                # A row that changes while the pages are read keeps its place in this order.
                list_filter = with_page(list_filter, sort_by="created_at")

            def read_at(cursor: str | None) -> Awaitable[Document[Any]]:
                return read(with_page(list_filter, cursor=cursor))

            writer = ListWriter(self, columns, id_field)
            await writer.write_pages(target, read_at, page.cursor)
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

        watched_list = WatchedList(
            target=target,
            read=partial(read_page, target, read, filter),
            out=self,
            columns=columns,
            id_field=id_field,
            seconds=self.every or DEFAULT_SECONDS,
        )
        await watch_list(watched_list)


async def read_page(target: Target, read: Read[F], filter: F) -> Document[Any]:
    """Return the page of a list that a filter selects.

    A server compares a bounded number of rows with some filters (docs/contract.md "Lists"). It is
    asked again until the page has its length, or the list has ended.
    """
    from agentctl.records.document import build_document

    document = await read(filter)
    page: Any = getattr(filter, "page", filter)
    rows = list[Row](document.value["data"])
    meta = dict(document.value["meta"])
    if len(rows) >= page.limit or not meta.get("next_cursor"):
        return document

    # The first answer ended before the page was full.
    def read_more(cursor: str | None) -> Awaitable[Document[Any]]:
        return read(with_page(filter, cursor=cursor, limit=page.limit - len(rows)))

    next_cursor = meta["next_cursor"]
    async with showing_progress("searching"):
        async for more_rows, cursor in walk_pages(read_more, next_cursor):
            rows += more_rows
            next_cursor = cursor
            if len(rows) >= page.limit:
                break

    meta.pop("searched_until", None)
    meta["next_cursor"] = next_cursor
    if "total_count" in meta:
        meta["total_count"] = max(meta["total_count"], len(rows))
        if next_cursor is None and page.cursor is None:
            # The whole list was read, and it is this page.
            meta["total_is_capped"] = False
            meta["total_pages"] = 1
    return build_document({"data": rows, "meta": meta})


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

    `json` is an object like a page, with one row of `data` in each line, and the number of all rows
    in `meta`. A table has `TABLE_ROWS` rows; a longer list is several tables with headings.

    Args:
        is_array: `json` is an array, as it is for operations without pages.
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
        # The rows of a table that is not complete.
        self._table_rows: list[Record] = []

    async def write_pages(
        self, target: Target, read: ReadAt, start: str | None, option: str = "--cursor"
    ) -> None:
        """Write all rows of a list as their pages arrive.

        Args:
            start: the cursor of the first page to read; None for the first page of the list.
            option: the option that takes a cursor, for the note.

        Raises:
            AgentctlError: a page cannot be read. A note has the cursor that continues the list.
        """
        import asyncio

        counter = Counter("rows read")
        # On a terminal the rows themselves show the progress.
        progress = nullcontext() if current_io().out_is_terminal else showing_progress(counter)

        next_cursor = start
        try:
            async with progress:
                async for rows, cursor in walk_pages(read, start):
                    self._add(rows)
                    counter.done = self._count
                    next_cursor = cursor
        except (AgentctlError, asyncio.CancelledError):
            self._flush()
            if next_cursor is not None:
                row_count = format_count(self._count, "row")
                note(f"interrupted after {row_count}; continue with: --all {option} {next_cursor}")
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
            self._table_rows += rows
            if len(self._table_rows) >= TABLE_ROWS:
                self._flush()
        elif self._out.format == "json":
            self._write_array(rows, is_first=is_first)
        else:
            if self._out.format == "jsonl" and self._out.fields is not None:
                rows = [pick_values(row, self._columns.tsv) for row in rows]
            self._out.show_records(rows, self._columns, self._id_field, heading=is_first)

    def _flush(self) -> None:
        """Write a table of the rows that wait for it."""
        if self._table_rows:
            self._out.show_records(self._table_rows, self._columns, self._id_field)
            self._table_rows = []

    def _finish(self) -> None:
        self._flush()
        if self._out.format == "json":
            if not self._count:
                self._open_array()
            meta = b'],"meta":{"total_count":%d,"next_cursor":null}}' % self._count
            write_json(b"]" if self._is_array else meta)
        elif not self._count:
            self._out.show_records([], self._columns, self._id_field)

    def _open_array(self) -> None:
        write_json(b"[" if self._is_array else b'{"data":[')

    def _write_array(self, rows: Sequence[Record], *, is_first: bool) -> None:
        import orjson

        if self._out.fields is not None:
            rows = [pick_values(row, self._columns.tsv) for row in rows]

        lines = b"\n,".join(map(orjson.dumps, rows))
        if is_first:
            self._open_array()
            write_json(lines)
        else:
            write_json(b"," + lines)


def check_row_count(rows: list[Row]) -> None:
    """Raise InvalidResponse if a command has gathered more than `MAXIMUM_ROWS` rows."""
    if len(rows) > MAXIMUM_ROWS:
        raise build_endless_list_error(f"it has more than {MAXIMUM_ROWS:,} rows")
