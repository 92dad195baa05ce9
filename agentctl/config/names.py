"""Types of texts and numbers in the configuration: ids, names, addresses."""

from __future__ import annotations

from typing import Annotated

from agentctl.config.types import OneOrMore, Reference, Secret
from agentctl.records.text import COMPONENT_ID
from agentctl.records.value_types import Pattern, Range

Id = Annotated[
    str,
    Pattern(
        COMPONENT_ID,
        'an id: 1 to 64 letters, digits, ".", "_" and "-", starting with a letter or a digit',
    ),
]
Host = Annotated[
    str,
    Pattern(
        r"^([A-Za-z0-9][A-Za-z0-9._-]*|[0-9A-Fa-f]*:[0-9A-Fa-f]*:[0-9A-Fa-f:.]*(%\w+)?)$",
        "a host name or an address without a port",
    ),
]
Origin = Annotated[
    str,
    Pattern(
        r"^(\*|https?://[^\s/?#@]+)$",
        'an origin like "https://app.example.org" without a path, or "*"',
    ),
]
AdminScope = Annotated[
    str,
    Pattern(
        r"^(?!.*:(read|run|write|delete)$)[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+){1,2}$",
        'a scope like "agent_os:admin" that ends in none of read, run, write, delete',
    ),
]
ClaimNames = Annotated[
    tuple[
        Annotated[
            str,
            Pattern(
                r"^[!-~]{1,256}$",
                'the name of a claim, or a path to a member of one, like "realm_access.roles"',
            ),
        ],
        ...,
    ],
    OneOrMore(),
]
ScopePrefix = Annotated[
    str, Pattern(r"^[!-~]{0,256}$", 'a prefix like "api://agents/", without spaces, or empty')
]
Role = Annotated[
    str,
    Pattern(
        r"^(?=\S)[^\x00-\x1f\x7f]{1,256}(?<=\S)$",
        "the name of a role or group: 1 to 256 characters without spaces at the ends",
    ),
]
Tool = Annotated[
    str,
    Pattern(
        r"^(\w+(\.\w+)*:[A-Za-z_]\w*|mcp:[A-Za-z][\w-]*(\.[\w./-]+)?)$",
        '"package.module:function", "mcp:server" or "mcp:server.tool"',
    ),
]
ToolNamePattern = Annotated[
    str,
    Pattern(
        r"^[A-Za-z0-9_*?]{1,64}$",
        'the name of a tool as the model sees it, with "*" for any characters',
    ),
]
ObjectName = Annotated[
    str, Pattern(r"^(\w+(\.\w+)*:[A-Za-z_]\w*)?$", '"package.module:name", or empty')
]
Region = Annotated[
    str, Pattern(r"^([a-z0-9-]{1,32})?$", 'a region such as "eu-central-1", or empty')
]
ApiVersion = Annotated[
    str, Pattern(r"^([A-Za-z0-9.-]{1,32})?$", 'a version such as "2024-10-21", or empty')
]
VariableName = Annotated[
    str,
    Pattern(
        r"^([A-Za-z_][A-Za-z0-9_]*)?$",
        "the name of an environment variable with the API key, never the key itself",
    ),
    Secret(masked=False),
]
PasswordVariable = Annotated[
    str,
    Pattern(
        r"^([A-Za-z_][A-Za-z0-9_]*)?$",
        "the name of an environment variable with the password, never the password itself",
    ),
    Secret(masked=False),
]
DatabaseUrl = Annotated[str, Secret(masked=False)]
SchemaName = Annotated[
    str,
    Pattern(
        r"^([a-z_][a-z0-9_]{0,62})?$",
        'the name of a schema: lower-case letters, digits and "_", not starting with a digit',
    ),
]
ListenAddress = Annotated[
    str,
    Pattern(
        r"^(([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5})?$",
        'a host and a port like "127.0.0.1:9464" or "[::1]:9464", or empty',
    ),
]
NotEmpty = Annotated[str, Pattern(r"^(?s:.*\S.*)$", "a non-empty text")]
ModelId = Annotated[str, Reference(("models",))]
DatabaseId = Annotated[str, Reference(("databases",))]
HistoryRuns = Annotated[int, Range(0, 1_000)]
ModelCalls = Annotated[int, Range(1, 1_000)]
Tokens = Annotated[int, Range(0, 100_000_000)]
NextAgent = Annotated[str, Reference(("agents",))]
NextTeam = Annotated[str, Reference(("teams",))]
NextWorkflow = Annotated[str, Reference(("workflows",))]
Percent = Annotated[int, Range(0, 100)]
