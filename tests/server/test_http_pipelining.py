"""Several requests on one connection, with bodies, trailers and upgrades between them.

The application is a small one that returns its requests.
"""

from __future__ import annotations

import asyncio
import select
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from starlette.types import Receive, Scope, Send

from agentctl.server.transport.protocol import MAXIMUM_PIPELINED
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import Deployment
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.server.raw_http import check_error, open_raw_connection

HOST = b"Host: x\r\n"
CHUNKED = HOST + b"Transfer-Encoding: chunked\r\n\r\n"


def get(path: bytes, fields: bytes = b"") -> bytes:
    return b"GET " + path + b" HTTP/1.1\r\n" + HOST + fields + b"\r\n"


def post(path: bytes, body: bytes, fields: bytes = b"") -> bytes:
    length = b"Content-Length: %d\r\n" % len(body)
    return b"POST " + path + b" HTTP/1.1\r\n" + HOST + length + fields + b"\r\n" + body


class Told:
    """`/slow` waits for `go`; `/unread` reads no body; `/stream` ends with its client."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.streaming = threading.Event()
        self.left = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        body = b""
        left = False
        while path not in ("/unread", "/stream"):
            message = await receive()
            body += message.get("body", b"")
            left = message["type"] == "http.disconnect"
            if left or not message.get("more_body"):
                break
        while path == "/slow" and not self.go.is_set():
            await asyncio.sleep(0.005)
        if left:
            self.left.set()
        elif path == "/stream":
            await self._stream(receive, send)
        else:
            headers = [(name.decode(), value.decode()) for name, value in scope["headers"]]
            told = {"path": path, "body": body.decode(), "headers": headers}
            await _answer(send, orjson.dumps(told))

    async def _stream(self, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        self.streaming.set()
        while (await receive())["type"] != "http.disconnect":
            pass
        self.left.set()


async def _answer(send: Send, body: bytes) -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def host(told: Told, tmp_path: Path) -> Iterator[ThreadedServer]:
    with serve_in_thread(Deployment(tmp_path), told, lifespan="off") as served:
        yield served


def test_pipelined_requests_get_responses_in_order(host: ThreadedServer) -> None:
    requests = [get(b"/%d" % number) for number in range(MAXIMUM_PIPELINED + 1)]
    requests[10] = post(b"/10", b"body", b"Connection: keep-alive\r\n")
    requests[12] = b"POST /12 HTTP/1.1\r\n" + CHUNKED + b"4\r\nbody\r\n0\r\n\r\n"
    with open_raw_connection(host.port) as connection:
        connection.send(b"".join(requests))
        answers = [connection.answer().json for _ in requests]
        connection.send(get(b"/last"))
        assert connection.answer().json["path"] == "/last"
    assert [answer["path"] for answer in answers] == [f"/{n}" for n in range(len(requests))]
    assert [answer["body"] for answer in answers if answer["body"]] == ["body", "body"]


def test_requests_beyond_the_bound_are_not_served(host: ThreadedServer, told: Told) -> None:
    with open_raw_connection(host.port) as connection:
        connection.send(get(b"/slow") + get(b"/health") * 40_000)
        told.go.set()
        assert connection.answer().json["path"] == "/slow"
        for number in range(MAXIMUM_PIPELINED):
            answer = connection.answer()
            assert ("connection" in answer.fields) == (number == MAXIMUM_PIPELINED - 1)
        assert connection.ended()


@pytest.mark.parametrize("size", [1, 7, 8_191, 8_192, 8_193])
def test_requests_may_be_split_at_any_byte(host: ThreadedServer, size: int) -> None:
    one = (
        b"\r\n" + post(b"/a%20b", b"x" * 9_000, b"X: y\r\n") + get(b"/", b"X: " + b"z" * 8_000)[:-2]
    )
    sent = (
        one + b"\r\n\r\n" + b"POST /c HTTP/1.1\r\n" + CHUNKED + b"3;x=y\r\nabc\r\n0\r\nX: y\r\n\r\n"
    )
    with open_raw_connection(host.port) as connection:
        connection.send(*(sent[start : start + size] for start in range(0, len(sent), size)))
        answers = [connection.answer().json for _ in range(3)]
        assert connection.ended()
    assert [answer["path"] for answer in answers] == ["/a b", "/", "/c"]
    assert [len(answer["body"]) for answer in answers] == [9_000, 0, 3]


BROKEN = {"line": b"GET  / HTTP/1.1\r\n" + HOST + b"\r\n", "garbage": b"\0\1\2\r\n\r\n"}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_invalid_request_closes_after_the_earlier_responses(
    host: ThreadedServer, told: Told, broken: bytes
) -> None:
    with open_raw_connection(host.port) as connection:
        connection.send(get(b"/slow") + get(b"/second") + broken + get(b"/never"))
        told.go.set()
        assert connection.answer().json["path"] == "/slow"
        answer = connection.answer()
        assert answer.json["path"] == "/second"
        assert answer.fields["connection"] == "close"
        assert connection.ended()


def test_refusal_comes_after_the_earlier_responses(host: ThreadedServer, told: Told) -> None:
    with open_raw_connection(host.port) as connection:
        connection.send(get(b"/slow") + get(b"/", HOST) + get(b"/never"))
        told.go.set()
        assert connection.answer().json["path"] == "/slow"
        check_error(connection.answer(), 400)
        assert connection.ended()


def test_invalid_chunk_ends_its_request(host: ThreadedServer, told: Told) -> None:
    with open_raw_connection(host.port) as connection:
        connection.send(b"POST / HTTP/1.1\r\n" + CHUNKED + b"3\r\nabc\r\n")
        time.sleep(0.05)
        connection.send(b"x\r\n")
        check_error(connection.answer(), 400)
        assert connection.ended()
    assert told.left.wait(PATIENCE)


def test_disconnect_with_pipelined_requests_is_noticed(host: ThreadedServer, told: Told) -> None:
    with open_raw_connection(host.port) as connection:
        connection.send(get(b"/stream") + get(b"/next") + get(b"/after"))
        assert told.streaming.wait(PATIENCE)
    assert told.left.wait(PATIENCE)


@pytest.mark.parametrize("fields", [b"", b"Trailer: X-Forwarded-For, Authorization\r\n"])
def test_trailers_are_not_header_fields(host: ThreadedServer, fields: bytes) -> None:
    head = b"POST / HTTP/1.1\r\n" + fields + CHUNKED
    trailers = (
        b"Authorization: Bearer x\r\nX-Forwarded-For: 1.1.1.1\r\n"
        b"Host: evil\r\nExpect: 100-continue\r\n"
    )
    with open_raw_connection(host.port) as connection:
        connection.send(head + b"2\r\nab\r\n", b"0\r\n" + trailers + b"\r\n")
        answer = connection.answer()
        assert connection.ended()
    names = {name for name, _ in answer.json["headers"]}
    assert names == {"host", "transfer-encoding"} | ({"trailer"} if fields else set())
    assert answer.json["body"] == "ab"


def test_expecting_client_gets_100_continue(host: ThreadedServer) -> None:
    with open_raw_connection(host.port) as connection:
        connection.send(post(b"/", b"body", b"Expect: 100-Continue\r\n")[:-4])
        assert connection.answer().status == 100
        connection.send(b"body" + get(b"/next"))
        assert connection.answer().json["body"] == "body"
        assert connection.answer().json["path"] == "/next"


def test_expecting_client_gets_an_early_error(server: ThreadedServer) -> None:
    for length, status in ((2, 401), (10_000_000, 401)):
        with open_raw_connection(server.port) as connection:
            fields = b"Content-Length: %d\r\nExpect: 100-continue\r\n" % length
            connection.send(b"POST /sessions HTTP/1.1\r\n" + HOST + fields + b"\r\n")
            check_error(connection.answer(), status)
            assert connection.ended()


def test_unread_body_that_was_received_keeps_the_connection(host: ThreadedServer) -> None:
    with open_raw_connection(host.port) as connection:
        connection.send(post(b"/unread", b"{}") + get(b"/next"))
        assert connection.answer().json["path"] == "/unread"
        assert connection.answer().json["path"] == "/next"


@pytest.mark.parametrize("chunked", [True, False])
def test_response_before_the_whole_body_closes_the_connection(
    host: ThreadedServer, chunked: bool
) -> None:
    sent = b"POST /unread HTTP/1.1\r\n" + CHUNKED if chunked else post(b"/unread", b"x" * 9_000_000)
    with open_raw_connection(host.port) as connection:
        connection.send(sent)
        answer = connection.answer()
        assert answer.fields["connection"] == "close"
        assert connection.ended()


def test_client_that_still_sends_can_read_the_response(host: ThreadedServer) -> None:
    sent = post(b"/unread", b"x" * 1_000_000)
    with open_raw_connection(host.port) as connection:
        connection.socket.sendall(sent[:100_000])
        # The response has come; a server that had closed would reset the connection now.
        select.select([connection.socket], [], [], PATIENCE)
        for start in range(100_000, len(sent), 100_000):
            connection.socket.sendall(sent[start : start + 100_000])
        assert connection.answer().json["path"] == "/unread"
        assert connection.ended()


UPGRADE = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: %b\r\nHTTP2-Settings: AAMAAABk\r\n"


@pytest.mark.parametrize("protocol", [b"h2c", b"websocket"])
def test_upgrade_to_another_protocol_is_ignored(host: ThreadedServer, protocol: bytes) -> None:
    with open_raw_connection(host.port) as connection:
        connection.send(get(b"/a", UPGRADE % protocol) * 2 + get(b"/b"))
        assert [connection.answer().json["path"] for _ in range(3)] == ["/a", "/a", "/b"]


@pytest.mark.parametrize("cut", [0, 9, 12])
@pytest.mark.parametrize("chunked", [True, False])
def test_body_after_an_ignored_upgrade_is_read(
    host: ThreadedServer, chunked: bool, cut: int
) -> None:
    """llhttp alone would parse it as a request, which would allow smuggling."""
    hidden = get(b"/hidden")
    fields = HOST + UPGRADE % b"h2c"
    if chunked:
        framing = b"Transfer-Encoding: chunked\r\n"
        body = b"%x\r\n%b\r\n0\r\nX: y\r\n\r\n"
        body %= (len(hidden), hidden)
    else:
        framing = b"Content-Length: %d\r\n" % len(hidden)
        body = hidden
    head = b"POST /a HTTP/1.1\r\n" + fields + framing + b"\r\n"
    with open_raw_connection(host.port) as connection:
        connection.send(head + body[:cut])
        time.sleep(0.05 if cut else 0)
        connection.send(body[cut:] + get(b"/next"))
        answer = connection.answer()
        assert (answer.json["path"], answer.json["body"]) == ("/a", hidden.decode())
        assert connection.ended()


def test_head_has_no_body_and_keeps_the_connection(server: ThreadedServer) -> None:
    with open_raw_connection(server.port) as connection:
        connection.send(get(b"/health").replace(b"GET", b"HEAD") + get(b"/health"))
        head = connection.answer(bodiless=True)
        answer = connection.answer()
    assert head.fields["content-length"] == answer.fields["content-length"]
    assert answer.status == 200
