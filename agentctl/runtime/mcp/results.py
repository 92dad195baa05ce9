"""Results of MCP tools as text for a model.

A model gets text. Images, sound and other data are named with their type and size instead
(docs/mcp.md "Results").
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentctl.records.text import escape_controls
from agentctl.runtime.tools.functions import result_to_text

if TYPE_CHECKING:
    from mcp_types import CallToolResult

_SHOWN = 200
"""Maximum characters of a type or URI in the description of a part."""


def build_result_text(result: CallToolResult, limit: int) -> str:
    """Join the parts of a result, at most `limit` bytes.

    If no part has text, the structured content is returned as JSON.
    """
    parts = [_describe_part(part) for part in result.content]
    if not any(parts) and result.structured_content is not None:
        return result_to_text(result.structured_content, limit)
    return result_to_text("\n".join(parts), limit)


def _describe_part(part: Any) -> str:
    if part.type == "text":
        return str(part.text)
    if part.type in ("image", "audio"):
        return f"[{part.type} {_show(part.mime_type)}, {_count_bytes(part.data)} bytes, not shown]"
    if part.type == "resource_link":
        return f"[resource {_show(part.uri)}: {_show(part.name)}]"
    if part.type == "resource":
        resource = part.resource
        if hasattr(resource, "text"):
            return f"[resource {_show(resource.uri)}]\n{resource.text}"
        size, kind = _count_bytes(resource.blob), _show(resource.mime_type or "data")
        return f"[resource {_show(resource.uri)}: {kind}, {size} bytes, not shown]"
    return f"[{_show(part.type)}, not shown]"


def _show(value: object) -> str:
    return escape_controls(str(value)[:_SHOWN])


def _count_bytes(data: str) -> int:
    return len(data) * 3 // 4 - data[-2:].count("=")
