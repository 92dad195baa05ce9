"""The transport of streams and that of httpx2 on the same random exchanges, over real sockets.

Each case is a few requests of one client. A server sends scripted bytes, cut at random places; the
caller reads, closes, cancels or waits. Both transports have to give the same status, header fields,
body and kind of error, and to keep or close the connection in the same way. After each request,
also a failed one, the next one gets its own response. `KNOWN` lists the differences that are
decided, with the results of both.

AGENTCTL_TEST_LONG=1 runs thirty times as many; AGENTCTL_TEST_SEED selects others.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from agentctl.runtime.models import stream_transport
from agentctl.runtime.models.stream_transport import StreamTransport
from tests.differential.comparison import report
from tests.kit.certificates import create_certificate
from tests.kit.connections import serve_connections

SEED = int(os.environ.get("AGENTCTL_TEST_SEED") or 36)
CASES = 6_000 if os.environ.get("AGENTCTL_TEST_LONG") == "1" else 200
SAMPLE = 12
AT_ONCE = 8
TURN = 0.002
"""Pause of the server between two writes. The client is in the same loop, so it has read the data
by then, on a machine of any speed."""

READ_TIMEOUT = 0.1
TLS = ssl.create_default_context()

COMPARED = ("read", "slow", "timeout")
"""Actions of the caller in exchanges whose outcome does not depend on the moment."""


@dataclass(frozen=True)
class Script:
    """One request and its response.

    Attributes:
        pieces: the writes of the server.
        ending: what the server does then: `keep`, `close` or `reset` the connection, or `hang`.
        action: what the caller does: `read` the body, read it `slow`ly, run into a `timeout`, read
            `part` of it, leave it `unread`, or `cancel` after some turns of the loop.
    """

    method: str
    pieces: tuple[bytes, ...]
    ending: str = "keep"
    action: str = "read"
    turns: int = 0


@dataclass
class Outcome:
    """The result of a script with one transport."""

    status: int | None = None
    fields: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    error: str | None = None
    reused: bool = False


class Server:
    """A server that answers `/CASE/NUMBER` with the script of that request."""

    def __init__(self, cases: list[list[Script]]) -> None:
        self.cases = cases
        self.connection_of: dict[tuple[str, int, int], int] = {}
        self._connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        connection = self._connections
        own = writer.get_extra_info("socket")
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r")[0] or 0)
            await reader.readexactly(length)
            _, name, case, number = head.split(b" ")[1].decode().split("/")
            self.connection_of[name, int(case), int(number)] = connection
            script = self.cases[int(case)][int(number)]
            for piece in script.pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(TURN)
            if script.ending == "hang":
                await reader.read()
            if script.ending == "reset":
                linger = struct.pack("ii", 1, 0)
                own.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                writer.transport.abort()
            if script.ending != "keep":
                break


def chunk(data: bytes, extension: bytes = b"") -> bytes:
    return b"%x%b\r\n%b\r\n" % (len(data), extension, data)


def is_encrypted(case: int) -> bool:
    return case % 3 == 2


class Writer:
    """Writes random responses. Each has the number of its request in its body."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance

    def write_case(self, case: int) -> list[Script]:
        """Return the requests of a case; the last one is plain, and read."""
        scripts = [
            self._write_script(b"%d/%d." % (case, number), is_plain=not is_encrypted(case))
            for number in range(self._chance.randint(1, 3))
        ]
        mark = b"%d/%d." % (case, len(scripts))
        length = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(mark)
        return [*scripts, Script("GET", (length + mark,))]

    def _write_script(self, mark: bytes, *, is_plain: bool) -> Script:
        draw = self._chance.random
        action = self._chance.choice(["read", "read", "slow", "unread", "part", "cancel"])
        method = "POST" if draw() < 0.7 else self._chance.choice(["GET", "HEAD"])
        data, ending = self._write_response(mark, method, is_plain=is_plain)
        stray = b""
        fault = draw()
        if fault < 0.12 and method != "HEAD":
            data = data[: self._chance.randrange(len(data))]
            ending = "close"
        elif fault < 0.2:
            data = data[: self._chance.randrange(len(data))]
            ending = "reset"
        elif fault < 0.24 and method != "HEAD":
            # Without the last byte: a body that ends with the connection is waited for as well.
            data = data[: self._chance.randrange(len(data))]
            ending = "hang"
            action = "timeout"
        elif fault < 0.34 and ending == "keep":
            stray = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother"
            # What the library does with it is in KNOWN.
            action = "unread"
            ending = "close"
        pieces = self._cut(data)
        if stray:
            # Its start arrives with the end of the response. What arrives after the next request
            # was sent is the response to that one, for any client.
            start = self._chance.randint(1, len(stray) - 1)
            pieces = (*pieces[:-1], pieces[-1] + stray[:start], stray[start:])
        return Script(method, pieces, ending, action, self._chance.randrange(40))

    def _write_response(self, mark: bytes, method: str, *, is_plain: bool) -> tuple[bytes, str]:
        draw = self._chance.random
        choice = self._chance.choice
        head = b""
        for _ in range(choice([0, 0, 0, 1, 3])):
            head += choice(
                [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nL: x\r\n\r\n"]
            )
        status = choice([b"200 OK", b"201 ", b"400 Bad Request", b"500 Oh no", b"204 No", b"304 N"])
        head += b"HTTP/1.1 " + status + b"\r\n"
        for _ in range(self._chance.randrange(4)):
            name = bytes(self._chance.choices(b"abcXYZ-", k=self._chance.randint(1, 9)))
            value = bytes(self._chance.choices(b"ab;=, /:\t\xe4", k=self._chance.randrange(20)))
            head += b"X-%b:%b%b\r\n" % (name, choice([b"", b" ", b"  "]), value.strip(b" \t"))
        ending = "keep"
        if draw() < 0.15:
            head += b"Connection: close\r\n"
            ending = "close"
        size = choice([0, 1, 100, 5_000, 5_000, 70_000, 900_000])
        body = mark + self._chance.randbytes(size)
        if status[:3] in (b"204", b"304"):
            return head + b"\r\n", ending
        framing = choice(["chunked", "chunked", "length", "close" if is_plain else "length"])
        if framing == "length" or (method == "HEAD" and framing == "close"):
            data = head + b"content-LENGTH: %d\r\n\r\n" % len(body)
            return data + (b"" if method == "HEAD" else body), ending
        if framing == "close":
            return head + b"\r\n" + body, "close"
        head += b"Transfer-Encoding: chunked\r\n\r\n"
        return head + (b"" if method == "HEAD" else self._write_chunks(body)), ending

    def _write_chunks(self, body: bytes) -> bytes:
        data = b""
        extension = self._chance.choice([b"", b"", b";a=b", b';a="b c"'])
        while body:
            size = self._chance.choice([1, 20, 3_000, len(body)])
            data = data + chunk(body[:size], extension)
            body = body[size:]
        trailer = self._chance.choice([b"", b"", b"x-sum: 1\r\n", b"a: b\r\nc:\r\n"])
        return data + b"0\r\n" + trailer + b"\r\n"

    def _cut(self, data: bytes) -> tuple[bytes, ...]:
        if len(data) < 200 and self._chance.random() < 0.2:
            return tuple(data[at : at + 3] for at in range(0, len(data), 3))
        places = sorted(self._chance.choices(range(len(data) + 1), k=self._chance.randrange(6)))
        ends = [*places, len(data)]
        pieces = (data[start:end] for start, end in zip([0, *places], ends, strict=True))
        return tuple(piece for piece in pieces if piece)


async def act(client: httpx2.AsyncClient, url: str, script: Script, outcome: Outcome) -> None:
    """Send a request and do the action of the script."""
    seconds = httpx2.Timeout(60, read=READ_TIMEOUT if script.action == "timeout" else 60)
    content = b"x" * 10 if script.method == "POST" else None
    async with client.stream(script.method, url, content=content, timeout=seconds) as response:
        outcome.status = response.status_code
        outcome.fields = tuple(response.headers.raw)
        if script.action == "unread":
            await asyncio.sleep(TURN * (script.turns % 8))
            return
        async for piece in response.aiter_raw():
            outcome.body += piece
            if script.action == "part":
                return
            if script.action == "slow":
                await asyncio.sleep(TURN)


async def observe(client: httpx2.AsyncClient, url: str, script: Script) -> Outcome:
    outcome = Outcome()
    acting = asyncio.create_task(act(client, url, script, outcome))
    if script.action == "cancel":
        for _ in range(script.turns):
            await asyncio.sleep(0)
        acting.cancel()
    try:
        await acting
    except asyncio.CancelledError:
        outcome.error = "cancelled"
    except httpx2.TransportError as error:
        outcome.error = type(error).__name__
    return outcome


async def run_case(
    server: Server, url: str, case: int, transport: httpx2.AsyncBaseTransport
) -> list[Outcome]:
    """Return what a transport makes of the requests of a case."""
    name = type(transport).__name__
    outcomes: list[Outcome] = []
    async with httpx2.AsyncClient(transport=transport) as client:
        before = 0
        for number, script in enumerate(server.cases[case]):
            outcome = await observe(client, f"{url}/{name}/{case}/{number}", script)
            used = server.connection_of.get((name, case, number), -1)
            outcome.reused = used == before
            before = used
            outcomes.append(outcome)
    return outcomes


@asynccontextmanager
async def running(
    cases: list[list[Script]], tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[Server, str]]:
    server = Server(cases)
    async with serve_connections(server.serve, tls=tls) as port:
        yield server, f"https://localhost:{port}" if tls else f"http://127.0.0.1:{port}"


def describe(server: Server, case: int, outcomes: list[list[Outcome]]) -> str:
    lines = [f"case {case}, AGENTCTL_TEST_SEED={SEED}"]
    for script, *both in zip(server.cases[case], *outcomes, strict=True):
        sizes = [len(piece) for piece in script.pieces]
        lines.append(f"  {script.method} {script.action} {script.ending} {script.turns} {sizes}")
        lines.append(f"    {b''.join(script.pieces)[:300]!r}")
        for each in both:
            body = f"{len(each.body)} bytes {each.body[:20]!r}"
            lines.append(f"    {each.status} {each.fields} {body} {each.error} {each.reused}")
    return "\n".join(lines)


def find_problems(server: Server, case: int, outcomes: list[list[Outcome]]) -> bool:
    """Return True if the transports differ, or a request has bytes of another one."""
    is_comparable = True
    for number, script in enumerate(server.cases[case]):
        both = [own[number] for own in outcomes]
        mark = b"%d/%d." % (case, number)
        if any(not each.body.startswith(mark[: len(each.body)]) for each in both):
            return True
        if script.action in COMPARED:
            if not is_comparable:
                for each in both:
                    each.reused = False
            if script.ending == "reset":
                for each in both:  # The system drops what it has not passed on before a reset.
                    each.body = b""
            if script.action == "timeout":
                for each in both:  # On a busy machine the time passes before all pieces are sent.
                    each.status = None
                    each.fields = ()
                    each.body = b""
            if both[0] != both[1]:
                return True
        # The connection of an exchange that was not read to its end may be kept or closed.
        is_comparable = script.action in COMPARED
    return any(own[-1].error is not None or own[-1].status != 200 for own in outcomes)


OK = b"HTTP/1.1 200 OK\r\n"
TWO = OK + b"Content-Length: 2\r\n"
IN_CHUNKS = OK + b"Transfer-Encoding: chunked\r\n\r\n"
OWN = TWO + b"\r\nme"

Results = tuple[str, str, bool]
"""The body or error of a response, that of the next request, and whether it used the connection."""

REFUSED: Results = ("RemoteProtocolError", "me", False)
KEPT: Results = ("ok", "me", True)
CLOSED: Results = ("ok", "me", False)
FOREIGN: Results = ("ok", "no", False)
BROKEN: Results = ("ok", "RemoteProtocolError", False)

KNOWN: dict[str, tuple[bytes, Results, Results]] = {
    "another protocol": (OK.replace(b"200", b"101") + b"Upgrade: x\r\n\r\n", REFUSED, REFUSED),
    "another protocol's text": (b"SSH-2.0 hello\r\n\r\n", REFUSED, REFUSED),
    "contradicting lengths": (TWO + b"Content-Length: 3\r\n\r\nok!", REFUSED, REFUSED),
    "length with a sign": (OK + b"Content-Length: +2\r\n\r\nok", REFUSED, REFUSED),
    "blank before a colon": (TWO + b"x : y\r\n\r\nok", REFUSED, REFUSED),
    "zero byte in a field": (TWO + b"x: a\0b\r\n\r\nok", REFUSED, REFUSED),
    "field without a name": (TWO + b": y\r\n\r\nok", REFUSED, REFUSED),
    "status of four digits": (b"HTTP/1.1 1000 OK\r\n\r\n", REFUSED, REFUSED),
    "no reason phrase": (b"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok", KEPT, KEPT),
    "size of a chunk in C": (IN_CHUNKS + b"0x2\r\nok\r\n0\r\n\r\n", REFUSED, REFUSED),
    "HTTP/1.0": (b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok", CLOSED, CLOSED),
    # The library reads what follows a response as the next one.
    "a second response": (TWO + b"\r\nok" + TWO + b"\r\nno", CLOSED, FOREIGN),
    "bytes after the end": (TWO + b"\r\nokmore", CLOSED, BROKEN),
    "empty line after the end": (TWO + b"\r\nok\r\n", KEPT, BROKEN),
    # Bounds (docs/limits.md) that the library does not have, or only for a part that is not whole.
    "head of 80 KB": (TWO + b"x: " + b"y" * 80_000 + b"\r\n\r\nok", REFUSED, KEPT),
    "120 interim responses": (b"HTTP/1.1 103 E\r\n\r\n" * 120 + TWO + b"\r\nok", CLOSED, KEPT),
    "trailer of 80 KB": (
        IN_CHUNKS + chunk(b"ok") + b"0\r\nx: " + b"y" * 80_000 + b"\r\n\r\n",
        REFUSED,
        KEPT,
    ),
    # Forms that RFC 9112 forbids or lets a client refuse, and that llhttp refuses.
    "length and chunks": (
        TWO + b"Transfer-Encoding: chunked\r\n\r\n" + chunk(b"ok") + chunk(b""),
        REFUSED,
        KEPT,
    ),
    "the same length twice": (TWO + b"Content-Length: 2\r\n\r\nok", REFUSED, KEPT),
    "list of lengths": (OK + b"Content-Length: 2, 2\r\n\r\nok", REFUSED, KEPT),
    "lines that end with LF": (b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok", REFUSED, KEPT),
    "folded field": (TWO + b"x: a\r\n b\r\n\r\nok", REFUSED, KEPT),
    "control character": (TWO + b"x: a\1b\r\n\r\nok", REFUSED, KEPT),
    "HTTP/1.2": (b"HTTP/1.2 200 OK\r\nContent-Length: 2\r\n\r\nok", REFUSED, KEPT),
    "blank after a size": (IN_CHUNKS + b"2 \r\nok\r\n0\r\n\r\n", REFUSED, KEPT),
    # Forms that llhttp reads and the library refuses.
    "empty line before": (b"\r\n" + TWO + b"\r\nok", KEPT, REFUSED),
    "zeros before a size": (IN_CHUNKS + b"0" * 30 + b"2\r\nok\r\n0\r\n\r\n", KEPT, REFUSED),
    "another coding": (
        OK + b"Transfer-Encoding: x, chunked\r\n\r\n" + chunk(b"ok") + chunk(b""),
        KEPT,
        REFUSED,
    ),
    "HTTP/1.0 that is kept": (
        b"HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nok",
        KEPT,
        CLOSED,
    ),
}
"""Unusual responses: what this transport makes of them, and what that of httpx2 does."""


async def compare(cases: list[list[Script]], folder: Path) -> list[str]:
    """Run the cases with both transports, every third one over TLS; return the differences."""
    certificate = create_certificate(folder, "localhost")
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(certificate)
    trusted = ssl.create_default_context(cafile=str(certificate))
    found: list[str] = []
    turns = asyncio.Semaphore(AT_ONCE)

    async def run(server: Server, url: str, case: int) -> None:
        async with turns:
            outcomes = [
                await run_case(server, url, case, transport)
                for transport in (
                    StreamTransport(trusted),
                    httpx2.AsyncHTTPTransport(verify=trusted),
                )
            ]
        if find_problems(server, case, outcomes):
            found.append(describe(server, case, outcomes))

    async with running(cases) as plain, running(cases, own) as encrypted:
        runs = (
            run(*(encrypted if is_encrypted(case) else plain), case) for case in range(len(cases))
        )
        await asyncio.gather(*runs)
    return found


# The library leaves its socket open if it is cancelled while it connects.
@pytest.mark.filterwarnings("ignore:.*(unclosed|__del__)")
async def test_random_exchanges_are_those_of_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_transport, "BUFFER_BYTES", 20_000)
    await check_random_exchanges(CASES, tmp_path)


@pytest.mark.filterwarnings("ignore:.*(unclosed|__del__)")
async def test_sample_of_exchanges_is_that_of_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_transport, "BUFFER_BYTES", 20_000)
    await check_random_exchanges(SAMPLE, tmp_path)


async def check_random_exchanges(number: int, folder: Path) -> None:
    writer = Writer(random.Random(SEED))
    cases = [writer.write_case(case) for case in range(number)]
    found = await compare(cases, folder)
    count = sum(map(len, cases))
    report("transport for streams", count, len(found), seed=SEED)
    gc.collect()
    assert not found, f"{len(found)} differences\n" + "\n".join(found[:5])


async def test_unusual_responses_have_the_known_results() -> None:
    cases = [[Script("GET", (data,)), Script("GET", (OWN,))] for data, _, _ in KNOWN.values()]
    found: dict[str, list[Results]] = {name: [] for name in KNOWN}
    async with running(cases) as (server, url):
        for build in (lambda: StreamTransport(TLS), httpx2.AsyncHTTPTransport):
            for case, name in enumerate(KNOWN):
                first, second = await run_case(server, url, case, build())
                texts = [each.error or each.body.decode() for each in (first, second)]
                found[name].append((texts[0], texts[1], second.reused and not second.error))
    assert found == {name: [*results] for name, (_, *results) in KNOWN.items()}
