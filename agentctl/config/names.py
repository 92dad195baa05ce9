"""Types of texts and numbers in the configuration: ids, names, addresses."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from agentctl.config.types import HIDDEN, ONE_OR_MORE, Reference
from agentctl.records.text import COMPONENT_ID

Id = Annotated[
    str,
    Field(
        pattern=COMPONENT_ID,
        description=(
            'an id: 1 to 64 letters, digits, ".", "_" and "-", starting with a letter or a digit'
        ),
    ),
]
Host = Annotated[
    str,
    Field(
        pattern=r"^([A-Za-z0-9][A-Za-z0-9._-]*|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(%\w+)?)$",
        description="a host name or an address without a port",
    ),
]
Origin = Annotated[
    str,
    Field(
        pattern=r"^(\*|https?://[^\s/?#@]+)$",
        description='an origin like "https://app.example.org" without a path, or "*"',
    ),
]


def _refuse_action(scope: str) -> str:
    if scope.rpartition(":")[2] in ("read", "run", "write", "delete"):
        raise ValueError
    return scope


AdminScope = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+){1,2}$",
        description='a scope like "agent_os:admin" that ends in none of read, run, write, delete',
    ),
    AfterValidator(_refuse_action),
]
_CLAIM = 'the name of a claim, or a path to a member of one, like "realm_access.roles"'

ClaimNames = Annotated[
    tuple[Annotated[str, Field(pattern=r"^[!-~]{1,256}$", description=_CLAIM)], ...],
    ONE_OR_MORE,
    Field(description=f"a text, or a list, each element {_CLAIM}"),
]
ScopePrefix = Annotated[
    str,
    Field(
        pattern=r"^[!-~]{0,256}$",
        description='a prefix like "api://agents/", without spaces, or empty',
    ),
]
Role = Annotated[
    str,
    Field(
        pattern=r"^[^\s\x00-\x1f\x7f]([^\x00-\x1f\x7f]{0,254}[^\s\x00-\x1f\x7f])?$",
        description="the name of a role or group: 1 to 256 characters without spaces at the ends",
    ),
]
Tool = Annotated[
    str,
    Field(
        pattern=r"^(\w+(\.\w+)*:[A-Za-z_]\w*|mcp:[A-Za-z][\w-]*(\.[\w./-]+)?)$",
        description='"package.module:function", "mcp:server" or "mcp:server.tool"',
    ),
]
ToolNamePattern = Annotated[
    str,
    Field(
        pattern=r"^[A-Za-z0-9_*?]{1,64}$",
        description='the name of a tool as the model sees it, with "*" for any characters',
    ),
]
ObjectName = Annotated[
    str,
    Field(pattern=r"^(\w+(\.\w+)*:[A-Za-z_]\w*)?$", description='"package.module:name", or empty'),
]
Region = Annotated[
    str,
    Field(pattern=r"^([a-z0-9-]{1,32})?$", description='a region such as "eu-central-1", or empty'),
]
ApiVersion = Annotated[
    str,
    Field(
        pattern=r"^([A-Za-z0-9.-]{1,32})?$", description='a version such as "2024-10-21", or empty'
    ),
]
VariableName = Annotated[
    str,
    Field(
        pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$",
        description="the name of an environment variable with the API key, never the key itself",
    ),
    HIDDEN,
]
PasswordVariable = Annotated[
    str,
    Field(
        pattern=r"^([A-Za-z_][A-Za-z0-9_]*)?$",
        description=(
            "the name of an environment variable with the password, never the password itself"
        ),
    ),
    HIDDEN,
]
DatabaseUrl = Annotated[str, HIDDEN]
SchemaName = Annotated[
    str,
    Field(
        pattern=r"^([a-z_][a-z0-9_]{0,62})?$",
        description=(
            'the name of a schema: lower-case letters, digits and "_", not starting with a digit'
        ),
    ),
]
ListenAddress = Annotated[
    str,
    Field(
        pattern=r"^(([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5})?$",
        description='a host and a port like "127.0.0.1:9464" or "[::1]:9464", or empty',
    ),
]
NotEmpty = Annotated[str, Field(pattern=r"\S", description="a non-empty text")]
ModelId = Annotated[str, Reference(("models",))]
DatabaseId = Annotated[str, Reference(("databases",))]
HistoryRuns = Annotated[int, Field(ge=0, le=1_000)]
ModelCalls = Annotated[int, Field(ge=1, le=1_000)]
RepeatCalls = Annotated[int, Field(ge=0, le=1_000)]
Tokens = Annotated[int, Field(ge=0, le=100_000_000)]
NextAgent = Annotated[str, Reference(("agents",))]
NextTeam = Annotated[str, Reference(("teams",))]
NextWorkflow = Annotated[str, Reference(("workflows",))]
Percent = Annotated[int, Field(ge=0, le=100)]
