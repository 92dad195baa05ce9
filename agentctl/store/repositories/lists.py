"""Lists of runs across sessions, and of sessions.

No index has the metadata of a row and the error of a run: `Listing.read_compared` bounds the number
of rows with which such a filter is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any

import orjson

from agentctl.interface.requests import RunFilter, SessionFilter
from agentctl.interface.requests.list_filters import TAGS
from agentctl.light_dataclass import dataclass
from agentctl.records.items import SUMMARY_VIEWS
from agentctl.records.runs import LastRunState, RunRow
from agentctl.records.sessions import SummaryRow
from agentctl.store.database import Steps, Value, Work, unit
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
from agentctl.store.repositories.run_reads import (
    LAST_RUN_COLUMNS,
    RUN_COLUMNS,
    SUMMARY_COLUMNS,
    select_newest,
)
from agentctl.store.states import IS_AT_WORK, IS_LIVE
from agentctl.store.totals import ListTotals
from agentctl.store.visibility import Visibility

RunRowPage = RowPage[RunRow]

_RUNS = Listing(table="runs", columns=RUN_COLUMNS, id="run_id", removals="runs")

_SUMMARIES = Listing(table="runs", columns=SUMMARY_COLUMNS, id="run_id", removals="runs")

MAXIMUM_METADATA = 8_192
"""Bytes of the largest metadata that filters are compared with (docs/contract.md "Lists")."""

MAXIMUM_COMPARED_METADATA = 2_000
"""Rows whose metadata is compared for a page: each one is parsed for each filter. To find that of a
run, SQLite reads the whole row."""

_ERROR_TEXT = "lower(error_code || ' ' || coalesce(error_detail, ''))"
"""The text of the error of a run, NULL without one."""

_SESSION_COLUMNS = [field.name for field in fields(SummaryRow)]

SESSIONS = Listing(
    table="sessions",
    columns=", ".join(_SESSION_COLUMNS),
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
    f"(SELECT {_ERROR_TEXT} FROM runs WHERE runs.session_id = sessions.session_id"
    " AND parent_run_id IS NULL ORDER BY seq DESC LIMIT 1)"
)


@unit
def list_runs(
    filter: RunFilter, visibility: Visibility, page: Slice, totals: ListTotals | None = None
) -> Steps[RunRowPage]:
    """Read a page of the visible runs that match a filter, and their total.

    Args:
        page: the page, in the order of `created_at`.
    """
    failed = filter.error_code is not None or filter.error is not None
    conditions = (
        visibility.conditions()
        .with_equal(
            # There is an index for the failed runs, which are few.
            status=filter.status or ("ERROR" if failed else None),
            component_type=filter.component_type,
            component_id=filter.component_id,
            session_id=filter.session_id,
            user_id=filter.user_id,
        )
        .with_prefix("run_id", filter.id_prefix)
    )
    live = filter.live or filter.status in ("PENDING", "RUNNING")
    if live:
        conditions = conditions.with_condition(IS_LIVE)
    if filter.at_work:
        conditions = conditions.with_condition(IS_AT_WORK)
    after = filter.finished_after
    conditions = conditions.with_present("finished_at >= :finished_after", finished_after=after)
    # A run leaves these lists without being deleted, so they are always counted.
    changing = live or filter.at_work or filter.finished_after is not None
    listing = _SUMMARIES if filter.form.view in SUMMARY_VIEWS else _RUNS
    sort_ids = changing or filter.id_prefix is not None
    unindexed = _match_unindexed(filter)
    since, before = filter.created_after, filter.created_before
    metadata = _match_metadata(filter.metadata, filter.tag)
    if metadata.texts or filter.error is not None:
        compared = unindexed.with_all(metadata)
        if filter.error is not None:
            compared = compared.with_all(_match_text(_ERROR_TEXT, filter.error))
        maximum = MAXIMUM_COMPARED_METADATA if metadata.texts else MAXIMUM_COMPARED
        return (
            yield from listing.read_compared(
                conditions, compared, page, RunRow, (since, before),
                maximum=maximum, sort_ids=sort_ids,
            )
        )  # fmt: skip
    return (
        yield from listing.list_page(
            conditions.with_all(unindexed), page, RunRow, None if changing else totals,
            (since, before), sort_ids=sort_ids,
        )
    )  # fmt: skip


def _match_unindexed(filter: RunFilter) -> Conditions:
    conditions = Conditions().with_equal(
        model=filter.model, version=filter.version, error_code=filter.error_code
    )
    if filter.parent == "none":
        conditions = conditions.with_condition("parent_run_id IS NULL")
    # Without a beginning it matches most runs: the sum keeps the index of times out of use.
    ended = "finished_at" if filter.finished_after is not None else "finished_at + 0"
    before = filter.finished_before
    return conditions.with_present(f"{ended} < :finished_before", finished_before=before)


def _match_metadata(metadata: Sequence[str], tags: Sequence[str]) -> Conditions:
    """Return the condition that the metadata of a row has some values and tags.

    Args:
        metadata: `KEY=VALUE`. The value is a text, or the JSON text of another value.
        tags: texts of the array `tags`.
    """
    texts = list[str]()
    values = dict[str, Value]()
    for number, pair in enumerate(metadata):
        values[f"key_{number}"], _, text = pair.partition("=")
        values[f"text_{number}"], values[f"json_{number}"] = orjson.dumps(text).decode(), text
        member = f"json_member(metadata, :key_{number})"
        texts.append(f"{member} IN (:text_{number}, :json_{number})")
    for number, tag in enumerate(tags):
        values[f"tag_{number}"] = tag
        texts.append(f"json_has(metadata, '{TAGS}', :tag_{number})")
    if not texts:
        return Conditions()
    return Conditions().with_condition(
        # The condition of a CASE precedes the rest: a large text is not parsed, nor one with an
        # escaped NUL, which PostgreSQL refuses to read. It can be in an imported session.
        f"CASE WHEN octet_length(metadata) <= {MAXIMUM_METADATA}"
        r" AND metadata NOT LIKE '%\u0000%' ESCAPE '!'"
        f" THEN {' AND '.join(texts)} ELSE FALSE END",
        **values,
    )


def _match_text(column: str, text: str) -> Conditions:
    """Return the condition that a column in lower case has a text, in any case of ASCII letters."""
    lowered = fold_ascii(text)
    for special in ("\\", "%", "_"):
        lowered = lowered.replace(special, f"\\{special}")
    return Conditions().with_condition(f"{column} LIKE :error ESCAPE '\\'", error=f"%{lowered}%")


@dataclass(slots=True)
class ListedSession(SummaryRow):
    """A session of a list with its newest top-level run, if there is one."""

    last_run: LastRunState | None


SessionRowPage = RowPage[ListedSession]


def list_sessions(
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
        return SESSIONS.read_compared(
            conditions, compared, page, _build_row, times, maximum=maximum, sort_ids=sort_ids
        )
    return SESSIONS.list_page(conditions, page, _build_row, totals, times, sort_ids=sort_ids)


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
    total = yield from SESSIONS.count(by_name.with_times(*times, page.sort), totals)
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
            yield from SESSIONS.read_compared(
                conditions, prefix.with_all(compared), page, _build_row, times,
                maximum=maximum, sort_ids=sort_ids,
            )
        )  # fmt: skip
    matching, page = narrow(conditions.with_all(prefix), page, *times)
    return (yield from SESSIONS.read(matching, page, _build_row, total, sort_ids=sort_ids))


def _build_row(*values: Any) -> ListedSession:
    own, last = values[: len(_SESSION_COLUMNS)], values[len(_SESSION_COLUMNS) :]
    last_run = None if last[0] is None else LastRunState(*last)
    return ListedSession(*[*own, last_run])


def match_sessions(filter: SessionFilter, visibility: Visibility) -> Conditions:
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
    conditions = conditions.with_all(_match_metadata(filter.metadata, filter.tag))
    if filter.error is not None:
        conditions = conditions.with_all(_match_text(_LAST_ERROR, filter.error))
    return conditions
