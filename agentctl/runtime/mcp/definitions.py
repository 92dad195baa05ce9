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
SCHEMA_BYTES = 65_536
SCHEMA_DEPTH = 32

UNUSABLE = "agentctl:unusable"
"""Member of a schema that replaces the definition of a tool that does not follow the protocol."""

_NAME_CHARACTERS = 64
"""Maximum length of a name for a provider."""

_LARGE_SCHEMA = f"its schema has more than {SCHEMA_BYTES:_} bytes"
_MAXIMUM_LISTED_NAME = 256
_REFUSED = re.compile(r"[^A-Za-z0-9_]")
_INVISIBLE = re.compile("[\U000e0000-\U000e01ef]")
"""Tag characters and supplementary variation selectors: a model reads them, a person does not."""


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool of an MCP server.

    Attributes:
        listed_name: name at the server.
        name: name for models: the id of the server, `_` and the name at the server.
        description: text of the server, at most `DESCRIPTION_BYTES`, without control characters.
        parameters: JSON Schema of the arguments, an object.
    """

    server: str
    listed_name: str
    name: str
    description: str
    parameters: dict[str, Any]

    def record(self) -> ToolRecord:
        return {"name": self.name, "description": self.description, "parameters": self.parameters}


class ToolList(NamedTuple):
    """The usable tools of a server, and the problem of each unusable tool, one line each."""

    tools: tuple[McpTool, ...]
    problems: tuple[str, ...]


async def build_tool_list(server: McpServer, listed: Iterable[ListedTool]) -> ToolList:
    """Check the tools that a server lists; leave out those that `allow_tools` does not allow."""
    tools: dict[str, McpTool] = {}
    problems: list[str] = []
    turns = Turns()
    for item in listed:
        await turns.take()
        if not allows_tool(server, item.name):
            continue
        if len(tools) == MAXIMUM_TOOLS:
            problems.append(f"it has more than {MAXIMUM_TOOLS} tools; the others are left out")
            break
        name = escape_controls(item.name[:_NAME_CHARACTERS])
        try:
            tool = await _build_tool(server, item)
        except UnusableTool as problem:
            problems.append(f'the tool "{name}" is left out: {problem}')
            continue
        if tool.name in tools:
            problems.append(f'the tool "{name}" is left out: another one is named {tool.name} too')
            continue
        tools[tool.name] = tool
    return ToolList(tuple(tools.values()), tuple(problems))


def build_unlisted_tool(server: McpServer, name: str) -> McpTool:
    """Build a tool that the configuration names while its server cannot list it."""
    parameters = {"type": "object", "properties": dict[str, Any]()}
    return McpTool(server.id, name, build_public_name(server.id, name), "", parameters)


def build_public_name(server: str, tool: str) -> str:
    """Return the name of a tool for models; a name that is too long ends in a hash."""
    whole = f"{server}_{tool}"
    name = _REFUSED.sub("_", whole)
    if len(name) <= _NAME_CHARACTERS:
        return name
    return f"{name[: _NAME_CHARACTERS - 9]}_{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


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
    if not follows_protocol({**result, "tools": []}, version):
        return tools
    return [
        tool if follows_protocol({**result, "tools": [tool]}, version) else _describe(tool)
        for tool in tools
    ]


def _describe(tool: Any) -> dict[str, Any]:
    name = tool.get("name") if isinstance(tool, dict) else None
    schema = {"type": "object", UNUSABLE: True}
    return {"name": name if isinstance(name, str) else "", "inputSchema": schema}


async def clean_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of an object with clean texts.

    Raises:
        UnusableTool: it is not one, it is too large, or it is recursive.
    """
    if UNUSABLE in schema:
        raise UnusableTool("its definition does not follow the protocol")
    try:
        # Before its texts are cleaned, which takes a microsecond for each value.
        if len(orjson.dumps(schema)) > SCHEMA_BYTES:
            raise UnusableTool(_LARGE_SCHEMA)
        cleaned: dict[str, Any] = _clean_value(dict(schema), SCHEMA_DEPTH)
        size = len(orjson.dumps(cleaned))
    except (TypeError, ValueError) as error:
        raise UnusableTool("its schema is not valid JSON") from error
    if size > SCHEMA_BYTES:
        raise UnusableTool(_LARGE_SCHEMA)
    if cleaned.get("type", "object") != "object":
        raise UnusableTool("its schema is not that of an object")
    schema = {**cleaned, "type": "object", "properties": cleaned.get("properties") or {}}
    try:
        await check_request_schemas({"its schema": schema})
    except (Unavailable, ValidationFailed) as problem:
        raise UnusableTool(problem.detail) from None
    return schema


def _clean_value(value: Any, depth: int) -> Any:
    """Clean the texts of a schema. A name is never changed, because it is an argument."""
    if depth == 0:
        raise UnusableTool(f"its schema has more than {SCHEMA_DEPTH} levels")
    if isinstance(value, str):
        return clean_text(value, SCHEMA_BYTES)
    if isinstance(value, list):
        return [_clean_value(item, depth - 1) for item in value]
    if isinstance(value, dict):
        if not all(isinstance(name, str) and name.isprintable() for name in value):
            raise UnusableTool("its schema has a name that is not printable")
        return {name: _clean_value(item, depth - 1) for name, item in value.items()}
    return value
