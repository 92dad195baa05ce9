"""A server without authorization refuses the pages of web sites (T20 to T22)."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import pytest

from agentctl.config.settings import Settings
from agentctl.records.logs import RateLimitedLog
from agentctl.server import create_app, routing, running
from tests.kit.deployment import Deploy, Deployment
from tests.kit.threaded_server import serve_in_thread
from tests.server.raw_http import RawResponse, open_raw_connection

FRIEND = "https://app.example"
FORM = "application/x-www-form-urlencoded"


@dataclass(frozen=True)
class OpenServer:
    """A server without authorization."""

    port: int

    def send(
        self,
        method: str = "GET",
        path: str = "/sessions",
        body: bytes = b"",
        *,
        host: str = "127.0.0.1:{port}",
        **fields: str,
    ) -> RawResponse:
        """Send a request with any Host and any header fields (`_` for `-`)."""
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host.format(port=self.port)}"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
        lines += [f"Content-Length: {len(body)}", "Connection: close", "", ""]
        with open_raw_connection(self.port) as connection:
            connection.send("\r\n".join(lines).encode() + body)
            return connection.answer()


def disable_authorization(deployment: Deployment, **server: Any) -> Settings:
    """Return the settings of a deployment without authorization.

    Args:
        server: settings of `[server]`.
    """
    settings = deployment.settings
    authorization = replace(settings.authorization, enabled=False)
    server_settings = replace(settings.server, **server)
    return replace(settings, authorization=authorization, server=server_settings)


@pytest.fixture(scope="module")
def opened(deploy: Deploy) -> Iterator[OpenServer]:
    deployment = deploy()
    settings = disable_authorization(deployment, cors_origins=(FRIEND,))
    with serve_in_thread(deployment, create_app(settings)) as served:
        yield OpenServer(served.port)


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


async def test_refused_pages_are_in_the_log_once_a_minute(
    settled: Deployment, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A new one: other tests of this minute may have been logged.
    log = RateLimitedLog(logging.getLogger("agentctl.server"))
    monkeypatch.setattr(routing, "_limited_log", log)
    async with open_application(disable_authorization(settled)) as http:
        for _ in range(5):
            refused = await http.get("http://evil.example/sessions")
            assert refused.status_code == 403
    assert caplog.text.count("The Host of the request is not accepted") == 1


async def test_all_addresses_accept_addresses_and_the_name_of_the_machine(
    settled: Deployment,
) -> None:
    settings = disable_authorization(settled, host="0.0.0.0")
    async with open_application(settings) as http:
        for host in ("192.0.2.1", "[2001:db8::1]", "localhost", socket.gethostname()):
            assert (await http.get(f"http://{host}/sessions")).status_code == 200
        assert (await http.get("http://evil.example/sessions")).status_code == 403
        page = {"Origin": "https://evil.example"}
        assert (await http.get("http://localhost/sessions", headers=page)).status_code == 403


async def test_mounted_application_accepts_its_configured_name(settled: Deployment) -> None:
    settings = disable_authorization(settled, host="agents.example")
    async with open_application(settings) as http:
        assert (await http.get("https://agents.example/sessions")).status_code == 200
        assert (await http.get("http://evil.example/sessions")).status_code == 403


async def test_tokens_protect_a_server_with_any_host(settled: Deployment) -> None:
    async with open_application(settled.settings) as http:
        assert (await http.get("http://agents.example/health")).status_code == 200
        fields = settled.bearer("me", "sessions:read") | {"Sec-Fetch-Site": "cross-site"}
        read = await http.get("http://agents.example/sessions", headers=fields)
        assert read.status_code == 200


@contextlib.asynccontextmanager
async def open_application(settings: Settings) -> AsyncIterator[httpx2.AsyncClient]:
    """Run an application without a socket; yield a client that may ask any host."""
    app = create_app(settings)
    transport = httpx2.ASGITransport(app=app)
    async with running(app), httpx2.AsyncClient(transport=transport) as http:
        yield http
