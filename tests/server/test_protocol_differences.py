"""The protocol class of the server compared with uvicorn's own, over sockets.

Both get the same random bytes, cut at random places: what an application receives and what a client
receives must be equal, except for `STRICTER`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import pytest
import uvicorn
import uvloop
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from agentctl.server.transport.protocol import build_protocol_class
from tests.conditions import PATIENCE
from tests.differential.comparison import LONG, SEED, report

CONNECTIONS = 10_000 if LONG else 400
STRICTER = (b"400", b"431")
"""Statuses with which agentctl refuses bytes that uvicorn takes for a request. The differences of
valid requests are in docs/decisions/0030, and `tests/server/http_cases.py` has each of them.
"""

_METHODS = (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH")
_FIELDS = (
    b"Accept: */*",
    b"X-Empty:",
    b"X-Space:   a b  ",
    b"X-Long: " + b"v" * 3000,
    b"X-Latin: \xe9\xff",
    b"Cookie: a=1; b=2",
    b"cOOKIE: c=3",
    b"Content-Type: application/json",
)
_TARGETS = (b"/", b"/a/b?c=d&e", b"/%61%2Fb?%20", b"/a//b/../c", b"/x?y?z=%", b"/" + b"p" * 2000)


@dataclass
class Echo:
    """An application that returns what it received, in the way that a request asks for."""

    received: list[dict[str, Any]] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        entry = {
            key: scope[key]
            for key in ("method", "path", "raw_path", "query_string", "http_version", "scheme")
        }
        entry |= {"headers": [tuple(pair) for pair in scope["headers"]], "body": b"", "end": ""}
        self.received.append(entry)
        way = dict(scope["headers"]).get(b"x-way", b"length")
        while way != b"unread":
            message = await receive()
            entry["body"] += message.get("body", b"")
            if message["type"] == "http.disconnect" or not message.get("more_body"):
                entry["end"] = message["type"]
                break
        body = sha256(repr(sorted(entry.items())).encode()).hexdigest().encode() * 40
        fields = [(b"x-answer", b"1")]
        if way == b"close":
            fields.append((b"connection", b"close"))
        if way == b"empty":
            await send({"type": "http.response.start", "status": 204, "headers": fields})
            await send({"type": "http.response.body"})
            return
        if way in (b"length", b"close", b"unread"):
            fields.append((b"content-length", b"%d" % len(body)))
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        for start in range(0, len(body), 700):
            await send(
                {"type": "http.response.body", "body": body[start : start + 700], "more_body": True}
            )
            if way == b"slow":
                await asyncio.sleep(0)
        await send({"type": "http.response.body"})


@dataclass(frozen=True)
class Outcome:
    """The result of a connection: the requests of the application, and the bytes of the client."""

    received: list[dict[str, Any]]
    answer: bytes


class Servers:
    """A server with agentctl's protocol and one with uvicorn's, each with its application."""

    def __init__(self) -> None:
        self.echoes = [Echo(), Echo()]
        self._ports: list[int] = []
        self._servers: list[asyncio.Server] = []
        self._states: list[ServerState] = []
        self._read = 0

    async def __aenter__(self) -> Servers:
        loop = asyncio.get_running_loop()
        for echo, kind in zip(
            self.echoes, (build_protocol_class(), HttpToolsProtocol), strict=True
        ):
            config = uvicorn.Config(
                echo,
                http=kind,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                timeout_keep_alive=60,
            )
            config.load()
            kind = type("Counted", (kind,), {"data_received": self._count_reads(kind)})
            state = ServerState()

            def build(
                config: Any = config, kind: Any = kind, state: Any = state
            ) -> asyncio.Protocol:
                protocol: asyncio.Protocol = kind(config=config, server_state=state, app_state={})
                return protocol

            server = await loop.create_server(build, "127.0.0.1", 0)
            self._servers.append(server)
            self._states.append(state)
            self._ports.append(server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()

    def _count_reads(self, kind: type[Any]) -> Any:
        def data_received(protocol: Any, data: bytes) -> None:
            self._read += len(data)
            kind.data_received(protocol, data)

        return data_received

    async def _wait_for_reads(self, which: int, length: int) -> None:
        """Wait until the server has read all bytes, or the connection has ended."""
        state = self._states[which]
        while self._read < length and (state.connections or not self._read):
            await asyncio.sleep(0.001)
        while state.tasks and not all(task.done() for task in state.tasks):
            before = list(self.echoes[which].received[-1:])
            await asyncio.sleep(0.002)
            if before == self.echoes[which].received[-1:]:
                break

    async def exchange(self, which: int, pieces: list[bytes], *, leaves: bool = False) -> Outcome:
        """Send pieces over a new connection, and read until the server closes it.

        Args:
            leaves: the client ends its side after the last piece. Otherwise the last request must
                ask the server to close.
        """
        echo = self.echoes[which]
        state = self._states[which]
        echo.received = []
        self._read = 0
        reader, writer = await asyncio.open_connection("127.0.0.1", self._ports[which])
        answer = b""
        async with asyncio.timeout(PATIENCE):
            reading = asyncio.create_task(reader.read(-1))
            try:
                for piece in pieces:
                    if writer.transport.is_closing():
                        break  # The server has refused the earlier pieces.
                    writer.write(piece)
                    await asyncio.sleep(0)
                if leaves:
                    await self._wait_for_reads(which, sum(map(len, pieces)))
                    if not writer.transport.is_closing():
                        writer.write_eof()
                answer = await reading
            except ConnectionError:
                pass
            finally:
                reading.cancel()
                writer.close()
            while state.connections or state.tasks:
                await asyncio.sleep(0.001)
        return Outcome(echo.received, answer)


WAYS = (b"length", b"stream", b"slow", b"empty")


def build_request(chance: random.Random, *, last: bool, ways: tuple[bytes, ...] = WAYS) -> bytes:
    """Return a valid request that both servers must understand in the same way."""
    method = chance.choice(_METHODS)
    target = chance.choice(_TARGETS)
    fields = [b"Host: x", *chance.sample(_FIELDS, chance.randrange(4))]
    fields.append(b"X-Way: " + chance.choice(ways))
    version = b"1.0" if last and chance.random() < 0.1 else b"1.1"
    if last:
        fields.append(b"Connection: close")
    body = b""
    if method in (b"POST", b"PUT", b"PATCH"):
        body = chance.randbytes(chance.choice((0, 1, 100, 5000, 70_000)))
        if version == b"1.1" and chance.random() < 0.5:
            fields.append(b"Transfer-Encoding: chunked")
            body = b"".join(_chunk(chance, body)) + b"0\r\n\r\n"
        else:
            fields.append(b"Content-Length: %d" % len(body))
    chance.shuffle(fields)
    head = b"\r\n".join([b"%b %b HTTP/%b" % (method, target, version), *fields])
    return head + b"\r\n\r\n" + body


def _chunk(chance: random.Random, body: bytes) -> Iterator[bytes]:
    while body:
        size = min(len(body), chance.choice((1, 17, 1000, 30_000)))
        extension = chance.choice((b"", b"", b";a=b"))
        yield b"%x%b\r\n%b\r\n" % (size, extension, body[:size])
        body = body[size:]


def cut(chance: random.Random, data: bytes) -> list[bytes]:
    """Cut bytes at random places: none, some, or within the first bytes."""
    count = chance.choice((0, 0, 1, 3, 10))
    places = sorted(chance.randrange(len(data) + 1) for _ in range(count))
    return [data[start:end] for start, end in zip([0, *places], [*places, len(data)], strict=True)]


def damage(chance: random.Random, data: bytes) -> bytes:
    """Change some bytes of a request; most changes are in its head."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4))):
        place = chance.randrange(min(len(changed), chance.choice((30, 200, 100_000))))
        if (kind := chance.randrange(3)) == 0:
            changed[place] = chance.choice(b"\0\r\n\t :;,/%?#\x7f\x80aA0-+_")
        elif kind == 1:
            del changed[place : place + chance.choice((1, 2, 10))]
        else:
            changed[place:place] = chance.choice(
                (b"\r\n", b"\n", b" ", b"\r\nHost: y", b"\r\nContent-Length: 3", b"\0", b"\r\n ")
            )
    return bytes(changed)


@pytest.fixture
def chance() -> random.Random:
    return random.Random(SEED)


def run(test: Any) -> None:
    async def main() -> None:
        async with Servers() as servers:
            await test(servers)

    uvloop.run(main())


def test_valid_requests_are_answered_as_by_uvicorn(chance: random.Random) -> None:
    async def compare(servers: Servers) -> None:
        for _ in range(CONNECTIONS):
            count = chance.choice((1, 1, 2, 3, 6))
            requests = [build_request(chance, last=n == count - 1) for n in range(count)]
            pieces = cut(chance, b"".join(requests))
            ours = await servers.exchange(0, pieces)
            theirs = await servers.exchange(1, pieces)
            assert ours == theirs, requests
            assert len(ours.received) == count

    run(compare)
    report("HTTP protocol", CONNECTIONS)


def test_client_that_leaves_is_a_disconnect_as_at_uvicorn(chance: random.Random) -> None:
    async def compare(servers: Servers) -> None:
        for _ in range(CONNECTIONS // 2):
            request = build_request(chance, last=True)
            pieces = cut(chance, request[: chance.randrange(1, len(request))])
            ours = await servers.exchange(0, pieces, leaves=True)
            theirs = await servers.exchange(1, pieces, leaves=True)
            assert ours.received == theirs.received, request

    run(compare)
    report("HTTP protocol, clients that leave", CONNECTIONS // 2)


def test_damaged_requests_are_read_as_by_uvicorn_or_refused(chance: random.Random) -> None:
    async def compare(servers: Servers) -> None:
        refused = 0
        for _ in range(CONNECTIONS):
            request = damage(chance, build_request(chance, last=True, ways=(b"length",)))
            pieces = cut(chance, request)
            ours = await servers.exchange(0, pieces, leaves=True)
            theirs = await servers.exchange(1, pieces, leaves=True)
            if ours != theirs:
                refused += theirs.answer.startswith(b"HTTP/1.1 200")
                complete = [entry for entry in ours.received if entry["end"] == "http.request"]
                assert complete == theirs.received[: len(complete)], request
                last = ours.answer.rpartition(b"HTTP/1.1 ")[2][:3]
                assert last in STRICTER or theirs.answer.startswith(ours.answer), request
        more = f", {refused:,} refused by agentctl only"
        report("HTTP protocol, damaged requests", CONNECTIONS, more=more)

    run(compare)
