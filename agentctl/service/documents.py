"""Documents built from rows.

Stored JSON is copied into the document and not parsed. A history may be large, so a document is
joined once from the pieces that the database returns; memory holds the pieces and the result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import orjson

import agentctl
from agentctl.records.items import (
    SUMMARY_VIEWS,
    WHOLE_FIELDS,
    Child,
    RunReader,
    build_items,
    cut_item,
)
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.phase import describe_run
from agentctl.records.runs import RunDetails, RunRecord
from agentctl.records.times import format_rfc3339
from agentctl.requests import FULL_VIEW, Page, RunView
from agentctl.runs.cancel import CancelResult
from agentctl.runs.replay import find_root_id, read_stored_items
from agentctl.runs.states import is_final, is_settled
from agentctl.service.json_texts import (
    JsonText,
    dump,
    dump_time,
    join_array,
    join_object,
    stored_json,
)
from agentctl.service.paging import encode_cursor
from agentctl.store.database import Steps, unit
from agentctl.store.listing import RowPage
from agentctl.store.repositories import approvals, run_reads, sessions
from agentctl.store.repositories.run_rows import RunRow, RunState
from agentctl.store.repositories.sessions import NO_USAGE, SessionRow, SummaryRow, parse_counters
from agentctl.store.visibility import EVERYONE

INPUT_LENGTH = 200
"""Characters of the input in the summary of a run."""

MAXIMUM_DEPTH = 8
"""Levels of members whose tokens are added in the summary of a run."""


def _join_arrays(inner: Sequence[bytes]) -> list[bytes]:
    pieces = [piece for text in inner if text for piece in (b",", text)]
    pieces[:1] = [b"["]
    pieces.append(b"]")
    return pieces


def build_session_document(row: SessionRow, histories: Sequence[bytes]) -> bytes:
    """Build a session in the detail schema of its type (docs/contract.md "Session records").

    Args:
        row: the session.
        histories: the chat history of each run, as `runs` reads them; empty for workflows.
    """
    shape = {"agent": _agent_session, "team": _team_session, "workflow": _workflow_session}
    return join_object(shape[row.session_type](row, histories))


def build_session_version(row: SessionRow) -> str:
    """Return a text that changes whenever the detail document of a session changes.

    The history is part of it: each run that ends adds to `history_bytes`.
    """
    content = b"%b %b" % (agentctl.__version__.encode(), orjson.dumps(row))
    return hashlib.sha256(content).hexdigest()[:32]


def _agent_session(row: SessionRow, histories: Sequence[bytes]) -> dict[str, JsonText]:
    return {
        "agent_session_id": dump(row.session_id),
        **_common_members(row),
        "session_summary": stored_json(row.summary),
        "session_state": stored_json(row.session_state),
        "agent_id": dump(row.component_id),
        "total_tokens": dump(row.total_tokens),
        "agent_data": stored_json(row.component_data),
        "metrics": stored_json(row.metrics),
        "metadata": stored_json(row.metadata),
        "chat_history": _join_arrays(histories),
        **_time_members(row),
    }


def _team_session(row: SessionRow, histories: Sequence[bytes]) -> dict[str, JsonText]:
    return {
        **_common_members(row),
        "team_id": dump(row.component_id),
        "session_summary": stored_json(row.summary),
        "session_state": stored_json(row.session_state),
        "metrics": stored_json(row.metrics),
        "team_data": stored_json(row.component_data),
        "metadata": stored_json(row.metadata),
        "chat_history": _join_arrays(histories),
        **_time_members(row),
        "total_tokens": dump(row.total_tokens),
    }


def _workflow_session(row: SessionRow, _: Sequence[bytes]) -> dict[str, JsonText]:
    data = {
        "session_name": dump(row.session_name),
        "session_state": stored_json(row.session_state),
        "session_metrics": stored_json(row.metrics),
    }
    return {
        **_common_members(row),
        "workflow_id": dump(row.component_id),
        "workflow_name": dump(row.component_name),
        "session_data": join_object(data),
        "session_state": stored_json(row.session_state),
        "workflow_data": stored_json(row.component_data),
        "metadata": stored_json(row.metadata),
        **_time_members(row),
    }


def _common_members(row: SessionRow) -> dict[str, bytes]:
    return {
        "session_id": dump(row.session_id),
        "session_name": dump(row.session_name),
        "user_id": dump(row.user_id),
    }


def _time_members(row: SummaryRow) -> dict[str, bytes]:
    return {"created_at": dump_time(row.created_at), "updated_at": dump_time(row.updated_at)}


_NO_COMPONENT: dict[str, str | None] = {names.id_field: None for names in KINDS.values()}


def build_summary_document(row: SummaryRow) -> bytes:
    """Build a session of a list."""
    summary = {
        "session_id": row.session_id,
        "session_name": row.session_name,
        "session_type": row.session_type,
        "user_id": row.user_id,
        **_NO_COMPONENT,
        KINDS[cast(ComponentKind, row.session_type)].id_field: row.component_id,
        "total_tokens": row.total_tokens,
        "run_count": row.run_count,
        "history_bytes": row.history_bytes,
        "last_status": row.last_status,
        "created_at": format_rfc3339(row.created_at),
        "updated_at": format_rfc3339(row.updated_at),
    }
    return orjson.dumps(summary)


def build_page_document(noun: str, items: Iterable[bytes], page: Page, rows: RowPage[Any]) -> bytes:
    """Build a page of a list (docs/contract.md "Lists").

    Args:
        noun: name of the list, part of the cursor.
        items: the documents of the rows.
        page: the requested page.
        rows: the rows, the total and the position of the next page.
    """
    meta = {
        "page": page.page,
        "limit": page.limit,
        "total_count": rows.total,
        "total_pages": -(-rows.total // page.limit),
        "total_is_capped": rows.capped,
        "next_cursor": encode_cursor(noun, page, rows.next),
    }
    return join_object({"data": join_array(items), "meta": orjson.dumps(meta)})


FindSpans = Callable[[str], list[dict[str, Any]] | None]
"""Returns the spans of a live run by its id, None if they are not known."""


def build_run_document(
    row: RunRow,
    member_runs: Sequence[str],
    cut: int | None = None,
    spans: list[dict[str, Any]] | None = None,
    approvals: Sequence[Mapping[str, str]] = (),
) -> bytes:
    """Build a run record (docs/contract.md "Run record").

    Args:
        member_runs: the ids of the runs that it started.
        cut: characters after which messages and results of tools are cut; None: not at all.
        spans: the spans of a live run; those of a run that has ended are in its row.
        approvals: what it waits for, or waited for.
    """
    stored_spans = stored_json(row.spans or "[]") if spans is None else orjson.dumps(spans)
    error = {"code": row.error_code, "detail": row.error_detail} if row.error_code else None
    members = {
        **_first_members(row),
        "input": dump(row.input),
        "content": dump(row.content),
        "messages": _cut_entries(row.messages, "content", cut),
        "tools": _cut_entries(row.tools, "result", cut),
        "metrics": stored_json(row.metrics or NO_USAGE),
        "output": stored_json(row.output),
        "reasoning_content": dump(row.reasoning_content),
        "purpose": dump(row.purpose),
        "metadata": stored_json(row.metadata),
        "session_state": stored_json(row.session_state),
        "error": orjson.dumps(error),
        **_life_members(row, approvals),
        "spans": stored_spans,
        "member_runs": orjson.dumps(list(member_runs)),
    }
    return join_object(members)


def build_run_summary(
    row: RunRow, member_count: int, total_tokens: int, approvals: Sequence[Mapping[str, str]] = ()
) -> bytes:
    """Build the summary of a run (docs/contract.md "Run summary").

    Args:
        row: the run, read with `SUMMARY_COLUMNS`.
        member_count: number of runs that it started.
        total_tokens: its tokens, with those of the runs below it.
        approvals: what it waits for, or waited for.
    """
    error = {"code": row.error_code, "detail": row.error_detail} if row.error_code else None
    spans = None if row.spans is None else orjson.loads(row.spans)
    members = {
        **_first_members(row),
        "input": dump(_cut_text(row.input, INPUT_LENGTH)),
        "purpose": dump(row.purpose),
        "metrics": stored_json(row.metrics or NO_USAGE),
        "total_tokens": dump(total_tokens),
        "tool_calls": dump(
            None if spans is None else sum(1 for span in spans if span["kind"] == "tool")
        ),
        "member_count": dump(member_count),
        "error": orjson.dumps(error),
        **_life_members(row, approvals),
    }
    return join_object(members)


def _first_members(row: RunRow) -> dict[str, JsonText]:
    return {
        "run_id": dump(row.run_id),
        "session_id": dump(row.session_id),
        "parent_run_id": dump(row.parent_run_id),
        KINDS[cast(ComponentKind, row.component_type)].id_field: dump(row.component_id),
        "user_id": dump(row.user_id),
        "status": dump(row.status),
    }


def _life_members(row: RunRow, approvals: Sequence[Mapping[str, str]]) -> dict[str, JsonText]:
    return {
        "created_at": dump_time(row.created_at),
        "started_at": dump_time(row.started_at),
        "paused_at": dump_time(row.paused_at),
        "finished_at": dump_time(row.finished_at),
        "cancel_requested_at": dump_time(row.cancel_requested_at),
        "cancel_requested_by": dump(row.cancel_requested_by),
        "cancel_reason": dump(row.cancel_reason),
        "stopped_at": dump_time(row.stopped_at),
        "late_result": dump("dropped" if row.late_result else None),
        "holding": _dump_holding(row),
        "request_id": dump(row.request_id),
        "approvals": orjson.dumps(approvals),
    }


def _cut_text(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _cut_entries(stored: str | None, field: str, cut: int | None) -> bytes:
    """Return a stored JSON array with the texts in a field of its entries cut.

    A cut entry has `truncated`: `{"characters": N}` with the whole length.
    """
    if stored is None or cut is None:
        return stored_json(stored or "[]")
    entries = orjson.loads(stored)
    for entry in entries:
        text = entry.get(field)
        if isinstance(text, str) and len(text) > cut:
            entry[field] = text[:cut]
            entry["truncated"] = {"characters": len(text)}
    return orjson.dumps(entries)


def _dump_holding(run: RunRow | RunState) -> bytes:
    if not is_final(run.status) or run.stopped_at is not None:
        return b"[]"
    return stored_json(run.holding)


@unit
def read_run_documents(
    rows: Sequence[RunRow], view: RunView = FULL_VIEW, find_spans: FindSpans = lambda _: None
) -> Steps[list[bytes]]:
    """Build the documents of runs, each with the runs that it started.

    Args:
        rows: the runs; for summaries read with `SUMMARY_COLUMNS`.
        find_spans: finds the spans of live runs; without it they have none.
    """
    if view.view in SUMMARY_VIEWS:
        summaries = yield from _read_run_summaries(rows)
        if view.view == "phase":
            return [orjson.dumps(_add_phase(summary)) for summary in summaries]
        return summaries
    if view.view == "items":
        return (yield from _read_run_items(rows, view.cut, find_spans))
    members = yield from run_reads.list_children([row.run_id for row in rows])
    asked = yield from _read_approvals(rows)
    return [
        build_run_document(
            row,
            members[row.run_id],
            view.cut,
            None if is_final(row.status) else find_spans(row.run_id),
            asked.get(row.run_id, ()),
        )
        for row in rows
    ]


@unit
def _read_approvals(rows: Sequence[RunRow]) -> Steps[dict[str, list[dict[str, str]]]]:
    paused = [row.run_id for row in rows if row.paused_at is not None]
    return (yield from approvals.list_summaries(paused)) if paused else {}


def _add_phase(summary: bytes) -> dict[str, Any]:
    run = orjson.loads(summary)
    return {**run, "phase": describe_run(run)}


@unit
def _read_run_items(
    rows: Sequence[RunRow], cut: int | None, find_spans: FindSpans
) -> Steps[list[bytes]]:
    child_rows = yield from run_reads.list_child_rows([row.run_id for row in rows])
    summaries = yield from _read_run_summaries([*child_rows, *rows])
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
        known = orjson.loads(summary)
        run = orjson.loads(build_run_document(row, member_ids, None, spans, known["approvals"]))
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
def _read_run_summaries(rows: Sequence[RunRow]) -> Steps[list[bytes]]:
    counts = dict.fromkeys((row.run_id for row in rows), 0)
    tokens = {row.run_id: _total_tokens(row.metrics) for row in rows}
    # By id of a run below one of the rows: the rows above it.
    above = {row.run_id: [row.run_id] for row in rows}
    level = list(above)
    for depth in range(MAXIMUM_DEPTH):
        children = yield from run_reads.list_children_usage(level)
        if not children:
            break
        following: dict[str, list[str]] = {}
        for parent_run_id, run_id, metrics in children:
            if not depth:
                counts[parent_run_id] += 1
            following[run_id] = above[parent_run_id]
            for root in above[parent_run_id]:
                tokens[root] += _total_tokens(metrics)
        above, level = following, list(following)
    asked = yield from _read_approvals(rows)
    return [
        build_run_summary(row, counts[row.run_id], tokens[row.run_id], asked.get(row.run_id, ()))
        for row in rows
    ]


def _total_tokens(metrics: str | None) -> int:
    return parse_counters(metrics)["total_tokens"]


@unit
def read_run_details(run: RunRecord) -> Steps[RunDetails]:
    """Read the runs below a run, each after its parent, and the state of their session."""
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
    return RunDetails(descendants, orjson.loads(state or "null"))


def build_cancel_document(cancellation: CancelResult) -> bytes:
    """Build the response to a cancel (docs/contract.md "Cancel")."""
    state = cancellation.state
    members = {
        "run_id": dump(state.run_id),
        "session_id": dump(state.session_id),
        "status": dump(state.status),
        "cancel": dump(cancellation.outcome),
        "cancel_requested_at": dump_time(state.cancel_requested_at),
        "cancel_requested_by": dump(state.cancel_requested_by),
        "finished_at": dump_time(state.finished_at),
        "stopped_at": dump_time(state.stopped_at),
        "holding": _dump_holding(state),
        "reason": dump(state.cancel_reason),
    }
    return join_object(members)
