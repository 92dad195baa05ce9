"""Programs that speak MCP, on a server of this project with one worker and with two (docs/mcp.md).

The model endpoint is the witness of a cancel: its open calls are counted.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from compat.mcp_table import CLIENTS, McpClient, list_operations
from compat.servers import PEERS
from tests.kit.deployment import create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.process import base_environment, serve_config
from tests.server.oauth_provider import OAuthProvider, run_oauth_provider

HERE = Path(__file__).parent
ROOT = HERE.parent
PACKAGES = ROOT / ".peers" / "mcp-clients"
PYTHON = PACKAGES / "bin" / "python"
AGNO = PACKAGES / "agno" / "bin" / "python"
NODE = shutil.which("node")

needs_clients = pytest.mark.skipif(
    not PEERS or not PYTHON.exists(), reason="needs clients of MCP: make compat"
)

SCOPES = ("agents:run", "teams:run", "workflows:run", "sessions:read")

AGENTS = """
[mcp_endpoint]
enabled = true

[[agents]]
id = "payer"
object = "paying_agent:wait_for_people"
"""

FORMS = {
    "tools": ["--method", "tools/list"],
    "agent": ["--tool-name", "agent_echo", "--tool-arg", "message=hello"],
    "team": ["--tool-name", "team_crew", "--tool-arg", "message=ask echo"],
    "workflow": ["--tool-name", "workflow_line", "--tool-arg", "message=ask echo"],
    "failure": ["--tool-name", "agent_http-500", "--tool-arg", "message=x"],
    "unknown": ["--tool-name", "agent_none", "--tool-arg", "message=x"],
    "sessions": ["--tool-name", "list_sessions"],
}
"""The arguments of the inspector for each operation."""

INSPECTED = {
    "tools": "workflow_line",
    "agent": "hello",
    "team": "structuredContent",
    "workflow": "structuredContent",
    "failure": "MODEL_UNAVAILABLE",
    "unknown": "no such tool",
    "sessions": "session_id",
    "wrong_token": "Invalid or expired credential",
}
"""The operations of the inspector, with a text of the output."""


@pytest.fixture(scope="module")
def provider() -> Iterator[OAuthProvider]:
    with run_oauth_provider() as running:
        yield running


@pytest.fixture(scope="module", params=[1, 2], ids=["one-worker", "two-workers"])
def work(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    model_endpoint: ModelEndpoint,
    provider: OAuthProvider,
) -> Iterator[Path]:
    """A file with the places and tokens of a server that trusts the provider."""
    folder = tmp_path_factory.mktemp("mcp-clients")
    shutil.copy(ROOT / "tests" / "approvals" / "paying_agent.py", folder)
    deployment = create_deployment(folder, model_endpoint.base_url, extra=AGENTS)
    trusted = (
        f'algorithm = "EdDSA"\nissuer = "{provider.issuer}"\njwks_url = "{provider.issuer}jwks"\n'
        'scopes_claim = "scope"'
    )
    text = deployment.path.read_text()
    deployment.path.write_text(
        text.replace('verification_key_files = ["keys/signing.pub.pem"]', trusted)
    )
    with serve_config(deployment.path, "--workers", str(request.param)) as served:
        file = folder / "work.json"
        values = {
            "url": served.url,
            "model": model_endpoint.root_url,
            "token": provider.sign("ada", *SCOPES),
            "other": provider.sign("eve", *SCOPES),
            "narrow": provider.sign("ada", "agents:echo:run", "sessions:read"),
            "wrong": "wrong",
            "mark": uuid4().hex,
        }
        file.write_text(json.dumps(values))
        yield file


def run(*line: str | Path, expected: int | None = 0) -> str:
    """Run a program and return its output."""
    ended = subprocess.run(
        [str(word) for word in line],
        env={**base_environment(), "NO_PROXY": "*"},
        capture_output=True,
        text=True,
        timeout=570,
    )
    assert expected is None or ended.returncode == expected, ended.stderr[-3_000:]
    return ended.stdout if expected == 0 else ended.stdout + ended.stderr


def inspect(work: Path) -> dict[str, str | None]:
    assert NODE is not None
    values = json.loads(work.read_text())
    cli = PACKAGES / "node_modules" / "@modelcontextprotocol" / "inspector-cli" / "build" / "cli.js"
    found: dict[str, str | None] = {}
    for name, text in INSPECTED.items():
        form = FORMS.get(name, FORMS["tools"])
        line = form if "--method" in form else ["--method", "tools/call", *form]
        token = values["wrong" if name == "wrong_token" else "token"]
        header = ["--header", f"Authorization: Bearer {token}"]
        place = [f"{values['url']}/mcp", "--transport", "http"]
        output = run(NODE, cli, "--cli", *place, *line, *header, expected=None)
        found[name] = None if text in output else output[-500:]
    return found


def execute(client: McpClient, work: Path) -> dict[str, Any]:
    if client.part == "INSPECTED":
        return inspect(work)
    if client.program.endswith(".mjs"):
        assert NODE is not None
        output = run(NODE, HERE / client.program, PACKAGES, work)
    else:
        part = {"SESSION": "session", "MODERN": "client"}.get(client.part, client.part)
        # The newest version of the package mcp is the one of this environment.
        python = Path(sys.executable) if "2.3" in client.name else PYTHON
        python = AGNO if part == "agno" else python
        output = run(python, HERE / client.program, work, part)
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


@needs_clients
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_operations_of_a_client_are_as_due(client: McpClient, work: Path) -> None:
    found = execute(client, work)
    assert list(found) == list_operations(client)
    failed = {name: failure for name, failure in found.items() if failure is not None}
    unexpected = {name: text for name, text in failed.items() if name not in client.differences}
    assert unexpected == {}
    assert failed.keys() == client.differences.keys()
