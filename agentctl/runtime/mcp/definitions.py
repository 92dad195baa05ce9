"""Tools as MCP servers define them: untrusted names, descriptions and schemas.

A tool whose definition cannot be sent to a model provider is left out, with a problem for the
operator (docs/internals/security-cases.md P01 to P04).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import orjson

from agentctl.config.mcp_servers import allows_tool
from agentctl.errors import Unavailable, ValidationFailed
from agentctl.records.text import escape_controls
from agentctl.runtime.json_schema import check_request_schemas
from agentctl.work.event_loop import Turns

if TYPE_CHECKING:
    from agentctl.config.mcp_table import McpServer
    from agentctl.records.components import ToolRecord
    from agentctl.runtime.mcp.library import ListedTool

MAXIMUM_TOOLS = 256
"""Maximum number of tools of a server; providers accept about 128 in a request."""

MAXIMUM_LISTED = 1_024
"""Maximum number of tools of a page; further tools are dropped before they are checked."""

DESCRIPTION_BYTES = 8_192
"""Maximum size of the description of a tool, and of a question; the rest is cut off."""

SCHEMA_BYTES = 65_536
"""Maximum size of a schema as JSON."""

SCHEMA_DEPTH = 32
"""Maximum number of levels of a schema."""

UNUSABLE = "agentctl:unusable"
"""Member of a schema that replaces the definition of a tool that does not follow the protocol."""

_NAME_CHARACTERS = 64
"""Maximum length of a name for a provider."""

_LARGE_SCHEMA = f"its schema has more than {SCHEMA_BYTES:_} bytes"

_MAXIMUM_LISTED_NAME = 256
"""Maximum length of a name at the server."""

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_]")
"""A character that no name for a provider may have."""

_INVISIBLE = re.compile("[\U000e0000-\U000e01ef]")
"""Tag characters and supplementary variation selectors: a model reads them, a person does not."""


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool of an MCP server."""

    server: str
    """Id of the server."""

    listed_name: str
    """Name at the server."""

    name: str
    """Name for models: the id of the server, `_` and the name at the server."""

    description: str
    """Text of the server, at most `DESCRIPTION_BYTES`, without control characters."""

    parameters: dict[str, Any]
    """JSON Schema of the arguments, an object."""

    def record(self) -> ToolRecord:
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


class ToolList(NamedTuple):
    """The tools of a server, as far as models can use them."""

    tools: tuple[McpTool, ...]

    problems: tuple[str, ...]
    """The reason for each tool that is left out, for the operator, a line each."""


async def build_tool_list(server: McpServer, listed: Iterable[ListedTool]) -> ToolList:
    """Check the tools that a server lists; leave out those that `allow_tools` does not allow."""
    tools: dict[str, McpTool] = {}
    problems: list[str] = []
    turns = Turns()
    for listed_tool in listed:
        await turns.take()

        if not allows_tool(server, listed_tool.name):
            continue

        if len(tools) == MAXIMUM_TOOLS:
            problems.append(f"it has more than {MAXIMUM_TOOLS} tools; the others are left out")
            break

        shown_name = escape_controls(listed_tool.name[:_NAME_CHARACTERS])
        left_out = f'the tool "{shown_name}" is left out'
        try:
            tool = await _build_tool(server, listed_tool)
        except UnusableTool as problem:
            problems.append(f"{left_out}: {problem}")
            continue

        if tool.name in tools:
            problems.append(f"{left_out}: another one is named {tool.name} too")
            continue

        tools[tool.name] = tool

    return ToolList(tuple(tools.values()), tuple(problems))


def build_unlisted_tool(server: McpServer, name: str) -> McpTool:
    """Build a tool that the configuration names while its server cannot list it."""
    parameters = {"type": "object", "properties": dict[str, Any]()}
    return McpTool(server.id, name, build_public_name(server.id, name), "", parameters)


def build_public_name(server: str, tool: str) -> str:
    """Return the name of a tool for models; a name that is too long ends in a hash."""
    whole_name = f"{server}_{tool}"
    name = _NOT_IN_NAMES.sub("_", whole_name)
    if len(name) <= _NAME_CHARACTERS:
        return name

    ending = "_" + hashlib.sha256(whole_name.encode()).hexdigest()[:8]
    return name[: _NAME_CHARACTERS - len(ending)] + ending


class UnusableTool(Exception):
    """The reason why a tool, or a question of one, is left out."""


async def _build_tool(server: McpServer, listed: ListedTool) -> McpTool:
    if not 0 < len(listed.name) <= _MAXIMUM_LISTED_NAME or not listed.name.isprintable():
        raise UnusableTool("its name is empty, too long or not printable")
    return McpTool(
        server=server.id,
        listed_name=listed.name,
        name=build_public_name(server.id, listed.name),
        description=clean_text(listed.description, DESCRIPTION_BYTES),
        parameters=await clean_schema(listed.schema),
    )


def clean_text(text: str, limit: int) -> str:
    """Escape control characters, remove invisible characters, and cut at `limit` bytes of UTF-8."""
    # Cut before it is cleaned: the server may have sent megabytes.
    text = escape_controls(_INVISIBLE.sub("", text[:limit]), lines=True)
    data = text.encode()
    return text if len(data) <= limit else data[:limit].decode("utf-8", "ignore")


def replace_unusable_tools(result: Mapping[str, Any], version: str) -> list[Any]:
    """Return the tools of a page, with a definition that is left out for each unusable one.

    The library refuses the whole list if one tool does not follow the protocol.

    Args:
        result: the result of the server, with a list of tools.
        version: the version of the protocol.
    """
    from agentctl.runtime.mcp.library import follows_protocol

    tools: list[Any] = result["tools"][:MAXIMUM_LISTED]

    # The fault is not in the tools, so the library is left to report it.
    if not follows_protocol({**result, "tools": []}, version):
        return tools

    return [
        tool
        if follows_protocol({**result, "tools": [tool]}, version)
        else _build_unusable_definition(tool)
        for tool in tools
    ]


def _build_unusable_definition(tool: Any) -> dict[str, Any]:
    """Return a definition with the name of a tool that `build_tool_list` leaves out."""
    name = tool.get("name") if isinstance(tool, dict) else None
    schema = {"type": "object", UNUSABLE: True}
    return {"name": name if isinstance(name, str) else "", "inputSchema": schema}


async def clean_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object with clean texts.

    Raises:
        UnusableTool: it is not the schema of an object, it is too large, or it is recursive.
    """
    if UNUSABLE in schema:
        raise UnusableTool("its definition does not follow the protocol")

    try:
        # Before its texts are cleaned, which takes a microsecond for each value.
        if len(orjson.dumps(schema)) > SCHEMA_BYTES:
            raise UnusableTool(_LARGE_SCHEMA)
        cleaned: dict[str, Any] = _clean_value(dict(schema), SCHEMA_DEPTH)
        # Once more: an escaped control character is longer than the character.
        cleaned_bytes = len(orjson.dumps(cleaned))
    except (TypeError, ValueError) as error:
        raise UnusableTool("its schema is not valid JSON") from error

    if cleaned_bytes > SCHEMA_BYTES:
        raise UnusableTool(_LARGE_SCHEMA)
    if cleaned.get("type", "object") != "object":
        raise UnusableTool("its schema is not that of an object")

    object_schema = {**cleaned, "type": "object", "properties": cleaned.get("properties") or {}}
    try:
        await check_request_schemas({"its schema": object_schema})
    except (Unavailable, ValidationFailed) as problem:
        raise UnusableTool(problem.detail) from None
    return object_schema


def _clean_value(value: Any, depth: int) -> Any:
    """Clean the texts of a schema. A name is never changed, because it is an argument.

    Args:
        depth: levels that the value may have.
    """
    if depth == 0:
        raise UnusableTool(f"its schema has more than {SCHEMA_DEPTH} levels")

    if isinstance(value, str):
        return clean_text(value, SCHEMA_BYTES)

    if isinstance(value, list):
        return [_clean_value(item, depth - 1) for item in value]

    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str) or not name.isprintable():
                raise UnusableTool("its schema has a name that is not printable")
        return {name: _clean_value(item, depth - 1) for name, item in value.items()}

    return value
