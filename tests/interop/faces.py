"""The faces without a server: recorded events in, bytes out.

The operations of a service are replaced by those that a face calls while it translates.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson

from agentctl.config.settings import Settings
from agentctl.interface.requests import StreamEvent
from agentctl.interop.mcp import calls
from agentctl.interop.mcp.client import CallingClient, Result
from agentctl.interop.mcp.handshake import SESSION_HEADER, VERSIONS, HandshakeServer, McpSession
from agentctl.interop.mcp.tools import RunTool
from agentctl.interop.pages.exchange import PageExchange
from agentctl.interop.pages.stream import PageStream
from agentctl.interop.routes import PageRoute
from agentctl.records.document import Document
from agentctl.records.events import EventKind, parse_event
from agentctl.records.routes import Route
from agentctl.server.answers import AppState
from tests.interop.recorded_runs import Recording, Ruled, split_legs

__all__ = [
    "GOLDEN",
    "RecordedOperations",
    "Stream",
    "build_exchange",
    "call_tool",
    "call_twice",
    "expand_pauses",
    "find_root",
    "format_document",
    "format_streams",
    "list_asked",
    "open_portions",
    "read_response",
    "read_streams",
]

GOLDEN = Path(__file__).with_name("golden")
"""A folder of golden pages for each face, one for each recorded run."""

Stream = tuple[str, str]
"""The title of a stream or document, and its text."""


def format_streams(streams: Sequence[Stream]) -> str:
    """Return the text of a golden page."""
    return "".join(f"== {title}\n\n{text}" for title, text in streams)


def read_streams(face: str) -> dict[str, list[Stream]]:
    """Return the golden pages of a face by the names of the recorded runs."""
    pages = {}
    for file in sorted((GOLDEN / face).glob("*.txt")):
        parts = re.split("^== (.*)\n\n", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
        pages[file.stem] = [*zip(parts[1::2], parts[2::2], strict=True)]
    return pages


def format_document(document: Mapping[str, Any]) -> str:
    """Return a document as a face sends it, and the end of its paragraph."""
    return f"{orjson.dumps(document).decode()}\n\n"


def find_root(events: Sequence[StreamEvent]) -> tuple[str, str]:
    """Return the ids of the run and of its session."""
    data = orjson.loads(events[0].data)
    return data["run_id"], data["session_id"]


def list_asked(events: Sequence[StreamEvent]) -> list[dict[str, Any]]:
    """Return the approvals that the run and its members wait for, as their records have them."""
    asked = []
    for event in events:
        parsed = parse_event(event.name, event.data)
        if parsed.kind is EventKind.PAUSED:
            asked += [{"run_id": parsed.run_id, **each} for each in parsed.data["approvals"]]
    return asked


def expand_pauses(events: Sequence[StreamEvent]) -> list[StreamEvent]:
    """Return events whose last pause names the approvals of members, as OpenAI's face reads it."""
    last = events[-1]
    if parse_event(last.name, last.data).kind is not EventKind.PAUSED:
        return [*events]
    data = {**orjson.loads(last.data), "approvals": list_asked(events), "metrics": None}
    return [*events[:-1], StreamEvent(last.seq, last.name, orjson.dumps(data))]


async def open_portions(
    events: Sequence[StreamEvent], size: int
) -> AsyncIterator[list[StreamEvent]]:
    """Yield events in portions of a size."""
    for place in range(0, len(events), size):
        yield [*events[place : place + size]]


def build_exchange(
    exchange: type[PageExchange[Any]], recording: Recording, states: Sequence[Mapping[str, Any]]
) -> PageExchange[Any]:
    """Return the exchange of a page without a request.

    Args:
        states: the state of the session at the start and at the end of a stream; empty if the
            caller may not read it.
    """
    unread = [*states]

    async def read_state(*_: object) -> Mapping[str, Any] | None:
        return unread.pop(0) if unread else None

    async def find_waiting(*_: object) -> list[Any]:
        return []

    conversations = SimpleNamespace(read_state=read_state, find_waiting=find_waiting)
    call: Any = SimpleNamespace(operations=SimpleNamespace(conversations=conversations))
    route = PageRoute("run", recording.kind, Route("POST", "/"), "create_agent_run")
    return exchange(call, route, {"component_id": recording.component})


async def read_response(
    exchange: PageExchange[Any], stream: PageStream, events: Sequence[StreamEvent], size: int
) -> str:
    """Return the body of the response with the events of a run."""
    portions: Any = open_portions(events, size)
    response: Any = exchange.send(stream, None, exchange.translate(stream, portions))
    parts = [response.encode(part) async for part in response.rest]
    return b"".join([*parts, response.encode([])]).decode()


class RecordedOperations:
    """The operations of a caller whose only run is recorded: each request gets its next leg."""

    def __init__(self, events: Sequence[StreamEvent], size: int) -> None:
        self.rulings: list[Any] = []
        """The decisions that were made."""

        self._legs = split_legs(events)
        self._size = size
        _, self._session_id = find_root(events)
        self.runs = self
        self.sessions = self
        self.conversations = self

    def find_database_id(self, *_: object) -> None:
        return None

    def stream_portions(self, *_: object, **__: object) -> Any:
        return open_portions(self._legs.pop(0), self._size)

    async def open_stream(self, *_: object) -> Any:
        return self.stream_portions()

    async def find_session(self, *_: object) -> str:
        return self._session_id

    async def begin_continuation(self, *place: Any) -> Any:
        self.rulings += place[-1].decisions
        return place

    def follow_continuation(self, _: object) -> Any:
        return self.stream_portions()

    async def get_run(self, *_: object) -> Document[Any]:
        return Document(b'{"files": []}')

    async def has_ended_client_session(self, _: str) -> bool:
        return False


async def call_tool(recording: Recording, operations: RecordedOperations, *, asks: bool) -> str:
    """Return the messages that the server sends for a call of a tool in a session of MCP."""
    tool = RunTool(recording.kind, recording.component, recording.component, "")
    sent: list[bytes] = []

    async def run(call: Any, name: str, values: Any, client: CallingClient) -> Any:
        assert name == tool.name
        return await calls.run(tool, call.operations, values, client, "http://agents.example")

    async def read_json() -> Any:
        arguments = {"message": recording.message}
        params = {"name": tool.name, "arguments": arguments}
        return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    session = McpSession.open("ada", asks=asks)
    accepted = "application/json, text/event-stream"
    fields = {"accept": accepted, "mcp-protocol-version": VERSIONS[-1]}
    caller = SimpleNamespace(owner="ada", app_state=AppState(Settings(), bytes))
    call: Any = SimpleNamespace(
        method="POST",
        headers={**fields, SESSION_HEADER: session.id},
        caller=caller,
        operations=operations,
        json=read_json,
        receive=asyncio.Event().wait,
    )
    await HandshakeServer(Settings(), list, run).respond(call, send)
    return b"".join(sent).decode()


async def call_twice(recording: Recording, operations: RecordedOperations) -> tuple[Result, Result]:
    """Call a tool as a client without a session, whose second call has the answers of its user.

    Returns:
        the results of both calls.
    """
    tool = RunTool(recording.kind, recording.component, recording.component, "")
    base = "http://agents.example"
    run = partial(calls.run, tool, operations, {"message": recording.message}, base=base)
    client = CallingClient(asyncio.Event(), detaches=True, takes_questions=True)
    asked = await run(client=client)

    answers = map(_answer, recording.rulings)
    answering = replace(
        client,
        state=asked["requestState"],
        answers=dict(zip(asked["inputRequests"], answers, strict=True)),
    )
    return asked, await run(client=answering)


def _answer(ruled: Ruled) -> dict[str, Any]:
    """Return the answer of the user of a client to a question."""
    match ruled.verb:
        case "answer":
            content = ruled.value
        case "complete":
            content = {"result": ruled.value}
        case "fail":
            return {"action": "decline"}
        case _:
            content = {"decision": ruled.verb, "note": ruled.note}
    return {"action": "accept", "content": content}
