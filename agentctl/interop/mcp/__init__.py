"""The face for clients of the Model Context Protocol (docs/mcp.md "Agents as tools")."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentctl.extensions import AddedTable, Extension, FaceRoute

if TYPE_CHECKING:
    from agentctl.config.settings import Settings
    from agentctl.interop.mcp.face import McpFace

_DECISION = (
    "that of the tool that is called: explain its request, such as POST /agents/{agent_id}/runs"
)


def is_enabled(settings: Settings) -> bool:
    """Return True if the face is served."""
    from agentctl.interop.mcp.settings import McpEndpoint

    return settings.get_table(McpEndpoint).enabled


def _list_tables() -> tuple[AddedTable, ...]:
    from agentctl.interop.mcp.settings import McpEndpoint

    return (AddedTable("mcp_endpoint", McpEndpoint, after="openai"),)


def _require_packages(settings: Settings) -> None:
    if is_enabled(settings):
        from agentctl.runtime.mcp.servers import require_mcp_package

        require_mcp_package(settings, "[mcp_endpoint]")


def _build_face(settings: Settings) -> McpFace | None:
    if not is_enabled(settings):
        return None
    _require_packages(settings)
    from agentctl.interop.mcp.face import McpFace

    return McpFace(settings)


def _find_route(settings: Settings, method: str, path: str) -> FaceRoute | None:
    from agentctl.interop.mcp.settings import MCP_PATH

    if path != MCP_PATH:
        return None
    return FaceRoute(
        name="use_mcp",
        place=f"{method} {MCP_PATH}",
        setting="mcp_endpoint.enabled",
        is_served=is_enabled(settings),
        decision=_DECISION,
    )


EXTENSION = Extension(
    "mcp",
    list_tables=_list_tables,
    require_packages=_require_packages,
    build_face=_build_face,
    find_route=_find_route,
)
