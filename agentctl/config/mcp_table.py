"""The table `[[mcp_servers]]`, and types of values that it shares with other tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from agentctl.config.types import Repeats, Secret
from agentctl.records.value_types import Pattern, Range

BaseUrl = Annotated[
    str,
    Pattern(
        r"^(https?://[^\s/?#@]+(/[^\s?#]*)?)?$",
        'a URL like "http://127.0.0.1:8000/v1" without credentials or query, or empty',
    ),
    Secret(masked=False),
]
McpServerId = Annotated[
    str,
    Pattern(
        r"^[A-Za-z][A-Za-z0-9_-]{0,31}$",
        'an id: 1 to 32 letters, digits, "_" and "-", starting with a letter',
    ),
]
ToolPattern = Annotated[
    str, Pattern(r"^[\w./*?-]{1,128}$", 'the name of a tool, with "*" for any characters')
]
EnvironmentName = Annotated[
    str, Pattern(r"^[A-Za-z_][A-Za-z0-9_]*$", "the name of an environment variable")
]
HeaderName = Annotated[
    str,
    Pattern(r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$", "the name of a header: letters, digits and signs"),
]
Template = Annotated[
    str,
    Pattern(
        r"^[ -~]*$",
        'a text of printable ASCII characters, with "${env:NAME}" for an environment variable',
    ),
    Secret(masked=False),
]
Seconds = Annotated[float, Range(0.01, 2_592_000)]


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
    args: Annotated[tuple[str, ...], Repeats()] = ()
    env: dict[EnvironmentName, Template] = field(default_factory=dict)
    url: BaseUrl = ""
    headers: dict[HeaderName, Template] = field(default_factory=dict)
    allow_tools: tuple[ToolPattern, ...] = ()
    idempotent_tools: tuple[ToolPattern, ...] = ()
    call_seconds: Seconds = 60
