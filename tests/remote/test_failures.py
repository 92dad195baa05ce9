"""Errors of connections and of unexpected responses."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from agentctl import errors
from agentctl.interface.operations import Operations
from agentctl.interface.requests import CancelRequest, RunRequest
from agentctl.remote import RemoteOperations
from agentctl.remote.address import parse_address
from agentctl.remote.connection import Timeouts
from agentctl.remote.failures import build_connection_error
from tests.kit.certificates import create_certificate, serve_tls_alerts
from tests.kit.ports import find_free_port
from tests.remote.conftest import Serve, answer

TOKEN = "head.payload.s3cret"


def _failure(
    url: str,
    call: Callable[[Operations], Awaitable[Any]] = lambda o: o.components.list("team"),
    token: str | None = TOKEN,
    **options: Any,
) -> errors.AgentctlError:
    """The failure of one call, which never names the token."""

    async def run() -> Any:
        async with RemoteOperations(url, token, **options) as operations:
            return await call(operations)

    with pytest.raises(errors.AgentctlError) as caught:
        asyncio.run(run())
    failure = caught.value
    assert "s3cret" not in f"{failure!r} {failure.cause} {failure.hint} {failure.__cause__!r}"
    return failure


@pytest.fixture
def serve_bytes() -> Iterator[Callable[[bytes], str]]:
    """Listen, send the same bytes to every client, and close the connection."""
    stop = threading.Event()
    threads = []

    def start(data: bytes) -> str:
        listener = socket.create_server(("127.0.0.1", 0))
        listener.settimeout(0.02)
        thread = threading.Thread(target=_send_bytes, args=(listener, data, stop))
        thread.start()
        threads.append(thread)
        return f"http://127.0.0.1:{listener.getsockname()[1]}"

    yield start
    stop.set()
    for thread in threads:
        thread.join()


def _send_bytes(listener: socket.socket, data: bytes, stop: threading.Event) -> None:
    with listener:
        while not stop.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            with connection:
                connection.recv(65_536)
                connection.sendall(data)


def test_refused_connection_has_a_hint() -> None:
    url = f"http://127.0.0.1:{find_free_port()}"
    failure = _failure(url)
    assert isinstance(failure, errors.Unavailable)
    assert failure.detail == "Cannot reach the server"
    assert failure.cause == f"no server listens at {url}"
    assert failure.hint
    assert failure.exit_code == 7


def test_unknown_host_is_reported() -> None:
    failure = _failure("https://no-such-host.invalid")
    assert isinstance(failure, errors.Unavailable)
    assert failure.cause == "the host name of https://no-such-host.invalid cannot be resolved"


@pytest.mark.parametrize(
    "data", [b"", b"SSH-2.0-Nonsense\r\n", b"HTTP/1.1 abc\r\n\r\n", b"\x00\xff" * 99, b"HTTP/1.1 2"]
)
def test_server_without_http_is_reported(serve_bytes: Callable[[bytes], str], data: bytes) -> None:
    url = serve_bytes(data)
    failure = _failure(url)
    assert isinstance(failure, errors.Unavailable)
    assert url in (failure.cause or "")


def test_server_without_tls_is_reported(serve_bytes: Callable[[bytes], str]) -> None:
    url = serve_bytes(b"HTTP/1.1 400 Bad Request\r\n\r\n").replace("http", "https")
    failure = _failure(url)
    assert isinstance(failure, errors.Unavailable)
    assert failure.cause == f"{url} does not speak TLS"


def test_untrusted_certificate_is_reported(tmp_path: Any) -> None:
    context = _self_signed(tmp_path)
    stop = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.02)
    thread = threading.Thread(target=_fail_handshakes, args=(listener, context, stop))
    thread.start()
    try:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        failure = _failure(url)
    finally:
        stop.set()
        thread.join()
    assert isinstance(failure, errors.Unavailable)
    assert failure.cause == f"the certificate of {url} is not trusted"


def test_trusted_server_of_this_machine_that_breaks_is_reported(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = create_certificate(tmp_path, "localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    with serve_tls_alerts(certificate) as url:
        failure = _failure(url)
    assert isinstance(failure, errors.Unavailable)
    assert failure.cause == f"the connection to {url} broke"


def _self_signed(folder: Any) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(create_certificate(folder, "nobody"))
    return context


def _fail_handshakes(
    listener: socket.socket, context: ssl.SSLContext, stop: threading.Event
) -> None:
    with listener:
        while not stop.is_set():
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                continue
            with connection:
                try:
                    context.wrap_socket(connection, server_side=True).close()
                except OSError:
                    continue


def test_idle_server_times_out(serve: Serve) -> None:
    server = serve(None)
    failure = _failure(server.url, timeouts=Timeouts(read=0.05))
    assert isinstance(failure, errors.Unavailable)
    assert failure.detail == "The server did not respond in time"


def test_cancel_wait_extends_the_timeout(serve: Serve) -> None:
    server = serve(None, answer())
    threading.Timer(0.3, server.release.set).start()

    async def cancel() -> bytes:
        async with RemoteOperations(server.url, None, timeouts=Timeouts(read=0.1)) as operations:
            request = CancelRequest("s", wait=30)
            return (await operations.runs.cancel("agent", "a", "r", request)).raw

    assert asyncio.run(cancel()) == b"{}"


def test_foreground_run_has_no_timeout(serve: Serve) -> None:
    server = serve(None, answer())
    request = RunRequest("hi", background=True)
    failure = _failure(
        server.url, lambda o: o.runs.create("agent", "a", request), timeouts=Timeouts(read=0.1)
    )
    assert failure.detail == "The server did not respond in time"
    threading.Timer(0.3, server.release.set).start()

    async def run() -> bytes:
        async with RemoteOperations(server.url, None, timeouts=Timeouts(read=0.1)) as operations:
            return (await operations.runs.create("agent", "a", RunRequest("hi"))).raw

    assert asyncio.run(run()) == b"{}"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(serve: Serve, status: int) -> None:
    other = serve(answer(body=b"[]"))
    location = {"Location": f"http://u:s3cret@{other.url.removeprefix('http://')}/teams?k=s3cret"}
    server = serve(answer(status, b"", headers=location))
    failure = _failure(server.url)
    assert isinstance(failure, errors.Unavailable)
    assert f"{server.url} answered GET /teams with {status} to {other.url}" == failure.cause
    assert "--url" in (failure.hint or "")
    assert not other.seen


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (400, errors.BadRequest, 1),
        (401, errors.Unauthenticated, 4),
        (403, errors.Forbidden, 4),
        (404, errors.NotFound, 5),
        (405, errors.MethodNotAllowed, 1),
        (409, errors.Conflict, 6),
        (413, errors.TooLarge, 1),
        (415, errors.UnsupportedMediaType, 1),
        (422, errors.ValidationFailed, 2),
        (429, errors.TooManyRequests, 7),
        (431, errors.HeaderTooLarge, 1),
        (500, errors.InternalError, 1),
        (502, errors.Unavailable, 7),
        (503, errors.Unavailable, 7),
        (504, errors.Unavailable, 7),
    ],
)
@pytest.mark.parametrize("extra", [b"", b', "error_code": null', b', "error_code": "X", "y": [1]'])
def test_error_responses_become_errors(
    serve: Serve, status: int, kind: type[errors.AgentctlError], code: int, extra: bytes
) -> None:
    server = serve(answer(status, b'{"detail": "No such thing"' + extra + b"}"))
    failure = _failure(server.url)
    assert type(failure) is kind
    assert (failure.detail, failure.exit_code) == ("No such thing", code)


def test_denial_has_the_required_scopes(serve: Serve) -> None:
    body = b'{"detail": "No", "error_code": "FORBIDDEN", "required_scopes": ["teams:read"]}'
    failure = _failure(serve(answer(403, body)).url)
    assert isinstance(failure, errors.Forbidden)
    assert failure.required_scopes == ("teams:read",)


def test_rejection_has_a_hint(serve: Serve) -> None:
    server = serve(answer(401, b'{"detail": "No"}'))
    assert "AGENTCTL_TOKEN" in (_failure(server.url, token=None).hint or "")
    assert "token inspect" in (_failure(server.url).hint or "")


def test_internal_error_names_the_request_id(serve: Serve) -> None:
    headers = {"X-Request-ID": "abc-1"}
    failure = _failure(serve(answer(500, b'{"detail": "Oh"}', headers=headers)).url)
    assert failure.cause == "the log of the server has details for request abc-1"


@pytest.mark.parametrize("body", [b'{"detail": {"a": 1}}', b'{"detail": null}', b"{}"])
def test_error_without_detail_has_a_default(serve: Serve, body: bytes) -> None:
    assert _failure(serve(answer(404, body)).url).detail == "The server responded with status 404"


def test_control_characters_of_errors_are_removed(serve: Serve) -> None:
    body = b'{"detail": "a\\u001b[31mb\\nc' + b"x" * 9_000 + b'"}'
    failure = _failure(serve(answer(404, body)).url)
    assert failure.detail.startswith("a [31mb cxxx")
    assert len(failure.detail) < 600


@pytest.mark.parametrize(
    ("status", "body", "content_type"),
    [
        (200, b"<html>Welcome</html>", "text/html"),
        (200, b"<html>Welcome</html>", "application/json"),
        (200, b"", "application/json"),
        (200, b"[1, 2", "application/json"),
        (200, b'{"hello": "world"}', "application/json"),
        (200, b"[]", "text/plain"),
        (204, b"", "application/json"),
        (404, b"<html>nginx</html>", "text/html"),
        (404, b"[]", "application/json"),
        (405, b"", "text/plain"),
        (400, b"\x1b[31m", "text/\x1b[31m"),
        (304, b"", "text/plain"),
    ],
)
def test_other_servers_are_recognized(
    serve: Serve, status: int, body: bytes, content_type: str
) -> None:
    server = serve(answer(status, body, content_type))
    failure = _failure(server.url)
    assert isinstance(failure, errors.Unavailable)
    told = f"{failure.detail} {failure.cause}"
    assert (
        "not that of an agentctl server" in told
        or "redirect" in told
        or "does not speak HTTP" in told
    )
    assert server.url in told
    assert "\x1b" not in told


@pytest.mark.parametrize("detail", ["Not found", errors.NO_SUCH_PATH])
def test_path_that_a_server_does_not_have_is_explained(serve: Serve, detail: str) -> None:
    body = b'{"detail": "%s", "error_code": "NOT_FOUND"}' % detail.encode()
    failure = _failure(f"{serve(answer(404, body, 'application/json')).url}/wrong")
    assert isinstance(failure, errors.NotFound)
    assert failure.hint == "check the id, and --url including its path"


@pytest.mark.parametrize("page", ["/console", "/chat", "/v1"])
def test_url_of_a_page_is_no_url_of_a_server(serve: Serve, page: str) -> None:
    body = b'{"detail": "Not found", "error_code": "NOT_FOUND"}'
    url = serve(answer(404, body, "application/json")).url
    assert _failure(f"{url}{page}").hint == f"leave out {page}: --url {url}"


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, errors.Unauthenticated), (403, errors.Forbidden), (502, errors.Unavailable)],
)
def test_proxy_error_without_json_is_understood(
    serve: Serve, status: int, kind: type[errors.AgentctlError]
) -> None:
    failure = _failure(serve(answer(status, b"<html>", "text/html")).url)
    assert type(failure) is kind
    assert failure.detail == f"The server responded with status {status}"


def test_malformed_json_body_is_reported(serve: Serve) -> None:
    server = serve(answer(body=b"[nonsense]"))

    async def teams() -> Any:
        async with RemoteOperations(server.url, None) as operations:
            return await operations.components.list("team")

    document = asyncio.run(teams())
    assert document.raw == b"[nonsense]"
    with pytest.raises(errors.InvalidResponse) as caught:
        _ = document.value
    assert caught.value.cause == "it is not valid JSON"


def test_truncated_body_is_reported(serve: Serve) -> None:
    whole = answer(body=b"[" + b"1," * 100 + b"1]")
    failure = _failure(serve(whole[:-20]).url)
    assert isinstance(failure, errors.Unavailable)
    assert "cut off" in (failure.cause or "")


def test_invalid_gzip_body_is_reported(serve: Serve) -> None:
    server = serve(answer(body=b"[]", headers={"Content-Encoding": "gzip"}))
    assert isinstance(_failure(server.url), errors.Unavailable)


def test_unready_server_returns_its_record(serve: Serve) -> None:
    raw = b'{"status": "unavailable", "checks": {"main": "failed"}}'

    async def ready(url: str) -> bytes:
        async with RemoteOperations(url, None) as operations:
            return (await operations.system.get_readiness()).raw

    assert asyncio.run(ready(serve(answer(503, raw)).url)) == raw
    failure = _failure(
        serve(answer(503, b'{"detail": "Draining"}')).url, lambda o: o.system.get_readiness()
    )
    assert failure.detail == "Draining"


def test_invalid_proxy_variable_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("HTTPS_PROXY", "nonsense://x")
    failure = _failure("https://host.invalid")
    assert isinstance(failure, errors.UsageError)
    assert "HTTPS_PROXY" in failure.detail


def test_proxy_that_does_not_listen_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name)
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{port}")
    failure = _failure("https://host.invalid")
    assert failure.cause == (
        "the proxy for https://host.invalid, which HTTPS_PROXY names, does not accept connections"
    )
    assert failure.hint == "check HTTPS_PROXY, or name the host in NO_PROXY"


def test_refusing_proxy_is_reported(
    serve_bytes: Callable[[bytes], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name)
    monkeypatch.setenv(
        "HTTPS_PROXY", serve_bytes(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
    )
    failure = _failure("https://host.invalid")
    assert isinstance(failure, errors.Unavailable)
    assert failure.cause == "the proxy for https://host.invalid refused the connection"


def test_every_connection_error_has_its_own_text() -> None:
    import httpx2

    address = parse_address("https://example.com")
    kinds = [kind for kind in vars(httpx2).values() if isinstance(kind, type)]
    for kind in kinds:
        if issubclass(kind, httpx2.TransportError):
            failure = build_connection_error(address, kind("their words"))
            assert "https://example.com" in (failure.cause or "")
            assert failure.hint
            assert "their words" not in f"{failure} {failure.cause}"


def test_redirect_without_target_is_reported(serve: Serve) -> None:
    failure = _failure(serve(answer(302, b"", headers={"Location": "http://[nonsense"})).url)
    assert (failure.cause or "").endswith("with 302 to another path")


async def _use_without_context(url: str) -> None:
    await RemoteOperations(url, None).system.get_info()


def test_use_outside_of_the_context_raises() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        asyncio.run(_use_without_context("http://localhost"))
