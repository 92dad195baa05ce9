"""The table `[[mcp_servers]]`, and types of values that it shares with other tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from agentctl.config.types import HIDDEN, REPEATS

BaseUrl = Annotated[
    str,
    Field(
        pattern=r"^(https?://[^\s/?#@]+(/[^\s?#]*)?)?$",
        description='a URL like "http://127.0.0.1:8000/v1" without credentials or query, or empty',
    ),
    HIDDEN,
]
McpServerId = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,31}$",
        description='an id: 1 to 32 letters, digits, "_" and "-", starting with a letter',
    ),
]
ToolPattern = Annotated[
    str,
    Field(
        pattern=r"^[\w./*?-]{1,128}$", description='the name of a tool, with "*" for any characters'
    ),
]
EnvironmentName = Annotated[
    str,
    Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="the name of an environment variable"),
]
HeaderName = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$",
        description="the name of a header: letters, digits and signs",
    ),
]
Template = Annotated[
    str,
    Field(
        pattern=r"^[ -~]*$",
        description=(
            'a text of printable ASCII characters, with "${env:NAME}" for an environment variable'
        ),
    ),
    HIDDEN,
]
Seconds = Annotated[float, Field(ge=0.01, le=2_592_000)]


@dataclass(frozen=True, slots=True)
class McpServer:
    """An entry of `[[mcp_servers]]`: a program, or the URL of a server.

    A program speaks MCP over stdio, a server over streamable HTTP.
    """

    id: McpServerId

    command: str = ""
    """A name that is searched on PATH, or a path; relative to the folder of the file."""

    args: tuple[str, ...] = field(default=(), metadata=REPEATS)

    env: dict[EnvironmentName, Template] = field(default_factory=dict)
    """Variables of the program; it inherits HOME, LOGNAME, PATH, SHELL, TERM and USER."""

    url: BaseUrl = ""

    headers: dict[HeaderName, Template] = field(default_factory=dict)
    """Headers of each request.

    `${user_id}` and `${claims:NAME}` are values of the user of the run, who has a separate session
    then.
    """

    allow_tools: tuple[ToolPattern, ...] = ()
    """Names and patterns of the tools that agents may use; empty for all."""

    idempotent_tools: tuple[ToolPattern, ...] = ()
    """Names and patterns of the tools that a durable run may call again (docs/durable.md).

    That is, after its process died in a call.
    """

    call_seconds: Seconds = 60
    """Maximum time of a call."""
