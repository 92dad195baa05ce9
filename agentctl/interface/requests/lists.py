"""Lists: their pages, and the filters of lists of sessions and of runs.

A page has the cursor for the next page. The filters are status, age, metadata, tags and errors;
docs/contract.md "Lists" has their meaning.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

from agentctl.errors import InvalidResponse, ValidationFailed
from agentctl.interface.declarations import Option, Query
from agentctl.records.text import check_text
from agentctl.records.times import ParsedTimestamp

if TYPE_CHECKING:
    from agentctl.records.document import Document


Row = dict[str, Any]
F = TypeVar("F")

Read = Callable[[F], Awaitable["Document[Any]"]]
"""Returns the page that a filter selects."""

ReadAt = Callable[[str | None], Awaitable["Document[Any]"]]
"""Returns the page at a cursor; None is the first page."""


async def read_pages(read: Read[F], filter: F) -> AsyncGenerator[list[Row]]:
    """Yield the rows of each page that matches a filter."""
    async for rows, _ in walk_pages(lambda cursor: read(with_page(filter, cursor=cursor))):
        yield rows


async def read_rows(read: Read[F], filter: F) -> AsyncGenerator[Row]:
    """Yield the rows of all pages that match a filter; the errors are those of `walk_pages`."""
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
    """Yield the rows of each page, and the cursor of the next page; None on the last page.

    Raises:
        InvalidResponse: a page names itself as the next page, or has no rows although its total is
            known: the list would have no end.
    """
    import asyncio

    while True:
        page = (await read(cursor)).value
        rows = page["data"]
        meta = page["meta"]
        next_cursor = meta.get("next_cursor") or None
        yield rows, next_cursor
        if next_cursor is None:
            return

        # A page of a filter that no index has can be empty before the end (decision 118).
        can_be_empty = meta.get("total_is_capped") or "searched_until" in meta
        if next_cursor == cursor or not (rows or can_be_empty):
            raise build_endless_list_error(
                "a page names a next page and has no rows, or names itself"
            )

        cursor = next_cursor
        # A local read does not suspend the command: here an interrupt can end it.
        await asyncio.sleep(0)


def build_endless_list_error(cause: str) -> InvalidResponse:
    """Build the error of a list that a server would continue for ever."""
    return InvalidResponse(
        "the list of the server has no end", cause=cause, hint="use filters to make it shorter"
    )


MAXIMUM_PAIRS = 4
"""Maximum number of metadata filters of one list."""

MAXIMUM_TAGS = 4
"""Maximum number of tag filters of one list."""

MAXIMUM_KEY_LENGTH = 64
"""Maximum number of characters of a key of the metadata."""

MAXIMUM_VALUE_LENGTH = 256
"""Maximum number of characters of a value of the metadata, and of a tag."""

MAXIMUM_ERROR_LENGTH = 200
"""Maximum number of characters of the text of an error."""

TAGS = "tags"
"""The key of the metadata that has the tags, an array of texts."""

STATUS_OPTION = Option(
    "--status",
    "STATUS",
    "Filter by status: PENDING, RUNNING, PAUSED, COMPLETED, ERROR or CANCELLED",
    any_case=True,
)
CreatedAfter = Annotated[
    ParsedTimestamp | None, Query("Only sessions created at or after this time")
]
CreatedBefore = Annotated[ParsedTimestamp | None, Query("Only sessions created before this time")]
UpdatedAfter = Annotated[
    ParsedTimestamp | None, Query("Only sessions last used at or after this time")
]
UpdatedBefore = Annotated[ParsedTimestamp | None, Query("Only sessions last used before this time")]
MetadataFilter = Annotated[
    tuple[str, ...],
    Query(
        "`KEY=VALUE`: only those whose metadata has this value under this key; may be repeated",
        max_items=MAXIMUM_PAIRS,
    ),
    Option("--metadata", "KEY=VALUE", "Filter by metadata value (repeatable)"),
]
TagFilter = Annotated[
    tuple[str, ...],
    Query(
        "Only those with this text in `tags` of their metadata; may be repeated",
        max_items=MAXIMUM_TAGS,
    ),
    Option("--tag", "TAG", "Filter by metadata tag (repeatable)"),
]
ErrorFilter = Annotated[
    str | None,
    Query(
        "Only those that failed with this text in the code or the detail of the error",
        min_length=1,
        max_length=MAXIMUM_ERROR_LENGTH,
    ),
    Option("--error", "TEXT", "Filter failures by text in the error code or detail"),
]


def check_text_filters(
    metadata: Sequence[str], tags: Sequence[str], error: str | None = None
) -> None:
    """Raise ValidationFailed for filters that are not allowed, or too many."""
    for name, texts, maximum in (
        ("metadata", metadata, MAXIMUM_PAIRS),
        ("tag", tags, MAXIMUM_TAGS),
    ):
        if len(texts) > maximum:
            raise ValidationFailed(f"{name} can be given at most {maximum} times")
        check_text(name, "".join(texts))

    for pair in metadata:
        key, separator, value = pair.partition("=")
        is_key = 1 <= len(key) <= MAXIMUM_KEY_LENGTH and _is_member_name(key)
        if not separator or not is_key:
            raise ValidationFailed(
                f"metadata must be KEY=VALUE, with a key of 1 to {MAXIMUM_KEY_LENGTH} characters"
                " without quotation marks, backslashes and control characters"
            )
        if len(value) > MAXIMUM_VALUE_LENGTH:
            raise ValidationFailed(
                f"the value of metadata must be at most {MAXIMUM_VALUE_LENGTH} characters"
            )

    if not all(1 <= len(tag) <= MAXIMUM_VALUE_LENGTH for tag in tags):
        raise ValidationFailed(f"tag must be 1 to {MAXIMUM_VALUE_LENGTH} characters")

    if error is not None:
        check_text("error", error)
        if not 1 <= len(error) <= MAXIMUM_ERROR_LENGTH:
            raise ValidationFailed(f"error must be 1 to {MAXIMUM_ERROR_LENGTH} characters")


def _is_member_name(key: str) -> bool:
    """Return True if a key can be part of a path of JSON in SQLite."""
    return key.isprintable() and not set(key) & {'"', "\\"}
