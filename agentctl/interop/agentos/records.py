"""Records of AgentOS in the form of this interface.

AgentOS is the server of the package `agno`. Its records come from its HTTP interface and from its
databases, and differ between releases, so every field is optional here, and a field of another
type is treated as absent. Fields that this interface does not have are kept where they do not
contradict it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import orjson

from agentctl.records.items import Child, build_items
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.phase import build_phase
from agentctl.records.runs import FINAL_STATUSES
from agentctl.records.sessions import TOKEN_COUNTERS
from agentctl.records.times import format_rfc3339
from agentctl.requests import RunView

Record = Mapping[str, Any]

_SECONDS_PER_ERA = 253_402_300_800
"""Seconds of the year 10000: a larger number is not a time in seconds."""

"""Statuses of AgentOS that do not change; it has further ones, such as PAUSED."""


def parse_moment(value: object) -> int | None:
    """Return a time of AgentOS in microseconds: seconds since the epoch, or an ISO 8601 text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return int(value * 1_000_000) if 0 <= value < _SECONDS_PER_ERA else None
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
            whole = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            return int(whole.timestamp() * 1_000_000)
        except (ValueError, OverflowError):
            return None
    return None


def format_moment(value: object) -> str | None:
    """Return a time of AgentOS as RFC 3339, None without one."""
    moment = parse_moment(value)
    return None if moment is None else format_rfc3339(moment)


def format_content(value: object) -> str | None:
    """Return content as text: a list of text parts is joined, another value becomes JSON."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in value]
        texts = [part for part in parts if isinstance(part, str)]
        if texts and len(texts) == len(parts):
            return "".join(texts)
    return orjson.dumps(value, default=str).decode()


def find_kind(record: Record) -> ComponentKind | None:
    """Return the kind of component that a run or session names, None without one.

    A run of an agent in a workflow may name the workflow too, so its own component comes first.
    """
    for kind in ("agent", "team", "workflow"):
        if record.get(KINDS[kind].id_field):
            return kind
    return None


def build_run(run: Record, session_id: str | None = None) -> dict[str, Any]:
    """Build a run record from the run of a response, of a session or of a database row.

    It has no `stopped_at`, because AgentOS does not know when the work of a run has stopped.

    Args:
        run: the object of AgentOS.
        session_id: its session, for an object that does not name it.
    """
    kind = find_kind(run) or "agent"
    id_field = KINDS[kind].id_field
    status = build_status(run.get("status"))
    content = format_content(run.get("content"))
    error = None
    if status == "ERROR":
        error, content = build_error(run, content), None
    messages = build_messages(run.get("messages"))
    return {
        "run_id": _text(run.get("run_id")) or "",
        "session_id": _text(run.get("session_id")) or session_id or "",
        "parent_run_id": _text(run.get("parent_run_id")),
        id_field: _text(run.get(id_field)) or "",
        "user_id": _text(run.get("user_id")),
        "status": status,
        "input": _find_input(run, messages),
        "content": content,
        "messages": messages,
        "tools": _build_tools(run.get("tools")),
        "metrics": build_counters(run.get("metrics")),
        "output": None,
        "reasoning_content": _text(run.get("reasoning_content")),
        "purpose": None,
        "metadata": _object(run.get("metadata")),
        "session_state": _object(run.get("session_state")),
        "error": error,
        "created_at": format_moment(run.get("created_at")),
        "started_at": None,
        "finished_at": _find_end(run) if status in FINAL_STATUSES else None,
        "cancel_requested_at": None,
        "cancel_requested_by": None,
        "cancel_reason": None,
        "late_result": None,
        "holding": None,
        "request_id": None,
        "spans": [],
        "member_runs": [
            str(member["run_id"])
            for member in _objects(run.get("member_responses"))
            if member.get("run_id")
        ],
    }


def build_status(value: object) -> str:
    """Return a status, in upper case; one that this interface does not have is kept."""
    return str(value or "").upper() or "UNKNOWN"


def build_error(record: Record, text: str | None) -> dict[str, str]:
    """Build the error of a failed run, whose content AgentOS replaces by the message."""
    code = _text(record.get("error_type")) or "RUN_FAILED"
    return {"code": code, "detail": text or "AgentOS gives no reason"}


def build_counters(metrics: object) -> dict[str, int]:
    """Build the nine token counters; those of a workflow are the sum of its steps."""
    found = metrics if isinstance(metrics, dict) else {}
    steps = found.get("steps")
    if isinstance(steps, dict):
        return sum_counters(
            build_counters(step.get("metrics", step))
            for step in steps.values()
            if isinstance(step, dict)
        )
    return {name: parse_count(found.get(name)) for name in TOKEN_COUNTERS}


def sum_counters(counters: Iterator[dict[str, int]]) -> dict[str, int]:
    """Add token counters by name."""
    total = dict.fromkeys(TOKEN_COUNTERS, 0)
    for each in counters:
        for name in TOKEN_COUNTERS:
            total[name] += each[name]
    return total


def build_messages(messages: object) -> list[dict[str, Any]]:
    """Build the messages of a run in the neutral format of this interface."""
    return [_build_message(message) for message in _objects(messages)]


def _build_message(message: Record) -> dict[str, Any]:
    built = {
        "role": str(message.get("role") or ""),
        "content": format_content(message.get("content")),
        "created_at": message.get("created_at"),
        "from_history": message.get("from_history") is True,
        "stop_after_tool_call": message.get("stop_after_tool_call") is True,
    }
    calls = [_build_tool_call(call) for call in _objects(message.get("tool_calls"))]
    if calls:
        built["tool_calls"] = calls
    for name in ("tool_call_id", "tool_name", "reasoning_content"):
        if message.get(name):
            built[name] = message[name]
    if isinstance(message.get("metrics"), dict):
        built["metrics"] = build_counters(message["metrics"])
    return built


def _build_tool_call(call: Record) -> dict[str, Any]:
    function = _object(call.get("function")) or call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            arguments = {"arguments": arguments}
    return {"id": call.get("id"), "name": function.get("name"), "arguments": arguments or {}}


def build_chat_history(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Build the conversation of a session from its run records: users and assistants with text.

    A run without messages, as one that failed early, is shown by its input and its answer.
    """
    history: list[dict[str, Any]] = []
    for run in runs:
        if run["parent_run_id"]:
            continue
        shown = [
            message
            for message in run["messages"]
            if message["role"] not in ("system", "tool")
            and not message["from_history"]
            and message["content"]
        ]
        if not shown:
            pairs = (("user", run["input"]), ("assistant", run["content"]))
            shown = [{"role": role, "content": text} for role, text in pairs if text]
        history += shown
    return history


def build_component(kind: ComponentKind, record: Record) -> dict[str, Any]:
    """Build an agent, team or workflow record; additional fields of AgentOS are kept."""
    id_field = KINDS[kind].id_field
    found = str(record.get("id") or record.get(id_field) or "")
    sessions = _object(record.get("sessions")) or {}
    built = {
        **record,
        id_field: found,
        "id": found,
        "name": str(record.get("name") or found),
        "description": str(record.get("description") or ""),
        "db_id": str(record.get("db_id") or ""),
    }
    if kind == "workflow":
        return built | {"steps": [_build_step(step) for step in _objects(record.get("steps"))]}
    tools = record.get("tools")
    listed = tools.get("tools") if isinstance(tools, dict) else tools
    built["model"] = _build_model(_object(record.get("model")))
    built["tools"] = _objects(listed)
    built["session_table"] = str(sessions.get("session_table") or "")
    if kind == "team":
        built["mode"] = str(record.get("mode") or "")
        built["members"] = [
            build_component("team" if "members" in member else "agent", member)
            for member in _objects(record.get("members"))
        ]
    return built


def _build_model(model: Record | None) -> dict[str, Any] | None:
    if model is None:
        return None
    name = str(model.get("model") or model.get("id") or model.get("name") or "")
    return {"name": name, "model": name, "provider": str(model.get("provider") or "")}


def _build_step(step: Record) -> dict[str, Any]:
    built = {**step, "name": str(step.get("name") or step.get("type") or "")}
    for kind in ("agent", "team"):
        if component := _object(step.get(kind)):
            built[KINDS[kind].id_field] = str(component.get("id") or component.get("name") or "")
            built[kind] = build_component(kind, component)
    return built


def build_account(account: Record, now: int) -> dict[str, Any]:
    """Build a service account record.

    Args:
        account: the object of AgentOS.
        now: the current time in microseconds, which decides if the account has expired.
    """
    expires = parse_moment(account.get("expires_at"))
    if account.get("revoked_at"):
        state = "revoked"
    else:
        state = "expired" if expires is not None and expires <= now else "active"
    built = {
        "id": str(account.get("id") or ""),
        "name": str(account.get("name") or ""),
        "scopes": [_build_grant(scope) for scope in account.get("scopes") or []],
        "token_hint": str(account.get("token_prefix") or ""),
        "created_by": _text(account.get("created_by")),
        "created_at": format_moment(account.get("created_at")),
        "expires_at": format_moment(account.get("expires_at")),
        "last_used_at": format_moment(account.get("last_used_at")),
        "revoked_at": format_moment(account.get("revoked_at")),
        "state": state,
    }
    return built | ({"token": account["token"]} if isinstance(account.get("token"), str) else {})


def _build_grant(scope: object) -> dict[str, str]:
    if not isinstance(scope, dict):
        return {"scope": str(scope), "effect": "allow"}
    raw = scope.get("raw") or scope.get("scope") or ""
    return {"scope": str(raw), "effect": str(scope.get("value") or scope.get("effect") or "allow")}


def build_memory(memory: Record) -> dict[str, Any]:
    """Build a memory record."""
    updated = format_moment(memory.get("updated_at"))
    topics = memory.get("topics")
    return {
        "memory_id": str(memory.get("memory_id") or ""),
        "memory": format_content(memory.get("memory")) or "",
        "topics": [str(topic) for topic in topics] if isinstance(topics, list) else [],
        "agent_id": _text(memory.get("agent_id")),
        "team_id": _text(memory.get("team_id")),
        "user_id": _text(memory.get("user_id")) or "",
        "run_id": None,
        "created_at": format_moment(memory.get("created_at")) or updated,
        "updated_at": updated,
    }


def _find_end(run: Record) -> str | None:
    created = parse_moment(run.get("created_at"))
    seconds = (_object(run.get("metrics")) or {}).get("duration")
    if created is None or not isinstance(seconds, int | float):
        return None
    return format_rfc3339(created + int(seconds * 1_000_000))


def _find_input(run: Record, messages: list[dict[str, Any]]) -> str:
    given = run.get("run_input", run.get("input"))
    if isinstance(given, dict) and "input_content" in given:
        given = given["input_content"]
    if given is None:
        asked = (message["content"] for message in messages if message["role"] == "user")
        given = next(asked, None)
    return format_content(given) or ""


def _build_tools(tools: object) -> list[dict[str, Any]]:
    names = ("tool_call_id", "tool_name", "tool_args", "result", "tool_call_error")
    return [{name: tool.get(name) for name in names} for tool in _objects(tools)]


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _object(value: object) -> dict[str, Any] | None:
    return value if isinstance(value, dict) else None


def _objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def parse_count(value: object) -> int:
    """Return a number of AgentOS that counts, 0 for any other value."""
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0


def find_session_kind(session: Record) -> ComponentKind:
    """Return the kind of a session, from its type or from the fields of its detail record."""
    named = session.get("session_type")
    if named in KINDS:
        return cast(ComponentKind, named)
    if "agent_session_id" in session:
        return "agent"
    return find_kind(session) or ("workflow" if "workflow_data" in session else "team")


def build_session_summary(session: Record) -> dict[str, Any]:
    """Build a session of a list. Numbers and states of its runs are null: AgentOS lists none."""
    metrics = _object(session.get("metrics")) or {}
    created = format_moment(session.get("created_at"))
    return {
        "session_id": str(session.get("session_id") or ""),
        "session_name": str(session.get("session_name") or ""),
        "session_type": find_session_kind(session),
        "user_id": _text(session.get("user_id")),
        **{names.id_field: _text(session.get(names.id_field)) for names in KINDS.values()},
        "total_tokens": session.get("total_tokens", metrics.get("total_tokens")),
        "run_count": None,
        "history_bytes": None,
        "last_status": None,
        "created_at": created,
        "updated_at": format_moment(session.get("updated_at")) or created,
    }


def view_run(run: Record, form: RunView, others: Sequence[Record] = ()) -> Record:
    """Return a whole run record of another product in a view.

    Such a product has no summaries, so `summary` is the whole record.

    Args:
        others: whole records, those of the runs that it started among them.
    """
    if form.view not in ("items", "phase"):
        return run
    replaced = ("content", "messages", "tools", "reasoning_content")
    rest = {name: value for name, value in run.items() if name not in replaced}
    rest["phase"] = build_phase(run)
    if form.view == "items":
        below = [
            Child(view_run(other, RunView("phase")), str(other.get("input") or ""))
            for other in others
            if other["parent_run_id"] == run["run_id"]
        ]
        rest["items"] = build_items(run, below, form.cut)
    return rest
