"""The server for protocols before 2026-07-28, whose clients open a session with `initialize`.

The `mcp` library keeps such a session in the memory of one process. Here any process serves each
request, so that a cancel and the answer to a question reach the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Self

import orjson
from starlette.responses import Response
from starlette.types import Send

import agentctl
from agentctl.config.settings import Settings
from agentctl.errors import AgentctlError, BadRequest, NotFound, ValidationFailed
from agentctl.interface.requests.approvals import ContinueRequest
from agentctl.interop.mcp.calls import CANCEL_REASON, SESSION_REASON, cancel_runs
from agentctl.interop.mcp.client import CallingClient, CallTool, ListTools, NoSuchTool
from agentctl.interop.mcp.questions import Question, read_answer, reject
from agentctl.interop.mcp.tools import INSTRUCTIONS
from agentctl.records.logs import caller_trace, parse_traceparent
from agentctl.records.text import new_id
from agentctl.server.answers import COMMENT_SECONDS, Call, json_response, no_content_response

SESSION_HEADER = "Mcp-Session-Id"

_PREFIX_LENGTH = 24
"""Characters of an id of a run before its last group of 12 hexadecimal digits."""

_SESSION_ID = re.compile(r"([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-)([aq])([0-9a-f]{32})")
"""The beginning of the ids of its runs, `a` if its client can ask its user and `q` (quiet) if not,
and a hash of the owner."""

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
"""The versions of the protocol, oldest first."""

CANCEL_SECONDS = 2.0
"""Seconds that a cancel waits for the start of its run."""

_STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store, no-transform"),
    (b"x-accel-buffering", b"no"),
]

# Codes of errors (JSON-RPC 2.0, 5.1).
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
SERVER_ERROR = -32000

JsonObject = dict[str, Any]


@dataclass(frozen=True, slots=True)
class McpSession:
    """An open session: the beginning of the ids of its runs, and if its client can ask its user.

    Nothing is stored for a session but its end, for a day. Its id names the owner and the beginning
    of the ids of its runs, and the id of a request names the rest. So every process finds the run
    of a call where runs are, in the database, and a cancel of the call is a cancel of that run. The
    id is not a credential: each request is authenticated, and reaches only what its caller can see.
    """

    prefix: str
    """The beginning of the ids of its runs, up to their last hyphen."""

    owner: str
    """Identity of the caller that opened it."""

    asks: bool
    """True if its client can ask its user."""

    @classmethod
    def open(cls, owner: str, *, asks: bool) -> Self:
        """Return a new session of a caller."""
        return cls(new_id()[:_PREFIX_LENGTH], owner, asks)

    @classmethod
    def read(cls, session_id: str, owner: str) -> Self:
        """Return the session with an id; NotFound if it is not that of a session of this caller."""
        match = _SESSION_ID.fullmatch(session_id)
        if match is not None:
            session = cls(match[1], owner, asks=match[2] == "a")
            # The id has the hash of its owner: that of another caller is not equal.
            if session.id == session_id:
                return session
        raise NotFound("Session not found")

    @property
    def id(self) -> str:
        letter = "a" if self.asks else "q"
        return f"{self.prefix}{letter}{_hash(self.prefix, self.owner)[:32]}"

    def find_run_id(self, request_id: int | str) -> str:
        """Return the id of the run of a request."""
        return f"{self.prefix}{_hash(self.prefix, request_id)[:12]}"


def _hash(*values: int | str) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


class HandshakeServer:
    """The server of one application."""

    def __init__(self, settings: Settings, list_tools: ListTools, call_tool: CallTool) -> None:
        self._settings = settings
        self._list = list_tools
        self._call = call_tool

    async def respond(self, call: Call, send: Send) -> None:
        """Respond to a request of an identified caller."""
        session_id = call.headers.get(SESSION_HEADER)
        session = None if session_id is None else McpSession.read(session_id, call.caller.owner)
        conversations = call.operations.conversations
        if session is not None and await conversations.has_ended_client_session(session.id):
            raise NotFound("Session not found: its client has ended it")

        if call.method == "DELETE":
            if session is None:
                raise NotFound("Session not found")
            await conversations.end_client_session(session.id)
            await cancel_runs(call.operations, session.prefix, SESSION_REASON)
            await no_content_response()(call.scope, call.receive, send)
            return

        message = read_message(await call.json())
        if message.method == "tools/call" and message.id is not None:
            await self._respond_to_call(call, message.id, message.params, session, send)
            return

        response = await self._build_response(call, message, session)
        await response(call.scope, call.receive, send)

    async def _build_response(
        self, call: Call, message: Message, session: McpSession | None
    ) -> Response:
        """Respond to each message that is not the call of a tool."""
        accepted = Response(status_code=202)

        # A notification.
        if message.id is None:
            if message.method == "notifications/cancelled":
                await _cancel_call(call, message.params, session)
            return accepted

        # The answer to a question.
        if not message.method:
            await _take_answer(call, str(message.id), message.result)
            return accepted

        match message.method:
            case "initialize":
                return self._initialize(call, message.id, message.params)
            case "ping":
                return json_response(build_response(message.id, {}))
            case "tools/list":
                tools = {"tools": await self._list(call)}
                return json_response(build_response(message.id, tools))
        return json_response(build_error(message.id, METHOD_NOT_FOUND, "Method not found"))

    def _initialize(self, call: Call, request_id: int | str, params: JsonObject) -> Response:
        version = params.get("protocolVersion")
        capabilities = params.get("capabilities")
        if not isinstance(version, str) or not isinstance(capabilities, dict):
            text = "initialize needs protocolVersion and capabilities"
            return json_response(build_error(request_id, INVALID_PARAMS, text), 400)

        session = McpSession.open(call.caller.owner, asks=_can_ask(capabilities))
        settings = self._settings.server
        result = {
            "protocolVersion": version if version in VERSIONS else VERSIONS[-1],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {
                "name": settings.id,
                "title": settings.name,
                "version": agentctl.__version__,
            },
            "instructions": INSTRUCTIONS,
        }
        return json_response(
            build_response(request_id, result), headers={SESSION_HEADER: session.id}
        )

    async def _respond_to_call(
        self,
        call: Call,
        request_id: int | str,
        params: JsonObject,
        session: McpSession | None,
        send: Send,
    ) -> None:
        """Call a tool, and respond with a stream of events if the client accepts one."""
        name = params.get("name")
        values = params.get("arguments")
        meta = params.get("_meta")
        if isinstance(meta, dict) and (trace := parse_traceparent(meta.get("traceparent"))):
            caller_trace.set(trace)

        if not isinstance(name, str) or not isinstance(values, dict | None):
            body = build_error(request_id, INVALID_PARAMS, "tools/call needs name and arguments")
            await json_response(body)(call.scope, call.receive, send)
            return

        streams = "text/event-stream" in call.headers.get("accept", "")
        stream = _Stream(send)
        token = meta.get("progressToken") if isinstance(meta, dict) else None
        client = CallingClient(
            disconnected=asyncio.Event(),
            detaches=self._settings.server.on_disconnect == "detach",
            run_id=session.find_run_id(request_id) if session is not None else None,
            report=partial(stream.report, token) if streams and token is not None else None,
            ask=stream.ask if streams and session is not None and session.asks else None,
            waits=partial(call.caller.app_state.followed_runs.reserve, call.caller.owner),
            # A client without this header has a protocol of 2024-11-05 or 2025-03-26.
            takes_links=call.headers.get("mcp-protocol-version", "") >= "2025-06-18",
        )

        watch = asyncio.ensure_future(_watch(call, client.disconnected))
        try:
            async with stream.open() if streams else contextlib.nullcontext():
                body = await self._execute(call, request_id, name, values, client)
                if streams:
                    await stream.write(body)
        finally:
            watch.cancel()
            await asyncio.wait({watch})

        if not streams:
            await json_response(body)(call.scope, call.receive, send)

    async def _execute(
        self,
        call: Call,
        request_id: int | str,
        name: str,
        values: JsonObject | None,
        client: CallingClient,
    ) -> JsonObject:
        try:
            return build_response(request_id, await self._call(call, name, values, client))
        except NoSuchTool:
            return build_error(request_id, INVALID_PARAMS, NoSuchTool.TEXT)


class _Stream:
    """The server-sent events of the response to one call."""

    def __init__(self, send: Send) -> None:
        self._send = send

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[None]:
        """Send the head, then comments while the block is active, and the end."""
        start = {"status": 200, "headers": list(_STREAM_HEADERS)}
        await self._send({"type": "http.response.start", **start})
        comments = asyncio.create_task(self._send_comments(), name="mcp comments")
        try:
            yield
        finally:
            comments.cancel()
            await asyncio.wait({comments})
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def write(self, message: JsonObject) -> None:
        """Send a message."""
        await self._send_part(b"event: message\ndata: %b\n\n" % orjson.dumps(message))

    async def report(self, token: object, number: int, text: str) -> None:
        """Send a notification of progress."""
        params = {"progressToken": token, "progress": number, "message": text}
        await self.write({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})

    async def ask(self, question: Question) -> None:
        """Send a question. Its answer is a separate request."""
        await self.write(
            {
                "jsonrpc": "2.0",
                "id": question.id,
                "method": "elicitation/create",
                "params": question.params,
            }
        )

    async def _send_comments(self) -> None:
        while True:
            await asyncio.sleep(COMMENT_SECONDS)
            await self._send_part(b": waiting\n\n")

    async def _send_part(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})


def _can_ask(capabilities: JsonObject) -> bool:
    """Return True if a client can ask its user with a form."""
    elicitation = capabilities.get("elicitation")
    if not isinstance(elicitation, dict):
        return False
    # A client that names no mode has the form mode only (protocol 2025-11-25).
    return not elicitation or "form" in elicitation


async def _watch(call: Call, disconnected: asyncio.Event) -> None:
    while (await call.receive())["type"] != "http.disconnect":
        pass
    disconnected.set()


async def _cancel_call(call: Call, params: JsonObject, session: McpSession | None) -> None:
    """Cancel the run of a call, in any process.

    Raises:
        NotFound: there is no such call under way. Clients take the other errors of a notification
            for the end of the connection.
    """
    request_id: Any = params.get("requestId")
    if session is not None and isinstance(request_id, int | str):
        run_id = session.find_run_id(request_id)
        clock = asyncio.get_running_loop().time
        deadline = clock() + CANCEL_SECONDS
        while not await cancel_runs(call.operations, run_id, CANCEL_REASON, paused=True):
            if clock() >= deadline:
                break
            await asyncio.sleep(0.1)
        else:
            return
    raise NotFound("There is no call under way with this id in this session")


async def _take_answer(call: Call, question_id: str, result: JsonObject | None) -> None:
    """Decide as the user of the client has answered; without an answer the call is rejected."""
    try:
        if result is None:
            run, decision = reject(question_id, "The client could not ask its user")
        else:
            run, decision = read_answer(question_id, result)
        place = (run.kind, run.component_id, run.run_id)
        continue_run = partial(call.operations.runs.begin_continuation, *place)
        try:
            await continue_run(ContinueRequest((decision,)))
        except ValidationFailed:
            _, decision = reject(question_id, "The answer is not valid")
            await continue_run(ContinueRequest((decision,)))
    except AgentctlError:
        raise NotFound("The question is not open") from None


class Message(NamedTuple):
    """A message of a client."""

    id: int | str | None
    """None for a notification."""

    method: str
    """`""` for the answer to a question."""

    params: JsonObject

    result: JsonObject | None = None
    """The result of an answer; None if the client could not answer."""


def read_message(body: object) -> Message:
    """Return the message in a body; BadRequest if it is not one message of JSON-RPC 2.0."""
    invalid = BadRequest("The body must be one JSON-RPC message")
    if not isinstance(body, dict) or body.get("jsonrpc") != "2.0":
        raise invalid

    message_id = body.get("id")
    method = body.get("method", "")
    params = body.get("params", {})
    if not isinstance(method, str) or not isinstance(params, dict):
        raise invalid

    has_id = isinstance(message_id, int | str) and not isinstance(message_id, bool)
    if method:
        # `"id": null` is no notification: JSON-RPC has no such requests.
        if not has_id and "id" in body:
            raise invalid
        return Message(message_id, method, params)

    result = body.get("result")
    if not has_id or not ("error" in body or isinstance(result, dict)):
        raise invalid
    return Message(message_id, "", {}, result)


def build_response(request_id: int | str, result: JsonObject) -> JsonObject:
    """Return the response to a request."""
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def build_error(request_id: int | str | None, code: int, text: str) -> JsonObject:
    """Return the error of a request.

    Args:
        request_id: None for the error of a body whose request is not known.
    """
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": text}}


def build_error_response(discovery: str, error: AgentctlError) -> Response:
    """Return the HTTP response of an error on the endpoint.

    Args:
        discovery: parameters to add to a challenge (`build_challenge`); `""` for no parameters.
    """
    code = INVALID_REQUEST if isinstance(error, BadRequest) else SERVER_ERROR
    body = build_error(None, code, error.detail)
    body["error"]["data"] = error.body()
    headers = error.headers()
    challenge = headers.get("WWW-Authenticate")
    if challenge is not None:
        headers["WWW-Authenticate"] = f"{challenge}{discovery}"
    return json_response(body, error.status, headers)
