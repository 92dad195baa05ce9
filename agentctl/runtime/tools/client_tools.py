"""Tools of the caller: they come with the request of a run, and the caller executes them.

They are part of the specification of the run, so that every process that goes on with the run has
them (docs/contract.md "Tools of the caller").
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from agentctl.errors import TooLarge, ValidationFailed
from agentctl.records.run_spec import REQUIRED
from agentctl.records.validation import check_json
from agentctl.runtime.schema_checks import check_request_schemas
from agentctl.runtime.tools.call_rules import check_arguments
from agentctl.runtime.tools.external import ExternalAction
from agentctl.runtime.transcript.conversation import CallRule

if TYPE_CHECKING:
    from agentctl.records.components import ToolRecord
    from agentctl.records.run_spec import RunSpec

MAXIMUM_TOOLS = 128
"""Maximum number of tools of a request; providers accept about as many."""

MAXIMUM_BYTES = 262_144
"""Maximum size of the tools of a request as JSON."""

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_NAMES = ("auto", "none", REQUIRED)
_MEMBERS = ("name", "description", "parameters")


async def dump_client_tools(tools: Sequence[Mapping[str, Any]] | None) -> str | None:
    """Return the JSON text of the checked tools of a request; None for none.

    Raises:
        ValidationFailed: there are too many, or a tool is not valid; names its place.
        TooLarge: their JSON text is too large.
        Unavailable: see `check_request_schemas`.
    """
    if not tools:
        return None
    if len(tools) > MAXIMUM_TOOLS:
        raise ValidationFailed(f"client_tools must be at most {MAXIMUM_TOOLS} tools")
    for number, tool in enumerate(tools):
        check_json(f"client_tools[{number}]", tool)
    if len(json.dumps(tools, ensure_ascii=False).encode()) > MAXIMUM_BYTES:
        raise TooLarge(f"client_tools must be at most {MAXIMUM_BYTES} bytes of JSON")
    records = [_read_tool(f"client_tools[{number}]", tool) for number, tool in enumerate(tools)]
    await check_request_schemas(
        {f"client_tools[{n}].parameters": each["parameters"] for n, each in enumerate(records)}
    )
    names = [record["name"] for record in records]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValidationFailed(f"client_tools has two tools named {twice}")
    return json.dumps(records)


def check_tool_choice(choice: str | None, tools: str | None) -> None:
    """Check the tool choice of a request with checked tools.

    Raises:
        ValidationFailed: there are no tools, or none of them has the name.
    """
    if choice is None:
        return
    names = [tool["name"] for tool in json.loads(tools)] if tools else []
    if choice not in names and not (choice == REQUIRED and names):
        raise ValidationFailed(f"tool_choice must be {REQUIRED}, or the name of a client tool")


def find_taken_name(text: str, names: Iterable[str]) -> str | None:
    """Return the name of a checked tool of the caller that a tool of the component has, or None.

    Args:
        names: those of the tools of the component (`Catalog.find_tool_names`).
    """
    known = set(names)
    prefixes = tuple(name[:-1] for name in known if name.endswith("*"))
    own = (tool["name"] for tool in json.loads(text))
    return next((name for name in own if name in known or name.startswith(prefixes)), None)


def read_client_tools(spec: RunSpec) -> list[ToolRecord]:
    """Return the tools of the caller of a run."""
    tools: list[ToolRecord] = json.loads(spec.client_tools) if spec.client_tools else []
    return tools


def build_client_actions(
    tools: Sequence[ToolRecord],
) -> tuple[dict[str, ExternalAction], dict[str, CallRule]]:
    """Return the actions of tools of the caller and their rules, by name.

    Their calls wait for the caller, regardless of the key `approve` of the component.
    """
    actions = {tool["name"]: ExternalAction(tool) for tool in tools}
    rules = {
        tool["name"]: CallRule("external", "user", partial(check_arguments, tool)) for tool in tools
    }
    return actions, rules


def _read_tool(at: str, tool: Mapping[str, Any]) -> ToolRecord:
    if unknown := sorted(tool.keys() - set(_MEMBERS)):
        raise ValidationFailed(f"{at} has the unknown member {unknown[0][:64]!r}")
    name, description = tool.get("name"), tool.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _NOT_NAMES:
        raise ValidationFailed(
            f"{at}.name must have 1 to 64 ASCII letters, digits, underscores and hyphens, and not"
            f" be {', '.join(_NOT_NAMES)}"
        )
    if not isinstance(description, str | None):
        raise ValidationFailed(f"{at}.description must be a text")
    parameters = tool.get("parameters")
    if not isinstance(parameters, dict | None):
        raise ValidationFailed(f"{at}.parameters must be a JSON Schema of the type object")
    schema = {"type": "object", "properties": {}, **(parameters or {})}
    if schema["type"] != "object" or not isinstance(schema["properties"], dict):
        raise ValidationFailed(f"{at}.parameters must be a JSON Schema of the type object")
    return {"name": name, "description": description or "", "parameters": schema}
