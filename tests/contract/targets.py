"""The targets of the operations, which all answer in one form: the service, a server, a client.

A play asks all rows of a table at one target, in their order, on data of its own.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import agentctl
from agentctl import errors
from agentctl.interface.declarations import find_address
from agentctl.interface.operations import Operations
from agentctl.interface.requests import StreamEvent
from agentctl.interface.requests.administration import AuditFilter
from agentctl.records.document import Document
from agentctl.remote import RemoteOperations
from agentctl.server import create_app
from agentctl.service.service import Service
from tests.approvals import paying_agent
from tests.contract.rows import Ids, Row
from tests.kit.callers import build_token
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

__all__ = [
    "Answer",
    "Exchange",
    "Play",
    "Recorder",
    "ask",
    "create_stage",
    "format_error",
    "play_remotely",
    "play_service",
    "serve_recorded",
]


@dataclass(frozen=True)
class Answer:
    """The answer of a target: a document, the bytes of a file, events, or an error."""

    status: int
    """200 for a success; the status of an error."""

    content: bytes
    """The document, the bytes, a line for each event, or the body of the error."""


@dataclass
class Exchange:
    """A request that a server has received, and its response."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes = b""
    status: int = 0
    response_type: str = ""
    response: bytes = b""


@dataclass
class Play:
    """The answers of one target to the rows of a table, and the ids that it has given."""

    answers: list[Answer] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    """The requests of the remote client, one for each row."""

    ids: dict[str, str] = field(default_factory=dict)
    entries: list[dict[str, Any]] = field(default_factory=list)
    """The audit log afterwards, oldest first."""

    methods: set[str] = field(default_factory=set)
    """The methods of the interface that were called: `sessions.get`."""


def create_stage(folder: Path, model_url: str, **options: Any) -> Deployment:
    """Create a deployment with an agent that waits for people; options of `create_deployment`."""
    shutil.copy(Path(paying_agent.__file__), folder)
    extra = '[[agents]]\nid = "payer"\nobject = "paying_agent:wait_for_people"\n'
    return create_deployment(folder, model_url, extra=extra, **options)


async def ask(operations: Operations, row: Row, ids: Ids) -> Answer:
    """Ask the call of a row."""
    assert row.call is not None
    try:
        result = await row.call(operations, ids)
    except errors.AgentctlError as error:
        return Answer(error.status, format_error(error.body()))
    if result is None:
        return Answer(200, b"")
    if isinstance(result, Document):
        return Answer(200, result.raw)
    if isinstance(result, bytes):
        return Answer(200, result)
    return Answer(200, format_events(result))


def format_error(body: Mapping[str, Any]) -> bytes:
    """Return the body of an error with its fields in one order."""
    return orjson.dumps(body, option=orjson.OPT_SORT_KEYS)


def format_events(events: Sequence[StreamEvent]) -> bytes:
    """Return one line for each event."""
    return b"".join(b"%d %b %b\n" % (e.seq, e.name.encode(), e.data) for e in events)


def keep_ids(row: Row, answer: Answer, ids: dict[str, str]) -> None:
    """Keep the ids of an answer that later rows need."""
    if not row.keeps:
        return
    assert answer.status == 200, (row, answer)
    record = orjson.loads(answer.content)
    for name, place in row.keeps.items():
        value = record
        for step in place.split("."):
            value = value[int(step) if step.isdigit() else step]
        ids[name] = value


async def play_service(deployment: Deployment, rows: Sequence[Row]) -> Play:
    """Ask the service of this process, without a server."""
    play = Play()
    async with Service.open(deployment.settings, create=True) as service:
        callers: dict[str, Operations] = {}
        for row in rows:
            if row.who not in callers:
                token = build_token(deployment, row.who)
                principal = await service.hosting.verifier().identify(f"Bearer {token}")
                callers[row.who] = service.operations_for(principal)
            play.answers.append(await ask(callers[row.who], row, play.ids))
            keep_ids(row, play.answers[-1], play.ids)
        play.entries = await read_entries(callers["auditor"])
    return play


@contextlib.contextmanager
def serve_recorded(deployment: Deployment) -> Iterator[tuple[ThreadedServer, Recorder]]:
    """Serve a deployment, and record the requests.

    A user has added a middleware, and a route that matches every word: no operation changes.
    """
    app = create_app(deployment.settings)

    @app.middleware("http")
    async def pass_on(request: Request, call_next: Any) -> Any:
        return await call_next(request)

    @app.get("/{word}")
    @agentctl.public
    def read_word(word: str) -> str:
        return word

    recorder = Recorder(app)
    with serve_in_thread(deployment, recorder) as host:
        yield host, recorder


async def read_entries(operations: Operations) -> list[dict[str, Any]]:
    """Return the audit log, oldest first."""
    entries: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = (await operations.audit.list(AuditFilter(limit=100, cursor=cursor))).value
        entries += page["data"]
        cursor = page["meta"]["next_cursor"]
        if cursor is None:
            return entries[::-1]


class CountingOperations(RemoteOperations):
    """The remote client, with the names of the methods that were called."""

    def __init__(self, url: str, token: str | None, called: set[str]) -> None:
        super().__init__(url, token)
        self.called = called

    def execute(self, method: Any, arguments: Mapping[str, Any]) -> Any:
        self.called.add(find_address(method))
        return super().execute(method, arguments)


async def play_remotely(host: ThreadedServer, recorder: Recorder, rows: Sequence[Row]) -> Play:
    """Ask a server by the remote client, and keep what went over the wire."""
    deployment = host.deployment
    play = Play()
    async with contextlib.AsyncExitStack() as stack:
        callers: dict[str, Operations] = {}
        for row in rows:
            if row.who not in callers:
                remote = CountingOperations(
                    host.url, build_token(deployment, row.who), play.methods
                )
                callers[row.who] = await stack.enter_async_context(remote)
            recorder.exchanges.clear()
            play.answers.append(await ask(callers[row.who], row, play.ids))
            (exchange,) = recorder.exchanges
            play.exchanges.append(exchange)
            keep_ids(row, play.answers[-1], play.ids)
        play.entries = await read_entries(callers["auditor"])
    return play


class Recorder:
    """An application that keeps the requests and responses of another one."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.exchanges: list[Exchange] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        query = scope["query_string"].decode()
        target = scope["raw_path"].decode() + (f"?{query}" if query else "")
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        exchange = Exchange(scope["method"], target, headers)
        self.exchanges.append(exchange)

        # An application that refuses a request does not read its body.
        unread = []
        more = True
        while more:
            message = await receive()
            more = message.get("more_body", False)
            exchange.body += message.get("body", b"")
            unread.append(message)

        async def replay_request() -> Message:
            return unread.pop(0) if unread else await receive()

        async def record_response(message: Message) -> None:
            if message["type"] == "http.response.start":
                fields = dict(message["headers"])
                exchange.status = message["status"]
                exchange.response_type = fields.get(b"content-type", b"").decode()
            exchange.response += message.get("body", b"")
            await send(message)

        await self.app(scope, replay_request, record_response)
