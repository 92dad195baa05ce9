"""What tables and TSV show of sessions and runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentctl.cli.output import Column, write_line
from agentctl.cli.terminal import printable
from agentctl.records.kinds import KINDS

__all__ = [
    "CANCELS",
    "RENAMED",
    "RUN",
    "RUNS",
    "SESSION",
    "SESSIONS",
    "component_of",
    "show_history",
]

Record = Mapping[str, Any]


def component_of(record: Record) -> str | None:
    """The id of the component that a session or run belongs to."""
    fields = (names.id_field for names in KINDS.values())
    return next((record[field] for field in fields if record.get(field)), None)


def _tokens(record: Record) -> object:
    metrics = record.get("metrics") or {}
    return metrics.get("total_tokens")


def _error(record: Record) -> str | None:
    error = record.get("error")
    return f"{error.get('code')}: {error.get('detail')}" if error else None


SESSIONS = [
    Column("session_id"),
    Column("session_name"),
    Column("session_type"),
    Column("component", component_of),
    Column("user_id"),
    Column("run_count"),
    Column("total_tokens"),
    Column("last_status"),
    Column("updated_at"),
]
SESSION = [
    Column("session_id"),
    Column("session_name"),
    Column("component", component_of),
    Column("user_id"),
    Column("total_tokens"),
    Column("session_state"),
    Column("metadata"),
    Column("created_at"),
    Column("updated_at"),
]
RENAMED = [Column("session_id"), Column("session_name"), Column("updated_at")]
RUNS = [
    Column("run_id"),
    Column("session_id"),
    Column("component", component_of),
    Column("user_id"),
    Column("status"),
    Column("error", _error),
    Column("total_tokens", _tokens),
    Column("created_at"),
    Column("finished_at"),
]
RUN = [
    *RUNS[:-2],
    Column("parent_run_id"),
    Column("member_runs", lambda run: ", ".join(run.get("member_runs") or [])),
    Column("cancel_requested_at"),
    Column("cancel_requested_by"),
    Column("cancel_reason"),
    Column("created_at"),
    Column("started_at"),
    Column("finished_at"),
    Column("input"),
    Column("content"),
]
CANCELS = [
    Column("run_id"),
    Column("session_id"),
    Column("cancel"),
    Column("status"),
    Column("cancel_requested_at"),
    Column("finished_at"),
    Column("reason"),
]


def show_history(session: Record) -> None:
    """Write the conversation of a session below its fields, for people."""
    for message in session.get("chat_history") or []:
        text = printable(str(message.get("content") or ""), lines=True)
        write_line(f"\n{printable(str(message.get('role')))}:")
        write_line("\n".join(f"  {line}".rstrip() for line in text.splitlines()))
