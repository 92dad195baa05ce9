"""All pages of a list, one after the other."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import TYPE_CHECKING, Any

from agentctl.errors import InvalidResponse

if TYPE_CHECKING:
    from agentctl.records.document import Document

MAXIMUM_ROWS = 1_000_000
"""Rows of one list that a command keeps in memory."""

Row = dict[str, Any]


async def read_pages(
    read: Callable[[str | None], Awaitable[Document[Any]]],
) -> AsyncGenerator[list[Row]]:
    """Yield the rows of each page.

    Args:
        read: returns the page at a cursor; None is the first page.

    Raises:
        InvalidResponse: a page names a next one and has no rows, or names itself: the list would
            have no end.
    """
    cursor: str | None = None
    while True:
        page = (await read(cursor)).value
        rows, following = page["data"], page["meta"].get("next_cursor")
        yield rows
        if not following:
            return
        if not rows or following == cursor:
            raise _build_endless_list_error(
                "a page names a next page and has no rows, or names itself"
            )
        cursor = following


def check_row_count(rows: list[Row]) -> None:
    """Check the number of rows that a command has gathered.

    Raises:
        InvalidResponse: there are more than `MAXIMUM_ROWS`.
    """
    if len(rows) > MAXIMUM_ROWS:
        raise _build_endless_list_error(f"it has more than {MAXIMUM_ROWS:,} rows")


def _build_endless_list_error(cause: str) -> InvalidResponse:
    return InvalidResponse(
        "the list of the server has no end", cause=cause, hint="use filters to make it shorter"
    )
