"""The records of AgentOS and of this interface, both ways.

AgentOS is the server of the package `agno`. `RUN`, `SESSION`, `MEMORY` and `ACCOUNT` are the fields
of records. `read_…` converts what comes from a server or a database of AgentOS, `write_…` what its
clients receive.

The records of AgentOS differ between releases, so every field that is read is optional. Fields that
this interface does not have are kept where they do not contradict it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, NamedTuple, cast

import orjson

from agentctl.interop.agentos.values import (
    Built,
    format_content,
    format_moment,
    parse_moment,
    read_counters,
    read_object,
    read_objects,
    read_plain,
    read_required,
    read_status,
    read_text,
    to_seconds,
    write_counters,
)
from agentctl.interop.agentos.waiting import find_waiting
from agentctl.records.accounts import AccountRecord
from agentctl.records.kinds import KINDS, ComponentKind, Record
from agentctl.records.memories import MemoryRecord
from agentctl.records.phase import describe_run
from agentctl.records.runs import FINAL_STATUSES, RunRecord
from agentctl.records.sessions import LastRun, SessionSummary
from agentctl.records.times import format_rfc3339
from agentctl.runtime.json_values import clean_json_value

_TOOL_FIELDS = ("tool_call_id", "tool_name", "tool_args", "result", "tool_call_error")
_NEW_TOOL: Built = dict.fromkeys(
    (
        "tool_call_id", "tool_name", "tool_args", "tool_call_error", "result", "metrics",
        "child_run_id", "stop_after_tool_call", "created_at", "requires_confirmation", "confirmed",
        "confirmation_note", "requires_user_input", "user_input_schema", "user_feedback_schema",
        "answered", "external_execution_required", "external_execution_silent", "approval_type",
        "approval_id",
    )
) | {"stop_after_tool_call": False}  # fmt: skip
"""All members of a tool call of AgentOS."""


def _keep(value: Any) -> Any:
    return value


class MappedField(NamedTuple):
    """A field of a record.

    Attributes:
        read: converts a value of AgentOS; None is an absent one.
        write: converts a value of this interface.
        theirs: the name of the field on AgentOS; empty for the same name.
    """

    read: Callable[[Any], Any]
    write: Callable[[Any], Any] = _keep
    theirs: str = ""


Fields = Mapping[str, MappedField]


def read_fields(record_type: type, fields: Fields, record: Record) -> Built:
    """Return the fields of a record type; those that AgentOS does not have are null."""
    return {
        name: fields[name].read(record.get(fields[name].theirs or name)) if name in fields else None
        for name in record_type.__annotations__
    }


def write_fields(fields: Fields, record: Record, *names: str) -> Built:
    """Return the named fields of a record of this interface as those of AgentOS."""
    return {fields[name].theirs or name: fields[name].write(record[name]) for name in names}


def find_kind(record: Record) -> ComponentKind | None:
    """Return the kind of component that a run or session names, None without one.

    A run of an agent in a workflow may name the workflow too, so its own component comes first.
    """
    for kind in ("agent", "team", "workflow"):
        if record.get(KINDS[kind].id_field):
            return kind
    return None


def read_error(record: Record, text: str | None) -> dict[str, str]:
    """Build the error of a failed run, whose content AgentOS replaces by the message."""
    code = read_text(record.get("error_type")) or "RUN_FAILED"
    return {"code": code, "detail": text or "AgentOS gives no reason"}


def read_messages(messages: object) -> list[Built]:
    """Build the messages of a run in the neutral format of this interface."""
    read = list[Built]()
    for message in read_objects(messages):
        built = {
            "role": str(message.get("role") or ""),
            "content": format_content(message.get("content")),
            "created_at": message.get("created_at"),
            "from_history": message.get("from_history") is True,
            "stop_after_tool_call": message.get("stop_after_tool_call") is True,
        }
        calls = [_read_tool_call(call) for call in read_objects(message.get("tool_calls"))]
        if calls:
            built["tool_calls"] = calls
        for name in ("tool_call_id", "tool_name", "reasoning_content"):
            if message.get(name):
                built[name] = message[name]
        if isinstance(message.get("metrics"), dict):
            built["metrics"] = read_counters(message["metrics"])
        read.append(built)
    return read


def _read_tool_call(call: Record) -> Built:
    function = read_object(call.get("function")) or call
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            # orjson would make a double of an integer of more than 64 bits: it becomes a text.
            arguments = clean_json_value(json.loads(arguments))
        except (ValueError, RecursionError):
            arguments = {"arguments": arguments}
    if arguments and not isinstance(arguments, dict):
        arguments = {"arguments": arguments}
    return {"id": call.get("id"), "name": function.get("name"), "arguments": arguments or {}}


def write_messages(run_id: str, messages: Iterable[Record]) -> list[Built]:
    """Return the messages of a run; the id of a message is its run and its position."""
    written = list[Built]()
    for position, message in enumerate(messages):
        built = {
            "id": f"{run_id}-{position}",
            "content": message.get("content"),
            "from_history": False,
            "stop_after_tool_call": False,
            "role": message["role"],
            "created_at": message.get("created_at"),
        }
        if message.get("tool_calls"):
            built["tool_calls"] = [
                {
                    "id": call["id"],
                    "type": "function",
                    "function": {
                        "name": call["name"],
                        "arguments": orjson.dumps(call["arguments"]).decode(),
                    },
                }
                for call in message["tool_calls"]
            ]
        for name in ("tool_call_id", "tool_name"):
            if message.get(name) is not None:
                built[name] = message[name]
        if message.get("metrics"):
            built["metrics"] = write_counters(message["metrics"])
        written.append(built)
    return written


def write_tool(tool: Record, created_at: int) -> Built:
    """Return a tool call with all members."""
    return {**_NEW_TOOL, "created_at": created_at, **tool}


_TEXT = MappedField(read_text)
_REQUIRED = MappedField(read_required)
_PLAIN = MappedField(read_plain)
_MOMENT = MappedField(format_moment, lambda value: None if value is None else to_seconds(value))
_IDS: Fields = {names.id_field: _TEXT for names in KINDS.values()}

RUN: Fields = {
    "run_id": _REQUIRED,
    "session_id": _REQUIRED,
    "parent_run_id": _TEXT,
    **_IDS,
    "user_id": _TEXT,
    "status": MappedField(read_status),
    "input": MappedField(_keep, theirs="run_input"),
    "content": MappedField(format_content),
    "messages": MappedField(read_messages),
    "tools": MappedField(
        lambda tools: [
            {name: tool.get(name) for name in _TOOL_FIELDS} for tool in read_objects(tools)
        ]
    ),
    "metrics": MappedField(read_counters, write_counters),
    "reasoning_content": _TEXT,
    "metadata": MappedField(read_object),
    "session_state": MappedField(read_object),
    "created_at": _MOMENT,
    "spans": MappedField(lambda value: []),
    "approvals": MappedField(lambda value: []),
    "member_runs": MappedField(
        lambda runs: [str(run["run_id"]) for run in read_objects(runs) if run.get("run_id")],
        theirs="member_responses",
    ),
}

SESSION: Fields = {
    "session_id": _PLAIN,
    "session_name": _PLAIN,
    "user_id": _TEXT,
    **_IDS,
    "total_tokens": MappedField(_keep),
    "created_at": _MOMENT,
    "updated_at": _MOMENT,
}

MEMORY: Fields = {
    "memory_id": _PLAIN,
    "memory": MappedField(lambda value: format_content(value) or ""),
    "topics": MappedField(
        lambda value: [str(topic) for topic in value] if isinstance(value, list) else []
    ),
    "agent_id": _TEXT,
    "team_id": _TEXT,
    "user_id": _REQUIRED,
    "created_at": _MOMENT,
    "updated_at": _MOMENT,
}

ACCOUNT: Fields = {
    "id": _PLAIN,
    "name": _PLAIN,
    "token_hint": MappedField(read_plain, theirs="token_prefix"),
    "scopes": MappedField(
        lambda value: [_read_grant(scope) for scope in value or []],
        lambda value: [_write_scope(grant["scope"]) for grant in value],
    ),
    "created_at": _MOMENT,
    "expires_at": _MOMENT,
    "last_used_at": _MOMENT,
    "revoked_at": _MOMENT,
    "created_by": _TEXT,
}


def read_run(run: Record, session_id: str | None = None) -> Built:
    """Build a run record from the run of a response, of a session or of a database row.

    It has no `stopped_at`, because AgentOS does not know when the work of a run has stopped.
    `session_id` is that of an object that does not name its session.
    """
    built = read_fields(RunRecord, RUN, run)
    own = KINDS[find_kind(run) or "agent"].id_field
    built[own] = built[own] or ""
    for name in _IDS.keys() - {own} | {"stopped_at"}:
        del built[name]
    built["session_id"] = built["session_id"] or session_id or ""
    content = run.get("run_input", run.get("input"))
    if isinstance(content, dict) and "input_content" in content:
        content = content["input_content"]
    if content is None:
        messages = built["messages"]
        content = next((line["content"] for line in messages if line["role"] == "user"), None)
    built["input"] = format_content(content) or ""
    built["total_tokens"] = built["metrics"].get("total_tokens")
    if built["status"] == "ERROR":
        built |= {"error": read_error(run, built["content"]), "content": None}
    if built["status"] == "PAUSED":
        built["approvals"] = [approval for approval, _ in find_waiting(run)]
    if built["status"] in FINAL_STATUSES:
        created = parse_moment(run.get("created_at"))
        seconds = (read_object(run.get("metrics")) or {}).get("duration")
        built["finished_at"] = None
        if created is not None and isinstance(seconds, int | float):
            with suppress(ValueError, OverflowError):  # No number, or beyond the year 9999.
                built["finished_at"] = format_rfc3339(created + int(seconds * 1_000_000))
    return built


def read_session(session: Record) -> Built:
    """Build a session of a list. Numbers and states of its runs are null: AgentOS lists none."""
    built = read_fields(SessionSummary, SESSION, session)
    built["session_type"] = find_session_kind(session)
    if "total_tokens" not in session:
        built["total_tokens"] = (read_object(session.get("metrics")) or {}).get("total_tokens")
    built["updated_at"] = built["updated_at"] or built["created_at"]
    return built


def read_session_head(session: Record) -> Built:
    """Build a session without its history from its detail record."""
    names = ("metrics", "session_summary", "session_state", "metadata")
    return (
        read_session(session) | {"turn_count": None} | {name: session.get(name) for name in names}
    )


def build_last_run(run: Record) -> Built:
    """Build the last run of a session from its run record."""
    return {name: run.get(name) for name in LastRun.__annotations__} | {"phase": describe_run(run)}


def write_session(session: Record) -> Built:
    """Return the detail record of a session; its history is without system messages."""
    built = {**session}
    if session.get("chat_history") is not None:
        messages = [line for line in session["chat_history"] if line["role"] != "system"]
        built["chat_history"] = write_messages(session["session_id"], messages)
    if session.get("metrics") is not None:
        built["metrics"] = write_counters(session["metrics"])
    return built


def find_session_kind(session: Record) -> ComponentKind:
    """Return the kind of a session, from its type or from the fields of its detail record."""
    named = session.get("session_type")
    if named in KINDS:
        return cast(ComponentKind, named)
    if "agent_session_id" in session:
        return "agent"
    return find_kind(session) or ("workflow" if "workflow_data" in session else "team")


def build_history(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Build the conversation of a session from its run records: users and assistants with text.

    A run without messages, as one that failed early, is shown by its input and its answer.
    """
    history: list[dict[str, Any]] = []
    for run in runs:
        if run["parent_run_id"]:
            continue
        pairs = (("user", run["input"]), ("assistant", run["content"]))
        history += [
            message
            for message in run["messages"]
            if message["role"] not in ("system", "tool")
            and not message["from_history"]
            and message["content"]
        ] or [{"role": role, "content": text} for role, text in pairs if text]
    return history


def read_memory(memory: Record) -> Built:
    """Build a memory record."""
    built = read_fields(MemoryRecord, MEMORY, memory)
    built["created_at"] = built["created_at"] or built["updated_at"]
    return built


def read_account(account: Record, now: int) -> Built:
    """Build a service account record; `now`, in microseconds, decides if it has expired."""
    expires = parse_moment(account.get("expires_at"))
    state = "expired" if expires is not None and expires <= now else "active"
    built = read_fields(AccountRecord, ACCOUNT, account)
    built["state"] = "revoked" if account.get("revoked_at") else state
    return built | ({"token": account["token"]} if isinstance(account.get("token"), str) else {})


def write_account(account: Record) -> Built:
    """Return a service account; its user is the account itself."""
    user_id = f"sa:{account['id']}"
    first = {"id": account["id"], "name": account["name"]}
    owner = {"principal": user_id, "user_id": user_id}
    return first | owner | write_fields(ACCOUNT, account, *ACCOUNT)


def _read_grant(scope: object) -> dict[str, str]:
    if not isinstance(scope, dict):
        return {"scope": str(scope), "effect": "allow"}
    raw = scope.get("raw") or scope.get("scope") or ""
    return {"scope": str(raw), "effect": str(scope.get("value") or scope.get("effect") or "allow")}


def _write_scope(raw: str) -> Built:
    namespace, *middle, permission = raw.split(":")
    return {
        "id": None,
        "raw": raw,
        "namespace": namespace,
        "sub_namespace": middle[0] if middle else None,
        "permission": permission,
        "value": "allow",
    }


def read_component(kind: ComponentKind, record: Record) -> Built:
    """Build an agent, team or workflow record; additional fields of AgentOS are kept."""
    id_field = KINDS[kind].id_field
    component_id = str(record.get("id") or record.get(id_field) or "")
    sessions = read_object(record.get("sessions")) or {}
    built = {
        **record,
        id_field: component_id,
        "id": component_id,
        "name": str(record.get("name") or component_id),
        "description": str(record.get("description") or ""),
        "db_id": str(record.get("db_id") or ""),
    }
    if kind == "workflow":
        return built | {"steps": [_read_step(step) for step in read_objects(record.get("steps"))]}
    tools = record.get("tools")
    listed = tools.get("tools") if isinstance(tools, dict) else tools
    built["model"] = None
    if (model := read_object(record.get("model"))) is not None:
        name = str(model.get("model") or model.get("id") or model.get("name") or "")
        provider = str(model.get("provider") or "")
        built["model"] = {"name": name, "model": name, "provider": provider}
    built["tools"] = read_objects(listed)
    built["session_table"] = str(sessions.get("session_table") or "")
    if kind == "team":
        built["mode"] = str(record.get("mode") or "")
        built["knowledge"] = read_object(record.get("knowledge"))
        built["members"] = [
            read_component("team" if "members" in member else "agent", member)
            for member in read_objects(record.get("members"))
        ]
    return built


def _read_step(step: Record) -> Built:
    built = {**step, "name": str(step.get("name") or step.get("type") or "")}
    for kind in ("agent", "team"):
        if component := read_object(step.get(kind)):
            built[KINDS[kind].id_field] = str(component.get("id") or component.get("name") or "")
            built[kind] = read_component(kind, component)
    return built
