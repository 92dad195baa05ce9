"""External tools: the caller of a run executes them and gives their results (docs/agents.md)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from agentctl.errors import InvalidConfiguration
from agentctl.light_dataclass import dataclass
from agentctl.records.json_schema import is_usable_schema
from agentctl.records.validation import find_json_problem
from agentctl.runtime.pauses import CallOutcome
from agentctl.runtime.tools.functions import TOOL_NAME

if TYPE_CHECKING:
    from agentctl.records.components import ToolRecord
    from agentctl.runtime.transcript.conversation import Conversation

MAXIMUM_BYTES = 65_536
"""Maximum size of the file of an external tool."""

_KEYS = ("name", "description", "parameters")
_HINT = 'write {"name": "open_file", "description": "…", "parameters": {"type": "object", …}}'


@dataclass(frozen=True, slots=True)
class ExternalAction:
    """An external tool as an action of a model. Its rule keeps this process from performing it."""

    has_effects: ClassVar[bool] = True
    idempotent: ClassVar[bool] = False

    tool: ToolRecord

    def record(self) -> ToolRecord:
        return self.tool

    async def perform(
        self, arguments: Mapping[str, Any], conversation: Conversation
    ) -> CallOutcome:
        return CallOutcome(f"The tool {self.tool['name']} is executed by the caller", failed=True)


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
