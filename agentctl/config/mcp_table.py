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
    """An entry of `[[mcp_servers]]`: a program (stdio), or the URL of a server (streamable HTTP).

    Attributes:
        command: a name that is searched on PATH, or a path; relative to the folder of the file.
        env: variables of the program; it inherits HOME, LOGNAME, PATH, SHELL, TERM and USER.
        headers: headers of each request. `${user_id}` and `${claims:NAME}` are those of the user of
            the run, who then has a separate session.
        allow_tools: names and patterns of the tools that agents may use; empty for all.
        idempotent_tools: names and patterns of the tools that a durable run may call again after
            its process died in a call (docs/durable.md).
        call_seconds: maximum time of a call.
    """

    id: McpServerId
    command: str = ""
    args: tuple[str, ...] = field(default=(), metadata=REPEATS)
    env: dict[EnvironmentName, Template] = field(default_factory=dict)
    url: BaseUrl = ""
    headers: dict[HeaderName, Template] = field(default_factory=dict)
    allow_tools: tuple[ToolPattern, ...] = ()
    idempotent_tools: tuple[ToolPattern, ...] = ()
    call_seconds: Seconds = 60
