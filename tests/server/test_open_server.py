"""A server without authorization listens on loopback only, unless configured otherwise (A15)."""

from __future__ import annotations

import contextlib
import os
import socket

import httpx2
import pytest

from tests.kit.command import run_command
from tests.kit.deployment import Deployment
from tests.kit.process import serve_config
from tests.kit.tables import every_row
from tests.kit.threaded_server import ThreadedServer
from tests.server.seeds import as_caller

BEYOND = ["0.0.0.0", "::", "0", "::ffff:0.0.0.0", "198.51.100.7", "elsewhere.invalid"]
"""Addresses of every network card in several spellings, one of another machine, and a name."""


def named_beyond() -> list[str]:
    """Return the name of this machine if it resolves to an external address."""
    name = socket.gethostname()
    with contextlib.suppress(OSError):
        if not socket.gethostbyname(name).startswith("127."):
            return [name]
    return []


@every_row("host", [*BEYOND, *named_beyond()])
def test_open_server_rejects_an_external_address(deployment: Deployment, host: str) -> None:
    environment = {**os.environ, "AGENTCTL_AUTHORIZATION__ENABLED": "false"}
    for workers in ("1", "2"):
        options = ("--host", host, "--port", "0", "--workers", workers)
        ended = run_command("serve", *options, environment=environment, folder=deployment.folder)
        assert (ended.code, ended.stdout) == (2, "")
        said = ended.stderr
        assert f"authorization is disabled and other machines can reach {host}" in said
        assert "--insecure-no-auth" in said
        assert "listens" not in said
    assert not (deployment.folder / "main.db").exists()


def test_open_server_listens_externally_with_the_option(deployment: Deployment) -> None:
    options = ("--host", "0.0.0.0", "--insecure-no-auth")
    with serve_config(deployment.path, *options) as served:
        assert "every caller is an administrator" in served.wait_for("authorization: ")
        url = f"http://127.0.0.1:{served.port}"
        assert httpx2.get(f"{url}/teams").status_code == 200
        assert httpx2.get(f"{url}/info").json()["auth_mode"] == "none"


@pytest.mark.parametrize("origin", ["null", "https://evil.example", "http://127.0.0.1:1"])
@pytest.mark.parametrize("method", ["GET", "OPTIONS", "POST"])
def test_no_other_origin_may_read_responses_by_default(
    server: ThreadedServer, origin: str, method: str
) -> None:
    """T17 with the default settings."""
    asked = {"Origin": origin, "Access-Control-Request-Method": "DELETE"}
    for who in ("nobody", "me"):
        headers = as_caller(server, who) | asked
        answer = server.client.request(method, "/sessions", headers=headers)
        assert not [name for name in answer.headers if name.startswith("access-control-")]
