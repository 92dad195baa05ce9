"""External tools: the caller of a run executes them and gives their results (docs/agents.md).

They are files that the configuration names, or come with the request of a run. Those of a request
are part of the specification of the run, so that every process that continues the run has them
(docs/contract.md "Tools of the caller").
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from agentctl.errors import InvalidConfiguration, TooLarge, ValidationFailed
from agentctl.interface.requests import MAXIMUM_CLIENT_TOOLS
from agentctl.records.run_spec import REQUIRED, RunSpec
from agentctl.records.text import check_json, find_json_problem
from agentctl.runtime.json_schema import (
    check_request_schemas,
    find_schema_problem,
    is_usable_schema,
)
from agentctl.runtime.pauses import CallOutcome
from agentctl.runtime.tools.functions import TOOL_NAME
from agentctl.runtime.tools.memories import OwnAction

if TYPE_CHECKING:
    from agentctl.records.components import ToolRecord
    from agentctl.runtime.transcript.conversation import Conversation

MAXIMUM_BYTES = 65_536
"""Maximum size of the file of an external tool."""

MAXIMUM_TOOLS_BYTES = 262_144
"""Maximum size of the tools of a request as JSON."""

_CLIENT_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_NAMES = ("auto", "none", REQUIRED)

_KEYS = ("name", "description", "parameters")
_HINT = 'write {"name": "open_file", "description": "…", "parameters": {"type": "object", …}}'


class ExternalAction(OwnAction):
    """An external tool as an action of a model. Its rule keeps this process from performing it."""

    has_effects: ClassVar[bool] = True
    idempotent: ClassVar[bool] = False

    async def perform(
        self, arguments: Mapping[str, Any], conversation: Conversation
    ) -> CallOutcome:
        return CallOutcome(f"The tool {self.tool['name']} is executed by the caller", failed=True)


async def check_arguments(
    tool: ToolRecord, arguments: Mapping[str, Any], conversation: Conversation
) -> CallOutcome | None:
    """Check the arguments of a call against the schema of its tool."""
    problem = await find_schema_problem(tool["parameters"], dict(arguments))
    if problem is None:
        return None
    place = f"{problem.place.lstrip('.')}: " if problem.place else ""
    text = f"The arguments of {tool['name']} are not valid: {place}{problem.text}"
    return CallOutcome(text, failed=True)


def load_external_tools(owner: str, files: Iterable[Path]) -> list[ExternalAction]:
    """Load the external tools of a component from their JSON files.

    Args:
        owner: name of the component in errors (`agent writer`).

    Raises:
        InvalidConfiguration: a file cannot be read, or does not describe a tool.
    """
    return [ExternalAction(_load(owner, file)) for file in files]


def _load(owner: str, file: Path) -> ToolRecord:
    def refuse(what: str, hint: str = _HINT) -> NoReturn:
        raise InvalidConfiguration(
            f"The {owner} cannot use the external tool {file}: {what}", hint=hint
        )

    try:
        data = file.read_bytes()
    except OSError as error:
        refuse(
            f"the file cannot be read: {os.strerror(error.errno or 0).lower()}",
            "correct external_tools",
        )

    if len(data) > MAXIMUM_BYTES:
        refuse(f"the file has more than {MAXIMUM_BYTES:_} bytes")

    try:
        tool = json.loads(data)
    except (ValueError, RecursionError):
        refuse("the file is not JSON")

    if not isinstance(tool, dict) or find_json_problem(tool):
        refuse("the file is not a JSON object")

    if problem := _find_problem(tool):
        refuse(problem)

    parameters = {**tool["parameters"], "properties": tool["parameters"].get("properties") or {}}
    return {"name": tool["name"], "description": tool["description"], "parameters": parameters}


def _find_problem(tool: dict[str, Any]) -> str | None:
    """Return the first reason why a JSON object does not describe a tool, or None."""
    if unknown := tool.keys() - set(_KEYS):
        return f"it has the unknown member {min(unknown)!r}"

    name, description, parameters = (tool.get(key) for key in _KEYS)

    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        return "its name must have at most 64 ASCII letters, digits and underscores"

    if not isinstance(description, str):
        return "its description must be a text"

    if not isinstance(parameters, dict) or parameters.get("type") != "object":
        return "its parameters must be a JSON Schema of the type object"

    if not is_usable_schema(parameters):
        return "its parameters are not a valid JSON Schema"

    return None


async def dump_client_tools(tools: Sequence[Mapping[str, Any]] | None) -> str | None:
    """Return the JSON text of the checked tools of a request; None without tools.

    Raises:
        ValidationFailed: there are too many, or a tool is not valid; names its place.
        TooLarge: their JSON text is too large.
        Unavailable: see `check_request_schemas`.
    """
    if not tools:
        return None

    if len(tools) > MAXIMUM_CLIENT_TOOLS:
        raise ValidationFailed(f"client_tools must be at most {MAXIMUM_CLIENT_TOOLS} tools")

    for number, tool in enumerate(tools):
        check_json(f"client_tools[{number}]", tool)

    if len(json.dumps(tools, ensure_ascii=False).encode()) > MAXIMUM_TOOLS_BYTES:
        raise TooLarge(f"client_tools must be at most {MAXIMUM_TOOLS_BYTES} bytes of JSON")

    records = [_read_tool(f"client_tools[{number}]", tool) for number, tool in enumerate(tools)]
    await check_request_schemas(
        {
            f"client_tools[{number}].parameters": record["parameters"]
            for number, record in enumerate(records)
        }
    )

    names = [record["name"] for record in records]
    if repeated_name := next((name for name in names if names.count(name) > 1), None):
        raise ValidationFailed(f"client_tools has two tools named {repeated_name}")

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
        names: names of the tools of the component (`Catalog.find_tool_names`).
    """
    component_names = set(names)
    prefixes = tuple(name[:-1] for name in component_names if name.endswith("*"))
    caller_names = (tool["name"] for tool in json.loads(text))

    return next(
        (name for name in caller_names if name in component_names or name.startswith(prefixes)),
        None,
    )


def read_client_tools(spec: RunSpec) -> list[ToolRecord]:
    """Return the tools of the caller of a run."""
    tools: list[ToolRecord] = json.loads(spec.client_tools) if spec.client_tools else []
    return tools


def _read_tool(at: str, tool: Mapping[str, Any]) -> ToolRecord:
    if unknown := sorted(tool.keys() - set(_KEYS)):
        raise ValidationFailed(f"{at} has the unknown member {unknown[0][:64]!r}")

    name = tool.get("name")
    description = tool.get("description")

    if not isinstance(name, str) or not _CLIENT_NAME.fullmatch(name) or name in _NOT_NAMES:
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
