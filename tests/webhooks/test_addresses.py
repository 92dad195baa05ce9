"""Addresses of receivers: private ones are refused, and a name is resolved once."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from agentctl.config.webhooks import Webhook
from agentctl.webhooks.attempts import Outcome, Receiver, find_problem, plan_next
from agentctl.webhooks.signing import Signer
from tests.kit.certificates import create_certificate
from tests.kit.connections import serve_connections
from tests.runtime.loop_steps import STEP_LIMIT, measure_steps
from tests.webhooks.receiver import start_receiver

PUBLIC = ("93.184.216.34", "2606:2800:220:1::1", "::ffff:93.184.216.34", "64:ff9b::5db8:d822")
PRIVATE = (
    "127.0.0.1", "127.8.8.8", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.1.1", "100.64.0.1",
    "::1", "fe80::1", "fc00::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "64:ff9b::7f00:1",
    "64:ff9b::a00:1", "2002:7f00:1::", "2002:a00:1::1", "::127.0.0.1", "64:ff9b:1::7f00:1",
    "fec0::1", "2001::1", "192.0.0.192",
)  # fmt: skip
NEVER = (
    "0.0.0.0", "::", "::ffff:0.0.0.0", "64:ff9b::", "224.0.0.1", "ff02::1", "255.255.255.255",
    "169.254.169.254", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "fd00:ec2::254",
    "100.100.100.200", "168.63.129.16",
)  # fmt: skip


@pytest.mark.parametrize("text", PUBLIC)
def test_public_address_is_allowed(text: str) -> None:
    assert find_problem(ipaddress.ip_address(text), False) is None


@pytest.mark.parametrize("text", PRIVATE)
def test_private_address_is_allowed_only_by_the_setting(text: str) -> None:
    assert find_problem(ipaddress.ip_address(text), False) is not None
    assert find_problem(ipaddress.ip_address(text), True) is None


@pytest.mark.parametrize("text", NEVER)
def test_address_of_no_receiver_is_always_refused(text: str) -> None:
    assert find_problem(ipaddress.ip_address(text), True) is not None


def build_receiver(url: str, *, allow_private: bool) -> Receiver:
    webhook = Webhook("ops", url, ("run.failed",), allow_private=allow_private)
    return Receiver(webhook, Signer([b"x" * 24]))


async def send(receiver: Receiver) -> Outcome:
    try:
        return await receiver.send("id", b"{}")
    finally:
        await receiver.close()


def answer_lookups(patch: pytest.MonkeyPatch, *addresses: str) -> list[str]:
    """Answer the lookups of a name with one address after the other; return the list of lookups."""
    looked_up: list[str] = []
    original = socket.getaddrinfo

    def resolve(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        if host != "rebound.test":
            return original(host, port, *args, **options)
        looked_up.append(host)
        address = addresses[min(len(looked_up), len(addresses)) - 1]
        return original(address, port, *args, **options)

    patch.setattr(socket, "getaddrinfo", resolve)
    return looked_up


async def test_name_with_a_second_answer_is_resolved_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with start_receiver() as local:
        port = local.url.rpartition(":")[2]
        looked_up = answer_lookups(monkeypatch, "93.184.216.34", "127.0.0.1")
        url = f"http://rebound.test:{port}/x"
        outcome = await send(build_receiver(url, allow_private=False))
        assert (outcome.status, looked_up) == (None, ["rebound.test"])
        # The next attempt looks again, and the second answer is refused.
        outcome = await send(build_receiver(url, allow_private=False))
        assert "127.0.0.1 is private" in (outcome.error or "")
        assert local.requests == []
        outcome = await send(build_receiver(url, allow_private=True))
        assert (outcome.status, outcome.error) == (204, None)
        assert local.requests[0].headers["host"] == f"rebound.test:{port}"


async def test_certificate_is_verified_for_the_name(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    certificate = create_certificate(tmp_path, "rebound.test")
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(certificate)
    seen: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
        await writer.drain()

    answer_lookups(monkeypatch, "127.0.0.1")
    invalid = "the certificate of the server is not valid"
    async with serve_connections(serve, tls=own) as port:
        for name, trusted, expected in (
            ("rebound.test", True, (204, None)),
            ("rebound.test", False, (None, invalid)),
            ("localhost", True, (None, invalid)),
        ):
            monkeypatch.delenv("SSL_CERT_FILE", raising=False)
            if trusted:
                monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
            receiver = build_receiver(f"https://{name}:{port}/x", allow_private=True)
            outcome = await send(receiver)
            assert (outcome.status, outcome.error) == expected, name
    assert [b"webhook-signature: v1," in request for request in seen] == [True]


async def test_redirect_to_this_machine_is_a_failure() -> None:
    with start_receiver() as local:
        local.answers["/x"] = lambda got: (307, {"Location": f"{local.url}/y"})
        outcome = await send(build_receiver(f"{local.url}/x", allow_private=True))
        assert (outcome.status, bool(outcome.error)) == (307, True)
        assert [got.path for got in local.requests] == ["/x"]


async def test_slow_or_endless_response_is_bounded() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(b"x" * 65_536)
            await writer.drain()

    async with serve_connections(serve) as port:
        outcome = await send(build_receiver(f"http://127.0.0.1:{port}/", allow_private=True))
    assert (outcome.status, outcome.error) == (200, None)


def test_schedule_has_ten_attempts_and_respects_the_response() -> None:
    failed = Outcome(503, "the server responds with 503")
    waits = [plan_next(attempts, failed) for attempts in range(1, 11)]
    assert waits[-1] is None
    for wait, planned in zip(waits, (5, 300, 1_800, 7_200, 18_000, 36_000), strict=False):
        assert wait is not None
        assert 0.9 * planned <= wait <= 1.1 * planned
    assert plan_next(1, Outcome(429, "busy", retry_after=90.0)) == 90.0


HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("start", "piece", "expected"),
    [
        (HEAD, b"1\r\nx\r\n", Outcome(200, None)),
        (
            b"",
            b"HTTP/1.1 103 Early\r\n\r\n",
            Outcome(None, "the server cannot be reached, or closed the connection"),
        ),
        (
            b"HTTP/1.1 200 OK\r\n",
            b"A: b\r\n",
            Outcome(None, "the server cannot be reached, or closed the connection"),
        ),
    ],
    ids=["chunks", "interim", "fields"],
)
async def test_endless_response_is_read_up_to_its_bound(
    start: bytes, piece: bytes, expected: Outcome
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"{}")
        writer.write(start)
        while True:
            writer.write(piece * 10)
            await writer.drain()

    async with serve_connections(answer) as port:
        receiver = build_receiver(f"http://127.0.0.1:{port}/", allow_private=True)
        async with measure_steps() as longest:
            assert await send(receiver) == expected
    assert longest.seconds < STEP_LIMIT
