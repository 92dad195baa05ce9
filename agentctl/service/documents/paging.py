"""Pages of lists: page numbers up to an offset, and cursors (docs/contract.md "Lists")."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from agentctl import errors
from agentctl.interface.declarations import list_status_filters
from agentctl.interface.requests import (
    MAXIMUM_CUT,
    MAXIMUM_LIMIT,
    MAXIMUM_OFFSET,
    MINIMUM_ID_PREFIX,
    Page,
    RunFilter,
    RunView,
    SessionFilter,
)
from agentctl.interface.requests.lists import check_text_filters
from agentctl.records.audit import CursorMeta
from agentctl.records.text import check_text
from agentctl.records.times import format_rfc3339
from agentctl.store.database import Database
from agentctl.store.listing import MAXIMUM_TOTAL, Cursor, RowPage, Slice, Total
from agentctl.store.repositories.search_pages import WordSearch
from agentctl.store.search import parse_search

if TYPE_CHECKING:
    from agentctl.interface.requests.approvals import ApprovalFilter

T = TypeVar("T")


def check_run_filter(filter: RunFilter) -> None:
    """Check the filter of a list of runs; `build_slice` checks its page.

    Raises:
        ValidationFailed: a value is not allowed, or two filters cannot be used together.
    """
    if filter.page.sort_by != "created_at":
        raise errors.ValidationFailed("sort_by must be created_at: runs have no other order")
    if filter.live and filter.status is not None:
        raise errors.ValidationFailed("live and status cannot be used together: give one of them")

    _check_ended(filter)
    _check_times(filter, ("created", "created"), ("finished", "finished"), ("created", "finished"))

    bounds = (filter.created_after, filter.finished_after, filter.session_id)
    if bounds == (None, None, None):
        # No index has these columns, because every run would write it.
        for name, value in (("model", filter.model), ("version", filter.version)):
            if value is not None:
                raise errors.ValidationFailed(
                    f"{name} needs created_after, finished_after or session_id",
                    hint="name a time: --newer-than 7d",
                )

    check_filter(filter)
    check_run_view(filter.form)
    check_text_filters(filter.metadata, filter.tag, filter.error)


def _check_ended(filter: RunFilter) -> None:
    """Refuse a status together with a filter that matches no run of this status."""
    kinds = list_status_filters(RunFilter)
    given_names = [name for name in kinds if getattr(filter, name)]

    if filter.live or filter.status in ("PENDING", "RUNNING", "PAUSED"):
        kind = "ended"
    elif filter.status in ("COMPLETED", "CANCELLED"):
        kind = "failed"
        given_names = [name for name in given_names if kinds[name] == "failed"]
    else:
        return

    if given_names:
        status_filter = "live" if filter.live else f"status {filter.status}"
        _refuse(status_filter, given_names[0], f"finds {kind} runs only")


def _check_times(filter: Any, *pairs: tuple[str, str]) -> None:
    """Refuse bounds that no row is between.

    Args:
        filter: a filter with fields `…_after` and `…_before` for each time.
        pairs: names of two times each; the first time is never later than the second.
    """
    for first, second in pairs:
        after = getattr(filter, f"{first}_after")
        before = getattr(filter, f"{second}_before")
        if after is not None and before is not None and after >= before:
            raise errors.ValidationFailed(f"{first}_after must be earlier than {second}_before")


def _refuse(first: str, second: str, reason: str) -> NoReturn:
    raise errors.ValidationFailed(
        f"{first} and {second} cannot be used together: {second} {reason}"
    )


def check_approval_filter(filter: ApprovalFilter) -> None:
    """Check the filter of a list of approvals; `build_slice` checks its page.

    Raises:
        ValidationFailed: a value is not allowed, or two filters cannot be used together.
    """
    if filter.page.sort_by != "created_at":
        raise errors.ValidationFailed("sort_by must be created_at: approvals have no other order")
    if filter.execution is not None and filter.status not in (None, "approved", "answered"):
        _refuse(f"status {filter.status}", "execution", "finds approved or answered calls only")
    check_filter(filter)


def check_session_filter(filter: SessionFilter) -> None:
    """Check the filter of a list of sessions; `build_slice` checks its page.

    Raises:
        ValidationFailed: a value is not allowed, or two filters cannot be used together.
    """
    check_filter(filter)
    check_filter(filter.where)
    if filter.error is not None and filter.status not in (None, "ERROR"):
        _refuse(f"status {filter.status}", "error", "finds failed sessions only")
    _check_times(filter, ("created", "created"), ("updated", "updated"), ("created", "updated"))
    if filter.search is not None and filter.page.sort_by != "created_at":
        raise errors.ValidationFailed("sort_by must be created_at with search")
    check_text_filters(filter.metadata, filter.tag, filter.error)


def build_search(database: Database, text: str | None) -> WordSearch | None:
    """Return the search for the words of a filter; None if there are none.

    Raises:
        BadRequest: search is not enabled.
        ValidationFailed: the words are not allowed.
    """
    if text is None:
        return None
    words = parse_search(text, database.outbox.tokenizer)
    return WordSearch(words, is_sqlite=database.load().kind == "sqlite")


def build_slice(noun: str, page: Page) -> Slice:
    """Return the part of a list that a page selects.

    Args:
        noun: the name of the list, such as `sessions`; its cursors contain it.
        page: the page.

    Raises:
        ValidationFailed: a number is out of range, or the cursor is not valid for this list and
            order.
    """
    check_limit(page.limit)
    if page.page < 1:
        raise errors.ValidationFailed("page must be a number from 1")

    after, total = _decode_cursor(noun, page)
    offset = 0
    if after is None:
        offset = (page.page - 1) * page.limit
    if offset > MAXIMUM_OFFSET:
        raise errors.ValidationFailed(
            f"page reaches beyond row {MAXIMUM_OFFSET:,}: use cursor with meta.next_cursor"
        )
    return Slice(page.sort_by, page.sort_order, page.limit, offset, after, total)


def encode_cursor(noun: str, page: Page, rows: RowPage[Any]) -> str | None:
    """Return the cursor of the next page, bound to the list and its order; None: no next page.

    It has the total of the list too, if the next pages have the same total.
    """
    if rows.next is None:
        return None

    key, row_id = rows.next
    total = ""
    if rows.keeps_total:
        total = f"={rows.total}+" if rows.capped else f"={rows.total}"
    return pack_cursor(f"{noun}{total}:{page.sort_by}:{page.sort_order}:{key}:{row_id}")


def _decode_cursor(noun: str, page: Page) -> tuple[Cursor | None, Total | None]:
    if page.cursor is None:
        return None, None

    def parse(text: str) -> tuple[list[str], Cursor, Total | None]:
        list_name, *order, key, row_id = text.split(":", 4)
        name, has_total, total_text = list_name.partition("=")
        total = None
        if has_total:
            count = min(abs(int(total_text.rstrip("+"))), MAXIMUM_TOTAL)
            total = (count, total_text.endswith("+"))
        return [name, *order], (int(key), check_text("cursor", row_id)), total

    list_and_order, position, total = unpack_cursor(page.cursor, parse)
    is_of_list = list_and_order == [noun, page.sort_by, page.sort_order]
    # The databases have numbers of 64 bits.
    if not is_of_list or abs(position[0]) >= 2**63:
        raise errors.ValidationFailed("cursor belongs to another list, or to one in another order")
    return position, total


def pack_cursor(text: str) -> str:
    """Return a text as a cursor, which callers do not read."""
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def unpack_cursor(cursor: str, parse: Callable[[str], T]) -> T:
    """Return the value of a cursor; `parse` raises ValueError for a text that has none.

    Raises:
        ValidationFailed: the cursor is not valid.
    """
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        return parse(
            base64.b64decode(padded.encode("ascii"), altchars=b"-_", validate=True).decode()
        )
    except ValueError:
        raise errors.ValidationFailed(
            "cursor must be the next_cursor of an earlier response"
        ) from None


def build_number_cursor(noun: str, before: int | None) -> str | None:
    """Return the cursor of a page of a list by numbers; None if there is none."""
    return None if before is None else pack_cursor(f"{noun}:{before}")


def build_cursor_meta(cursor: str | None, searched_until: int | None) -> CursorMeta:
    """Return the meta of a page without a total.

    Args:
        searched_until: the time up to which the rows were searched; None if the search did not end
            early.
    """
    meta = CursorMeta(next_cursor=cursor)
    if searched_until is not None:
        meta["searched_until"] = format_rfc3339(searched_until)
    return meta


def parse_number_cursor(noun: str, limit: int, cursor: str | None) -> int | None:
    """Return the number before which a page begins; None for the newest rows."""
    check_limit(limit)

    def parse(text: str) -> int:
        digits = text.removeprefix(f"{noun}:")
        if digits == text or not 1 <= len(digits) <= 18:
            raise ValueError
        return int(digits)

    return None if cursor is None else unpack_cursor(cursor, parse)


def check_limit(limit: int) -> None:
    """Check the maximum number of results.

    Raises:
        ValidationFailed: it is out of range.
    """
    if not 1 <= limit <= MAXIMUM_LIMIT:
        raise errors.ValidationFailed(f"limit must be a number from 1 to {MAXIMUM_LIMIT}")


def check_run_view(view: RunView) -> None:
    """Check the form of the runs in a response.

    Raises:
        ValidationFailed: `cut` is out of range.
    """
    if view.cut is not None and not 1 <= view.cut <= MAXIMUM_CUT:
        raise errors.ValidationFailed(f"cut must be a number of characters from 1 to {MAXIMUM_CUT}")


def check_filter(filter: Any) -> None:
    """Check each text of a dataclass; drivers report NUL and surrogates in different ways.

    Raises:
        ValidationFailed: `id_prefix` is too short, or no database accepts a text.
    """
    for name in filter.__dataclass_fields__:
        value = getattr(filter, name)
        if not isinstance(value, str):
            continue
        if name == "id_prefix" and len(value) < MINIMUM_ID_PREFIX:
            raise errors.ValidationFailed(
                f"id_prefix must be at least {MINIMUM_ID_PREFIX} characters"
            )
        check_text(name, value)
