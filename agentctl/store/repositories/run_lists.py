"""Lists of runs across sessions."""

from __future__ import annotations

from agentctl.interface.requests import RunFilter
from agentctl.records.items import SUMMARY_VIEWS
from agentctl.records.runs import RunRow
from agentctl.store.database import Steps, unit
from agentctl.store.listing import MAXIMUM_COMPARED, Conditions, Listing, RowPage, Slice
from agentctl.store.repositories.run_reads import RUN_COLUMNS, SUMMARY_COLUMNS
from agentctl.store.repositories.text_filters import (
    ERROR_TEXT,
    MAXIMUM_COMPARED_METADATA,
    match_metadata,
    match_text,
)
from agentctl.store.states import IS_AT_WORK, IS_LIVE
from agentctl.store.totals import ListTotals
from agentctl.store.visibility import Visibility

RunRowPage = RowPage[RunRow]

LISTING = Listing(table="runs", columns=RUN_COLUMNS, id="run_id", removals="runs")

_SUMMARIES = Listing(table="runs", columns=SUMMARY_COLUMNS, id="run_id", removals="runs")


@unit
def list_page(
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
    listing = _SUMMARIES if filter.form.view in SUMMARY_VIEWS else LISTING
    sort_ids = changing or filter.id_prefix is not None
    unindexed = _match_unindexed(filter)
    since, before = filter.created_after, filter.created_before
    metadata = match_metadata(filter.metadata, filter.tag)
    if metadata.texts or filter.error is not None:
        compared = unindexed.with_all(metadata)
        if filter.error is not None:
            compared = compared.with_all(match_text(ERROR_TEXT, filter.error))
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
