"""The import of a database of AgentOS into one of agentctl (`agentctl db import`).

A session, run or memory that exists already is skipped, so an import can be repeated, also after an
interruption or while AgentOS goes on working.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import orjson

from agentctl import errors
from agentctl.admin.imports.records import build_run_row
from agentctl.admin.imports.store import ImportedSession, ImportReport, store_session
from agentctl.config.upkeep import Quotas
from agentctl.interface.requests import Page, SessionFilter
from agentctl.interop.agentos.database.reader import (
    AgentOSReader,
    StoredSession,
    build_session_record,
)
from agentctl.records.kinds import Record
from agentctl.records.memories import check_memory, check_topics
from agentctl.records.runs import FINAL_STATUSES, RunRow
from agentctl.records.sessions import SessionRow
from agentctl.records.text import is_session_id
from agentctl.records.times import format_rfc3339, now, parse_rfc3339
from agentctl.store.database import Database, Steps, unit
from agentctl.store.repositories import memories, sessions
from agentctl.store.repositories.memories import MemoryRow
from agentctl.store.repositories.quotas import check_added
from agentctl.store.visibility import EVERYONE

ReportProgress = Callable[[str, int, int | None], None]
"""Receives the name of the work, the part done and the total, if known."""

PAGE_SESSIONS = 50

_OLDEST_FIRST = SessionFilter(page=Page(sort_order="asc"))

_WORKFLOW_RUNS = "workflow runs"

ACTOR = "local:db-import"
"""The principal of the cancel request of a cancelled run, which agentctl requires."""


async def import_agentos(
    reader: AgentOSReader,
    target: Database,
    system: Database,
    report: ReportProgress,
    quotas: Quotas,
) -> ImportReport:
    """Copy sessions, runs and memories.

    Args:
        target: receives sessions and runs.
        system: receives memories: the first configured database.
        quotas: bounds for the data of one owner; what exceeds them is left out.
    """
    imported = ImportReport()
    total = await reader.count_sessions()
    done = 0

    while True:
        page = await reader.list_sessions(PAGE_SESSIONS, done, _OLDEST_FIRST)
        if not page:
            break
        for session in page:
            await _import_session(reader, target, session, imported, quotas)
            done += 1
            report("sessions imported", done, total)

    async for memory in reader.list_memories():
        await _import_memory(system, memory, imported, quotas)
        report("memories imported", imported.counts["memories"], None)

    for table in reader.layout.others:
        if not table.endswith("_schema_versions") and (rows := await reader.count_rows(table)):
            imported.unused.append(f"{rows} rows of {table}")
    if steps := imported.counts.pop(_WORKFLOW_RUNS, 0):
        imported.unused.append(
            f"the runs of steps in {steps} workflow runs, whose tokens are counted"
        )
    return imported


async def _import_session(
    reader: AgentOSReader,
    target: Database,
    session: StoredSession,
    imported: ImportReport,
    quotas: Quotas,
) -> None:
    runs = await reader.list_runs(session)
    session_id = session.session_id
    if session.problem is not None:
        imported.left.append((session_id, f"unreadable: {session.problem}"))
        return
    if not is_session_id(session_id):
        imported.left.append((session_id, "agentctl does not allow such a session id"))
        return
    rows: list[RunRow] = []
    for run in _sort_parents_first(runs):
        if run["status"] == "UNREADABLE":
            imported.left.append((run["run_id"] or session_id, run["error"]["detail"]))
        elif run["status"] not in FINAL_STATUSES:
            imported.left.append((run["run_id"], f"the run is {run['status']}"))
        else:
            try:
                rows.append(_build_run_row(session, run))
            except errors.ValidationFailed as failure:
                imported.left.append((run["run_id"], failure.detail))
    row = _build_session_row(session, build_session_record(session, runs))
    stored = await store_session(
        target, ImportedSession(row, rows, counted=False), imported, quotas
    )
    if session.kind == "workflow":
        imported.counts[_WORKFLOW_RUNS] += stored
    for name in session.data.get("session_data") or {}:
        if name not in ("session_state", "session_name", "session_metrics"):
            imported.unused.append(f"session_data.{name} of session {session_id}")


def _sort_parents_first(runs: list[dict[str, Any]]) -> Iterator[Record]:
    ids = {run["run_id"] for run in runs}
    members: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        if run["parent_run_id"] in ids:
            members.setdefault(run["parent_run_id"], []).append(run)
    waiting = [run for run in reversed(runs) if run["parent_run_id"] not in ids]
    seen: set[str] = set()
    while waiting:
        run = waiting.pop()
        if run["run_id"] in seen:
            continue
        seen.add(run["run_id"])
        yield run if run["parent_run_id"] in ids else run | {"parent_run_id": None}
        waiting += reversed(members.get(run["run_id"], []))


def _build_session_row(session: StoredSession, summary: Record) -> SessionRow:
    created_at = session.created_at or now()
    data = session.data.get("session_data") or {}
    described = session.data.get(f"{session.kind}_data") or {}
    row = sessions.build_session(
        session.session_id,
        session.kind,
        user_id=session.keys["user_id"],
        now=created_at,
        component_id=session.component_id,
        component_name=str(described.get("name") or session.component_id or ""),
        component_data=_dump(described),
        session_name=summary["session_name"][:255],
        session_state=_dump(data.get("session_state")),
        metadata=_dump(session.data.get("metadata")),
    )
    row.updated_at = max(session.updated_at or created_at, created_at)
    row.summary = _dump(session.data.get("summary"))
    return row


def _build_run_row(session: StoredSession, run: Record) -> RunRow:
    """Build the row of a run; ValidationFailed if a value cannot be stored."""
    started = _parse_time(run["created_at"]) or session.created_at or now()
    end = format_rfc3339(max(_parse_time(run["finished_at"]) or started, started))
    is_cancelled = run["status"] == "CANCELLED"
    messages = _build_messages(run["messages"])
    row = build_run_row(
        {
            **run,
            "session_id": session.session_id,
            "user_id": session.keys["user_id"],
            "messages": messages,
            "metadata": run["metadata"] or None,
            "session_state": None,
            "created_at": format_rfc3339(started),
            "started_at": format_rfc3339(started),
            "finished_at": end,
            "stopped_at": end,
            "cancel_requested_at": end if is_cancelled else None,
            "cancel_requested_by": ACTOR if is_cancelled else None,
        },
        "run",
        session.session_id,
    )
    history = [
        {**message, "from_history": False, "stop_after_tool_call": False}
        for message in messages
        if message["role"] in ("user", "assistant") and message["content"]
    ]
    row.history = orjson.dumps(history).decode()
    return row


def _build_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Build the messages that later runs of the session continue.

    Messages of earlier runs are dropped, and calls of tools without a result, which no model takes.
    """
    own = [message for message in messages if not message["from_history"]]
    answered = {message.get("tool_call_id") for message in own if message["role"] == "tool"}
    called: set[str] = set()
    built: list[dict[str, Any]] = []

    for message in own:
        role = message["role"]
        content = message["content"] or ""
        created_at = message["created_at"]
        entry: dict[str, Any] = {
            "role": role,
            "content": content,
            "created_at": created_at if isinstance(created_at, int) else None,
        }
        if role == "assistant":
            calls = [
                {**call, "name": call["name"] or ""}
                for call in message.get("tool_calls", [])
                if call["id"] in answered - {None}
            ]
            called |= {call["id"] for call in calls}
            reason = "tool_call" if calls else "stop"
            entry |= {"metrics": message.get("metrics") or {}, "finish_reason": reason}
            entry |= {"tool_calls": calls} if calls else {}
        elif role == "tool":
            if message.get("tool_call_id") not in called:
                continue
            name = str(message.get("tool_name") or "")
            entry |= {"tool_call_id": message["tool_call_id"], "tool_name": name}
        elif role not in ("system", "user"):
            continue
        built.append(entry)
    return built


async def _import_memory(
    system: Database, memory: Record, imported: ImportReport, quotas: Quotas
) -> None:
    memory_id = memory["memory_id"]
    if memory["problem"] is not None:
        imported.left.append((memory_id, f"unreadable: {memory['problem']}"))
        return
    updated = _parse_time(memory["updated_at"]) or now()
    try:
        row = MemoryRow(
            memory_id=memory_id,
            user_id=memory["user_id"],
            agent_id=memory["agent_id"],
            team_id=memory["team_id"],
            run_id=None,
            created_at=_parse_time(memory["created_at"]) or updated,
            updated_at=updated,
            topics=orjson.dumps(check_topics(memory["topics"])).decode(),
            memory=check_memory(memory["memory"]),
        )
    except errors.ValidationFailed as failure:
        imported.left.append((memory_id, failure.detail))
        return
    if not row.user_id:
        imported.left.append((memory_id, "the memory has no user"))
        return
    try:
        stored = await system.write(_store_memory(row, quotas))
    except errors.QuotaExceeded as refused:
        imported.left.append((memory_id, refused.detail))
        return
    imported.counts["memories" if stored else "memories that existed"] += 1


@unit
def _store_memory(row: MemoryRow, quotas: Quotas) -> Steps[bool]:
    if (yield from memories.get(row.memory_id, EVERYONE)) is not None:
        return False
    yield from memories.create(row)
    yield from check_added(quotas, row.user_id, "memories")
    return True


def _dump(value: object) -> str | None:
    return orjson.dumps(value).decode() if value else None


def _parse_time(text: str | None) -> int | None:
    return None if text is None else parse_rfc3339(text)
