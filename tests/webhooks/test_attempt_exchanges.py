"""Attempts of webhooks and a client of httpx2 on the same random responses, over real sockets.

An attempt has the status that a client without redirects sees, and fails where that client fails;
the endpoint gets one request in each case, also for a redirect. AGENTCTL_TEST_LONG=1 has twenty
times as many responses, AGENTCTL_TEST_SEED selects others.
"""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import httpx2
import pytest

from agentctl.config.webhooks import Webhook
from agentctl.webhooks.attempts import LONGEST_WAIT, Outcome, Receiver
from agentctl.webhooks.signing import Signer
from tests.differential.comparison import report
from tests.kit.conditions import PATIENCE
from tests.kit.connections import serve_connections
from tests.runtime.test_stream_exchanges import Script, Server, chunk, running

SEED = int(os.environ.get("AGENTCTL_TEST_SEED") or 85)
COUNT = 2_000 if os.environ.get("AGENTCTL_TEST_LONG") == "1" else 100

STATUSES = (
    200,
    201,
    202,
    204,
    299,
    301,
    302,
    303,
    307,
    308,
    400,
    401,
    404,
    410,
    429,
    500,
    503,
    504,
)
WAITS = (b"7", b"0", b"-1", b"soon", b"999999", b"1.5", b"")
HEADS = (
    b"SSH-2.0 hello\r\n\r\n",
    b"HTTP/1.1 20 OK\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nok",
    b"HTTP/1.1 200 OK\r\nx : y\r\n\r\n",
    b"",
)


def write_response(chance: random.Random) -> Script:
    """Return a random response, whose body is whole if its head is."""
    fault = chance.random()
    if fault < 0.1:
        return Script("POST", (chance.choice(HEADS),), "close")
    status = chance.choice(STATUSES)
    head = b"HTTP/1.1 103 Early\r\n\r\n" * chance.choice([0, 0, 1, 3])
    head += b"HTTP/1.1 %d X\r\n" % status
    if 300 <= status < 400:
        head += b"Location: %b\r\n" % chance.choice(
            [b"/elsewhere", b"http://127.0.0.1:9/", b"\xff"]
        )
    if status >= 400:
        head += b"Retry-After: %b\r\n" % chance.choice(WAITS)
    body = chance.randbytes(chance.choice([0, 1, 500]))
    data = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    if status == 204:
        data = head + b"\r\n"
    elif chance.random() < 0.5:
        data = head + b"Transfer-Encoding: chunked\r\n\r\n"
        data += (chunk(body) if body else b"") + chunk(b"")
    if fault < 0.2:
        cut = chance.randrange(data.index(b"\r\n\r\n", len(head) - 2))
        return Script("POST", (data[:cut],), chance.choice(["close", "reset"]))
    places = sorted(chance.choices(range(len(data)), k=chance.randrange(4)))
    pieces = [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]
    return Script("POST", tuple(piece for piece in pieces if piece), "keep")


async def see(client: httpx2.AsyncClient, url: str) -> tuple[int | None, bool]:
    """Return the status that a client of httpx2 sees, and whether it is a success."""
    try:
        response = await client.post(url, content=b"{}")
    except httpx2.TransportError:
        return None, False
    return response.status_code, response.is_success


async def attempt(url: str) -> Outcome:
    events = ("run.failed",)
    receiver = Receiver(Webhook("ops", url, events, allow_private=True), Signer([b"x" * 24]))
    try:
        return await receiver.send("id", b"{}")
    finally:
        await receiver.close()


def count_requests(server: Server, name: str) -> int:
    return sum(key[0] == name for key in server.connection_of)


async def test_attempts_end_as_the_requests_of_the_library() -> None:
    chance = random.Random(SEED)
    cases = [[write_response(chance)] for _ in range(COUNT)]
    different = []
    async with running(cases) as (server, url), httpx2.AsyncClient(timeout=PATIENCE) as client:
        for number, [script] in enumerate(cases):
            outcome = await attempt(f"{url}/webhook/{number}/0")
            seen = await see(client, f"{url}/library/{number}/0")
            waits = 0 <= outcome.retry_after <= LONGEST_WAIT
            if (outcome.status, outcome.error is None) != seen or not waits:
                different.append((number, script, outcome, seen))
        assert count_requests(server, "webhook") == count_requests(server, "library") == COUNT
    report("webhooks", COUNT, len(different), seed=SEED)
    assert different == [], f"AGENTCTL_TEST_SEED={SEED}"


async def test_missing_certificates_fail_the_attempt_and_not_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "missing.pem"))
    outcome = await attempt("http://127.0.0.1:9/")
    assert outcome == Outcome(None, "the server cannot be reached")


@pytest.mark.parametrize("ends", [True, False], ids=["ends", "hangs"])
@pytest.mark.parametrize(
    "body",
    [
        b"Content-Length: 9\r\n\r\nhalf",
        b"Transfer-Encoding: chunked\r\n\r\n9\r\nhalf",
        b"Transfer-Encoding: chunked\r\n\r\nno number\r\n",
    ],
    ids=["length", "chunk", "number"],
)
@pytest.mark.parametrize("status", [200, 410, 503])
async def test_status_counts_without_the_end_of_the_body(
    status: int, body: bytes, ends: bool
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 %d X\r\nRetry-After: 7\r\n%b" % (status, body))
        if not ends:
            await reader.read()

    async with serve_connections(answer) as port:
        outcome = await attempt(f"http://127.0.0.1:{port}/")
    error = None if status == 200 else f"the server responds with {status}"
    assert outcome == Outcome(status, error, 7.0 if status == 503 else 0.0)


async def test_server_without_tls_has_no_invalid_certificate() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with serve_connections(answer) as port:
        outcome = await attempt(f"https://127.0.0.1:{port}/")
    assert (outcome.error or "").startswith("the TLS connection failed")
