"""Lists that commands print: one page of the requested length, or with `--all` every page."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from agentctl.cli.io import current_io
from agentctl.cli.paging import Row, walk_pages, with_page
from agentctl.cli.show.fields import ColumnChoice
from agentctl.cli.show.list_writer import ListWriter
from agentctl.cli.show.output import Format, show_page
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.terminal import note
from agentctl.cli.show.watched_list import DEFAULT_SECONDS, WatchedList, watch_list
from agentctl.errors import AgentctlError
from agentctl.interface.requests import MAXIMUM_LIMIT
from agentctl.light_dataclass import dataclass

if TYPE_CHECKING:
    from agentctl.cli.target import Target
    from agentctl.records.document import Document

F = TypeVar("F")
Read = Callable[[F], Awaitable["Document[Any]"]]
ShowPage = Callable[..., None]


@dataclass(frozen=True, slots=True)
class ListView:
    """The form of a list; the attributes are the arguments of `show_list`."""

    columns: ColumnChoice
    format: Format
    id_field: str
    fields: str | None = None


async def show_filtered(
    target: Target,
    read: Read[F],
    filter: F,
    view: ListView,
    *,
    all_pages: bool,
    show: ShowPage = show_page,
) -> None:
    """Show the page of a list that a filter selects, or every page from there on.

    Args:
        read: the operation, such as `target.operations.get_runs`.
        filter: its filter, with a `page` or with the fields of one.
        all_pages: the option `--all`.
        show: writes one page.
    """
    page: Any = getattr(filter, "page", filter)
    if all_pages:
        created = {"sort_by": "created_at"} if hasattr(page, "sort_by") else {}
        whole = with_page(filter, limit=MAXIMUM_LIMIT, **created)
        await show_every_page(
            target, lambda cursor: read(with_page(whole, cursor=cursor)), view, start=page.cursor
        )
        return
    document = await read_page(target, read, filter)
    show(document, view.columns, view.format, id_field=view.id_field, fields=view.fields)


async def show_every_page(
    target: Target,
    read: Callable[[str | None], Awaitable[Document[Any]]],
    view: ListView,
    *,
    start: str | None = None,
    flag: str = "--cursor",
    is_array: bool = False,
) -> None:
    """Write all rows of a list as their pages arrive.

    Args:
        read: returns the page at a cursor.
        start: the cursor of the first page to read; None for that of the list.
        flag: the option that takes a cursor.
        is_array: see `ListWriter`.

    Raises:
        AgentctlError: a page cannot be read. A note has the cursor that continues the list.
    """
    import asyncio

    writer = ListWriter(
        view.columns, view.format, id_field=view.id_field, fields=view.fields, is_array=is_array
    )
    counter = Counter("rows read")
    reached, before = start, set[object]()
    # On a terminal the rows themselves show the progress.
    progress = nullcontext() if current_io().out_is_terminal else showing_progress(counter)
    try:
        async with progress:
            async for rows, cursor in walk_pages(read, start):
                # Another product has numbers of pages: a new row moves others to the next page.
                writer.add([row for row in rows if row.get(view.id_field) not in before])
                if target.product is not None:
                    before = {row.get(view.id_field) for row in rows}
                counter.done, reached = writer.count, cursor
    except (AgentctlError, asyncio.CancelledError):
        writer.flush()
        if reached is not None:
            note(f"interrupted after {writer.count} rows; continue with: --all {flag} {reached}")
        raise
    writer.finish()


async def read_page(target: Target, read: Read[F], filter: F) -> Document[Any]:
    """Return the page of a list that a filter selects.

    A server compares a bounded number of rows with some filters (docs/contract.md "Lists"). It is
    asked again until the page has its length, or the list has ended.
    """
    from agentctl.records.document import build_document

    document = await read(filter)
    page: Any = getattr(filter, "page", filter)
    rows, meta = document.value["data"], document.value["meta"]
    if target.product is not None or len(rows) >= page.limit or not meta.get("next_cursor"):
        return document
    found, reached = list[Row](rows), meta["next_cursor"]

    def read_rest(cursor: str | None) -> Awaitable[Document[Any]]:
        return read(with_page(filter, cursor=cursor, limit=page.limit - len(found)))

    async with showing_progress("searching"):
        async for more, cursor in walk_pages(read_rest, reached):
            found += more
            reached = cursor
            if len(found) >= page.limit:
                break
    known = {"total_count": max(meta["total_count"], len(found)), "next_cursor": reached}
    if reached is None and page.cursor is None:
        known |= {"total_is_capped": False, "total_pages": 1}
    return build_document({"data": found, "meta": {**meta, **known}})


async def watch_filtered(
    target: Target, read: Read[F], filter: F, view: ListView, seconds: float | None
) -> None:
    """Show the page of a list again and again; see `watch_list`."""
    await watch_list(
        WatchedList(
            target,
            partial(read_page, target, read, filter),
            view.columns,
            view.format,
            view.id_field,
            view.fields,
            seconds or DEFAULT_SECONDS,
        )
    )
