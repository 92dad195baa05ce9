"""The tools of the face: agents, teams, workflows, and reads of sessions.

The list has only what the caller may do; each call is an operation, which the policy decides again.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentctl.auth.policy import POLICY, authorize
from agentctl.auth.principal import Principal, ids_in_scopes
from agentctl.config.settings import Agent, Settings, Team, Workflow
from agentctl.errors import Forbidden, ValidationFailed
from agentctl.interface.requests import (
    MAXIMUM_LIMIT,
    MAXIMUM_RUN_FILES,
    Page,
    SessionFilter,
    SessionRunsQuery,
)
from agentctl.interface.requirements import NeedsScope
from agentctl.records.document import Document
from agentctl.records.kinds import KINDS, ComponentKind
from agentctl.records.routes import operation_ids
from agentctl.records.text import SESSION_ID
from agentctl.service.service import ServiceOperations

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)

_DEFAULT_LIMIT = 20

_TEXT = {"type": "string"}
_SESSION = {**_TEXT, "pattern": SESSION_ID, "description": "Id of the session"}
_LIMIT = {
    "type": "integer",
    "minimum": 1,
    "maximum": MAXIMUM_LIMIT,
    "default": _DEFAULT_LIMIT,
    "description": "Maximum number of results",
}

Arguments = Mapping[str, Any]

INSTRUCTIONS = (
    "Agents, teams and workflows as tools. Pass session_id of a result to continue a conversation."
)

_TYPES: dict[str, tuple[type, str]] = {
    "string": (str, "a text"),
    "integer": (int, "an integer"),
    "array": (list, "an array of texts"),
}
"""The types of arguments by their name in JSON Schema, with the words for errors."""


@dataclass(frozen=True, slots=True)
class RunTool:
    """A tool that runs an agent, a team or a workflow."""

    kind: ComponentKind
    component_id: str
    title: str
    description: str

    @property
    def name(self) -> str:
        """The name of the tool: the kind and the id, with characters that models accept."""
        return f"{self.kind}_{_NOT_IN_NAMES.sub('_', self.component_id)}"

    def build(self) -> dict[str, Any]:
        """Return the tool as JSON of the protocol."""
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description or f"Ask the {self.kind} {self.title}",
            "inputSchema": _build_schema(
                {
                    "message": {**_TEXT, "minLength": 1, "description": "Message to send"},
                    "session_id": {
                        **_SESSION,
                        "description": "Session to continue; by default a new one",
                    },
                    "files": {
                        "type": "array",
                        "items": _TEXT,
                        "maxItems": MAXIMUM_RUN_FILES,
                        "description": "Ids of uploaded files, or of files of the session",
                    },
                },
                "message",
            ),
            "annotations": {"readOnlyHint": False, "openWorldHint": True},
        }


@dataclass(frozen=True, slots=True)
class ReadTool:
    """A tool that reads sessions by an operation, with the JSON Schemas of its arguments."""

    name: str
    operation: str
    description: str
    read: Callable[[ServiceOperations, Arguments], Awaitable[Document[Any]]]
    properties: Mapping[str, Any]
    required: tuple[str, ...] = ()

    def build(self) -> dict[str, Any]:
        """Return the tool as JSON of the protocol."""
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": _build_schema(self.properties, *self.required),
            "annotations": {"readOnlyHint": True, "openWorldHint": False},
        }


Tool = RunTool | ReadTool


def build_tools(settings: Settings) -> dict[str, Tool]:
    """Return all tools by name. The first tool of a name counts."""
    components: list[tuple[ComponentKind, Agent | Team | Workflow]] = [
        *(("agent", agent) for agent in settings.agents),
        *(("team", team) for team in settings.teams),
        *(("workflow", workflow) for workflow in settings.workflows),
    ]
    tools: list[Tool] = [
        RunTool(kind, component.id, component.name, component.description)
        for kind, component in components
    ]
    tools += READ_TOOLS

    tools_by_name = dict[str, Tool]()
    for tool in tools:
        tools_by_name.setdefault(tool.name, tool)
    return tools_by_name


def check_arguments(tool: Mapping[str, Any], values: Arguments | None) -> dict[str, Any]:
    """Return the arguments of a call of a tool, which is JSON of the protocol.

    Raises:
        ValidationFailed: one is missing, unknown or of another type.
    """
    arguments = dict(values or {})
    schema = tool["inputSchema"]
    for name in schema["required"]:
        if name not in arguments:
            raise ValidationFailed(f"{name} is required")

    for name, value in arguments.items():
        declared = schema["properties"].get(name)
        if declared is None:
            known_names = ", ".join(schema["properties"])
            raise ValidationFailed(f"an argument is not known; known arguments: {known_names}")

        argument_type, words = _TYPES[declared["type"]]
        # `bool` is a subclass of `int`.
        is_valid = isinstance(value, argument_type) and not isinstance(value, bool)
        if is_valid and argument_type is list:
            is_valid = all(isinstance(item, str) for item in value)
        if not is_valid:
            raise ValidationFailed(f"{name} must be {words}")

    return arguments


def is_allowed(principal: Principal, tool: Tool) -> bool:
    """Return True if a caller may use a tool."""
    if isinstance(tool, RunTool):
        operation = operation_ids(tool.kind).create_run
        path = {KINDS[tool.kind].id_field: tool.component_id}
    else:
        operation = tool.operation
        path = {}

    try:
        authorize(principal, operation, path)
    except Forbidden:
        rule = POLICY[operation]
        # A scope for one session allows the tools that take the id of a session.
        return (
            isinstance(tool, ReadTool)
            and isinstance(rule, NeedsScope)
            and rule.id_param is not None
            and bool(ids_in_scopes(principal.scopes, rule.resource, rule.action))
        )
    return True


def _build_schema(properties: Mapping[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


READ_TOOLS = (
    ReadTool(
        "list_sessions",
        "get_sessions",
        "List the sessions, newest first, as one page of JSON",
        lambda operations, arguments: operations.sessions.list(
            SessionFilter(
                page=Page(arguments.get("limit", _DEFAULT_LIMIT), cursor=arguments.get("cursor"))
            )
        ),
        {
            "limit": _LIMIT,
            "cursor": {**_TEXT, "description": "meta.next_cursor of the previous page"},
        },
    ),
    ReadTool(
        "get_session",
        "get_session_by_id",
        "Get a session with its history as JSON",
        lambda operations, arguments: operations.sessions.get(arguments["session_id"]),
        {"session_id": _SESSION},
        ("session_id",),
    ),
    ReadTool(
        "list_session_runs",
        "get_session_runs",
        "List the runs of a session, oldest first, as JSON",
        lambda operations, arguments: operations.sessions.list_runs(
            arguments["session_id"], SessionRunsQuery(limit=arguments.get("limit", _DEFAULT_LIMIT))
        ),
        {"session_id": _SESSION, "limit": _LIMIT},
        ("session_id",),
    ),
    ReadTool(
        "get_session_run",
        "get_session_run",
        "Get a run of a session as JSON",
        lambda operations, arguments: operations.sessions.get_run(
            arguments["session_id"], arguments["run_id"]
        ),
        {"session_id": _SESSION, "run_id": {**_TEXT, "description": "Id of the run"}},
        ("session_id", "run_id"),
    ),
)
