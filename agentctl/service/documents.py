"""Documents built from rows.

Stored JSON is copied into the document and not parsed. A history may be large, so a document is
joined once from the pieces that the database returns; memory holds the pieces and the result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
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
from agentctl.records.validation import check_json
from agentctl.requests import FULL_VIEW, Page, RunView
from agentctl.runs.cancel import CancelResult
from agentctl.runs.replay import find_root_id, read_stored_items
from agentctl.runs.states import is_final
from agentctl.service.paging import encode_cursor
from agentctl.store.database import Steps, unit
from agentctl.store.listing import RowPage
from agentctl.store.repositories import run_reads, sessions
from agentctl.store.repositories.run_rows import RunRow, RunState
from agentctl.store.repositories.sessions import NO_USAGE, SessionRow, SummaryRow, parse_counters
from agentctl.store.visibility import EVERYONE

INPUT_LENGTH = 200
"""Characters of the input in the summary of a run."""

MAXIMUM_DEPTH = 8
"""Levels of members whose tokens are added in the summary of a run."""

JsonText = bytes | list[bytes]
"""A JSON text, possibly in pieces."""


def _join_object(members: Mapping[str, JsonText]) -> bytes:
    pieces: list[bytes] = []
    for key, text in members.items():
        pieces.append(_member_label(key))
        if isinstance(text, bytes):
            pieces.append(text)
        else:
            pieces += text
    pieces[0] = b"{" + pieces[0][1:]
    pieces.append(b"}")
    return b"".join(pieces)


@cache
def _member_label(key: str) -> bytes:
    return b',"%b":' % key.encode()


def join_array(items: Iterable[bytes]) -> bytes:
    """Join documents into a JSON array."""
    return b"[" + b",".join(items) + b"]"


def dump_checked_json(name: str, value: dict[str, Any] | None) -> str | None:
    """Return the JSON text of an object of a caller, None for None.

    Args:
        name: the field, for the error.

    Raises:
        ValidationFailed: see `check_json`.
    """
    if value is None:
        return None
    check_json(name, value)
    return orjson.dumps(value).decode()


def _dump(value: str | int | None) -> bytes:
    return orjson.dumps(value)


def _stored_json(text: str | None) -> bytes:
    return b"null" if text is None else text.encode()


def _dump_time(microseconds: int | None) -> bytes:
    return b"null" if microseconds is None else b'"%b"' % format_rfc3339(microseconds).encode()


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
    return _join_object(shape[row.session_type](row, histories))


def build_session_version(row: SessionRow) -> str:
    """Return a text that changes whenever the detail document of a session changes.

    The history is part of it: each run that ends adds to `history_bytes`.
    """
    content = b"%b %b" % (agentctl.__version__.encode(), orjson.dumps(row))
    return hashlib.sha256(content).hexdigest()[:32]


def _agent_session(row: SessionRow, histories: Sequence[bytes]) -> dict[str, JsonText]:
    return {
        "agent_session_id": _dump(row.session_id),
        **_common_members(row),
        "session_summary": _stored_json(row.summary),
        "session_state": _stored_json(row.session_state),
        "agent_id": _dump(row.component_id),
        "total_tokens": _dump(row.total_tokens),
        "agent_data": _stored_json(row.component_data),
        "metrics": _stored_json(row.metrics),
        "metadata": _stored_json(row.metadata),
        "chat_history": _join_arrays(histories),
        **_time_members(row),
    }


def _team_session(row: SessionRow, histories: Sequence[bytes]) -> dict[str, JsonText]:
    return {
        **_common_members(row),
        "team_id": _dump(row.component_id),
        "session_summary": _stored_json(row.summary),
        "session_state": _stored_json(row.session_state),
        "metrics": _stored_json(row.metrics),
        "team_data": _stored_json(row.component_data),
        "metadata": _stored_json(row.metadata),
        "chat_history": _join_arrays(histories),
        **_time_members(row),
        "total_tokens": _dump(row.total_tokens),
    }


def _workflow_session(row: SessionRow, _: Sequence[bytes]) -> dict[str, JsonText]:
    data = {
        "session_name": _dump(row.session_name),
        "session_state": _stored_json(row.session_state),
        "session_metrics": _stored_json(row.metrics),
    }
    return {
        **_common_members(row),
        "workflow_id": _dump(row.component_id),
        "workflow_name": _dump(row.component_name),
        "session_data": _join_object(data),
        "session_state": _stored_json(row.session_state),
        "workflow_data": _stored_json(row.component_data),
        "metadata": _stored_json(row.metadata),
        **_time_members(row),
    }


def _common_members(row: SessionRow) -> dict[str, bytes]:
    return {
        "session_id": _dump(row.session_id),
        "session_name": _dump(row.session_name),
        "user_id": _dump(row.user_id),
    }


def _time_members(row: SummaryRow) -> dict[str, bytes]:
    return {"created_at": _dump_time(row.created_at), "updated_at": _dump_time(row.updated_at)}


_NO_COMPONENT: dict[str, str | None] = {names.id_field: None for names in KINDS.values()}


@unit
def read_session_summaries(rows: Sequence[SummaryRow]) -> Steps[list[bytes]]:
    """Build the sessions of a list, each with its last run."""
    newest = yield from run_reads.list_newest([row.session_id for row in rows if row.run_count])
    return [orjson.dumps(_summarize_session(row, newest.get(row.session_id))) for row in rows]


@unit
def read_session_head(row: SessionRow) -> Steps[bytes]:
    """Build a session without its history (docs/contract.md "Session records")."""
    newest = yield from run_reads.list_newest([row.session_id])
    head: dict[str, Any] = {
        **_summarize_session(row, newest.get(row.session_id)),
        "turn_count": (yield from run_reads.count_turns(row.session_id)),
    }
    for name in ("metrics", "session_summary", "session_state", "metadata"):
        stored = getattr(row, "summary" if name == "session_summary" else name)
        head[name] = None if stored is None else orjson.Fragment(stored)
    return orjson.dumps(head)


def _describe_last_run(run: RunState) -> dict[str, Any]:
    record: dict[str, Any] = {
        "run_id": run.run_id,
        "status": run.status,
        "cancel_requested_at": _format_time(run.cancel_requested_at),
        "finished_at": _format_time(run.finished_at),
        "stopped_at": _format_time(run.stopped_at),
        "holding": orjson.loads(_dump_holding(run)),
    }
    error = {"code": run.error_code, "detail": run.error_detail} if run.error_code else None
    facts = {"error": error, "cancel_requested_by": run.cancel_requested_by}
    return {**record, "phase": describe_run({**record, **facts})}


def _format_time(microseconds: int | None) -> str | None:
    return None if microseconds is None else format_rfc3339(microseconds)


def _summarize_session(row: SummaryRow, newest: RunState | None) -> dict[str, Any]:
    return {
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
        "last_run": None if newest is None else _describe_last_run(newest),
        "created_at": format_rfc3339(row.created_at),
        "updated_at": format_rfc3339(row.updated_at),
    }


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
    return _join_object({"data": join_array(items), "meta": orjson.dumps(meta)})


FindSpans = Callable[[str], list[dict[str, Any]] | None]
"""Returns the spans of a live run by its id, None if they are not known."""


def build_run_document(
    row: RunRow,
    member_runs: Sequence[str],
    cut: int | None = None,
    spans: list[dict[str, Any]] | None = None,
) -> bytes:
    """Build a run record (docs/contract.md "Run record").

    Args:
        member_runs: the ids of the runs that it started.
        cut: characters after which messages and results of tools are cut; None: not at all.
        spans: the spans of a live run; those of a run that has ended are in its row.
    """
    stored_spans = _stored_json(row.spans or "[]") if spans is None else orjson.dumps(spans)
    error = {"code": row.error_code, "detail": row.error_detail} if row.error_code else None
    members = {
        **_first_members(row),
        "input": _dump(row.input),
        "content": _dump(row.content),
        "messages": _cut_entries(row.messages, "content", cut),
        "tools": _cut_entries(row.tools, "result", cut),
        "metrics": _stored_json(row.metrics or NO_USAGE),
        "output": _stored_json(row.output),
        "reasoning_content": _dump(row.reasoning_content),
        "purpose": _dump(row.purpose),
        "metadata": _stored_json(row.metadata),
        "session_state": _stored_json(row.session_state),
        "error": orjson.dumps(error),
        **_life_members(row),
        "spans": stored_spans,
        "member_runs": orjson.dumps(list(member_runs)),
    }
    return _join_object(members)


def build_run_summary(row: RunRow, member_count: int, total_tokens: int) -> bytes:
    """Build the summary of a run (docs/contract.md "Run summary").

    Args:
        row: the run, read with `SUMMARY_COLUMNS`.
        member_count: number of runs that it started.
        total_tokens: its tokens, with those of the runs below it.
    """
    error = {"code": row.error_code, "detail": row.error_detail} if row.error_code else None
    spans = None if row.spans is None else orjson.loads(row.spans)
    members = {
        **_first_members(row),
        "input": _dump(_cut_text(row.input, INPUT_LENGTH)),
        "purpose": _dump(row.purpose),
        "metrics": _stored_json(row.metrics or NO_USAGE),
        "total_tokens": _dump(total_tokens),
        "tool_calls": _dump(
            None if spans is None else sum(1 for span in spans if span["kind"] == "tool")
        ),
        "member_count": _dump(member_count),
        "error": orjson.dumps(error),
        **_life_members(row),
    }
    return _join_object(members)


def _first_members(row: RunRow) -> dict[str, JsonText]:
    return {
        "run_id": _dump(row.run_id),
        "session_id": _dump(row.session_id),
        "parent_run_id": _dump(row.parent_run_id),
        KINDS[cast(ComponentKind, row.component_type)].id_field: _dump(row.component_id),
        "user_id": _dump(row.user_id),
        "status": _dump(row.status),
    }


def _life_members(row: RunRow) -> dict[str, JsonText]:
    return {
        "created_at": _dump_time(row.created_at),
        "started_at": _dump_time(row.started_at),
        "finished_at": _dump_time(row.finished_at),
        "cancel_requested_at": _dump_time(row.cancel_requested_at),
        "cancel_requested_by": _dump(row.cancel_requested_by),
        "cancel_reason": _dump(row.cancel_reason),
        "stopped_at": _dump_time(row.stopped_at),
        "late_result": _dump("dropped" if row.late_result else None),
        "holding": _dump_holding(row),
        "request_id": _dump(row.request_id),
    }


def _cut_text(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _cut_entries(stored: str | None, field: str, cut: int | None) -> bytes:
    """Return a stored JSON array with the texts in a field of its entries cut.

    A cut entry has `truncated`: `{"characters": N}` with the whole length.
    """
    if stored is None or cut is None:
        return _stored_json(stored or "[]")
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
    return _stored_json(run.holding)


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
    return [
        build_run_document(
            row,
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
        run = orjson.loads(build_run_document(row, member_ids, None, spans))
        items = build_items(run, own, cut)
        if not is_final(row.status):
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
    return [build_run_summary(row, counts[row.run_id], tokens[row.run_id]) for row in rows]


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
        "run_id": _dump(state.run_id),
        "session_id": _dump(state.session_id),
        "status": _dump(state.status),
        "cancel": _dump(cancellation.outcome),
        "cancel_requested_at": _dump_time(state.cancel_requested_at),
        "cancel_requested_by": _dump(state.cancel_requested_by),
        "finished_at": _dump_time(state.finished_at),
        "stopped_at": _dump_time(state.stopped_at),
        "holding": _dump_holding(state),
        "reason": _dump(state.cancel_reason),
    }
    return _join_object(members)
