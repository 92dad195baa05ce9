"""A server without authorization refuses the pages of web sites (T20 to T22)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from agentctl.server import create_app, running
from tests.kit.deployment import Deploy, Deployment
from tests.kit.process import serve_config
from tests.server.raw_http import RawResponse, open_raw_connection

FRIEND = "https://app.example"
FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class OpenServer:
    """A server without authorization and its metrics address."""

    port: int
    metrics_port: int
    log: Path

    def send(
        self,
        method: str = "GET",
        path: str = "/sessions",
        body: bytes = b"",
        *,
        port: int | None = None,
        host: str = "127.0.0.1:{port}",
        **fields: str,
    ) -> RawResponse:
        """Send a request with any Host and any header fields (`_` for `-`)."""
        port = port or self.port
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host.format(port=port)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
        lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
        with open_raw_connection(port) as connection:
            connection.send("\r\n".join(lines).encode() + body)
            return connection.answer()


@pytest.fixture(scope="module")
def opened(deploy: Deploy) -> Iterator[OpenServer]:
    metrics_table = '[metrics]\nlisten = "127.0.0.1:0"\n'
    deployment = deploy(metrics_table, server=f'cors_origins = ["{FRIEND}"]')
    with serve_config(deployment.path, "--insecure-no-auth") as served:
        log = served.wait_for("metrics: ")
        metrics = log.partition("metrics: http://127.0.0.1:")[2].partition("/")[0]
        yield OpenServer(served.port, int(metrics), served.log)


def is_refused(answer: RawResponse) -> bool:
    """Return True for a 403; check that it names the remedy."""
    if answer.status != 403:
        return False
    assert answer.json["error_code"] == "FORBIDDEN"
    assert answer.json["required_scopes"] == []
    assert "enable authorization" in answer.json["detail"]
    assert "www-authenticate" not in answer.fields
    assert len(answer.fields["x-request-id"]) == 36
    return True


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:{port}",
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "notlocalhost",
        "192.0.2.1:{port}",
        "0.0.0.0:{port}",
        "[::]:{port}",
        "[2001:db8::1]",
        "app.example",
    ],
)
def test_foreign_host_reads_and_changes_nothing(opened: OpenServer, host: str) -> None:
    assert is_refused(opened.send(host=host))
    assert is_refused(opened.send(path="/health", host=host))
    body = b'{"session_id": "rebound"}'
    kind: dict[str, Any] = {"Content_Type": "application/json"}
    assert is_refused(opened.send("POST", "/sessions", body, host=host, **kind))
    assert opened.send(path="/sessions/rebound").status == 404


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:{port}",
        "localhost:{port}",
        "LOCALHOST",
        "localhost.",
        "127.8.9.1:80",
        "[::1]:{port}",
        "[::1]",
        "agents.localhost:{port}",
    ],
)
def test_loopback_names_are_accepted(opened: OpenServer, host: str) -> None:
    assert opened.send(host=host).status == 200


@pytest.mark.parametrize(
    "fields",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": ""},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://localhost:{port}"},
        {"Origin": f"{FRIEND}.evil.example"},
        {"Origin": "https://evil.example", "Sec_Fetch_Site": "same-origin"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "iframe"},
    ],
)
def test_page_of_another_origin_is_refused(opened: OpenServer, fields: dict[str, Any]) -> None:
    sent: dict[str, Any] = {name: value.format(port=opened.port) for name, value in fields.items()}
    assert is_refused(opened.send(**sent))
    assert is_refused(opened.send("DELETE", "/sessions/any", **sent))
    form: dict[str, Any] = {"Content_Type": FORM, **sent}
    path = "/agents/echo/runs"
    assert is_refused(opened.send("POST", path, b"message=pay&stream=false", **form))
    multipart = {**form, "Content_Type": "multipart/form-data; boundary=x"}
    part = b'--x\r\nContent-Disposition: form-data; name="message"\r\n\r\npay\r\n--x--\r\n'
    assert is_refused(opened.send("POST", path, part, **multipart))
    navigated: dict[str, Any] = {"Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document", **form}
    assert is_refused(opened.send("POST", path, b"message=pay&stream=false", **navigated))
    assert opened.send(path="/runs").json["data"] == []


def test_programs_and_known_pages_are_accepted(opened: OpenServer) -> None:
    own = f"http://127.0.0.1:{opened.port}"
    accepted: list[dict[str, Any]] = [
        {},
        {"Origin": own, "Sec_Fetch_Site": "same-origin"},
        {"Origin": FRIEND, "Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "none"},
        {"Sec_Fetch_Site": "same-origin"},
    ]
    for fields in accepted:
        body = b'{"session_id": "known"}'
        made = opened.send("POST", "/sessions", body, Content_Type="application/json", **fields)
        assert made.status == 201
        assert opened.send("DELETE", "/sessions/known", **fields).status == 204
    asked: dict[str, Any] = {"Origin": FRIEND, "Access_Control_Request_Method": "DELETE"}
    assert opened.send("OPTIONS", **asked).fields["access-control-allow-origin"] == FRIEND
    asked["Origin"] = "https://evil.example"
    assert is_refused(opened.send("OPTIONS", **asked))


def test_link_of_another_site_opens_the_documentation(opened: OpenServer) -> None:
    fields: dict[str, Any] = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate"}
    assert opened.send(path="/docs", Sec_Fetch_Dest="document", **fields).status == 200


def test_document_of_an_open_server_asks_for_no_credential(opened: OpenServer) -> None:
    document = opened.send(path="/openapi.json").json
    assert "securitySchemes" not in document["components"]
    for methods in document["paths"].values():
        for operation in methods.values():
            assert "security" not in operation
            assert "401" not in operation["responses"]
            assert "403" in operation["responses"]


def test_metrics_on_loopback_refuse_pages(opened: OpenServer) -> None:
    def ask(**fields: Any) -> int:
        return opened.send(path="/metrics", port=opened.metrics_port, **fields).status

    assert ask() == ask(host="localhost:{port}") == 200
    assert ask(host="evil.example:{port}") == ask(Origin="https://evil.example") == 403
    assert ask(Sec_Fetch_Site="cross-site") == 403


def test_refused_pages_are_in_the_log_once_a_minute(opened: OpenServer) -> None:
    for _ in range(5):
        opened.send(host="evil.example")
    assert opened.log.read_text().count("The Host of the request is not accepted") == 1


def test_all_addresses_accept_addresses_and_the_name_of_the_machine(deployment: Deployment) -> None:
    options = ("--host", "0.0.0.0", "--insecure-no-auth")
    with serve_config(deployment.path, *options) as served:
        port = served.port
        server = OpenServer(port, 0, served.log)
        for host in ("192.0.2.1:{port}", "[2001:db8::1]", "localhost", socket.gethostname()):
            assert server.send(host=host).status == 200
        assert is_refused(server.send(host="evil.example:{port}"))
        assert is_refused(server.send(Origin="https://evil.example"))


async def test_mounted_application_accepts_its_configured_name(deployment: Deployment) -> None:
    text = deployment.path.read_text()
    text = text.replace("[server]", '[server]\nhost = "agents.example"')
    deployment.path.write_text(text.replace("[authorization]", "[authorization]\nenabled = false"))
    app = create_app(deployment.settings)
    transport = httpx2.ASGITransport(app=app)
    async with running(app), httpx2.AsyncClient(transport=transport) as http:
        assert (await http.get("https://agents.example/sessions")).status_code == 200
        assert (await http.get("http://evil.example/sessions")).status_code == 403


def test_tokens_protect_a_server_with_any_host(deployment: Deployment) -> None:
    with serve_config(deployment.path) as served:
        server = OpenServer(served.port, 0, served.log)
        assert server.send(path="/health", host="agents.example").status == 200
        token = f"Bearer {deployment.token('me', 'sessions:read')}"
        fields: dict[str, Any] = {"Authorization": token, "Sec_Fetch_Site": "cross-site"}
        assert server.send(host="agents.example", **fields).status == 200
