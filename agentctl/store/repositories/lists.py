"""Lists of runs across sessions, and of sessions: their filters and indexes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

import orjson

from agentctl.interface.requests import RunFilter, SessionFilter
from agentctl.interface.requests.lists import TAGS
from agentctl.records.items import SUMMARY_VIEWS
from agentctl.records.runs import LastRunState, RunRow
from agentctl.records.sessions import SummaryRow
from agentctl.store.compared import MAXIMUM_READ, Filtered, FilterRange, build_lead, find_by_prefix
from agentctl.store.database import Value, Work
from agentctl.store.listing import Conditions, Joined, Listing, RowPage, Slice, Times, fold_ascii
from agentctl.store.repositories import run_reads
from agentctl.store.repositories.search import FARTHEST, LATEST, SHARE
from agentctl.store.repositories.search_pages import FoundList, WordSearch, list_page
from agentctl.store.states import IS_AT_WORK, IS_LIVE
from agentctl.store.totals import ListTotals
from agentctl.store.visibility import Visibility

_RUNS = Listing(table="runs", columns=run_reads.RUN_COLUMNS, id="run_id", removals="runs")

_SUMMARIES = Listing(table="runs", columns=run_reads.SUMMARY_COLUMNS, id="run_id", removals="runs")

MAXIMUM_METADATA = 8_192
"""Bytes of the largest metadata that filters are compared with (docs/contract.md "Lists")."""

_ERROR_TEXT = "lower(error_code || ' ' || coalesce(error_detail, ''))"
"""The text of the error of a run, NULL without one."""

_SESSION_COLUMNS = [field.name for field in fields(SummaryRow)]

SESSIONS = Listing(
    table="sessions",
    columns=", ".join(_SESSION_COLUMNS),
    id="session_id",
    removals="sessions",
    joined=Joined(
        run_reads.LAST_RUN_COLUMNS,
        f"LEFT JOIN runs AS newest ON newest.run_id = {run_reads.select_newest('page.session_id')}",
    ),
)

_NAME = "lower(session_name)"

_FEW = {"PENDING": IS_LIVE, "RUNNING": IS_LIVE, "PAUSED": "status = 'PAUSED'"}
"""Conditions for statuses that few runs have; a partial index has the same condition."""

_LAST_ERROR = (
    f"(SELECT {_ERROR_TEXT} FROM runs WHERE runs.session_id = sessions.session_id"
    " AND parent_run_id IS NULL ORDER BY seq DESC LIMIT 1)"
)


_RARE = ("PAUSED", "ERROR", "CANCELLED")
"""Statuses that few runs have: the statuses of the index `runs_by_status`."""

_RUN_LEADS = (
    build_lead("session_id"),
    build_lead("user_id", "status component_type component_id"),
    build_lead("component_id", "component_type"),
    build_lead("", "component_type"),
)
"""The indexes of all runs."""

_RARE_RUN_LEADS = (
    *_RUN_LEADS[:2],
    build_lead("status", "component_type component_id", f"status IN {_RARE}"),
)
"""The indexes for runs with a status of `_RARE`."""


def list_runs(
    filter: RunFilter,
    visibility: Visibility,
    page: Slice,
    totals: ListTotals | None = None,
    search: WordSearch | None = None,
) -> Work[RowPage[RunRow]]:
    """Read a page of the visible runs that match a filter, and their total.

    Args:
        page: the page, in the order of `created_at`; in a search, in the order of the sessions.
        search: the words of the filter, if it has some.
    """
    listing = _SUMMARIES if filter.form.view in SUMMARY_VIEWS else _RUNS
    if search is not None:
        # The places of a session's texts are next to each other: each run is a group.
        found_list = FoundList(listing, RunRow, "t.place", span=1, share=1, last=FARTHEST)
        searched_data = visibility.narrow(filter.user_id)
        conditions = _match_runs(filter, visibility)
        return list_page(found_list, search, searched_data, conditions, page)

    ranges = find_by_prefix("run_id", filter.id_prefix)
    finished_after = filter.finished_after
    if finished_after is not None:
        indexed = Conditions().with_condition(
            "finished_at >= :finished_after", finished_after=finished_after
        )
        indexed = indexed.with_present(
            "finished_at < :finished_before", finished_before=filter.finished_before
        )

        # The sum keeps the index of ends, which is not in the order of the list, out of use.
        single = Conditions().with_condition(
            "finished_at + 0 >= :finished_after", finished_after=finished_after
        )
        ranges.append(FilterRange(indexed, single, MAXIMUM_READ, "finished_at"))

    equal = _get_run_columns(filter)
    compared = _compare_run(filter)
    leads = _RARE_RUN_LEADS if equal["status"] in _RARE else _RUN_LEADS
    # No run ends before its beginning.
    created_before = _pick_bound(min, filter.created_before, filter.finished_before)

    filtered = Filtered(
        listing,
        leads,
        visibility,
        equal,
        few=_match_few_runs(filter),
        compared=compared,
        ranges=ranges,
        times=(filter.created_after, created_before),
        totals=totals,
        matches_most=equal["status"] == "COMPLETED" and not compared.texts,
    )
    return filtered.list_page(page, RunRow)


def _match_runs(filter: RunFilter, visibility: Visibility) -> Conditions:
    """Return the conditions of all filters on the columns of `runs`, for rows found by id."""
    conditions = visibility.conditions().with_equal(**_get_run_columns(filter))
    conditions = conditions.with_prefix("run_id", filter.id_prefix)
    conditions = conditions.with_times(filter.created_after, filter.created_before)
    conditions = conditions.with_present(
        "finished_at >= :finished_after", finished_after=filter.finished_after
    )
    return conditions.with_all(_match_few_runs(filter)).with_all(_compare_run(filter))


def _get_run_columns(filter: RunFilter) -> dict[str, Value]:
    """Return the values of the columns that indexes of runs have; None if not filtered."""
    status: str | None = filter.status
    if status is None and (filter.error_code is not None or filter.error is not None):
        # There is an index for the failed runs, which are few.
        status = "ERROR"

    return {
        "session_id": filter.session_id,
        "user_id": filter.user_id,
        "component_id": filter.component_id,
        "status": status,
        "component_type": filter.component_type,
    }


def _match_few_runs(filter: RunFilter) -> Conditions:
    """Return the conditions that few runs match, with an index for each."""
    few = Conditions()
    if filter.live or filter.status in ("PENDING", "RUNNING"):
        few = few.with_condition(IS_LIVE)
    if filter.at_work:
        few = few.with_condition(IS_AT_WORK)
    return few


def _compare_run(filter: RunFilter) -> Conditions:
    """Return the conditions on runs that no index has."""
    conditions = Conditions().with_equal(
        model=filter.model, version=filter.version, error_code=filter.error_code
    )
    if filter.parent == "none":
        conditions = conditions.with_condition("parent_run_id IS NULL")

    # The sum keeps the index of these times, which is not in the order of the list, out of use.
    conditions = conditions.with_present(
        "finished_at + 0 < :finished_before", finished_before=filter.finished_before
    )

    conditions = conditions.with_all(_match_metadata(filter.metadata, filter.tag))

    if filter.error is not None:
        conditions = conditions.with_all(_match_text(_ERROR_TEXT, filter.error))
    return conditions


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
        values[f"text_{number}"] = orjson.dumps(text).decode()
        values[f"json_{number}"] = text
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


class ListedSession(NamedTuple):
    """A session of a list with its newest top-level run, as the columns of its row.

    All that a list shows of a session is made from these columns, so sessions with equal columns
    have equal documents.
    """

    columns: tuple[Any, ...]
    """The columns of `SummaryRow`, then those of `LastRunState`, which are None without a run."""

    @property
    def session_id(self) -> str:
        return str(self.columns[_SESSION_ID])

    @property
    def created_at(self) -> int:
        return int(self.columns[_CREATED_AT])

    @property
    def updated_at(self) -> int:
        return int(self.columns[_UPDATED_AT])

    @property
    def session(self) -> SummaryRow:
        """The session without its newest run."""
        return SummaryRow(*self.columns[: len(_SESSION_COLUMNS)])

    @property
    def last_run(self) -> LastRunState | None:
        """The newest run of the session without a parent; None if there is none."""
        columns = self.columns[len(_SESSION_COLUMNS) :]
        return None if columns[0] is None else LastRunState(*columns)

    def without_hold(self) -> ListedSession:
        """Return the session as one that is not held."""
        if self.columns[_HOLD] is None:
            return self
        return ListedSession((*self.columns[:_HOLD], None, *self.columns[_HOLD + 1 :]))


_SESSION_ID = _SESSION_COLUMNS.index("session_id")
_CREATED_AT = _SESSION_COLUMNS.index("created_at")
_UPDATED_AT = _SESSION_COLUMNS.index("updated_at")
_HOLD = _SESSION_COLUMNS.index("hold")


SESSION_LEADS = {
    "created_at": (
        build_lead("user_id", "session_type component_id"),
        build_lead("component_id", "session_type"),
        build_lead("", "session_type"),
    ),
    "updated_at": (
        build_lead("user_id", "session_type component_id"),
        build_lead("", "session_type component_id"),
    ),
}
"""The indexes of sessions for each order."""


def list_sessions(
    filter: SessionFilter,
    visibility: Visibility,
    page: Slice,
    totals: ListTotals | None = None,
    search: WordSearch | None = None,
) -> Work[RowPage[ListedSession]]:
    """Read a page of the visible sessions that match a filter, and their total.

    Args:
        search: the words of the filter, if it has some.
    """
    if search is not None:
        found_list = FoundList(
            SESSIONS, _build_row, "created_at", span=1_000, share=SHARE, last=LATEST
        )
        searched_data = visibility.narrow(filter.where.user_id)
        conditions = _match_sessions(filter, visibility)
        return list_page(found_list, search, searched_data, conditions, page)

    times, compared = _match_times(filter, page)
    compared = compared.with_all(_match_texts(filter))

    ranges = find_by_prefix("session_id", filter.id_prefix)

    owner = visibility.conditions()
    if visibility.everyone:
        owner = owner.with_equal(user_id=filter.where.user_id)

    if filter.session_name:
        ranges += find_by_prefix(_NAME, fold_ascii(filter.session_name), "name", owner)

    if page.sort == "updated_at" and filter.component_id is not None and not owner.texts:
        # The index of components is in the order of creation. The bound, true for every session,
        # lets SQLite choose it. `equal` has the same filter for single rows.
        indexed = Conditions(("created_at >= 0",)).with_equal(component_id=filter.component_id)
        ranges.append(FilterRange(indexed, Conditions(), MAXIMUM_READ, "created_at"))

    filtered = Filtered(
        SESSIONS,
        SESSION_LEADS[page.sort],
        visibility,
        _get_columns(filter),
        few=_match_few(filter),
        compared=compared,
        ranges=ranges,
        times=times,
        totals=totals,
    )
    return filtered.list_page(page, _build_row)


def _build_row(*columns: Any) -> ListedSession:
    return ListedSession(columns)


def _match_sessions(filter: SessionFilter, visibility: Visibility) -> Conditions:
    """Return the conditions of all filters on the columns of `sessions`, for rows found by id."""
    times, compared = _match_times(filter, Slice())
    conditions = visibility.conditions().with_equal(**_get_columns(filter))
    conditions = conditions.with_prefix("session_id", filter.id_prefix)
    conditions = conditions.with_all(_match_few(filter)).with_times(*times)
    if filter.session_name:
        conditions = conditions.with_prefix(_NAME, fold_ascii(filter.session_name), "name")
    return conditions.with_all(compared).with_all(_match_texts(filter))


def _get_columns(filter: SessionFilter) -> dict[str, Value]:
    """Return the values of the columns that indexes of sessions have; None if not filtered."""
    return {
        "session_type": filter.where.type,
        "component_id": filter.component_id,
        "user_id": filter.where.user_id,
    }


def _match_few(filter: SessionFilter) -> Conditions:
    """Return the condition on the runs of a session, if few sessions match it."""
    if filter.status not in _FEW:
        return Conditions()
    few = f"session_id IN (SELECT runs.session_id FROM runs WHERE {_FEW[filter.status]})"
    return Conditions().with_condition(few)


def _match_times(filter: SessionFilter, page: Slice) -> tuple[Times, Conditions]:
    """Return the bounds of the time of the order, and the conditions on the other time.

    A session is not used before its creation, so one bound of the other time is one of the order.
    """
    times: Times
    if page.sort == "created_at":
        created_before = _pick_bound(min, filter.created_before, filter.updated_before)
        times = (filter.created_after, created_before)
        other = "updated_at"
        after = filter.updated_after
        before = filter.updated_before
    else:
        updated_after = _pick_bound(max, filter.updated_after, filter.created_after)
        times = (updated_after, filter.updated_before)
        other = "created_at"
        after = filter.created_after
        before = filter.created_before

    # The sum keeps the index of the other time, which is not in the order of the list, out of use.
    conditions = Conditions().with_present(f"{other} + 0 >= :other_since", other_since=after)
    return times, conditions.with_present(f"{other} + 0 < :other_before", other_before=before)


def _pick_bound(choose: Callable[[Iterable[int]], int], *bounds: int | None) -> int | None:
    """Return the stricter of the bounds that a filter has; None without a bound.

    Args:
        choose: `min` for upper bounds, `max` for lower bounds.
    """
    present_bounds = [bound for bound in bounds if bound is not None]
    return choose(present_bounds) if present_bounds else None


def _match_texts(filter: SessionFilter) -> Conditions:
    """Return the conditions on the last run and the metadata of sessions, which no index has."""
    status: str | None = filter.status
    if status is None and filter.error is not None:
        status = "ERROR"

    conditions = Conditions().with_equal(last_status=status)
    if filter.error is not None:
        # Compared first: few sessions have to be searched for its text.
        conditions = conditions.with_condition("last_status = 'ERROR'")
    conditions = conditions.with_all(_match_metadata(filter.metadata, filter.tag))
    if filter.error is not None:
        conditions = conditions.with_all(_match_text(_LAST_ERROR, filter.error))
    return conditions
