"""The endpoint `/mcp`: streamable HTTP, inside of the authentication (decision 63).

Requests of protocols before 2026-07-28 are for `handshake`, newer ones for `modern`.

The metadata of the endpoint (RFC 9728), which needs no token, names the authorization servers. They
are the identity providers whose tokens the server accepts: the issuer in `[authorization]`, if its
keys are fetched. Without one there is no metadata.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from agentctl import errors
from agentctl.config.settings import Settings
from agentctl.interop.mcp import calls
from agentctl.interop.mcp.client import CallingClient, NoSuchTool, build_result
from agentctl.interop.mcp.handshake import VERSIONS, HandshakeServer, build_error_response
from agentctl.interop.mcp.modern import ModernServer
from agentctl.interop.mcp.settings import MCP_PATH
from agentctl.interop.mcp.tools import RunTool, build_tools, check_arguments, is_allowed
from agentctl.records.logs import add_log_context
from agentctl.server.answers import Call, json_response
from agentctl.server.routing import BuildErrorResponse, Face, MatchedRoute, path_below_root

WELL_KNOWN = "/.well-known/"

SIGN_IN_PATHS = ("/authorize", "/register", "/token")
"""Paths at which clients look for an authorization server if they find no metadata."""

_METADATA = f"{WELL_KNOWN}oauth-protected-resource"

_SCOPES = ("agents:run", "teams:run", "workflows:run", "sessions:read")
"""The scopes of the tools."""


class McpFace(Face):
    """The server of MCP of one application."""

    paths = (MCP_PATH, *SIGN_IN_PATHS)
    prefixes = (WELL_KNOWN,)

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._tools = build_tools(settings)
        self._handshake = HandshakeServer(settings, self._list_tools, self._call_tool)
        self._modern = ModernServer(settings, self._list_tools, self._call_tool)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self._modern.running():
            yield

    def find_error_response(self, scope: Scope) -> BuildErrorResponse:
        if path_below_root(scope) != MCP_PATH:
            return super().find_error_response(scope)
        return partial(build_error_response, build_challenge(self._settings, scope))

    async def respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        call = Call(scope, receive)
        if path_below_root(scope) != MCP_PATH:
            await self._respond_with_metadata(call, send)
            return

        scope["route"] = MatchedRoute("call_mcp")
        caller = call.caller
        if caller.principal is None:
            raise caller.failure or errors.Unauthenticated()
        if call.method not in ("POST", "DELETE"):
            # Nothing is sent without a request, and an open stream would delay the shutdown.
            raise errors.MethodNotAllowed(allow=("DELETE", "POST"))
        add_log_context(principal=caller.principal.identity)

        version = call.headers.get("mcp-protocol-version")
        if version is None or version in VERSIONS:
            await self._handshake.respond(call, send)
        else:
            await self._modern.respond(call, send)

    async def _respond_with_metadata(self, call: Call, send: Send) -> None:
        scope = call.scope
        scope["route"] = MatchedRoute("get_mcp_metadata")
        metadata = build_metadata(self._settings, scope, path_below_root(scope))
        if call.method not in ("GET", "HEAD"):
            raise errors.MethodNotAllowed(allow=("GET", "HEAD"))

        # A client in the browser reads it before it has a token.
        headers = {"Access-Control-Allow-Origin": "*"}
        await json_response(metadata, headers=headers)(scope, call.receive, send)

    async def _list_tools(self, call: Call) -> list[dict[str, Any]]:
        assert call.caller.principal is not None
        principal = call.caller.principal
        return [tool.build() for tool in self._tools.values() if is_allowed(principal, tool)]

    async def _call_tool(
        self, call: Call, name: str, values: dict[str, Any] | None, client: CallingClient
    ) -> dict[str, Any]:
        tool = self._tools.get(name)
        if tool is None:
            raise NoSuchTool

        try:
            arguments = check_arguments(tool.build(), values)
            if isinstance(tool, RunTool):
                base = _find_base(self._settings, call.scope)
                return await calls.run(tool, call.operations, arguments, client, base)

            document = await tool.read(call.operations, arguments)
            return build_result(document.raw.decode())
        except errors.Forbidden:
            # The denial is in the audit log. A tool that is not listed does not exist for a caller.
            raise NoSuchTool from None
        except errors.AgentctlError as error:
            return build_result(error.detail, failed=True)


def list_issuers(settings: Settings) -> list[str]:
    """Return the identity providers whose tokens the server accepts."""
    table = settings.authorization
    has_keys = bool(table.jwks_url or table.oidc_discovery)
    if table.enabled and has_keys and table.issuer:
        return [table.issuer]
    return []


def list_scopes(settings: Settings) -> list[str]:
    """Return the scopes for which clients ask the identity provider.

    They have the configured prefix. There are none if only roles grant something: a provider
    refuses scopes that it does not know.
    """
    table = settings.authorization
    return [f"{table.scope_prefix}{scope}" for scope in _SCOPES] if table.scopes_claim else []


def build_challenge(settings: Settings, scope: Scope) -> str:
    """Return the parameters of a challenge (RFC 9728 5.1, RFC 6750 3), which begin with a comma.

    The text is empty without an identity provider.
    """
    if not list_issuers(settings):
        return ""

    url = f"{_find_base(settings, scope)}{_METADATA}{MCP_PATH}"
    challenge = f', resource_metadata="{url}"'
    if scopes := list_scopes(settings):
        challenge += f', scope="{" ".join(scopes)}"'
    return challenge


def build_metadata(settings: Settings, scope: Scope, path: str) -> dict[str, Any]:
    """Return the metadata of the endpoint (RFC 9728 2), as JSON.

    Raises:
        NotFound: the path is not that of the metadata, or there is no identity provider.
    """
    if path in SIGN_IN_PATHS:
        raise errors.NotFound(
            "This server is no authorization server: set a token in the client, or issuer and"
            " oidc_discovery in [authorization] of the server"
        )

    issuers = list_issuers(settings)
    if path not in (_METADATA, f"{_METADATA}{MCP_PATH}") or not issuers:
        raise errors.NotFound("Not found")

    scopes = list_scopes(settings)
    return {
        "resource": f"{_find_base(settings, scope)}{MCP_PATH}",
        "resource_name": settings.server.name,
        "authorization_servers": issuers,
        **({"scopes_supported": scopes} if scopes else {}),
        "bearer_methods_supported": ["header"],
    }


def _find_base(settings: Settings, scope: Scope) -> str:
    return (settings.server.url or str(Request(scope).base_url)).rstrip("/")
