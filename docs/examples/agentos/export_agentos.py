"""Writes the sessions or the memories of a database of AgentOS as JSON Lines for agentctl."""

import json
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime
from typing import Any

from agno.db.postgres import PostgresDb
from agno.db.sqlite import SqliteDb
from agno.metrics import BaseMetrics
from agno.run.base import RunStatus
from agno.session import AgentSession, TeamSession
from pydantic import BaseModel

COUNTERS = [field.name for field in fields(BaseMetrics) if field.name.endswith("_tokens")]
TOOL_FIELDS = ("tool_call_id", "tool_name", "tool_args", "tool_call_error", "result")
MEMORY_FIELDS = ("memory", "topics", "user_id", "agent_id", "team_id")
ENDED = (RunStatus.completed, RunStatus.error, RunStatus.cancelled)


def to_text(value: Any) -> str:
    if isinstance(value, BaseModel):
        return value.model_dump_json()
    return value if isinstance(value, str) else json.dumps(value, default=str)


def to_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def count_tokens(metrics: Any) -> dict[str, int]:
    # The metrics of a workflow are those of its steps.
    parts = [step.metrics for step in metrics.steps.values()] if hasattr(metrics, "steps") else []
    return {
        name: sum(getattr(part, name, 0) or 0 for part in [metrics, *parts]) for name in COUNTERS
    }


def parse_integer(digits: str) -> int | str:
    # agentctl stores integers of 64 bits; a larger one becomes a text.
    return int(digits) if len(digits) < 19 else digits


def build_call(call: dict[str, Any]) -> dict[str, Any]:
    text = call["function"]["arguments"] or "{}"
    try:
        arguments = json.loads(text, parse_int=parse_integer)
    except json.JSONDecodeError:
        arguments = None
    if not isinstance(arguments, dict):  # A model can write anything.
        arguments = {"arguments": text}
    return {"id": call["id"], "name": call["function"]["name"], "arguments": arguments}


def build_messages(run: Any) -> Iterator[dict[str, Any]]:
    """Yield the messages that later runs continue: models take no call without its result."""
    own = [message for message in getattr(run, "messages", None) or [] if not message.from_history]
    results = {message.tool_call_id for message in own if message.role == "tool"} - {None}
    called = set()
    for message in own:
        content = "" if message.content is None else to_text(message.content)
        built = {"role": message.role, "content": content, "created_at": message.created_at}
        if message.role == "assistant":
            calls = [call for call in message.tool_calls or [] if call.get("id") in results]
            called |= {call["id"] for call in calls}
            built["metrics"] = count_tokens(message.metrics)
            built |= {"tool_calls": [build_call(call) for call in calls]} if calls else {}
        if message.role == "tool":
            built |= {"tool_call_id": message.tool_call_id, "tool_name": message.tool_name or ""}
        if message.role in ("system", "user", "assistant") or message.tool_call_id in called:
            yield built


def build_run(run: Any, session: Any, parent_run_id: str | None) -> dict[str, Any]:
    kind = next(kind for kind in ("agent", "team", "workflow") if getattr(run, f"{kind}_id", None))
    content = None if run.content is None else to_text(run.content)
    started = to_time(run.created_at)
    ended = to_time(run.created_at + (getattr(run.metrics, "duration", None) or 0))
    record = {
        "run_id": run.run_id,
        "session_id": session.session_id,
        "parent_run_id": parent_run_id,
        f"{kind}_id": getattr(run, f"{kind}_id"),
        "user_id": session.user_id,
        "status": RunStatus(run.status).value,
        "input": to_text(getattr(run.input, "input_content", run.input) or ""),
        "content": content,
        "messages": list(build_messages(run)),
        "tools": [
            {name: getattr(tool, name) for name in TOOL_FIELDS}
            for tool in getattr(run, "tools", None) or []
        ],
        "metrics": count_tokens(run.metrics),
        "metadata": run.metadata,
        "created_at": started,
        "started_at": started,
        "finished_at": ended,
        "stopped_at": ended,
    }
    if run.status == RunStatus.error:  # Its content is the message of the error.
        record |= {"content": None, "error": {"code": "RUN_FAILED", "detail": content or ""}}
    if run.status == RunStatus.cancelled:
        record["cancel_requested_at"] = ended
    return record


def build_runs(session: Any) -> Iterator[dict[str, Any]]:
    """Yield the runs that have ended, each before those of its members."""
    ids = {run.run_id for run in session.runs or []}
    below = defaultdict(list)
    for run in session.runs or []:
        below[run.parent_run_id if run.parent_run_id in ids else None].append(run)
    waiting = [(None, run) for run in reversed(below[None])]
    while waiting:
        parent_run_id, run = waiting.pop()
        if run.status in ENDED:
            yield build_run(run, session, parent_run_id)
            waiting += [(run.run_id, member) for member in reversed(below[run.run_id])]
        else:
            print(f"left out: run {run.run_id} is {RunStatus(run.status).value}", file=sys.stderr)


def build_session(session: Any) -> dict[str, Any]:
    kinds = {AgentSession: "agent", TeamSession: "team"}
    kind = kinds.get(type(session), "workflow")
    runs = list(build_runs(session))
    tops = [run for run in runs if run["parent_run_id"] is None]
    tokens = {name: sum(run["metrics"][name] for run in runs) for name in COUNTERS}
    data = session.session_data or {}
    name = data.get("session_name") or (tops[0]["input"][:60] if tops else "")
    record = {
        "session_id": session.session_id,
        "session_name": name[:255],
        "user_id": session.user_id,
        f"{kind}_id": getattr(session, f"{kind}_id"),
        f"{kind}_data": getattr(session, f"{kind}_data"),
        "session_state": data.get("session_state"),
        "metadata": session.metadata,
        "created_at": to_time(session.created_at),
        "updated_at": to_time(session.updated_at or session.created_at),
    }
    if kind == "workflow":
        record["workflow_name"] = (session.workflow_data or {}).get("name")
        record["session_data"] = {"session_metrics": tokens}
        return {"session": record, "runs": runs}
    record["session_summary"] = session.summary.to_dict() if session.summary else None
    record["metrics"] = tokens
    record["chat_history"] = [
        message | {"from_history": False, "stop_after_tool_call": False}
        for run in tops
        for message in run["messages"]
        if message["role"] in ("user", "assistant") and message["content"]
    ]
    return {"session": record, "runs": runs}


if __name__ == "__main__":
    place, what = sys.argv[1:]
    database = PostgresDb(db_url=place) if "://" in place else SqliteDb(db_file=place)
    if what == "memories":
        for memory in database.get_user_memories():
            print(json.dumps({name: getattr(memory, name) for name in MEMORY_FIELDS}))
    page = 1
    while what == "sessions" and (found := database.get_sessions(limit=50, page=page)):
        for session in found:
            print(json.dumps(build_session(session), default=str))
        page += 1
