"""`agentctl mcp`: the configured MCP servers and their tools. Local only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from agentctl.cli.help import CommandApp
from agentctl.cli.options import Config
from agentctl.cli.parameters import argument, option
from agentctl.cli.show.output import CommandOutput, FieldsOutput
from agentctl.cli.show.table import Column
from agentctl.cli.show.terminal import note
from agentctl.errors import NotFound, SomethingWrong, Unavailable, UsageError

if TYPE_CHECKING:
    from agentctl.config.mcp_table import McpServer
    from agentctl.config.settings import Settings

app = CommandApp(
    help="List and check the MCP servers of the configuration.", epilog="Example: agentctl mcp list"
)

ServerId = Annotated[str, argument("ID", "Id of an MCP server")]
UserId = Annotated[str | None, option("--user-id", "ID", "User id for the headers of the server")]
Claims = Annotated[
    list[str] | None, option("--claim", "NAME=VALUE", "Claim for the headers (repeatable)")
]

_COLUMNS = [
    Column("id"),
    Column("transport"),
    Column("target", look="text"),
    Column("used_by", lambda record: ", ".join(record["used_by"]), look="text"),
]
_TOOL_COLUMNS = [Column("name"), Column("description", look="text")]
_CHECK_COLUMNS = [
    Column("id"),
    Column("state"),
    Column("tools", lambda record: len(record["tools"])),
    Column("seconds"),
    Column("server", look="text"),
    Column("reason", look="whole"),
]


@app.command("list", epilog="Example: agentctl mcp list -o json")
def list_servers(out: FieldsOutput, config: Config = None) -> None:
    """List the configured MCP servers without connecting."""
    from agentctl.config import load_settings

    settings = load_settings(config)
    rows = [_build_row(settings, server) for server in settings.mcp_servers]
    out.show_list(rows, _COLUMNS, "id")


@app.command("get", epilog="Example: agentctl mcp get files")
def get_server(out: FieldsOutput, server_id: ServerId, config: Config = None) -> None:
    """Show one configured MCP server."""
    from agentctl.config import load_settings

    settings = load_settings(config)
    row = _build_row(settings, _find_server(settings, server_id))
    columns = [
        *_COLUMNS,
        Column("allow_tools", lambda record: ", ".join(record["allow_tools"]), look="text"),
        Column("connect_seconds"),
        Column("call_seconds"),
    ]
    out.show_record(row, columns, "id")


@app.command("tools", epilog="Example: agentctl mcp tools files")
async def list_tools(
    out: FieldsOutput,
    server_id: ServerId,
    user_id: UserId = None,
    claim: Claims = None,
    config: Config = None,
) -> None:
    """Connect to an MCP server and list its tools as models see them."""
    from agentctl.config import load_settings

    settings = load_settings(config)
    server = _find_server(settings, server_id)
    (report,) = await _probe(settings, [server], user_id, claim)
    if report["state"] != "connected":
        raise Unavailable(
            f"The MCP server {server_id} is not available: {report['reason']}",
            cause=report["detail"],
            hint=f"check its entry of [[mcp_servers]], then: agentctl mcp check {server_id}",
        )
    out.show_list(report["tools"], _TOOL_COLUMNS, "name")
    for problem in report["problems"]:
        note(f"{server_id}: {problem}")


@app.command("check", epilog="Example: agentctl mcp check")
async def check_servers(
    out: CommandOutput,
    server_ids: list[str] | None = argument("ID", "Ids of MCP servers (default: all)"),
    user_id: UserId = None,
    claim: Claims = None,
    config: Config = None,
) -> None:
    """Connect to MCP servers and report their state.

    Exit code 1 if a server is not available.
    """
    from agentctl.config import load_settings

    settings = load_settings(config)
    servers = [_find_server(settings, server_id) for server_id in server_ids or ()]
    reports = await _probe(settings, servers or settings.mcp_servers, user_id, claim)
    out.show_list(reports, _CHECK_COLUMNS, "id")
    for report in reports:
        for line in filter(None, [report["detail"], *report["problems"]]):
            note(f"{report['id']}: {line}")
    failed = [report["id"] for report in reports if report["state"] != "connected"]
    if failed:
        raise SomethingWrong(f"MCP servers that are not available: {', '.join(failed)}")


def _build_row(settings: Settings, server: McpServer) -> dict[str, Any]:
    from agentctl.config.mcp_servers import parse_mcp_reference
    from agentctl.runtime.mcp.calls import CONNECT_SECONDS
    from agentctl.runtime.mcp.servers import describe_target

    used_by = [
        f"{kind} {component.id}"
        for kind, components in (("agent", settings.agents), ("team", settings.teams))
        for component in components
        if any(
            (named := parse_mcp_reference(tool)) is not None and named.server == server.id
            for tool in component.tools
        )
    ]
    return {
        "id": server.id,
        "transport": "http" if server.url else "stdio",
        "target": describe_target(server),
        "used_by": used_by,
        "allow_tools": list(server.allow_tools),
        "connect_seconds": CONNECT_SECONDS,
        "call_seconds": server.call_seconds,
    }


def _find_server(settings: Settings, server_id: str) -> McpServer:
    for server in settings.mcp_servers:
        if server.id == server_id:
            return server
    configured = ", ".join(server.id for server in settings.mcp_servers) or "none"
    raise NotFound(f"No MCP server {server_id}", hint=f"configured: {configured}")


async def _probe(
    settings: Settings, servers: Sequence[McpServer], user_id: str | None, claim: list[str] | None
) -> list[dict[str, Any]]:
    import asyncio

    from agentctl.cli.log import discard_log
    from agentctl.runtime.mcp.servers import probe_server

    claims: dict[str, str] = {}
    for text in claim or ():
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise UsageError(f"--claim {text} has no value", hint="write --claim NAME=VALUE")
        claims[name] = value
    discard_log()  # the report has the failure
    probes = (probe_server(settings, server, user_id, claims) for server in servers)
    return await asyncio.gather(*probes)
