"""Responses that operations declare for the OpenAPI document in addition to their result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentctl.records.sessions import ExportFormat

Responses = Mapping[int | str, dict[str, Any]]
"""OpenAPI responses by status."""

JSON = "application/json"
EVENT_STREAM = "text/event-stream"
JSON_LINES = "application/jsonl"

REFERENCE = "#/components/schemas/{model}"
"""The reference to a schema of the document."""


def refer(model: str) -> dict[str, str]:
    return {"$ref": REFERENCE.format(model=model)}


# OpenAPI 3.1 has no schema for a stream: this is the one of the data of an event.
_EVENTS: dict[str, dict[str, Any]] = {EVENT_STREAM: {"schema": refer("RunEvent")}}

_EVENTS_OR_ITEMS = {
    EVENT_STREAM: {"schema": {"anyOf": [refer("RunEvent"), refer("ItemsChangedEvent")]}}
}

_RUN_RECORD = {JSON: {"schema": refer("RunRecord")}}

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
        "description": "Conflict, or effects that have to be confirmed",
        "content": {
            JSON: {
                "schema": refer("ConfirmationBody"),
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
                },
            }
        },
    },
}
"""Responses of an operation that repeats a run, in addition to the run record."""

HELD_RESPONSES: Responses = {
    409: {
        "description": "Conflict, or a session that is held",
        "content": {
            JSON: {
                "schema": refer("HeldBody"),
                "example": {
                    "detail": "Session s1 is held and is not deleted",
                    "error_code": "HELD",
                    "session_ids": ["s1"],
                },
            }
        },
    }
}
"""Responses of a deletion of sessions."""

CONTINUE_RESPONSES: Responses = {
    200: {
        "description": "The run record or, with `stream`, the events that follow",
        "content": _EVENTS,
    },
    202: {"description": "The run continues in the background", "content": _RUN_RECORD},
}
"""Responses of an operation that continues a run, in addition to the run record."""

EVENT_STREAM_RESPONSES: Responses = {
    200: {"description": "The events of the run", "content": _EVENTS_OR_ITEMS}
}
"""Responses of an operation that resumes a stream."""

EXPORT_TYPES: dict[ExportFormat, str] = {
    "jsonl": JSON_LINES,
    "json": JSON,
    "markdown": "text/markdown; charset=utf-8",
}
"""The content types of exports."""

EXPORT_RESPONSES: Responses = {
    200: {
        "description": "The file",
        "content": {
            JSON: {"schema": {"type": "array", "items": refer("SessionExport")}},
            JSON_LINES: {"schema": refer("SessionExport")},
            "text/markdown": {
                "schema": {"type": "string"},
                "example": "# s1\n\nsession s1 · 0 runs\n",
            },
        },
    }
}
"""Responses of an export."""

_BINARY = {"schema": {"type": "string", "format": "binary"}, "example": "%PDF-1.7"}

FILE_BODY: dict[str, Any] = {
    "description": "The bytes of the file; the content type is compared with them",
    "required": True,
    "content": {"application/octet-stream": _BINARY},
}
"""The body of an upload."""

CONTENT_RESPONSES: Responses = {
    200: {"description": "The bytes", "content": {"*/*": _BINARY}},
    206: {"description": "The range of the bytes", "content": {"*/*": _BINARY}},
    304: {"description": "Not modified"},
}
"""Responses of the bytes of a file."""

NOT_READY_RESPONSES: Responses = {
    503: {
        "description": "The instance is not ready",
        "content": {
            JSON: {
                "schema": refer("ReadinessRecord"),
                "example": {"status": "unavailable", "checks": {"database": "failed"}},
            }
        },
    }
}
"""Responses of the readiness check of an instance that is not ready."""
