"""Results of MCP tools as text for a model.

A model gets text. Images, sound and other data are named with their type and size instead
(docs/mcp.md "Results").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentctl.records.text import escape_controls
from agentctl.runtime.tools.functions import result_to_text

_SHOWN = 200
"""Maximum characters of a type or URI in the description of a part."""


def build_result_text(result: Mapping[str, Any], limit: int) -> str:
    """Join the parts of a result, at most `limit` bytes.

    If no part has text, the structured content is returned as JSON.

    Args:
        result: the result as JSON of the protocol.
    """
    parts = [_describe_part(part) for part in result["content"]]
    if not any(parts) and result.get("structuredContent") is not None:
        return result_to_text(result["structuredContent"], limit)
    return result_to_text("\n".join(parts), limit)


def _describe_part(part: Mapping[str, Any]) -> str:
    kind = part["type"]
    if kind == "text":
        return str(part["text"])
    if kind in ("image", "audio"):
        size = _count_bytes(part["data"])
        return f"[{kind} {_show(part['mimeType'])}, {size} bytes, not shown]"
    if kind == "resource_link":
        return f"[resource {_show(part['uri'])}: {_show(part['name'])}]"
    if kind == "resource":
        resource = part["resource"]
        if "text" in resource:
            return f"[resource {_show(resource['uri'])}]\n{resource['text']}"
        size, media = _count_bytes(resource["blob"]), _show(resource.get("mimeType") or "data")
        return f"[resource {_show(resource['uri'])}: {media}, {size} bytes, not shown]"
    return f"[{_show(kind)}, not shown]"


def _show(value: object) -> str:
    return escape_controls(str(value)[:_SHOWN])


def _count_bytes(data: str) -> int:
    return len(data) * 3 // 4 - data[-2:].count("=")
