"""Documents of runs, and pages, built from rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import orjson

from agentctl.errors import Unavailable
from agentctl.interface.requests import FULL_VIEW, Page, RunView
from agentctl.records.approvals import ApprovalRecord, ApprovalRow
from agentctl.records.document import parse_records, parse_stored, require
from agentctl.records.items import SUMMARY_VIEWS, WHOLE_FIELDS, Child, build_items, cut_item
from agentctl.records.kinds import KINDS
from agentctl.records.phase import describe_run
from agentctl.records.run_reader import RunReader
from agentctl.records.run_spec import RunSpec
from agentctl.records.runs import CancelRecord, RunDetails, RunRecord, RunRow, RunState, RunSummary
from agentctl.records.sessions import TOKEN_COUNTERS
from agentctl.records.text import cut_text
from agentctl.records.times import format_rfc3339, now
from agentctl.records.trace_context import parse_run_trace
from agentctl.runs.life.cancel import CancelResult
from agentctl.runs.log.fold import find_root_id, read_stored_items
from agentctl.runs.states import is_final, is_settled
from agentctl.runtime.transcript.history import parse_messages
from agentctl.service.json_texts import RecordWriter, dump_holding, embed_stored, join_array
from agentctl.service.paging import encode_cursor
from agentctl.store.database import Steps, Work, unit
from agentctl.store.listing import RowPage
from agentctl.store.repositories import approvals, queue, run_reads, sessions
from agentctl.store.repositories.search_pages import WordSearch
from agentctl.store.repositories.sessions import NO_USAGE, parse_counters
from agentctl.store.threads import call_in_thread
from agentctl.store.visibility import EVERYONE

INPUT_LENGTH = 200
"""Characters of the input in the summary of a run."""

MAXIMUM_DEPTH = 8
"""Levels of members whose tokens are added in the summary of a run."""

FindSpans = Callable[[str], list[dict[str, Any]] | None]
"""Returns the spans of a live run by its id, None if they are not known."""

FindMetrics = Callable[[str], dict[str, int | None] | None]
"""Returns the token counters so far of a live run by its id, None if they are not known."""

UNKNOWN_USAGE: str = orjson.dumps(dict.fromkeys(TOKEN_COUNTERS)).decode()
"""The counters of a live run that another process executes: a JSON object."""

_PARSERS: dict[str, Callable[[str], object]] = {
    "messages": parse_messages,
    **dict.fromkeys(("tools", "spans", "files"), parse_records),
    **dict.fromkeys(
        ("metrics", "metadata", "session_state", "input_object"),
        lambda text: parse_stored(text, dict),
    ),
    **dict.fromkeys(("version_changes", "holding"), lambda text: parse_stored(text, list)),
    "output": lambda text: parse_stored(text, object),
}
"""The columns of a run with JSON texts, and functions that return None for a damaged one."""

_COMPUTED = (
    "metrics", "late_result", "holding", "messages", "tools", "spans", "version_changes",
    "files",
)  # fmt: skip
_RUN = RecordWriter(
    RunRecord, RunRow, computed=_COMPUTED, last=("trace_id", "spans", "member_runs")
)
_SUMMARY = RecordWriter(RunSummary, RunRow, computed=(*_COMPUTED, "input"))
_CANCEL = RecordWriter(CancelRecord, RunState, {"reason": "cancel_reason"}, computed=["holding"])
_APPROVAL = RecordWriter(ApprovalRecord, ApprovalRow, {"approved_arguments_hash": "approved_hash"})


def build_page_document(noun: str, items: Iterable[bytes], page: Page, rows: RowPage[Any]) -> bytes:
    """Build a page of a list (docs/contract.md "Lists").

    Args:
        noun: name of the list, part of the cursor.
        rows: the rows, the total and the position of the next page.
    """
    meta = {
        "page": page.page,
        "limit": page.limit,
        "total_count": rows.total,
        "total_pages": -(-rows.total // page.limit),
        "total_is_capped": rows.capped,
        "next_cursor": encode_cursor(noun, page, rows),
    }
    if rows.searched_until is not None:
        meta["searched_until"] = format_rfc3339(rows.searched_until)
    return b'{"data":%b,"meta":%b}' % (join_array(items), orjson.dumps(meta))


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
            found = {"run_id": match.run_id, "snippet": snippet, "highlights": highlights}
            documents.append(b'%b,"match":%b}' % (item[:-1], orjson.dumps(found)))
        return documents

    # Long texts take milliseconds each: not on the event loop.
    return await call_in_thread(add)


class RelatedFacts(NamedTuple):
    """The facts about a run that come from other rows.

    Attributes:
        metrics: its token counters as JSON.
        total_tokens: its tokens with those of the runs below it. None if no counter is known: of a
            live run that another process executes, and of an agent in code that reports none.
        member_count: number of the runs that it started.
        approvals: what it waits for, or waited for.
        queue_position: its place in the queue of its session; None if it does not wait there.
    """

    metrics: str
    total_tokens: int | None
    member_count: int
    approvals: Sequence[Mapping[str, Any]] = ()
    queue_position: int | None = None


def build_run_document(
    row: RunRow,
    facts: RelatedFacts,
    member_runs: Sequence[str],
    cut: int | None = None,
    spans: list[dict[str, Any]] | None = None,
) -> bytes:
    """Build a run record (docs/contract.md "Run record").

    Args:
        facts: its tokens and approvals.
        member_runs: the ids of the runs that it started.
        cut: characters after which messages and results of tools are cut; None: not at all.
        spans: the spans of a live run; those of a run that has ended are in its row.
    """
    trace = parse_run_trace(row.trace)

    def build(row: RunRow) -> dict[str, Any]:
        return {
            "messages": _cut_entries(row.messages, "content", cut),
            "files": embed_stored(row.files or "[]", "["),
            "tools": _cut_entries(row.tools, "result", cut),
            "trace_id": trace.own.trace_id if trace is not None else None,
            "spans": embed_stored(row.spans or "[]", "[") if spans is None else spans,
            "member_runs": list(member_runs),
        }

    return _write_whole(_RUN, row, facts, build)


def _write_whole(
    writer: RecordWriter, row: RunRow, facts: RelatedFacts, build: Callable[[RunRow], Any]
) -> bytes:
    """Write the record of a run; without its damaged values, which it names, if it has any."""
    try:
        return writer.write(row, {**_build_members(row, facts), **build(row)})
    except Unavailable:
        whole, damaged = _leave_out_damage(row)
        if not damaged:
            raise
        if "metrics" in damaged:
            facts = facts._replace(metrics=UNKNOWN_USAGE)
        named = {"damaged": damaged}
        return writer.write(whole, {**_build_members(whole, facts), **build(whole), **named})


def _leave_out_damage(row: RunRow) -> tuple[RunRow, list[str]]:
    """Return a row without its damaged JSON texts, and their names."""
    texts = {name: getattr(row, name) for name in _PARSERS}
    damaged = [
        name
        for name, text in texts.items()
        if text not in (None, "null") and _PARSERS[name](text) is None
    ]
    left_out: dict[str, Any] = dict.fromkeys(damaged)
    return replace(row, **left_out), damaged


def build_start_document(spec: RunSpec) -> bytes:
    """Build the record of a run as its start has stored it, without the database."""
    columns = {item.name: None for item in fields(RunRow)}
    shared = {name: value for name, value in spec.to_json().items() if name in columns}
    origin = {
        f"origin_{name}": getattr(spec.origin, name, None) for name in ("run_id", "kind", "at")
    }
    state = {"status": "PENDING" if spec.background else "RUNNING", "created_at": now()}
    row = RunRow(**columns | shared | origin | state)
    return build_run_document(row, RelatedFacts(UNKNOWN_USAGE, None, 0), ())


def build_run_summary(row: RunRow, facts: RelatedFacts) -> bytes:
    """Build the summary of a run, read with `SUMMARY_COLUMNS` (docs/contract.md "Run summary")."""
    # Damaged spans are none: they must not end a whole list.
    spans = None if row.spans is None else parse_stored(row.spans, list)
    kinds = [span.get("kind") for span in spans or () if isinstance(span, dict)]
    tool_calls = None if spans is None else kinds.count("tool")
    counts = {"tool_calls": tool_calls, "member_count": facts.member_count}
    build = {"input": cut_text(row.input, INPUT_LENGTH), **counts}
    return _write_whole(_SUMMARY, row, facts, lambda _: build)


def _build_members(row: RunRow, facts: RelatedFacts) -> dict[str, Any]:
    """Build the members of a record and of a summary that are no column of the run."""
    return {
        KINDS[row.component_type].id_field: row.component_id,
        "metrics": embed_stored(facts.metrics),
        "total_tokens": facts.total_tokens,
        "error": {"code": row.error_code, "detail": row.error_detail} if row.error_code else None,
        "queue_position": facts.queue_position,
        "version_changes": embed_stored(row.version_changes or "[]"),
        "late_result": "dropped" if row.late_result else None,
        "holding": orjson.Fragment(dump_holding(row)),
        "approvals": facts.approvals,
    }


def _cut_entries(stored: str | None, field: str, cut: int | None) -> Any:
    """Return a stored JSON array with the texts in a field of its entries cut.

    A cut entry has `truncated`: `{"characters": N}` with the whole length.
    """
    if stored is None or cut is None:
        return embed_stored(stored or "[]", "[")
    entries = require(parse_records(stored))
    cut_entries(entries, field, cut)
    return entries


def cut_entries(entries: Iterable[Any], field: str, cut: int | None) -> None:
    """Cut the texts in a field of some objects; None: not at all."""
    for entry in entries:
        text = entry.get(field)
        if cut is not None and isinstance(text, str) and len(text) > cut:
            entry[field] = text[:cut]
            entry["truncated"] = {"characters": len(text)}


@unit
def read_run_page(
    rows: Work[RowPage[RunRow]], view: RunView, find_spans: FindSpans, find_metrics: FindMetrics
) -> Steps[tuple[RowPage[RunRow], list[bytes]]]:
    """Read a page of runs with their documents; the arguments are those of `read_run_documents`."""
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
        find_spans: finds the spans of live runs; without it they have none.
        find_metrics: finds the tokens of live runs; without it they are not known.
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


def build_document_alone(row: RunRow, cut: int | None) -> bytes:
    """Build the document of a run that no other row concerns (`run_reads.get_alone`)."""
    metrics = row.metrics or NO_USAGE
    total = _total_tokens(metrics)
    facts = RelatedFacts(metrics, total if _is_counted(metrics, total) else None, 0)
    return build_run_document(row, facts, (), cut)


def _is_counted(metrics: str, total: int) -> bool:
    if metrics is UNKNOWN_USAGE:
        return False
    if total:
        return True
    return (parse_stored(metrics, dict) or {}).get("total_tokens") is not None


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
        below = children.setdefault(child.parent_run_id, [])
        below.append(Child(_add_phase(summary), child.input))
    readers: dict[str, RunReader] = {}
    documents = []
    for row, summary in zip(rows, summaries[len(child_rows) :], strict=True):
        own = children.get(row.run_id, ())
        spans = None if is_final(row.status) else find_spans(row.run_id)
        member_ids = [child.run["run_id"] for child in own]
        stored, damaged = _leave_out_damage(row)
        run = orjson.loads(build_run_document(stored, related[row.run_id], member_ids, None, spans))
        run["damaged"] = damaged
        items = build_items(run, own, cut)
        if not is_settled(row.status):
            root_id = yield from find_root_id(row)
            if root_id not in readers:
                readers[root_id] = yield from read_stored_items(root_id)
            so_far = readers[root_id].runs.get(row.run_id)
            items = items if so_far is None else [cut_item(item, cut) for item in so_far.items]
        whole = {name: run[name] for name in WHOLE_FIELDS}
        documents.append(orjson.dumps({**_add_phase(summary), **whole, "items": items}))
    return documents


@unit
def _read_related(
    rows: Sequence[RunRow], find_metrics: FindMetrics
) -> Steps[dict[str, RelatedFacts]]:
    metrics = {row.run_id: _find_usage(row, find_metrics) for row in rows}
    counts = dict.fromkeys(metrics, 0)
    tokens = {run_id: _total_tokens(text) for run_id, text in metrics.items()}
    # By id of a run below one of the rows: the rows above it.
    above = {run_id: [run_id] for run_id in metrics}
    level = list(above)

    for depth in range(MAXIMUM_DEPTH):
        children = yield from run_reads.list_children_usage(level)
        if not children:
            break
        following: dict[str, list[str]] = {}
        for parent_run_id, run_id, stored in children:
            if not depth:
                counts[parent_run_id] += 1
            following[run_id] = above[parent_run_id]
            live = None if stored else find_metrics(run_id)
            own = _total_tokens(stored) if live is None else live["total_tokens"] or 0
            for root in above[parent_run_id]:
                tokens[root] += own
        above, level = following, list(following)

    paused = [row.run_id for row in rows if row.paused_at is not None]
    asked = (yield from approvals.list_summaries(paused)) if paused else {}
    queued = [row.run_id for row in rows if row.queue_turn is not None and row.started_at is None]
    places = (yield from queue.list_positions(queued)) if queued else {}

    return {
        run_id: RelatedFacts(
            text,
            tokens[run_id] if _is_counted(text, tokens[run_id]) else None,
            counts[run_id],
            asked.get(run_id, ()),
            places.get(run_id),
        )
        for run_id, text in metrics.items()
    }


def _find_usage(row: RunRow, find_metrics: FindMetrics) -> str:
    if row.metrics or is_final(row.status) or row.status == "PENDING":
        return row.metrics or NO_USAGE
    live = find_metrics(row.run_id)
    return UNKNOWN_USAGE if live is None else orjson.dumps(live).decode()


def _total_tokens(metrics: str | None) -> int:
    return parse_counters(metrics)["total_tokens"]


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
    asked = list[ApprovalRecord]()
    if run["approvals"]:
        find = approvals.list_of_root if run["parent_run_id"] is None else approvals.list_of_run
        rows = yield from find(run["run_id"])
        asked = [build_approval_record(row) for row in rows]
    state_now = None if state is None else sessions.parse_state(state)
    return RunDetails(descendants, state_now, asked)


def build_approval_document(row: ApprovalRow) -> bytes:
    """Build the record of an approval."""
    return _APPROVAL.write(row, {})


def build_approval_record(row: ApprovalRow) -> ApprovalRecord:
    """Build the record of an approval as an object."""
    record: ApprovalRecord = orjson.loads(build_approval_document(row))
    return record


def build_cancel_document(cancellation: CancelResult) -> bytes:
    """Build the response to a cancel (docs/contract.md "Cancel")."""
    state = cancellation.state
    holding = orjson.Fragment(dump_holding(state))
    return _CANCEL.write(state, {"cancel": cancellation.outcome, "holding": holding})
