"""The record of a tool that agentctl itself gives to a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentctl.records.components import ToolRecord


def build_tool(
    name: str,
    description: str,
    properties: Mapping[str, Any],
    required: Sequence[str] | None = None,
) -> ToolRecord:
    """Build the record of a tool whose arguments are the members of an object.

    Args:
        required: names of the required arguments; None for all.
    """
    parameters = {
        "type": "object",
        "properties": dict(properties),
        "required": [*(properties if required is None else required)],
        "additionalProperties": False,
    }
    return {"name": name, "description": description, "parameters": parameters}
