"""The MCP servers of a configuration: the tools of each component, and the report of one server.

Every process imports this module; the other modules of the package only if a server is configured.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentctl.config.extras import build_extra_command
from agentctl.config.mcp_servers import is_per_user, parse_mcp_reference
from agentctl.errors import InvalidConfiguration

if TYPE_CHECKING:
    from agentctl.config.mcp_table import McpServer
    from agentctl.config.settings import Settings
    from agentctl.records.components import ToolRecord
    from agentctl.runtime.mcp.actions import McpAction
    from agentctl.runtime.mcp.calls import McpUser
    from agentctl.runtime.mcp.connection import Endpoint
    from agentctl.runtime.mcp.definitions import McpTool
    from agentctl.runtime.mcp.server import HostedServer

MESSAGE_FACTOR = 4
"""A message may be this many times as large as a result of a tool: JSON escapes characters."""

_OLDEST_VERSION = (2, 3)
"""The oldest supported release of the package `mcp`."""

_log = logging.getLogger("agentctl.mcp")


def require_mcp_package(settings: Settings, table: str = "[[mcp_servers]]") -> None:
    """Check that the package for MCP is installed.

    Args:
        settings: the configuration that needs it.
        table: the table of it that does.

    Raises:
        InvalidConfiguration: the package is missing or too old.
    """
    if importlib.util.find_spec("mcp") is None:
        raise InvalidConfiguration(
            f"{settings.path or 'the configuration'}: {table} needs a package that is not "
            "installed: mcp",
            hint=f"{build_extra_command('mcp')}, or remove the entries of {table}",
        )
    from importlib import metadata

    installed_version = metadata.version("mcp")
    numbers = tuple(int(number) for number in re.findall(r"\d+", installed_version)[:2])
    if numbers < _OLDEST_VERSION:
        raise InvalidConfiguration(
            f"{settings.path or 'the configuration'}: {table} needs the package mcp in version "
            f"2.3 or later, not {installed_version}",
            hint=build_extra_command("mcp"),
        )


class McpServers:
    """The configured servers. Their connections belong to one event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._hosted: dict[str, HostedServer] = {}
        self._clashes: set[str] = set()

    @property
    def hosted(self) -> Mapping[str, HostedServer]:
        """The servers that were needed so far, by id."""
        return self._hosted

    def start(self) -> None:
        """Connect to all configured servers in the background."""
        for spec in self._settings.mcp_servers:
            self._host(spec.id).start()

    async def close(self) -> None:
        """Close all connections and end all programs, in bounded time."""
        hosted = self._hosted
        self._hosted = {}
        await asyncio.gather(*(server.close() for server in hosted.values()))

    async def build_actions(
        self, references: Iterable[str], user: McpUser, reserved: Iterable[str]
    ) -> dict[str, McpAction]:
        """Return the tools of MCP servers that a component may use, by their names for models.

        A server that is not available gives the tools that it listed last. If it listed none, it
        gives those that `references` name; their calls fail.

        Args:
            references: the `tools` of the component.
            user: the user of the run.
            reserved: names of other tools of the component, which have precedence.
        """
        from agentctl.runtime.mcp.actions import McpAction

        tool_names = group_references(references)
        servers = [self._host(server_id) for server_id in tool_names]
        tool_lists = await asyncio.gather(
            *(self._find_tools(server, tool_names[server.spec.id], user) for server in servers)
        )

        used_names = set(reserved)
        actions: dict[str, McpAction] = {}
        for server, tools in zip(servers, tool_lists, strict=True):
            for tool in tools:
                if tool.name in used_names:
                    self._report_clash(tool)
                    continue
                used_names.add(tool.name)
                actions[tool.name] = McpAction(tool, server, user)

        return actions

    def _report_clash(self, tool: McpTool) -> None:
        """Log once in a process that a tool is left out because of its name."""
        if tool.name in self._clashes:
            return
        self._clashes.add(tool.name)
        _log.warning(
            "mcp server %s: its tool %s is left out: another tool is named %s too",
            tool.server,
            tool.listed_name,
            tool.name,
        )

    def records(self, references: Iterable[str]) -> list[ToolRecord]:
        """Return the records of the tools that the servers listed last, without waiting."""
        records: list[ToolRecord] = []
        for server_id, names in group_references(references).items():
            server = self._hosted.get(server_id)
            if server is not None and server.listed is not None:
                tools = _choose_tools(server.listed.tools, names)
                records += [tool.record() for tool in tools]
        return records

    def _host(self, server_id: str) -> HostedServer:
        if server_id not in self._hosted:
            require_mcp_package(self._settings)
            spec = next(server for server in self._settings.mcp_servers if server.id == server_id)
            self._hosted[server_id] = _build_server(self._settings, spec)
        return self._hosted[server_id]

    async def _find_tools(
        self, server: HostedServer, names: set[str], user: McpUser
    ) -> list[McpTool]:
        from agentctl.runtime.mcp.calls import McpUnavailable
        from agentctl.runtime.mcp.definitions import build_unlisted_tool

        try:
            tools = await server.find_tools(user)
        except McpUnavailable:
            return [build_unlisted_tool(server.spec, name) for name in sorted(names)]
        return _choose_tools(tools, names)


def group_references(references: Iterable[str]) -> dict[str, set[str]]:
    """Return the names of tools by server; an empty set means all tools of the server."""
    groups: dict[str, set[str]] = {}
    for reference in filter(None, map(parse_mcp_reference, references)):
        groups.setdefault(reference.server, set()).add(reference.tool)

    # A reference without a tool names all, also next to references to single tools.
    return {server: set() if "" in names else names for server, names in groups.items()}


def _choose_tools(tools: Iterable[McpTool], names: set[str]) -> list[McpTool]:
    """Return the tools with the names of `group_references`."""
    if not names:
        return list(tools)
    return [tool for tool in tools if tool.listed_name in names]


def _build_server(settings: Settings, spec: McpServer) -> HostedServer:
    """Build the object of a configured server; nothing is connected yet."""
    from agentctl.runtime.mcp.calls import NOBODY
    from agentctl.runtime.mcp.server import PerUserServer, SharedServer

    if spec.url and is_per_user(spec):
        return PerUserServer(spec, _count_message_bytes(settings))
    return SharedServer(spec, _build_endpoint(settings, spec, NOBODY))


def _build_endpoint(settings: Settings, spec: McpServer, user: McpUser) -> Endpoint:
    from agentctl.runtime.mcp.connection import HttpEndpoint, StdioEndpoint

    message_bytes = _count_message_bytes(settings)
    if spec.url:
        return HttpEndpoint(spec, user, message_bytes)
    folder = settings.path.parent if settings.path is not None else Path.cwd()
    return StdioEndpoint(spec, folder, message_bytes)


def _count_message_bytes(settings: Settings) -> int:
    return MESSAGE_FACTOR * settings.limits.tool_result_bytes


def describe_target(server: McpServer) -> str:
    """Return the command line or the URL of a server."""
    return server.url or " ".join([server.command, *server.args])


async def probe_server(
    settings: Settings, server: McpServer, user_id: str | None, claims: dict[str, Any]
) -> dict[str, Any]:
    """Connect to a server, list its tools, and disconnect.

    Args:
        user_id, claims: the user whose data the header fields contain.

    Returns:
        `id`, `state` (`connected` or `failed`), `reason` (of a failure, else null), `detail` (the
        last line of a program on stderr, else null), `server` (name, version and protocol),
        `seconds`, `tools` (tool records) and `problems` (of tools that are left out).
    """
    require_mcp_package(settings)
    from agentctl.runtime.mcp.calls import CONNECT_SECONDS, McpUnavailable, McpUser
    from agentctl.runtime.mcp.connection import McpConnection
    from agentctl.runtime.mcp.definitions import build_tool_list

    endpoint = _build_endpoint(settings, server, McpUser(user_id, claims))
    report: dict[str, Any] = {
        "id": server.id,
        "state": "failed",
        "reason": None,
        "detail": None,
        "server": None,
        "seconds": 0.0,
        "tools": [],
        "problems": [],
    }

    started = time.monotonic()
    connection = McpConnection(endpoint, server.call_seconds)
    try:
        await connection.open()
        async with asyncio.timeout(CONNECT_SECONDS):
            listed = await build_tool_list(server, await connection.list_tools())

        report["state"] = "connected"
        report["server"] = connection.description
        report["tools"] = [tool.record() for tool in listed.tools]
        report["problems"] = list(listed.problems)
    except McpUnavailable as failure:
        report["reason"] = str(failure)
        if is_per_user(server) and user_id is None and not claims:
            report["detail"] = "its headers have data of the user: give --user-id or --claim"
    except TimeoutError:
        report["reason"] = "it did not list its tools in time"
    finally:
        await connection.close()

    # Of a program, whose last line is read until its end.
    report["detail"] = report["detail"] or endpoint.detail or None
    report["seconds"] = round(time.monotonic() - started, 3)
    return report
