"""Lists of sessions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Any

from agentctl.interface.requests import SessionFilter
from agentctl.light_dataclass import dataclass
from agentctl.records.runs import LastRunState
from agentctl.records.sessions import SummaryRow
from agentctl.store.database import Steps, Work, unit
from agentctl.store.listing import (
    MAXIMUM_COMPARED,
    MAXIMUM_TOTAL,
    Conditions,
    Joined,
    Listing,
    RowPage,
    Slice,
    Times,
    fold_ascii,
    narrow,
)
from agentctl.store.repositories.run_reads import LAST_RUN_COLUMNS, select_newest
from agentctl.store.repositories.text_filters import (
    ERROR_TEXT,
    MAXIMUM_COMPARED_METADATA,
    match_metadata,
    match_text,
)
from agentctl.store.states import IS_LIVE
from agentctl.store.totals import ListTotals
from agentctl.store.visibility import Visibility


@dataclass(slots=True)
class ListedSession(SummaryRow):
    """A session of a list with its newest top-level run, if there is one."""

    last_run: LastRunState | None


SessionRowPage = RowPage[ListedSession]

_COLUMNS = [field.name for field in fields(SummaryRow)]

LISTING = Listing(
    table="sessions",
    columns=", ".join(_COLUMNS),
    id="session_id",
    removals="sessions",
    joined=Joined(
        LAST_RUN_COLUMNS,
        f"LEFT JOIN runs AS newest ON newest.run_id = {select_newest('page.session_id')}",
    ),
)

_NAME = "lower(session_name)"
_START_LENGTH = 3
"""Characters in the index `sessions_start`."""

_FEW = {"PENDING": IS_LIVE, "RUNNING": IS_LIVE, "PAUSED": "status = 'PAUSED'"}
"""Statuses of few runs: each condition is that of a partial index of runs."""

_LAST_ERROR = (
    f"(SELECT {ERROR_TEXT} FROM runs WHERE runs.session_id = sessions.session_id"
    " AND parent_run_id IS NULL ORDER BY seq DESC LIMIT 1)"
)


def list_page(
    filter: SessionFilter, visibility: Visibility, page: Slice, totals: ListTotals | None = None
) -> Work[SessionRowPage]:
    """Read a page of the visible sessions that match a filter, and their total."""
    conditions = _match_columns(filter, visibility)
    times, compared = _match_times(filter, page)
    compared = compared.with_all(_match_texts(filter))
    sort_ids = filter.id_prefix is not None
    parses = filter.metadata or filter.tag
    maximum = MAXIMUM_COMPARED_METADATA if parses else MAXIMUM_COMPARED
    if filter.session_name:
        return _list_named(
            filter.session_name, conditions, compared, page, times, sort_ids, totals, maximum
        )
    if compared.texts:
        return LISTING.read_compared(
            conditions, compared, page, _build_row, times, maximum=maximum, sort_ids=sort_ids
        )
    return LISTING.list_page(conditions, page, _build_row, totals, times, sort_ids=sort_ids)


@unit
def _list_named(
    name: str,
    conditions: Conditions,
    compared: Conditions,
    page: Slice,
    times: Times,
    sort_ids: bool,
    totals: ListTotals | None,
    maximum: int,
) -> Steps[SessionRowPage]:
    folded, prefix = fold_ascii(name), Conditions()
    by_name = conditions.with_prefix(_NAME, folded, "name")
    total = yield from LISTING.count(by_name.with_times(*times, page.sort), totals)
    if total <= MAXIMUM_TOTAL:
        conditions, sort_ids = by_name, True
    else:
        # The index of names is not in the order of the list. With more names than that, a page
        # is found sooner by reading the list in its order than by sorting.
        prefix = prefix.with_condition(
            f"substr({_NAME}, 1, :name_length) = :name_prefix",
            name_length=len(folded),
            name_prefix=folded,
        )
        if page.sort == "created_at" and len(folded) >= _START_LENGTH:
            conditions = conditions.with_condition(
                f"substr({_NAME}, 1, {_START_LENGTH}) = :name_start",
                name_start=folded[:_START_LENGTH],
            )
    if compared.texts:
        return (
            yield from LISTING.read_compared(
                conditions, prefix.with_all(compared), page, _build_row, times,
                maximum=maximum, sort_ids=sort_ids,
            )
        )  # fmt: skip
    matching, page = narrow(conditions.with_all(prefix), page, *times)
    return (yield from LISTING.read(matching, page, _build_row, total, sort_ids=sort_ids))


def _build_row(*values: Any) -> ListedSession:
    own, last = values[: len(_COLUMNS)], values[len(_COLUMNS) :]
    last_run = None if last[0] is None else LastRunState(*last)
    return ListedSession(*[*own, last_run])


def build_conditions(filter: SessionFilter, visibility: Visibility) -> Conditions:
    """Return the conditions of all filters on the columns of `sessions`, for rows found by id."""
    times, compared = _match_times(filter, Slice())
    conditions = _match_columns(filter, visibility).with_times(*times)
    if filter.session_name:
        conditions = conditions.with_prefix(_NAME, fold_ascii(filter.session_name), "name")
    return conditions.with_all(compared).with_all(_match_texts(filter))


def _match_columns(filter: SessionFilter, visibility: Visibility) -> Conditions:
    conditions = (
        visibility.conditions()
        .with_equal(
            session_type=filter.where.type,
            component_id=filter.component_id,
            user_id=filter.where.user_id,
        )
        .with_prefix("session_id", filter.id_prefix)
    )
    if filter.status in _FEW:
        few = f"session_id IN (SELECT runs.session_id FROM runs WHERE {_FEW[filter.status]})"
        conditions = conditions.with_condition(few)
    return conditions


def _match_times(filter: SessionFilter, page: Slice) -> tuple[Times, Conditions]:
    """Return the bounds of the time of the order, and the conditions on the other time.

    A session is not used before its creation, so one bound of the other time is one of the order.
    """
    created = filter.created_after, filter.created_before
    updated = filter.updated_after, filter.updated_before
    if page.sort == "created_at":
        times = created[0], _pick(min, created[1], updated[1])
        other, (after, before) = "updated_at", updated
    else:
        times = _pick(max, updated[0], created[0]), updated[1]
        other, (after, before) = "created_at", created
    # The sum keeps the index of the other time, which is not in the order of the list, out of use.
    conditions = Conditions().with_present(f"{other} + 0 >= :other_since", other_since=after)
    return times, conditions.with_present(f"{other} + 0 < :other_before", other_before=before)


def _pick(choose: Callable[[Iterable[int]], int], *times: int | None) -> int | None:
    given = [time for time in times if time is not None]
    return choose(given) if given else None


def _match_texts(filter: SessionFilter) -> Conditions:
    status = filter.status or ("ERROR" if filter.error is not None else None)
    conditions = Conditions().with_equal(last_status=status)
    conditions = conditions.with_all(match_metadata(filter.metadata, filter.tag))
    if filter.error is not None:
        conditions = conditions.with_all(match_text(_LAST_ERROR, filter.error))
    return conditions
