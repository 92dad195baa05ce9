"""Responses that operations declare for the OpenAPI document in addition to their result."""

from __future__ import annotations

from typing import Any

from agentctl.records.repeats import ConfirmationBody
from agentctl.records.sessions import ExportFormat
from agentctl.server.requests import JSON
from agentctl.server.routing import Responses

EVENT_STREAM = "text/event-stream"

# OpenAPI 3.1 has no schema for events, and `string` would be read as a JSON text.
_EVENTS: dict[str, dict[str, Any]] = {EVENT_STREAM: {"schema": {}}}

_RUN_RECORD = {JSON: {"schema": {"$ref": "#/components/schemas/RunRecord"}}}

RUN_RESPONSES: Responses = {
    200: {
        "description": "The run record or, with `stream`, the events of the run",
        "content": _EVENTS,
    },
    202: {"description": "The run was started in the background", "content": _RUN_RECORD},
}
"""Responses of an operation that starts a run, in addition to the run record."""

REPEAT_RESPONSES: Responses = {
    **RUN_RESPONSES,
    409: {
        "model": ConfirmationBody,
        "description": "Conflict, or effects that have to be confirmed",
        "content": {
            JSON: {
                "example": {
                    "detail": "The retry may repeat 1 tool call: confirm it",
                    "error_code": "NEEDS_CONFIRMATION",
                    "plan": {
                        "run_id": "019a9f2e-6c1b-7d3f-9a44-1f0c5b7e2d09",
                        "kind": "retry",
                        "at": 4,
                        "calls": [
                            {
                                "run_id": "019a9f2e-6c1b-7d3f-9a44-1f0c5b7e2d09",
                                "tool_call_id": "call_2",
                                "tool_name": "publish",
                                "arguments": '{"headline":"Rain stops play"}',
                                "state": "unknown",
                            }
                        ],
                        "calls_total": 1,
                        "runs_code": False,
                        "calls_unknown": False,
                        "retries": [],
                        "confirm": f"sha256:{'9b6c4a4f' * 8}",
                    },
                }
            }
        },
    },
}
"""Responses of an operation that repeats a run, in addition to the run record."""

CONTINUE_RESPONSES: Responses = {
    200: {
        "description": "The run record or, with `stream`, the events that follow",
        "content": _EVENTS,
    },
    202: {"description": "The run continues in the background", "content": _RUN_RECORD},
}
"""Responses of an operation that continues a run, in addition to the run record."""

EVENT_STREAM_RESPONSES: Responses = {
    200: {"description": "The events of the run", "content": _EVENTS}
}
"""Responses of an operation that resumes a stream."""

EXPORT_TYPES: dict[ExportFormat, str] = {
    "jsonl": "application/jsonl",
    "json": JSON,
    "markdown": "text/markdown; charset=utf-8",
}
"""The content types of exports."""

EXPORT_RESPONSES: Responses = {
    200: {
        "description": "The file",
        "content": {
            "application/jsonl": {"schema": {}, "example": '{"session":{},"runs":[]}\n'},
            JSON: {"schema": {"type": "array"}},
            "text/markdown": {"schema": {}, "example": "# s1\n\nsession s1 · 0 runs\n"},
        },
    }
}
"""Responses of an export."""

NOT_READY_RESPONSES: Responses = {
    503: {
        "description": "The instance is not ready",
        "content": {
            JSON: {
                "schema": {"$ref": "#/components/schemas/ReadinessRecord"},
                "example": {"status": "unavailable", "checks": {"database": "failed"}},
            }
        },
    }
}
"""Responses of the readiness check of an instance that is not ready."""
