"""Documents of runs that are read with the rows that concern them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from agentctl.interface.requests import FULL_VIEW, RunView
from agentctl.records.approvals import ApprovalRecord
from agentctl.records.items import SUMMARY_VIEWS, WHOLE_FIELDS, Child, build_items, cut_item
from agentctl.records.phase import describe_run
from agentctl.records.runs import RunDetails, RunRecord, RunRow
from agentctl.runs.states import is_final, is_settled
from agentctl.service.documents.documents import (
    MAXIMUM_DEPTH,
    UNKNOWN_USAGE,
    RelatedFacts,
    build_approval_record,
    build_run_document,
    build_run_summary,
    is_counted,
    leave_out_damage,
    total_tokens,
)
from agentctl.store.database import Steps, Work, unit
from agentctl.store.listing import RowPage
from agentctl.store.repositories import approvals, queue, run_reads, sessions
from agentctl.store.repositories.search_pages import WordSearch
from agentctl.store.repositories.sessions import NO_USAGE, parse_cost
from agentctl.store.threads import call_in_thread
from agentctl.store.visibility import EVERYONE

if TYPE_CHECKING:
    from agentctl.records.run_reader import RunReader

FindSpans = Callable[[str], list[dict[str, Any]] | None]
"""Returns the spans of a live run by its id, None if they are not known."""


FindMetrics = Callable[[str], dict[str, int | None] | None]
"""Returns the token counters so far of a live run by its id, None if they are not known."""


async def add_matches(
    items: list[bytes], rows: RowPage[Any], search: WordSearch | None
) -> list[bytes]:
    """Add to each document the part of its text around the words; none without a search."""
    if search is None:
        return items
    words = search.words

    def add() -> list[bytes]:
        documents = list[bytes]()
        for item, match in zip(items, rows.matches, strict=True):
            snippet, highlights = words.cut(match.text)
            member = {"run_id": match.run_id, "snippet": snippet, "highlights": highlights}
            # The document is not parsed: the member is put before its closing brace.
            documents.append(b'%b,"match":%b}' % (item[:-1], orjson.dumps(member)))
        return documents

    # Long texts take milliseconds each: not on the event loop.
    return await call_in_thread(add)


@unit
def read_run_page(
    rows: Work[RowPage[RunRow]], view: RunView, find_spans: FindSpans, find_metrics: FindMetrics
) -> Steps[tuple[RowPage[RunRow], list[bytes]]]:
    """Read a page of runs with their documents; see `read_run_documents` for the arguments."""
    page = yield from rows
    return page, (yield from read_run_documents(page.rows, view, find_spans, find_metrics))


@unit
def read_run_documents(
    rows: Sequence[RunRow],
    view: RunView = FULL_VIEW,
    find_spans: FindSpans = lambda _: None,
    find_metrics: FindMetrics = lambda _: None,
) -> Steps[list[bytes]]:
    """Build the documents of runs, each with the runs that it started.

    Args:
        rows: the runs; for summaries read with `SUMMARY_COLUMNS`.
        find_spans: finds the spans of live runs; by default they have none.
        find_metrics: finds the tokens of live runs; by default they are not known.
    """
    if view.view in SUMMARY_VIEWS:
        related = yield from _read_related(rows, find_metrics)
        summaries = [build_run_summary(row, related[row.run_id]) for row in rows]
        if view.view == "phase":
            return [orjson.dumps(_add_phase(summary)) for summary in summaries]
        return summaries

    if view.view == "items":
        return (yield from _read_run_items(rows, view.cut, find_spans, find_metrics))

    members = yield from run_reads.list_children([row.run_id for row in rows])
    related = yield from _read_related(rows, find_metrics)
    return [
        build_run_document(
            row,
            related[row.run_id],
            members[row.run_id],
            view.cut,
            None if is_final(row.status) else find_spans(row.run_id),
        )
        for row in rows
    ]


def _add_phase(summary: bytes) -> dict[str, Any]:
    run = orjson.loads(summary)
    return {**run, "phase": describe_run(run)}


@unit
def _read_run_items(
    rows: Sequence[RunRow], cut: int | None, find_spans: FindSpans, find_metrics: FindMetrics
) -> Steps[list[bytes]]:
    child_rows = yield from run_reads.list_child_rows([row.run_id for row in rows])
    related = yield from _read_related([*child_rows, *rows], find_metrics)
    summaries = [build_run_summary(row, related[row.run_id]) for row in (*child_rows, *rows)]

    children: dict[str | None, list[Child]] = {}
    for child, summary in zip(child_rows, summaries, strict=False):
        siblings = children.setdefault(child.parent_run_id, [])
        siblings.append(Child(_add_phase(summary), child.input))

    readers: dict[str, RunReader] = {}
    documents = []
    for row, summary in zip(rows, summaries[len(child_rows) :], strict=True):
        own_children = children.get(row.run_id, ())

        spans = None if is_final(row.status) else find_spans(row.run_id)
        member_ids = [child.run["run_id"] for child in own_children]
        intact_row, damaged_fields = leave_out_damage(row)
        document = build_run_document(intact_row, related[row.run_id], member_ids, None, spans)
        run = orjson.loads(document)
        run["damaged"] = damaged_fields

        items = build_items(run, own_children, cut)
        if not is_settled(row.status):
            # Only a live run has items in its events. A list in a terminal rarely has one.
            from agentctl.runs.log.fold import find_root_id, read_stored_items

            root_id = yield from find_root_id(row)
            if root_id not in readers:
                readers[root_id] = yield from read_stored_items(root_id)
            run_so_far = readers[root_id].runs.get(row.run_id)
            if run_so_far is not None:
                items = [cut_item(item, cut) for item in run_so_far.items]

        whole_fields = {name: run[name] for name in WHOLE_FIELDS}
        documents.append(orjson.dumps({**_add_phase(summary), **whole_fields, "items": items}))

    return documents


@unit
def _read_related(
    rows: Sequence[RunRow], find_metrics: FindMetrics
) -> Steps[dict[str, RelatedFacts]]:
    """Read what other rows say about runs: the usage below them, approvals and queues."""
    metrics = {row.run_id: _find_usage(row, find_metrics) for row in rows}
    member_counts = dict.fromkeys(metrics, 0)
    tokens = {run_id: total_tokens(text) for run_id, text in metrics.items()}
    costs = {run_id: parse_cost(text) for run_id, text in metrics.items()}
    # The rows above each run of the level, by the id of that run.
    above = {run_id: [run_id] for run_id in metrics}
    level = list(above)

    for depth in range(MAXIMUM_DEPTH):
        children = yield from run_reads.list_children_usage(level)
        if not children:
            break

        above_children: dict[str, list[str]] = {}
        for parent_run_id, run_id, metrics_text in children:
            if depth == 0:
                member_counts[parent_run_id] += 1
            above_children[run_id] = above[parent_run_id]

            live_usage = None if metrics_text else find_metrics(run_id)
            if live_usage is None:
                own_tokens = total_tokens(metrics_text)
            else:
                own_tokens = live_usage["total_tokens"] or 0
            own_cost = parse_cost(metrics_text)
            for root in above[parent_run_id]:
                tokens[root] += own_tokens
                costs[root] = costs[root].add(own_cost)

        above = above_children
        level = list(above_children)

    approvals_of: Mapping[str, Sequence[Mapping[str, Any]]] = {}
    paused_ids = [row.run_id for row in rows if row.paused_at is not None]
    if paused_ids:
        approvals_of = yield from approvals.list_summaries(paused_ids)

    queue_positions: Mapping[str, int] = {}
    queued_ids = [
        row.run_id for row in rows if row.queue_turn is not None and row.started_at is None
    ]
    if queued_ids:
        queue_positions = yield from queue.list_positions(queued_ids)

    return {
        run_id: RelatedFacts(
            metrics=metrics_text,
            total_tokens=tokens[run_id] if is_counted(metrics_text, tokens[run_id]) else None,
            member_count=member_counts[run_id],
            cost=costs[run_id],
            approvals=approvals_of.get(run_id, ()),
            queue_position=queue_positions.get(run_id),
        )
        for run_id, metrics_text in metrics.items()
    }


def _find_usage(row: RunRow, find_metrics: FindMetrics) -> str:
    """Return the token counters of a run as JSON; `UNKNOWN_USAGE` if no process here has them."""
    has_ended = is_final(row.status)
    if not has_ended:
        live_usage = find_metrics(row.run_id)
        if live_usage is not None:
            return orjson.dumps(live_usage).decode()

    if row.metrics:
        return row.metrics
    if has_ended or row.status == "PENDING":
        # A run that never began has used nothing.
        return NO_USAGE
    return UNKNOWN_USAGE


@unit
def read_run_details(run: RunRecord) -> Steps[RunDetails]:
    """Read the runs below a run, the state of their session, and their approvals."""
    descendants = list[RunRecord]()
    level = run["member_runs"]
    while level:
        children = list[RunRecord]()
        for child in level:
            row = yield from run_reads.get(child, EVERYONE)
            if row is not None:
                (document,) = yield from read_run_documents([row])
                children.append(orjson.loads(document))
        descendants += children
        level = [child for run in children for child in run["member_runs"]]

    state = yield from sessions.get_state(run["session_id"])

    run_approvals = list[ApprovalRecord]()
    if run["approvals"]:
        if run["parent_run_id"] is None:
            rows = yield from approvals.list_of_root(run["run_id"])
        else:
            rows = yield from approvals.list_of_run(run["run_id"])
        run_approvals = [build_approval_record(row) for row in rows]

    state_now = None if state is None else sessions.parse_state(state)
    return RunDetails(descendants, state_now, run_approvals)
