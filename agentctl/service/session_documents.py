"""Documents of sessions, built from rows."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

import agentctl
from agentctl.records.kinds import KINDS
from agentctl.records.phase import describe_run
from agentctl.records.runs import LastRunState
from agentctl.records.sessions import SESSION_DETAILS, SessionRow, SummaryRow
from agentctl.records.times import format_optional_time, format_rfc3339
from agentctl.service.json_texts import (
    RecordWriter,
    dump_holding,
    dump_in_pieces,
    embed_stored,
    join_arrays,
)
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import run_reads
from agentctl.store.repositories.lists import ListedSession
from agentctl.store.repositories.search_pages import MatchedSession
from agentctl.store.search import SearchWords

_NO_COMPONENT: dict[str, str | None] = {names.id_field: None for names in KINDS.values()}
_COLUMNS = {
    "agent_session_id": "session_id",
    "session_summary": "summary",
    "workflow_name": "component_name",
    **{f"{kind}_data": "component_data" for kind in KINDS},
}
_DETAILS = {
    kind: RecordWriter(
        record, SessionRow, {**_COLUMNS, KINDS[kind].id_field: "component_id"}, computed=["hold"]
    )
    for kind, record in SESSION_DETAILS.items()
}


def build_session_document(row: SessionRow, histories: Sequence[bytes]) -> bytes:
    """Build a session in the detail schema of its type (docs/contract.md "Session records").

    Args:
        histories: the chat history of each run, as `runs` reads them; empty for workflows.
    """
    writer = _DETAILS[row.session_type]
    hold = {} if row.hold is None else {"hold": orjson.Fragment(row.hold)}
    if row.session_type != "workflow":
        record = writer.build(row, {**hold, "chat_history": None})
        return dump_in_pieces(record, "chat_history", join_arrays(histories))
    data = {
        "session_name": row.session_name,
        "session_state": embed_stored(row.session_state),
        "session_metrics": embed_stored(row.metrics),
    }
    return writer.write(row, {**hold, "session_data": data})


def build_session_version(row: SessionRow) -> str:
    """Return a text that changes whenever the detail document of a session changes.

    The history is part of it: each run that ends adds to `history_bytes`.
    """
    content = b"%b %b" % (agentctl.__version__.encode(), orjson.dumps(row))
    return hashlib.sha256(content).hexdigest()[:32]


def build_session_summaries(rows: Iterable[ListedSession]) -> list[bytes]:
    """Build the sessions of a list, each with its last run."""
    return [orjson.dumps(_summarize_session(row, row.last_run)) for row in rows]


def build_matched_sessions(
    matched: Sequence[MatchedSession], newest: Mapping[str, LastRunState], search: SearchWords
) -> list[bytes]:
    """Build the sessions that a search has found, each with the text around the words.

    Args:
        newest: the last run of each session by id.
    """
    documents = []
    for row, match in matched:
        snippet, highlights = search.cut(match.text)
        found = {"run_id": match.run_id, "snippet": snippet, "highlights": highlights}
        summary = _summarize_session(row, newest.get(row.session_id))
        documents.append(orjson.dumps({**summary, "match": found}))
    return documents


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
        head[name] = embed_stored(stored, "{")
    return orjson.dumps(head)


def _describe_last_run(run: LastRunState) -> dict[str, Any]:
    record: dict[str, Any] = {
        "run_id": run.run_id,
        "status": run.status,
        "cancel_requested_at": format_optional_time(run.cancel_requested_at),
        "finished_at": format_optional_time(run.finished_at),
        "stopped_at": format_optional_time(run.stopped_at),
        "holding": orjson.loads(dump_holding(run)),
    }
    error = {"code": run.error_code, "detail": run.error_detail} if run.error_code else None
    facts = {"error": error, "cancel_requested_by": run.cancel_requested_by}
    return {**record, "phase": describe_run({**record, **facts})}


def _summarize_session(row: SummaryRow, newest: LastRunState | None) -> dict[str, Any]:
    hold = {} if row.hold is None else {"hold": orjson.Fragment(row.hold)}
    return {
        "session_id": row.session_id,
        "session_name": row.session_name,
        "session_type": row.session_type,
        "user_id": row.user_id,
        **_NO_COMPONENT,
        KINDS[row.session_type].id_field: row.component_id,
        "total_tokens": row.total_tokens,
        "run_count": row.run_count,
        "history_bytes": row.history_bytes,
        "last_status": row.last_status,
        "last_run": None if newest is None else _describe_last_run(newest),
        "created_at": format_rfc3339(row.created_at),
        "updated_at": format_rfc3339(row.updated_at),
        **hold,
    }
