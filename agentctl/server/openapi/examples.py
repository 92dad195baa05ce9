"""Examples for the OpenAPI document: what a small instance answers, operation by operation."""

from __future__ import annotations

from typing import Any

from agentctl import INTERFACE_VERSION
from agentctl.auth.policy import operation_ids
from agentctl.records.kinds import KINDS, ComponentKind

__all__ = ["ANSWERS", "BODIES", "ERRORS", "STARTED", "STREAM"]

_RUN_ID = "019a9f2e-6c1b-7d3f-9a44-1f0c5b7e2d10"
_CREATED, _FINISHED = "2026-11-20T08:18:10.000123Z", "2026-11-20T08:18:12.431007Z"

_MODEL = {"name": "fast", "model": "gpt-5.2-mini", "provider": "openai"}
_METRICS = {
    "input_tokens": 12,
    "output_tokens": 5,
    "total_tokens": 17,
    "audio_input_tokens": 0,
    "audio_output_tokens": 0,
    "audio_total_tokens": 0,
    "cache_read_tokens": 0,
    "cache_write_tokens": 0,
    "reasoning_tokens": 0,
}
_HISTORY = [
    {
        "content": "Draft a headline",
        "role": "user",
        "from_history": False,
        "stop_after_tool_call": False,
        "created_at": 1795162690,
    },
    {
        "content": "Rain stops play",
        "role": "assistant",
        "from_history": False,
        "stop_after_tool_call": False,
        "created_at": 1795162692,
        "metrics": _METRICS,
    },
]
_TOOL = {
    "name": "delegate_task_to_member",
    "description": "Give a task to a member of the team",
    "parameters": {
        "type": "object",
        "properties": {"member_id": {"type": "string"}, "task": {"type": "string"}},
        "required": ["member_id", "task"],
        "additionalProperties": False,
    },
}

_AGENT = {
    "agent_id": "writer",
    "id": "writer",
    "name": "Writer",
    "description": "Drafts short texts",
    "model": _MODEL,
    "tools": [],
    "session_table": "sessions",
    "db_id": "main",
}
_TEAM = {
    "team_id": "newsroom",
    "id": "newsroom",
    "name": "Newsroom",
    "description": "Writes and edits",
    "mode": "coordinate",
    "model": _MODEL,
    "tools": [_TOOL],
    "members": [
        {
            "agent_id": "writer",
            "name": "Writer",
            "model": _MODEL,
            "memory": None,
            "session_table": "sessions",
            "memory_table": None,
        }
    ],
    "enable_agentic_context": False,
    "memory": None,
    "async_mode": True,
    "session_table": "sessions",
    "memory_table": None,
    "db_id": "main",
}
_WORKFLOW = {
    "workflow_id": "publish",
    "id": "publish",
    "name": "Publish",
    "description": "Draft, then review",
    "steps": [
        {"name": "draft", "agent_id": "writer"},
        {"name": "review", "team_id": "newsroom"},
    ],
    "db_id": "main",
}
_COMPONENTS: dict[ComponentKind, dict[str, Any]] = {
    "agent": _AGENT,
    "team": _TEAM,
    "workflow": _WORKFLOW,
}

_SESSION = {
    "agent_session_id": "s1",
    "session_id": "s1",
    "session_name": "Draft a headline",
    "user_id": "me",
    "session_summary": None,
    "session_state": {"tone": "plain"},
    "agent_id": "writer",
    "total_tokens": 17,
    "agent_data": {"name": "Writer", "agent_id": "writer", "model": _MODEL},
    "metrics": _METRICS,
    "metadata": None,
    "chat_history": _HISTORY,
    "created_at": _CREATED,
    "updated_at": _FINISHED,
}
_SUMMARY = {
    "session_id": "s1",
    "session_name": "Draft a headline",
    "session_type": "agent",
    "user_id": "me",
    "agent_id": "writer",
    "team_id": None,
    "workflow_id": None,
    "total_tokens": 17,
    "run_count": 1,
    "history_bytes": 412,
    "last_status": "COMPLETED",
    "created_at": _CREATED,
    "updated_at": _FINISHED,
}
_META = {
    "page": 1,
    "limit": 20,
    "total_count": 1,
    "total_pages": 1,
    "total_is_capped": False,
    "next_cursor": None,
}


def _run(kind: ComponentKind) -> dict[str, Any]:
    return {
        "run_id": _RUN_ID,
        "session_id": "s1",
        "parent_run_id": None,
        KINDS[kind].id_field: _COMPONENTS[kind]["id"],
        "user_id": "me",
        "status": "COMPLETED",
        "input": "Draft a headline",
        "content": "Rain stops play",
        "messages": [
            {"role": "user", "content": "Draft a headline", "created_at": 1795162690},
            {"role": "assistant", "content": "Rain stops play", "created_at": 1795162692},
        ],
        "tools": [],
        "metrics": _METRICS,
        "error": None,
        "created_at": _CREATED,
        "started_at": _CREATED,
        "finished_at": _FINISHED,
        "cancel_requested_at": None,
        "cancel_requested_by": None,
        "cancel_reason": None,
        "stopped_at": _FINISHED,
        "late_result": None,
        "member_runs": [],
    }


_CANCEL = {
    "run_id": _RUN_ID,
    "session_id": "s1",
    "status": "CANCELLED",
    "cancel": "stopped",
    "cancel_requested_at": _CREATED,
    "finished_at": _FINISHED,
    "reason": "No longer needed",
}
_ENTRY = {"id": "writer", "name": "Writer", "description": "Drafts short texts", "db_id": "main"}


def _family(kind: ComponentKind) -> dict[str, Any]:
    ids, component, run = operation_ids(kind), _COMPONENTS[kind], _run(kind)
    return {
        ids.list: [component],
        ids.get: component,
        ids.create_run: run,
        ids.list_runs: {"data": [run], "meta": _META},
        ids.get_run: run,
        ids.cancel_run: _CANCEL,
    }


_ACCOUNT = {
    "id": "019a9f2e-6c1b-7d3f-9a44-1f0c5b7e2d11",
    "name": "ci",
    "scopes": [{"scope": "agents:run", "effect": "allow"}],
    "token_hint": "b3Xk",
    "created_by": "me",
    "created_at": _CREATED,
    "expires_at": "2027-02-18T08:18:10.000123Z",
    "last_used_at": None,
    "revoked_at": None,
    "state": "active",
}
_AUDITED = {
    "seq": 41,
    "at": _CREATED,
    "principal": "me",
    "via": "http",
    "operation": "create_agent_run",
    "resource": f"agent:writer,session:s1,run:{_RUN_ID}",
    "outcome": "allowed",
    "status": None,
    "reason": None,
    "request_id": "019a9f2e-6c1b-7d3f-9a44-1f0c5b7e2d12",
}
_EXPLANATION = {
    "method": "POST",
    "path": "/agents/writer/runs",
    "operation": "create_agent_run",
    "allowed": False,
    "status": 401,
    "decided_by": "claims.exp",
    "principal": None,
    "required_scopes": ["agents:writer:run", "agents:*:run", "agents:run"],
    "steps": [
        {
            "name": "signature",
            "outcome": "passed",
            "found": 'holds, with "2026-11"',
            "cause": None,
            "remedy": None,
        },
        {
            "name": "claims.exp",
            "outcome": "failed",
            "found": "2026-11-20T08:18:10.000000Z, 4 min ago",
            "cause": "it expired 4 min ago; exp has no leeway",
            "remedy": "have a new one issued; `agentctl token mint` makes one",
        },
    ],
}

ANSWERS: dict[str, Any] = {
    "get_api": {"name": "agentctl", "id": "agentctl", "version": "0.1.0"},
    "get_health": {"status": "ok"},
    "get_readiness": {"status": "ready", "checks": {"database": "ok", "runs": "ok"}},
    "get_info": {
        "os_id": "agentctl",
        "name": "agentctl",
        "version": "0.1.0",
        "interface_version": INTERFACE_VERSION,
        "agent_count": 2,
        "team_count": 1,
        "workflow_count": 1,
        "auth_mode": "jwt",
    },
    "get_config": {
        "os_id": "agentctl",
        "name": "agentctl",
        "databases": ["main"],
        "os_database": "main",
        "available_models": ["fast"],
        "agents": [{**_ENTRY, "model": _MODEL}],
        "teams": [],
        "workflows": [],
    },
    "get_models": [{"id": "fast", "provider": "openai"}],
    "get_me": {
        "principal": "me",
        "scopes": ["agents:run", "sessions:read"],
        "admin": False,
        "auth_mode": "jwt",
    },
    "get_sessions": {"data": [_SUMMARY], "meta": _META},
    "create_session": {
        **_SESSION,
        "total_tokens": 0,
        "metrics": dict.fromkeys(_METRICS, 0),
        "chat_history": [],
        "updated_at": _CREATED,
    },
    "get_session_by_id": _SESSION,
    "update_session": _SESSION,
    "rename_session": _SESSION,
    "get_session_runs": [_run("agent")],
    "get_session_run": _run("agent"),
    "get_runs": {"data": [_run("agent")], "meta": _META},
    "get_run": _run("agent"),
    "explain_auth": _EXPLANATION,
    "create_service_account": {**_ACCOUNT, "token": "agentctl_pat_..."},
    "list_service_accounts": {"data": [_ACCOUNT], "meta": _META},
    "get_audit": {"data": [_AUDITED], "meta": {"next_cursor": "YXVkaXQ6NDE"}},
    **{operation: answer for kind in KINDS for operation, answer in _family(kind).items()},
}
"""What an operation answers with success, by operation id; those without a document are absent."""

STARTED = _run("agent") | {
    "status": "PENDING",
    "content": None,
    "messages": [],
    "started_at": None,
    "finished_at": None,
}
"""The record of a run that was started in the background."""

BODIES: dict[str, Any] = {
    **{
        operation_ids(kind).create_run: {
            "message": "Draft a headline",
            "stream": False,
            "session_id": "s1",
        }
        for kind in KINDS
    },
    **{
        operation_ids(kind).resume_run: {"last_event_index": 1, "session_id": "s1"}
        for kind in KINDS
    },
    "create_session": {
        "session_id": "s1",
        "session_name": "Draft a headline",
        "session_state": {"tone": "plain"},
        "agent_id": "writer",
    },
    "update_session": {"metadata": {"ticket": "A-17"}},
    "rename_session": {"session_name": "Headlines"},
    "delete_sessions": {"session_ids": ["s1", "s2"]},
    "create_service_account": {
        "name": "ci",
        "scopes": [{"scope": "agents:run", "effect": "allow"}],
        "expires_in_days": 90,
    },
    "explain_auth": {"method": "POST", "path": "/agents/writer/runs", "token": "<token>"},
}
"""What an operation is sent, by operation id."""

STREAM = (
    "event: RunStarted\n"
    f'data: {{"event":"RunStarted","created_at":1795162690,"agent_id":"writer",'
    f'"agent_name":"Writer","run_id":"{_RUN_ID}","session_id":"s1"}}\n'
    "id: 0\n\n"
    "event: RunContent\n"
    f'data: {{"event":"RunContent","created_at":1795162691,"agent_id":"writer",'
    f'"agent_name":"Writer","run_id":"{_RUN_ID}","session_id":"s1",'
    '"content":"Rain ","content_type":"str"}\n'
    "id: 1\n\n"
)
"""How the stream of a run begins."""

ERRORS: dict[int, tuple[str, dict[str, Any]]] = {
    400: (
        "Bad request",
        {"detail": "session_id is required to cancel a run", "error_code": "BAD_REQUEST"},
    ),
    401: ("Unauthorized", {"detail": "Authentication required", "error_code": "UNAUTHENTICATED"}),
    403: (
        "Insufficient scopes",
        {
            "detail": "Insufficient scopes for this operation",
            "error_code": "FORBIDDEN",
            "required_scopes": ["agents:writer:run", "agents:run"],
        },
    ),
    404: ("Not found", {"detail": "Session not found", "error_code": "NOT_FOUND"}),
    409: ("Conflict", {"detail": "The session id is taken", "error_code": "CONFLICT"}),
    413: (
        "Too large",
        {"detail": "The body is larger than 1048576 bytes", "error_code": "TOO_LARGE"},
    ),
    415: (
        "Unsupported media type",
        {
            "detail": "The body must be application/json",
            "error_code": "UNSUPPORTED_MEDIA_TYPE",
        },
    ),
    422: (
        "Validation error",
        {
            "detail": "type must be one of: agent, team, workflow",
            "error_code": "VALIDATION_ERROR",
        },
    ),
    429: (
        "Too many requests",
        {"detail": "Too many runs at once", "error_code": "TOO_MANY_REQUESTS"},
    ),
    500: (
        "Internal server error",
        {"detail": "Internal server error", "error_code": "INTERNAL_SERVER_ERROR"},
    ),
    503: (
        "Unavailable",
        {"detail": "The database is not available", "error_code": "UNAVAILABLE"},
    ),
}
"""The error statuses: what each is called, and a body."""
