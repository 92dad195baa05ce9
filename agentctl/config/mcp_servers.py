"""The placeholders in values of `[[mcp_servers]]`, and the checks of these entries.

In a value of `env` or `headers`, `${env:NAME}` is an environment variable of agentctl, `${user_id}`
the user of the run, and `${claims:NAME}` a verified claim of the caller (docs/mcp.md).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import NamedTuple

from agentctl.config.known_secrets import is_secret_name
from agentctl.config.mcp_table import McpServer
from agentctl.config.places import Place
from agentctl.config.settings import Settings
from agentctl.records.text import quote_text

MCP_PREFIX = "mcp:"
"""Begins a reference to the tools of an MCP server, where the module of a function would be."""

_PLACEHOLDER = re.compile(r"\$\{([^}]*)\}")
_KNOWN = re.compile(r"env:(?P<env>[A-Za-z_]\w*)|(?P<user>user_id)|claims:(?P<claims>[^\s{}]+)")
_OWN_HEADERS = {
    "accept", "connection", "content-length", "content-type", "host", "last-event-id",
    "mcp-protocol-version", "mcp-session-id", "transfer-encoding",
}  # fmt: skip
"""Headers that the protocol sets."""

_STDIO_KEYS = ("args", "env")
_HTTP_KEYS = ("headers",)


class TemplatePart(NamedTuple):
    """A part of a value: a text or a placeholder."""

    kind: str
    """`text`, `env`, `user` or `claims`."""

    name: str
    """The text itself, or the name in the placeholder."""


class McpReference(NamedTuple):
    """An element of `tools` that names an MCP server."""

    server: str

    tool: str
    """One of its tools; "" for all."""


def parse_mcp_reference(reference: str) -> McpReference | None:
    """Return the server and the tool of `mcp:server.tool`; None for a Python function."""
    if not reference.startswith(MCP_PREFIX):
        return None
    server, _, tool = reference.removeprefix(MCP_PREFIX).partition(".")
    return McpReference(server, tool)


def parse_template(value: str) -> list[TemplatePart] | None:
    """Split a value into its parts; return None if it has an unknown placeholder.

    For example, `Bearer ${env:TOKEN}` is the text `Bearer ` and the variable `TOKEN`.
    """
    parts = []
    position = 0
    for match in _PLACEHOLDER.finditer(value):
        placeholder = _KNOWN.fullmatch(match[1])
        if placeholder is None or placeholder.lastgroup is None:
            return None

        parts.append(TemplatePart("text", value[position : match.start()]))
        parts.append(TemplatePart(placeholder.lastgroup, placeholder[placeholder.lastgroup]))
        position = match.end()

    parts.append(TemplatePart("text", value[position:]))
    return [part for part in parts if part.name]


def is_per_user(server: McpServer) -> bool:
    """Return True if a header of the server contains data of the user."""
    return any(
        part.kind in ("user", "claims")
        for value in server.headers.values()
        for part in parse_template(value) or ()
    )


def allows_tool(server: McpServer, tool: str) -> bool:
    """Return True if agents may use a tool of a server."""
    patterns = server.allow_tools
    return not patterns or any(fnmatchcase(tool, pattern) for pattern in patterns)


def is_idempotent(server: McpServer, tool: str) -> bool:
    """Return True if a call of a tool may be made again after its process died."""
    return any(fnmatchcase(tool, pattern) for pattern in server.idempotent_tools)


def check_mcp_servers(settings: Settings, places: Mapping[str, Place]) -> None:
    """Check the entries of `[[mcp_servers]]`, and the tools of agents and teams that name them.

    Raises:
        InvalidConfiguration: the first mistake.
    """
    for server in settings.mcp_servers:
        _check_server(server, places)

    servers = {server.id: server for server in settings.mcp_servers}
    for table, components in (("agents", settings.agents), ("teams", settings.teams)):
        for component in components:
            for reference in component.tools:
                _check_reference(reference, servers, places[f"{table}.{component.id}.tools"])


def _check_server(server: McpServer, places: Mapping[str, Place]) -> None:
    key = f"mcp_servers.{server.id}"
    if bool(server.command.strip()) == bool(server.url):
        places[f"{key}.{'url' if server.url else 'command'}"].refuse(
            "must have exactly one of command and url"
        )

    unused_keys: tuple[str, ...] = _HTTP_KEYS
    chosen_key = "command"
    if server.url:
        unused_keys = _STDIO_KEYS
        chosen_key = "url"
    for name in unused_keys:
        if places[f"{key}.{name}"].given:
            places[f"{key}.{name}"].refuse(f"has no effect with {chosen_key}")

    for table, values in (("env", server.env), ("headers", server.headers)):
        for name, value in values.items():
            _check_value(table, name, value, places[f"{key}.{table}"].item(f".{name}"))


def _check_reference(reference: str, servers: Mapping[str, McpServer], place: Place) -> None:
    """Check an element of `tools` of an agent or a team if it names an MCP server."""
    mcp_reference = parse_mcp_reference(reference)
    if mcp_reference is None:
        return

    server_id = mcp_reference.server
    server = servers.get(server_id)
    if server is None:
        place.refuse_unknown_id(server_id, "[[mcp_servers]]", servers)
    if mcp_reference.tool and not allows_tool(server, mcp_reference.tool):
        place.refuse(
            f"names {quote_text(reference)}, which allow_tools of {server_id} does not allow"
        )


def _check_value(table: str, name: str, value: str, place: Place) -> None:
    """Check a value of `env` or `headers`."""
    parts = parse_template(value)
    allowed = "${env:NAME}, ${user_id} and ${claims:NAME}"
    if table == "env":
        # A program serves all users: its environment is the same for all of them.
        allowed = "${env:NAME}"
        if parts is not None and any(part.kind in ("user", "claims") for part in parts):
            parts = None
    if parts is None:
        place.refuse(f"has an unknown placeholder; it may have {allowed}")

    if table == "headers" and name.lower() in _OWN_HEADERS:
        place.refuse("is set by the protocol")
    if is_secret_name(name) and all(part.kind == "text" for part in parts):
        place.refuse(
            "looks like a secret, which does not belong into the file",
            hint='put it into an environment variable, and write "${env:NAME}" with its name',
        )
