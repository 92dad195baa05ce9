"""The transport of streams on real sockets: pieces, connections, timeouts and broken servers."""

from __future__ import annotations

import asyncio
import gc
import socket
import ssl
import struct
import threading
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path

import httpx2
import pytest
import uvloop

from agentctl.runtime.models import provider, stream_transport
from agentctl.runtime.models.provider import build_http_client
from agentctl.runtime.models.stream_transport import StreamTransport, _Connection
from tests.kit.certificates import create_certificate, serve_tls_alerts
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.connections import serve_connections

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
TLS = ssl.create_default_context()
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


class Server:
    """A server that answers each request with the same bytes.

    Attributes:
        connections, ended: number of connections so far, and of those that have ended.
        requests: the received requests.
    """

    def __init__(self, *answer: bytes, closes: bool = False) -> None:
        self.answer = answer
        self.closes = closes
        self.connections = self.ended = 0
        self.requests: list[bytes] = []
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r")[0] or 0)
                self.requests.append(head + await reader.readexactly(length))
                for piece in self.answer:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.005)
                if self.closes:
                    break
        finally:
            self.ended += 1

    @asynccontextmanager
    async def running(
        self, server_tls: ssl.SSLContext | None = None, client_tls: ssl.SSLContext | None = None
    ) -> AsyncIterator[httpx2.AsyncClient]:
        """Run the server; yield a client with the transport."""
        transport = StreamTransport(client_tls or TLS)
        async with (
            serve_connections(self.serve, tls=server_tls) as port,
            httpx2.AsyncClient(transport=transport, timeout=PATIENCE) as client,
        ):
            self.url = f"{'https' if server_tls else 'http'}://127.0.0.1:{port}/v1/x?a=b"
            yield client


async def read(client: httpx2.AsyncClient, url: str) -> list[bytes]:
    async with client.stream("POST", url, content=b"{}") as answer:
        assert answer.status_code == 200
        return [piece async for piece in answer.stream]  # type: ignore[union-attr]


async def test_chunks_of_one_read_are_one_piece() -> None:
    together = b"".join(chunk(b"%d" % number) for number in range(10))
    server = Server(CHUNKED + together, chunk(b"later"), chunk(b""))
    async with server.running() as client:
        pieces = await read(client, server.url)
    assert pieces[0] == b"0123456789"
    assert b"".join(pieces) == b"0123456789later"
    assert server.requests[0].startswith(b"POST /v1/x?a=b HTTP/1.1\r\n")
    assert server.requests[0].endswith(b"\r\n\r\n{}")


async def test_complete_response_keeps_its_connection() -> None:
    server = Server(CHUNKED, chunk(b"x"), chunk(b""))
    async with server.running() as client:
        for _ in range(3):
            assert b"".join(await read(client, server.url)) == b"x"
    assert server.connections == 1


@pytest.mark.parametrize(
    ("answer", "closes", "body"),
    [
        ([HEAD + b"\r\n", b"until the end"], True, b"until the end"),
        ([HEAD + b"Content-Length: 2\r\nConnection: close\r\n\r\nok"], False, b"ok"),
        ([b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED, chunk(b"ok"), chunk(b"")], False, b"ok"),
        ([CHUNKED[:20], CHUNKED[20:], b"2\r", b"\nok\r\n0\r\nx: y\r\n\r\n"], False, b"ok"),
        ([CHUNKED + chunk(b"ok") + chunk(b"") + CHUNKED], False, b"ok"),
    ],
    ids=["close", "length", "continue", "pieces and trailer", "a second response"],
)
async def test_body_is_read_to_its_end(answer: list[bytes], closes: bool, body: bytes) -> None:
    server = Server(*answer, closes=closes)
    async with server.running() as client:
        for _ in range(2):
            assert b"".join(await read(client, server.url)) == body


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ([], httpx2.RemoteProtocolError),
        ([b"SSH-2.0 hello\r\n\r\n"], httpx2.RemoteProtocolError),
        ([CHUNKED, chunk(b"half")], httpx2.RemoteProtocolError),
        ([CHUNKED, b"zz\r\n"], httpx2.RemoteProtocolError),
        ([HEAD + b"Content-Length: 9\r\n\r\nhalf"], httpx2.RemoteProtocolError),
        ([HEAD + b"x: " + b"y" * 70_000 + b"\r\n\r\n"], httpx2.RemoteProtocolError),
    ],
    ids=["nothing", "not HTTP", "cut", "bad chunk", "short", "large header"],
)
async def test_broken_response_is_an_error(answer: list[bytes], error: type[Exception]) -> None:
    server = Server(*answer, closes=True)
    async with server.running() as client:
        with pytest.raises(error):
            await read(client, server.url)
        with pytest.raises(error):
            await read(client, server.url)
    assert server.connections == 2


@pytest.mark.parametrize("answer", [[], [CHUNKED], [CHUNKED, chunk(b"x")]])
async def test_silence_is_a_timeout(answer: list[bytes]) -> None:
    server = Server(*answer)
    async with server.running() as client:
        client.timeout = httpx2.Timeout(60, read=0.1)
        with pytest.raises(httpx2.ReadTimeout):
            await read(client, server.url)


async def test_cancel_closes_the_connection() -> None:
    server = Server(CHUNKED)
    async with server.running() as client:
        for count in (1, 2):
            reading = asyncio.create_task(read(client, server.url))
            await wait_until(lambda count=count: len(server.requests) == count)  # type: ignore[misc]
            reading.cancel()
            await asyncio.wait({reading})
            assert reading.cancelled()
    assert server.connections == 2


async def test_reader_that_waits_bounds_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_transport, "BUFFER_BYTES", 1_000)
    body = b"x" * 3_000_000
    server = Server(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
    async with server.running() as client, client.stream("GET", server.url) as answer:
        pieces = []
        async for piece in answer.stream:  # type: ignore[union-attr]
            pieces.append(piece)
            await asyncio.sleep(0.001)
    assert b"".join(pieces) == body
    assert max(map(len, pieces)) < 2_000_000


async def test_refused_connection_and_bad_field_are_errors() -> None:
    async with httpx2.AsyncClient(
        transport=StreamTransport(ssl.create_default_context())
    ) as client:
        with pytest.raises(httpx2.ConnectError):
            await client.get("http://127.0.0.1:9/")
        with pytest.raises(httpx2.LocalProtocolError, match="line break") as refused:
            await client.get("http://127.0.0.1:9/", headers={"Authorization": "Bearer key\nx: y"})
    assert "key" not in str(refused.value)


async def test_certificate_is_verified(tmp_path: Path) -> None:
    path = create_certificate(tmp_path, "localhost")
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(path)
    server = Server(CHUNKED, chunk(b"x"), chunk(b""))
    async with server.running(own, ssl.create_default_context(cafile=str(path))) as client:
        local = server.url.replace("127.0.0.1", "localhost")
        assert b"".join(await read(client, local)) == b"x"
        with pytest.raises(httpx2.ConnectError):
            await read(client, server.url)
    async with server.running(own) as client:
        with pytest.raises(httpx2.ConnectError):
            await read(client, server.url.replace("127.0.0.1", "localhost"))


ENDLESS = b"x" * 16_384


@pytest.mark.parametrize(
    "start",
    [
        b"HTTP/1.1 200 ",
        HEAD + b"X: ",
        HEAD + b"X",
        CHUNKED + chunk(b"data") + b"0\r\nX: ",
        CHUNKED + b"4;",
    ],
    ids=["status", "value", "name", "trailer", "chunk extension"],
)
async def test_line_without_an_end_is_refused_early(start: bytes) -> None:
    server = Server(start, *[ENDLESS] * 200)
    async with server.running() as client:
        with pytest.raises(httpx2.RemoteProtocolError):
            async with client.stream("GET", server.url) as response:
                await response.aread()
    assert 200 * len(ENDLESS) > stream_transport.MAXIMUM_HEAD_BYTES


async def test_interim_responses_are_limited() -> None:
    server = Server(b"HTTP/1.1 103 Early Hints\r\n\r\n" * stream_transport.MAXIMUM_INTERIM * 2)
    async with server.running() as client:
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get(server.url)


@pytest.mark.parametrize("more", [0, 1])
async def test_the_limit_of_interim_responses_is_exact(more: int) -> None:
    hints = b"HTTP/1.1 103 Early Hints\r\n\r\n" * (100 + more)
    server = Server(hints, numbered(1))
    async with server.running() as client:
        if more:
            with pytest.raises(httpx2.RemoteProtocolError):
                await client.get(server.url)
        else:
            assert (await client.get(server.url)).text == "1"


async def test_each_idle_connection_takes_another_request() -> None:
    server = Server(numbered(1))
    async with server.running() as client:
        for _ in range(2):
            async with (
                client.stream("GET", server.url) as first,
                client.stream("GET", server.url) as second,
            ):
                assert await first.aread() == await second.aread() == b"1"
    assert server.connections == 2


async def test_an_idle_connection_is_closed_and_forgotten_after_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_transport, "KEEPALIVE_SECONDS", 0.01)
    server = Server(numbered(1))
    async with server.running() as client:
        assert (await client.get(server.url)).text == "1"
        transport = client._transport
        assert isinstance(transport, StreamTransport)
        await wait_until(lambda: not transport.open)
        assert (await client.get(server.url)).text == "1"
    assert server.connections == 2


async def test_a_connection_with_a_second_response_without_a_body_is_not_kept() -> None:
    server = Server(numbered(1) + b"HTTP/1.1 204 No Content\r\n\r\n")
    async with server.running() as client:
        for _ in range(2):
            assert (await client.get(server.url)).text == "1"
    assert server.connections == 2


async def test_change_of_the_protocol_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    server = Server(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nx")
    async with server.running() as client:
        with pytest.raises(httpx2.RemoteProtocolError):
            await client.get(server.url)
    assert not caplog.records


def numbered(number: int) -> bytes:
    """Return a whole response with a number as its body."""
    return CHUNKED + chunk(b"%d" % number) + chunk(b"")


class NumberedServer(Server):
    """A server that answers with the number of the request, in one write."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                self.requests.append(head)
                writer.write(numbered(len(self.requests)))
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


async def test_unread_response_is_not_read_by_the_next_request() -> None:
    server = NumberedServer()
    async with server.running() as client:
        for number in (1, 3):
            async with client.stream("GET", server.url):
                # The head and the body arrive together, so the response is complete here.
                await asyncio.sleep(0)
            assert (await client.get(server.url)).text == str(number + 1)
    assert server.connections == 3


@pytest.mark.parametrize("part", [b"5", b"5\r", b"5\r\n", b"5\r\nhe"])
async def test_body_of_a_response_to_head_is_not_left(part: bytes) -> None:
    """Its start arrives with the head, the rest not before the next request."""
    server = Server(CHUNKED + part)
    async with server.running() as client:
        for _ in range(2):
            assert (await client.head(server.url)).status_code == 200
    assert server.connections == 2


async def test_data_before_a_request_is_not_its_response() -> None:
    """The event loop has not read the data that the kernel has when the request is sent."""
    listening = socket.create_server(("127.0.0.1", 0))
    released = threading.Event()
    pushed = threading.Event()

    def serve() -> None:
        first, _ = listening.accept()
        first.recv(65_536)
        first.sendall(numbered(1))
        released.wait(PATIENCE)
        first.sendall(numbered(666))
        pushed.set()
        second, _ = listening.accept()
        second.recv(65_536)
        second.sendall(numbered(2))
        first.close()
        second.close()

    serving = threading.Thread(target=serve, daemon=True)
    serving.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    async with httpx2.AsyncClient(transport=StreamTransport(TLS), timeout=PATIENCE) as client:
        assert (await client.get(url)).text == "1"
        released.set()
        assert pushed.wait(PATIENCE)
        assert (await client.get(url)).text == "2"
    serving.join(PATIENCE)
    listening.close()


@pytest.mark.parametrize("way", ["reset", "aclose"])
async def test_lost_connection_is_not_the_end_of_a_body_without_a_length(way: str) -> None:
    arrived = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + b"\r\nhalf")
        await arrived.wait()
        if way == "reset":
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    transport = StreamTransport(TLS)
    async with (
        serve_connections(serve) as port,
        httpx2.AsyncClient(transport=transport, timeout=PATIENCE) as client,
        client.stream("GET", f"http://127.0.0.1:{port}/") as response,
    ):
        pieces = response.aiter_raw()
        assert await anext(pieces) == b"half"
        reading = asyncio.create_task(pieces.__anext__())
        await asyncio.sleep(0.01)
        if way == "aclose":
            await transport.aclose()
        arrived.set()
        with pytest.raises(httpx2.ReadError):
            await asyncio.wait_for(reading, PATIENCE)


async def test_closed_response_ends_a_read_in_another_task() -> None:
    server = Server(CHUNKED, chunk(b"x"))
    async with server.running() as client, client.stream("GET", server.url) as response:
        pieces = response.aiter_raw()
        assert await anext(pieces) == b"x"
        reading = asyncio.create_task(pieces.__anext__())
        await asyncio.sleep(0.01)
        await response.stream.aclose()  # type: ignore[union-attr]
        with pytest.raises(httpx2.ReadError):
            await asyncio.wait_for(reading, PATIENCE)


class Kept:
    """An object in the context of a run."""


_run: ContextVar[Kept] = ContextVar("run")


async def open_in_a_run(client: httpx2.AsyncClient, url: str) -> weakref.ref[Kept]:
    async def execute() -> weakref.ref[Kept]:
        kept = Kept()
        _run.set(kept)
        assert b"".join(await read(client, url)) == b"x"
        return weakref.ref(kept)

    found = await asyncio.create_task(execute())
    await asyncio.sleep(0)  # The event loop itself has the task that has just ended.
    gc.collect()
    return found


async def test_idle_connection_keeps_nothing_of_the_run_that_opened_it() -> None:
    server = Server(CHUNKED, chunk(b"x"), chunk(b""))
    async with server.running() as client:
        found = await open_in_a_run(client, server.url)
        assert isinstance(client._transport, StreamTransport)
        assert client._transport.open
        assert found() is None


@pytest.mark.parametrize("proxied", [False, True])
def test_idle_connection_of_the_library_keeps_nothing_of_the_run(
    monkeypatch: pytest.MonkeyPatch, proxied: bool
) -> None:
    """With the event loop of the server: that of asyncio keeps timers that were cancelled."""

    async def open_and_check() -> None:
        server = Server(CHUNKED, chunk(b"x"), chunk(b""))
        async with server.running():
            if proxied:
                monkeypatch.setenv("HTTP_PROXY", server.url)
                monkeypatch.delenv("NO_PROXY")
                monkeypatch.delenv("no_proxy")
            async with build_http_client(1_000_000) as client:
                url = "http://models.example/v1" if proxied else server.url
                found = await open_in_a_run(client, url)
                kept = found()
            await wait_until(lambda: server.ended == server.connections)
        assert kept is None
        assert server.requests[0].startswith(b"POST http:" if proxied else b"POST /v1/x")

    uvloop.run(open_and_check())


@pytest.mark.parametrize("steps", range(6))
async def test_connection_that_opens_together_with_a_cancel_is_closed(
    monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    made = _Connection.connection_made
    server = Server(CHUNKED, chunk(b"x"), chunk(b""))
    async with server.running() as client:
        reading = asyncio.create_task(read(client, server.url))

        def cancel_after(left: int) -> None:
            if left:
                asyncio.get_running_loop().call_soon(cancel_after, left - 1)
            else:
                reading.cancel()

        def connect(self: _Connection, transport: asyncio.BaseTransport) -> None:
            made(self, transport)
            cancel_after(steps)

        monkeypatch.setattr(_Connection, "connection_made", connect)
        with pytest.raises(asyncio.CancelledError):
            await reading
        transport = client._transport
        assert isinstance(transport, StreamTransport)
        await wait_until(lambda: not transport.open)


@pytest.mark.parametrize("response", [b"", CHUNKED + chunk(b"data: 1\n\n")])
async def test_alert_of_tls_is_a_failure_of_the_transport(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, response: bytes
) -> None:
    certificate = create_certificate(tmp_path, "localhost")
    trusted = ssl.create_default_context(cafile=str(certificate))
    monkeypatch.setattr(provider, "_create_ssl_context", lambda: trusted)
    with serve_tls_alerts(certificate, response) as url:
        for transport in (None, StreamTransport(trusted)):
            async with build_http_client(1_000, transport) as client:
                with pytest.raises(httpx2.ReadError):
                    async with client.stream("POST", url) as streamed:
                        await streamed.aread()
