"""Discovery of authorization (RFC 9728): the metadata of the endpoint, which needs no token.

The authorization servers are the identity providers whose tokens the server accepts: the issuer in
`[authorization]`, if its keys are fetched. Without one there is no metadata.
"""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.types import Scope

from agentctl.config.settings import Settings
from agentctl.errors import NotFound
from agentctl.interop.mcp.settings import MCP_PATH

WELL_KNOWN = "/.well-known/"

SIGN_IN_PATHS = ("/authorize", "/register", "/token")
"""Paths at which clients look for an authorization server if they find no metadata."""

_METADATA = f"{WELL_KNOWN}oauth-protected-resource"

_SCOPES = ("agents:run", "teams:run", "workflows:run", "sessions:read")
"""The scopes of the tools."""


def list_issuers(settings: Settings) -> list[str]:
    """Return the identity providers whose tokens the server accepts."""
    table = settings.authorization
    has_keys = bool(table.jwks_url or table.oidc_discovery)
    return [table.issuer] if table.enabled and has_keys and table.issuer else []


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
    scopes = list_scopes(settings)
    asked = f', scope="{" ".join(scopes)}"' if scopes else ""
    return f', resource_metadata="{url}"{asked}'


def build_metadata(settings: Settings, scope: Scope, path: str) -> dict[str, Any]:
    """Return the metadata at a path.

    Raises:
        NotFound: another path, or there is no identity provider.
    """
    issuers = list_issuers(settings)
    if path in SIGN_IN_PATHS:
        raise NotFound(
            "This server is no authorization server: set a token in the client, or issuer and"
            " oidc_discovery in [authorization] of the server"
        )
    if path not in (_METADATA, f"{_METADATA}{MCP_PATH}") or not issuers:
        raise NotFound("Not found")
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
