"""The pages of a list, one after the other: with the cursor of each for the next one."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from agentctl.errors import InvalidResponse

if TYPE_CHECKING:
    from agentctl.records.document import Document

Row = dict[str, Any]
F = TypeVar("F")
Read = Callable[[F], Awaitable["Document[Any]"]]
ReadAt = Callable[[str | None], Awaitable["Document[Any]"]]
"""Returns the page at a cursor; None is the first page."""


async def read_pages(read: Read[F], filter: F) -> AsyncGenerator[list[Row]]:
    """Yield the rows of each page that matches a filter."""
    async for rows, _ in walk_pages(lambda cursor: read(with_page(filter, cursor=cursor))):
        yield rows


async def read_rows(read: Read[F], filter: F) -> AsyncGenerator[Row]:
    """Yield the rows of all pages that match a filter; errors as those of `walk_pages`."""
    async with aclosing(read_pages(read, filter)) as pages:
        async for rows in pages:
            for row in rows:
                yield row


def with_page(filter: F, **changes: Any) -> F:
    """Return a filter with another page."""
    values: Any = filter
    page = getattr(values, "page", None)
    if page is not None:
        changes = {"page": replace(page, **changes)}
    return cast(F, replace(values, **changes))


async def walk_pages(
    read: ReadAt, cursor: str | None = None
) -> AsyncGenerator[tuple[list[Row], str | None]]:
    """Yield the rows of each page, and the cursor of the next one; None on the last page.

    Raises:
        InvalidResponse: a page names itself as the next one, or has no rows although its total is
            known: the list would have no end.
    """
    import asyncio

    while True:
        page = (await read(cursor)).value
        rows, meta = page["data"], page["meta"]
        following = meta.get("next_cursor") or None
        yield rows, following
        if following is None:
            return
        # A page of a filter that no index has can be empty before the end (docs/decisions/0118).
        # So can one of another product that was searched here.
        can_be_empty = meta.get("total_is_capped") or meta.get("searched") == "page"
        if following == cursor or not (rows or can_be_empty):
            raise build_endless_list_error(
                "a page names a next page and has no rows, or names itself"
            )
        cursor = following
        # A local read does not suspend the command: here an interrupt can end it.
        await asyncio.sleep(0)


def build_endless_list_error(cause: str) -> InvalidResponse:
    return InvalidResponse(
        "the list of the server has no end", cause=cause, hint="use filters to make it shorter"
    )
