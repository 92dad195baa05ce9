"""The examples of reverse proxies, with the programs of Debian, in front of a real server."""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.cli.demo import Demo, serving
from tests.kit.certificates import create_certificate
from tests.kit.conditions import PATIENCE
from tests.kit.model import ModelEndpoint
from tests.kit.ports import find_free_port, wait_for_port
from tests.kit.process import base_environment
from tests.packaging.programs import PACKAGING, needs_packaging_mode, require_program

pytestmark = [needs_packaging_mode]

PROXIES = {"nginx": "nginx-light", "caddy": "caddy"}
NAME = "agents.example.com"
HELD_SECONDS = 12.0
"""Less than the time after which an idle stream gets a comment, which could empty a buffer."""

HALF = """
[[models]]
id = "half"
provider = "openai"
model = "half"
base_url = "{}"
retries = 0

[[agents]]
id = "half"
model = "half"
"""
TOOLS = {"protocolVersion": "2025-06-18", "capabilities": {}}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint) -> Iterator[Demo]:
    """A demo server with the interface of MCP, and an agent whose model stops in the middle."""
    folder = tmp_path_factory.mktemp("proxied") / "demo"
    with serving(folder) as first:
        text = first.config.read_text()
    text = text.replace("[openai]", "[mcp_endpoint]\nenabled = true\n\n[openai]")
    first.config.write_text(text + HALF.format(model_endpoint.base_url))
    with serving(folder) as demo:
        yield demo


@pytest.fixture(scope="module", params=PROXIES)
def client(
    request: pytest.FixtureRequest, demo: Demo, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx2.Client]:
    """A client of the server behind a proxy with TLS."""
    program = require_program(request.param, PROXIES[request.param])
    folder = tmp_path_factory.mktemp(request.param)
    create_certificate(folder, NAME, "localhost")
    port = find_free_port()
    upstream = demo.url.removeprefix("http://")
    command = {"nginx": configure_nginx, "caddy": configure_caddy}[request.param](
        program, folder, port, upstream
    )
    with (folder / "log").open("wb") as log:
        env = base_environment() | {"HOME": str(folder), "XDG_DATA_HOME": str(folder / "data")}
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log)
    try:
        wait_for_port(port, process, (folder / "log").read_text)
        context = ssl.create_default_context(cafile=str(folder / "certificate.pem"))
        with httpx2.Client(
            base_url=f"https://localhost:{port}",
            verify=context,
            headers={"Authorization": f"Bearer {demo.token}", "Host": NAME},
            timeout=PATIENCE,
        ) as client:
            yield client
    finally:
        process.terminate()
        process.wait(PATIENCE)


def configure_nginx(program: str, folder: Path, port: int, upstream: str) -> list[str]:
    text = (PACKAGING / "proxy/nginx.conf").read_text()
    for old, new in {
        "127.0.0.1:7777": upstream,
        "listen 443": f"listen 127.0.0.1:{port}",
        "listen 80;": f"listen 127.0.0.1:{find_free_port()};",
        "/etc/ssl/agentctl/fullchain.pem": f"{folder}/certificate.pem",
        "/etc/ssl/agentctl/key.pem": f"{folder}/certificate.pem",
        # Streams have `X-Accel-Buffering: no`. Without it the file has to be right by itself.
        "proxy_http_version": "proxy_ignore_headers X-Accel-Buffering; proxy_http_version",
    }.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "agentctl.conf").write_text(text)
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log stderr; events {{}}\n"
        f"http {{ access_log off; {paths} include {folder}/agentctl.conf; }}\n"
    )
    command = [program, "-e", "stderr", "-p", str(folder), "-c", str(folder / "nginx.conf")]
    done = subprocess.run([*command, "-t"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert "warn" not in done.stderr.decode().replace('the "user" directive', "")
    return command


def configure_caddy(program: str, folder: Path, port: int, upstream: str) -> list[str]:
    text = (PACKAGING / "proxy/Caddyfile").read_text()
    for old, new in {
        "agents.example.com {": f"https://{NAME}:{port}, https://localhost:{port} {{\n"
        f"\ttls {folder}/certificate.pem {folder}/certificate.pem",
        "127.0.0.1:7777": upstream,
    }.items():
        assert old in text
        text = text.replace(old, new)
    head = "{\n\tadmin off\n\tauto_https disable_redirects\n\tskip_install_trust\n}\n"
    (folder / "Caddyfile").write_text(head + text)
    return [program, "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]


def test_pages_are_served_with_tls(client: httpx2.Client) -> None:
    for path in ("/health", "/console", "/docs", "/agents"):
        response = client.get(path)
        assert response.status_code == 200, response.text
        assert response.headers["Strict-Transport-Security"] == "max-age=31536000"


def test_first_pieces_arrive_while_the_model_holds_the_rest_back(
    client: httpx2.Client, model_endpoint: ModelEndpoint
) -> None:
    """The model sends three words and then nothing: a proxy that buffers would keep them."""
    form = {"message": "hi", "session_id": "held", "stream": "true"}
    pieces = list[str]()
    with client.stream("POST", "/agents/half/runs", data=form, timeout=HELD_SECONDS) as response:
        for line in response.iter_lines():
            data = json.loads(line[6:]) if line.startswith("data: ") else {}
            if data.get("event") == "RunContent":
                pieces.append(data["content"])
            if "".join(pieces) == "one two three":
                assert model_endpoint.open_calls() == 1
                path = f"/agents/half/runs/{data['run_id']}/cancel?session_id=held"
                assert client.post(path).status_code == 200
                pieces.append("cancelled")
    assert pieces[-1] == "cancelled"


def test_clients_of_openai_get_a_stream(client: httpx2.Client) -> None:
    body = {"model": "echo", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    response = client.post("/v1/chat/completions", json=body)
    assert response.headers["Content-Type"].startswith("text/event-stream")
    assert response.text.strip().endswith("data: [DONE]")


def test_clients_of_mcp_list_tools(client: httpx2.Client) -> None:
    params = TOOLS | {"clientInfo": {"name": "test", "version": "1"}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    accept = {"Accept": "application/json, text/event-stream"}
    response = client.post("/mcp", json=body, headers=accept)
    assert response.status_code == 200, response.text
    assert '"serverInfo"' in response.text


def test_large_body_is_refused_by_the_server(client: httpx2.Client) -> None:
    form = {"message": "x" * 3_000_000, "session_id": "large"}
    response = client.post("/agents/echo/runs", data=form)
    assert response.status_code in (413, 422), response.text
    assert "error_code" in response.json()
