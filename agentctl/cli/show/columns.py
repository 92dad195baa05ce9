"""Columns of sessions and runs, and runs and histories for people."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from agentctl.cli.durations import format_elapsed, format_span
from agentctl.cli.options import find_component
from agentctl.cli.show.table import Column, Columns

if TYPE_CHECKING:
    pass

Record = Mapping[str, Any]


def component_id_of(record: Record) -> str | None:
    """Return the id of the component of a session or run."""
    named = find_component(record)
    return named[1] if named is not None else None


def _total_tokens(record: Record) -> object:
    metrics = record.get("metrics") or {}
    return metrics.get("total_tokens")


def format_holding(record: Record) -> str | None:
    """Return the names of the work that continues after the end; `?` if they are not known."""
    if "holding" not in record:
        return None
    return "?" if record["holding"] is None else ", ".join(record["holding"])


def _error_code(record: Record) -> object:
    return (record.get("error") or {}).get("code")


def _error(record: Record) -> str | None:
    error = record.get("error")
    return f"{error.get('code')}: {error.get('detail')}" if error else None


def _format_age(record: Record) -> str | None:
    """Return the time since its creation."""
    created = _to_timestamp(record.get("created_at"))
    return None if created is None else format_span(time.time() - created)


def _format_duration(run: Record) -> str | None:
    """Return the duration of a run, until its end or until now."""
    started = _to_timestamp(run.get("started_at"))
    if started is None:
        return None
    ended = _to_timestamp(run.get("finished_at"))
    return format_elapsed((time.time() if ended is None else ended) - started)


def _to_timestamp(moment: object) -> float | None:
    """Return a timestamp as seconds since the epoch, None for any other value."""
    try:
        return datetime.fromisoformat(str(moment)).timestamp()
    except (ValueError, OverflowError):
        return None


def _summary_text(session: Record) -> str | None:
    """Return the text of the summary of a session."""
    summary = session.get("session_summary")
    return str(summary.get("summary")) if isinstance(summary, dict) else None


SESSIONS = Columns(
    tsv=[
        Column("session_id"),
        Column("session_name"),
        Column("session_type"),
        Column("component", component_id_of),
        Column("user_id"),
        Column("run_count"),
        Column("total_tokens"),
        Column("last_status"),
        Column("updated_at"),
    ],
    table=[
        Column("session_id"),
        Column("session_name", heading="name", look="text"),
        Column("last_status", heading="status"),
        Column("component", component_id_of),
        Column("updated_at", heading="updated"),
        Column("run_count", heading="runs"),
        Column("user_id", heading="user"),
        Column("total_tokens", heading="tokens"),
        Column("session_type", heading="type"),
    ],
)
SESSION = [
    Column("session_id"),
    Column("session_name"),
    Column("component", component_id_of),
    Column("user_id"),
    Column("total_tokens"),
    Column("session_summary", _summary_text, look="text"),
    Column("session_state"),
    Column("metadata"),
    Column("created_at"),
    Column("updated_at"),
]
SUMMARIZED = [Column("session_id"), Column("session_summary", _summary_text, look="text")]
RENAMED = [Column("session_id"), Column("session_name"), Column("updated_at")]
_RUNS = [
    Column("run_id"),
    Column("session_id"),
    Column("component", component_id_of),
    Column("user_id"),
    Column("status"),
    Column("error", _error),
    Column("total_tokens", _total_tokens),
    Column("created_at"),
    Column("finished_at"),
    Column("cancel_requested_at"),
    Column("stopped_at"),
    Column("holding", format_holding),
]
_RUNS_OF_SESSION = [
    Column("run_id"),
    Column("status"),
    Column("component", component_id_of),
    Column("created_at", heading="created"),
    Column("error", _error_code),
    Column("total_tokens", _total_tokens, heading="tokens"),
    Column("user_id", heading="user"),
]
RUNS_OF_SESSION = Columns(tsv=_RUNS, table=_RUNS_OF_SESSION)
RUNS = Columns(
    tsv=_RUNS,
    table=[
        *_RUNS_OF_SESSION[:3],
        Column("age", _format_age),
        Column("duration", _format_duration, heading="took"),
        Column("error", _error_code),
        Column("session_id"),
        *_RUNS_OF_SESSION[5:],
    ],
)
RUN = [
    *_RUNS[:-5],
    Column("parent_run_id"),
    Column("member_runs", lambda run: ", ".join(run.get("member_runs") or [])),
    Column("cancel_requested_at"),
    Column("cancel_requested_by"),
    Column("cancel_reason"),
    Column("created_at"),
    Column("started_at"),
    Column("finished_at"),
    Column("stopped_at"),
    Column("late_result"),
    Column("holding", format_holding),
    Column("input"),
    Column("content"),
    Column("metadata"),
    Column("session_state"),
    Column("output"),
]
CANCELS = [
    Column("run_id"),
    Column("session_id"),
    Column("cancel"),
    Column("status"),
    Column("cancel_requested_at"),
    Column("finished_at"),
    Column("reason"),
    Column("cancel_requested_by"),
    Column("stopped_at"),
    Column("holding", format_holding),
]

PROBLEMS = Columns(
    tsv=[
        Column("run_id"),
        Column("session_id"),
        Column("worker_id"),
        Column("db_id"),
        Column("kind"),
        Column("problem"),
        Column("remedy"),
        Column("outcome"),
        Column("detail"),
    ],
    table=[
        Column("run_id", lambda found: found["run_id"] or found["worker_id"], heading="id"),
        Column("problem", look="text"),
        Column("remedy", heading="fix", look="text"),
        Column("outcome"),
        Column("detail", look="text"),
        Column("session_id"),
        Column("db_id"),
    ],
)
