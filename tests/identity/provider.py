"""A certified identity provider in a process of Node, with its own page for the sign-in.

`make .peers/oidc/.installed` installs it with npm. It knows users of any name, with any password.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

__all__ = [
    "AUDIENCE",
    "PACKAGES",
    "TRUST",
    "Office",
    "list_clients",
    "needs_provider",
    "run_identity_provider",
]

AUDIENCE = "agentctl"

TRUST = """algorithm = "RS256"
issuer = "{issuer}"
oidc_discovery = true
verify_audience = true
audience = "{audience}"
require_exp = true
"""
"""The lines of `[authorization]` that trust the provider, without its claims."""

SCOPES = ("agents:read", "agents:run", "teams:run", "workflows:run", "sessions:read")

_HERE = Path(__file__).parent
PACKAGES = _HERE.parents[1] / ".peers" / "oidc"

needs_provider = pytest.mark.skipif(
    shutil.which("node") is None or not (PACKAGES / "node_modules" / "oidc-provider").exists(),
    reason="needs an identity provider: install Node 18 and npm, then make .peers/oidc/.installed",
)


@dataclass
class Office:
    """A server that accepts the tokens of an identity provider, by their URLs."""

    url: str
    issuer: str


def list_clients(*redirect_uris: str) -> list[dict[str, Any]]:
    """Return public clients: `console` for a page, `agentctl` for terminals (RFC 8252, RFC 8628).

    Both get refresh tokens. A native client may return to any port of 127.0.0.1.
    """
    common = {"token_endpoint_auth_method": "none", "response_types": ["code"]}
    code = ["authorization_code", "refresh_token"]
    device = "urn:ietf:params:oauth:grant-type:device_code"
    return [
        {**common, "client_id": "console", "grant_types": code, "redirect_uris": redirect_uris},
        {
            **common,
            "client_id": "agentctl",
            "application_type": "native",
            "grant_types": [*code, device],
            "redirect_uris": ["http://127.0.0.1/", "http://127.0.0.1/callback"],
        },
    ]


@contextlib.contextmanager
def run_identity_provider(
    clients: Sequence[Mapping[str, Any]] = (),
    *,
    users: Mapping[str, Mapping[str, Any]] | None = None,
    scopes: Sequence[str] = SCOPES,
    audience: str = AUDIENCE,
    seconds: int = 600,
    issuer: str = "",
    port: int = 0,
    prefix: Sequence[str] = (),
) -> Iterator[str]:
    """Start a provider on a free port; yield its issuer, and end the process after the block.

    Access tokens are JWT (RFC 9068) with `scope`. Other programs may register as clients.

    Args:
        clients: the clients (RFC 7591).
        users: claims in the tokens of a user or of a program, by name or client id.
        scopes: the scopes that it grants; it leaves out others.
        audience: `aud` of access tokens.
        seconds: life of access tokens.
        issuer: its URL behind a proxy; empty for the port of 127.0.0.1.
        port: 0 for a free one.
        prefix: the command that starts the process, for another network.
    """
    settings = {
        "clients": [*clients],
        "users": users or {},
        "scopes": [*scopes],
        "audience": audience,
        "seconds": seconds,
        "issuer": issuer,
        "port": port,
    }
    process = subprocess.Popen(
        [*prefix, "node", str(_HERE / "provider.mjs"), str(PACKAGES), json.dumps(settings)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert url, "the identity provider did not start"
        yield url
    finally:
        process.kill()
        process.communicate()
