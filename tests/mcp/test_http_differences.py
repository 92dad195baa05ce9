"""The HTTP client for MCP servers compared with the client of the `mcp` library.

Both call one server, which gives the same random responses to each.
"""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from random import Random
from typing import Any, NamedTuple

import httpx2
from mcp import ClientSession, types
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from pydantic import TypeAdapter, ValidationError

from agentctl.runtime.mcp.http import McpHttpClient
from agentctl.runtime.mcp.library import ProtocolError
from tests.conditions import PATIENCE, wait_until
from tests.differential.comparison import Comparison, Outcome

EXCHANGES = 250
LIMIT = 200_000
ENDED = "the connection ended"
BOUNDS = "its response is too large or compressed"
SILENT = "SSE stream ended without a response"
WIDER = {ENDED: "decision 42: a request that fails does not end the calls of other runs"}
STRICTER = {
    BOUNDS: "docs/limits.md: the size of a message; identity is the only encoding requested",
    SILENT: "decision 75: an event has a bounded number of values",
}

TEXTS = ("", "x", "é", "\u2028", "\r", '"', "\\", "\U0001f600", "a\nb", "id: 1", "v" * 900)
STATUSES = (400, 401, 403, 404, 405, 409, 410, 413, 422, 429, 500, 501, 502, 503, 504)
JSON = "application/json"
EVENTS = "text/event-stream"
ID = '"@"'
"""The place of the id of the request in a planned body."""


class Reply(NamedTuple):
    """The behaviour of the server and of the client in a call.

    Attributes:
        fields: header fields of the response.
        pieces: the body; None resets the connection before the response.
        ending: what follows the body.
        resumed: the events with which the server resumes the stream.
        client: wait for the response, cancel the call or time out.
    """

    status: int = 200
    fields: str = f"Content-Type: {JSON}\r\n"
    pieces: tuple[bytes, ...] | None = ()
    ending: str = "whole"
    resumed: bytes = b""
    client: str = "wait"


def build_result(chance: Random, **more: Any) -> str:
    content = [{"type": "text", "text": chance.choice(TEXTS)} for _ in range(chance.randrange(3))]
    result = {"content": content, **more} if chance.random() < 0.9 else {"content": 1}
    return json.dumps({"jsonrpc": "2.0", "id": "@", "result": result})


def build_error(chance: Random) -> str:
    error = {"code": -32_000 - chance.randrange(700), "message": chance.choice(TEXTS)}
    return json.dumps({"jsonrpc": "2.0", "id": "@", "error": error})


def build_events(chance: Random, *last: str, resumable: bool = False) -> str:
    """Return notes, comments and the last events, each with a random end of lines."""
    parts = ["id: 7\nretry: 1\ndata:\n\n"] if resumable else []
    for number in range(chance.randrange(3)):
        params = {"level": "info", "data": [number, chance.choice(TEXTS)]}
        note = {"jsonrpc": "2.0", "method": "notifications/message", "params": params}
        parts += [": comment\n\n", f"event: message\ndata: {json.dumps(note)}\n\n"]
    parts += [f"data: {data}\n\n" for data in last]
    return "".join(parts).replace("\n", chance.choice(("\n", "\r\n")))


def cut(chance: Random, text: str) -> tuple[bytes, ...]:
    """Return the text in random pieces, with the id of the request in one of them."""
    data = text.encode()
    pieces = []
    while data:
        size = chance.randrange(1, len(data) + 1)
        if 0 <= data.find(ID.encode()) < size:
            size = max(size, data.find(ID.encode()) + len(ID))
        pieces.append(data[:size])
        data = data[size:]
    return tuple(pieces)


def build_reply(chance: Random) -> tuple[str, Reply]:
    """Return the kind of an exchange and a random reply."""
    kind = chance.choice((*KINDS, "result", "events"))
    events = f"Content-Type: {EVENTS}\r\n"
    body = chance.choice((build_result, build_error))(chance)
    reply = Reply(pieces=cut(chance, body), ending=chance.choice(("whole", "whole", "close")))
    stream = cut(chance, build_events(chance, body))
    if kind == "events":
        return kind, reply._replace(fields=events, pieces=stream)
    if kind == "no message":
        bad = chance.choice(("", "{", "[]", "null", body[:-1], '{"jsonrpc":"1.0"}', "\x00"))
        if chance.random() < 0.5:
            return kind, reply._replace(pieces=cut(chance, bad))
        bad = build_events(chance, *([bad] if bad else []))
        return kind, reply._replace(fields=events, pieces=cut(chance, bad))
    if kind == "cut":
        return kind, reply._replace(pieces=cut(chance, body[:-1]), ending="cut")
    if kind == "cut events":
        text = build_events(chance, resumable=chance.random() < 0.5)
        resumed = build_events(chance, body).encode() if chance.random() < 0.7 else b""
        return kind, Reply(200, events, cut(chance, text), "cut", resumed)
    if kind == "status":
        status = chance.choice(STATUSES)
        pieces = chance.choice(((), cut(chance, build_error(chance)), (b"no session",)))
        return kind, reply._replace(status=status, pieces=pieces)
    if kind in ("cancel", "time out"):
        ending = chance.choice(("late", "none"))
        note = cut(chance, build_events(chance))
        return kind, Reply(200, events, note, ending, body.encode(), kind)
    if kind == "redirect":
        place = chance.choice(("/other", "http://127.0.0.2:1/mcp", "/mcp?again"))
        code = chance.choice((302, 307, 308))
        return kind, Reply(code, f"Location: {place}\r\n", cut(chance, build_result(chance)))
    if kind == "compressed":
        fields = f"{reply.fields}Content-Encoding: gzip\r\n"
        return kind, Reply(fields=fields, pieces=(body.encode(),))
    if kind == "values":
        body = build_result(chance, structuredContent={"a": [0] * 66_000})
        if chance.random() < 0.5:
            return kind, Reply(pieces=(body.encode(),))
        return kind, Reply(200, events, (f"data: {body}\n\n".encode(),))
    others = {
        "other type": reply._replace(fields=chance.choice(("", "Content-Type: text/plain\r\n"))),
        "large": Reply(pieces=(build_result(chance, x="x" * LIMIT).encode(),)),
        "accepted": reply._replace(status=202, pieces=()),
        "reset": reply._replace(pieces=None),
    }
    return kind, others.get(kind, reply)


KINDS = (
    "result", "events", "no message", "cut", "cut events", "status", "accepted", "reset", "cancel",
    "time out", "redirect", "compressed", "values", "large", "other type",
)  # fmt: skip


class Server:
    """A server that gives each call the reply of its number.

    Attributes:
        busy: requests without a complete response, other than the stream of the session.
        cancelled: set when the client cancels a request.
    """

    def __init__(self, replies: list[tuple[str, Reply]]) -> None:
        self.replies = replies
        self.busy = 0
        self.port = 0
        self.cancelled = asyncio.Event()
        self.called = asyncio.Event()
        self._reply = Reply()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.set_name("server")
        with suppress(OSError, asyncio.IncompleteReadError):
            while not writer.is_closing():
                head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
                size = re.search(r"content-length: (\d+)", head)
                body = await reader.readexactly(int(size[1]) if size else 0)
                if head.startswith("get") and "last-event-id" not in head:
                    self._start(writer, 200, f"Content-Type: {EVENTS}\r\n")
                    await reader.read()
                    break
                self.busy += 1
                try:
                    await self._answer(head, json.loads(body or b"null"), writer)
                    await writer.drain()
                finally:
                    self.busy -= 1
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    async def _answer(self, head: str, message: Any, writer: asyncio.StreamWriter) -> None:
        if head.startswith("get"):
            await self._send(writer, Reply(200, f"Content-Type: {EVENTS}\r\n", ()), self._reply)
        elif message is None or "id" not in message:
            if message and message["method"] == "notifications/cancelled":
                self.cancelled.set()
            self._start(writer, 202, "")
            writer.write(b"0\r\n\r\n")
        elif message["method"] == "initialize":
            info = {"name": "test", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": info}
            text = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result})
            fields = f"Content-Type: {JSON}\r\nMcp-Session-Id: 1\r\n"
            await self._send(writer, Reply(200, fields, (text.encode(),)))
        else:
            self._reply = self._replace_id(message)
            if self._reply.status in (302, 307, 308) and not head.startswith("post /mcp "):
                self._reply = self._reply._replace(status=200, fields=f"Content-Type: {JSON}\r\n")
            await self._send(writer, self._reply)

    def _replace_id(self, message: Any) -> Reply:
        number: int = message["params"]["arguments"]["number"]
        reply = self.replies[number][1]
        place = ID.encode()
        value = json.dumps(message["id"]).encode()
        resumed = reply.resumed.replace(place, value)
        if reply.pieces is None:
            return reply
        pieces = tuple(piece.replace(place, value) for piece in reply.pieces)
        if "gzip" in reply.fields:
            pieces = (gzip.compress(b"".join(pieces)),)
        return reply._replace(pieces=pieces, resumed=resumed)

    def _start(self, writer: asyncio.StreamWriter, status: int, fields: str) -> None:
        head = f"HTTP/1.1 {status} -\r\n{fields}Transfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode())

    async def _send(
        self, writer: asyncio.StreamWriter, reply: Reply, resumes: Reply | None = None
    ) -> None:
        if resumes is not None:
            reply = reply._replace(pieces=(resumes.resumed,) if resumes.resumed else None)
        if reply.pieces is None:
            writer.transport.abort()
            return
        self._start(writer, reply.status, reply.fields)
        for piece in reply.pieces:
            writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await asyncio.sleep(0)
        self.called.set()
        if reply.ending in ("late", "none"):
            await self.cancelled.wait()
        if reply.ending == "late":
            late = b"data: %s\n\n" % reply.resumed
            writer.write(b"%x\r\n%s\r\n" % (len(late), late))
        if reply.ending != "cut":
            writer.write(b"0\r\n\r\n")
        if reply.ending in ("cut", "close"):
            await writer.drain()
            writer.close()


async def call(session: ClientSession, server: Server, number: int) -> Any:
    """Return the kind of the outcome of a call, and its value."""
    reply = server.replies[number][1]
    server.cancelled.clear()
    server.called.clear()
    params = types.CallToolRequestParams(name="x", arguments={"number": number})
    seconds = 0.01 if reply.client == "time out" else PATIENCE
    adapter: TypeAdapter[types.CallToolResult] = TypeAdapter(types.CallToolResult)
    request = session.send_request(types.CallToolRequest(params=params), adapter, seconds)
    calling = asyncio.create_task(request)
    try:
        if reply.client == "cancel":
            await server.called.wait()
            calling.cancel()
        await asyncio.wait({calling})
    finally:
        calling.cancel()
    if calling.cancelled():
        return "cancelled", None
    try:
        return "result", calling.result().model_dump(mode="json", exclude_unset=True)
    except ProtocolError as error:
        # The text of a parser has the column, which depends on the length of the id.
        return "error", (error.error.code, error.error.message.partition("\n")[0])
    except ValidationError:
        return "invalid", None


def count_tasks() -> int:
    """Return the number of tasks that are not of the server."""
    return sum(task.get_name() != "server" for task in asyncio.all_tasks())


def has_at_most(tasks: int) -> bool:
    return count_tasks() <= tasks


def is_idle(session: ClientSession, client: httpx2.AsyncClient) -> bool:
    """Return True if no call is pending and no connection in use, except that of the session."""
    transport: Any = client._transport
    dispatcher: Any = session._dispatcher
    pool = transport._pool
    busy = [each for each in pool.connections if not (each.is_idle() or each.is_closed())]
    return not dispatcher._pending and len(busy) <= 1 and len(pool._requests) <= 1


async def converse(server: Server, build: Callable[[], httpx2.AsyncClient]) -> list[Outcome]:
    """Return the outcomes of all calls. Only the client of the library may lose its connection."""
    outcomes: list[Outcome] = []
    notes: list[Any] = []

    async def take_note(params: Any) -> None:
        notes.append(params.data)

    while (first := len(outcomes)) < len(server.replies):
        try:
            async with (
                build() as client,
                streamable_http_client(
                    f"http://127.0.0.1:{server.port}/mcp", http_client=client
                ) as (read, write),
                ClientSession(read, write, logging_callback=take_note) as session,
            ):
                await session.initialize()
                await wait_until(lambda: server.busy == 0)
                tasks = None
                for number in range(first, len(server.replies)):
                    outcomes[number:] = [Outcome(refusal=ENDED)]
                    notes.clear()
                    kind, value = await call(session, server, number)
                    if (kind, value) == ("error", (types.CONNECTION_CLOSED, "Connection closed")):
                        await asyncio.Event().wait()
                    await wait_until(lambda: server.busy == 0)
                    # For both: the task of a note may not have run yet.
                    await wait_until(partial(is_idle, session, client))
                    tasks = count_tasks() if tasks is None else tasks
                    await wait_until(partial(has_at_most, tasks))
                    outcomes[number] = judge(server.replies[number][0], kind, value, notes, client)
        except* httpx2.TransportError:
            assert build is create_mcp_http_client
    return outcomes


def judge(kind: str, what: str, value: Any, notes: list[Any], client: Any) -> Outcome:
    """Return the outcome of an exchange; an error because of a bound of ours is a refusal."""
    problem = getattr(client, "problem", None)
    is_bound = kind in ("compressed", "large", "values")
    if what == "error" and is_bound and isinstance(client, McpHttpClient):
        return Outcome(refusal=problem or value[1])
    return Outcome((what, value, sorted(notes, key=repr)))


def test_outcomes_are_those_of_the_library() -> None:
    with Comparison("HTTP client for MCP", stricter=STRICTER, wider=WIDER) as comparison:
        replies = [build_reply(comparison.chance) for _ in comparison.rounds(EXCHANGES)]

        def build() -> McpHttpClient:
            return McpHttpClient({}, LIMIT, lambda _: None)

        async def compare() -> None:
            server = Server(replies)
            listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
            server.port = listener.sockets[0].getsockname()[1]
            async with listener, asyncio.timeout(PATIENCE * (1 + len(replies) / 500)):
                library = await converse(server, create_mcp_http_client)
                own = await converse(server, build)
                for reply, one, other in zip(replies, own, library, strict=True):
                    comparison.compare(reply, one, other)
                await wait_until(lambda: count_tasks() == len(asyncio.all_tasks()))

        asyncio.run(compare())
