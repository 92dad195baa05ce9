"""Requests of a connection that were cancelled, and the responses that show that they stopped.

MCP has no response to a cancel: a server stops and sends nothing, or its result arrives late. This
module watches the messages, so that a run learns which of the two happened (docs/mcp.md "Cancel").
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from mcp.shared.message import SessionMessage

from agentctl.runtime.mcp.definitions import replace_unusable_tools
from agentctl.runtime.mcp.library import IS_FIRST, Streams, Transport, get_message, types

if TYPE_CHECKING:
    from agentctl.runtime.mcp.actions import McpAnswers

current_call: ContextVar[McpCall | None] = ContextVar("agentctl_mcp_call", default=None)
"""The call whose request the current task sends."""


class McpCall:
    """One call of a tool: its request, and the end of its work at the server.

    Attributes:
        tool: name of the tool at the server.
        answers: the answers to the questions of the same call before; None for a new call.
        session_lost: True if the server did not execute it, because it does not know the session.
    """

    def __init__(
        self, tool: str, arguments: Mapping[str, Any], answers: McpAnswers | None = None
    ) -> None:
        self.tool = tool
        self.arguments = arguments
        self.answers = answers
        self.session_lost = False
        self.request_id: str | None = None
        self._stopped: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def expect_stop(self, seconds: float) -> asyncio.Future[None] | None:
        """Return a future that ends when the cancelled work is known to have stopped.

        It gets a result if a late result arrives. It is cancelled if the server answers with an
        error, if the connection ends, or after `seconds`, when a server that follows the protocol
        has stopped. None if no request was sent.
        """
        if self.request_id is None:
            return None
        loop = asyncio.get_running_loop()
        self._stopped = loop.create_future()
        self._timer = loop.call_later(seconds, self.end)
        return self._stopped

    def answer(self, *, is_error: bool) -> None:
        """Take a response that arrived."""
        if self._stopped is not None and not self._stopped.done() and not is_error:
            self._stopped.set_result(None)
        self.end()

    def end(self) -> None:
        """Take the work as ended without a result."""
        if self._timer is not None:
            self._timer.cancel()
        if self._stopped is not None and not self._stopped.done():
            self._stopped.cancel()


class CallWatcher:
    """The calls of one connection that have no response yet.

    Attributes:
        version: the version of the protocol, once it is known.
    """

    def __init__(self) -> None:
        self.version = ""
        self._calls: dict[str, McpCall] = {}
        self._listings: set[str] = set()

    def note_sent(self, item: SessionMessage) -> None:
        """Assign the id of a request to the call of this task."""
        message = get_message(item)
        if not isinstance(message, types.JSONRPCRequest):
            return
        if message.method == "tools/list":
            self._listings.add(str(message.id))
        if (call := current_call.get()) is not None:
            call.request_id = str(message.id)
            self._calls[call.request_id] = call
            if not IS_FIRST:
                _allow_questions(message)

    def note_received(self, item: SessionMessage | Exception) -> None:
        message = None if isinstance(item, Exception) else get_message(item)
        if isinstance(message, types.JSONRPCResponse | types.JSONRPCError):
            call = self._calls.pop(str(message.id), None)
            if str(message.id) in self._listings:
                self._listings.discard(str(message.id))
                self._check_listing(message)
            if call is not None:
                call.answer(is_error=isinstance(message, types.JSONRPCError))

    def _check_listing(self, message: Any) -> None:
        if isinstance(message, types.JSONRPCResponse):
            result = message.result
            if isinstance(result.get("tools"), list):
                result["tools"] = replace_unusable_tools(result, self.version)

    def end(self) -> None:
        """End all calls: the connection is closed."""
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.end()


def _allow_questions(request: Any) -> None:
    """Declare that a call may be answered with questions, where the protocol has that.

    The library would declare it to servers with older versions too: they would send their questions
    while the call stays open, and the call could not wait.
    """
    meta = (request.params or {}).get("_meta")
    if isinstance(meta, dict) and types.CLIENT_CAPABILITIES_META_KEY in meta:
        capabilities = meta[types.CLIENT_CAPABILITIES_META_KEY]
        allowed = {**capabilities, "elicitation": {"form": {}}}
        meta[types.CLIENT_CAPABILITIES_META_KEY] = allowed


@asynccontextmanager
async def watch_calls(transport: Transport, watcher: CallWatcher) -> AsyncIterator[Streams]:
    """Connect through a transport whose messages the watcher sees."""
    async with transport as (read, write):
        yield _WatchedRead(read, watcher), _WatchedWrite(write, watcher)


class _Watched:
    """A stream that passes everything on to another one."""

    def __init__(self, inner: Any, watcher: CallWatcher) -> None:
        self._inner = inner
        self._watcher = watcher

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def __aenter__(self) -> Any:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> Any:
        return await self._inner.__aexit__(*raised)


class _WatchedWrite(_Watched):
    async def send(self, item: SessionMessage, /) -> None:
        self._watcher.note_sent(item)
        await self._inner.send(item)


class _WatchedRead(_Watched):
    @property
    def last_context(self) -> Any:
        """The context of the sender, which the library looks up by this name."""
        return getattr(self._inner, "last_context", None)

    async def receive(self) -> SessionMessage | Exception:
        item: SessionMessage | Exception = await self._inner.receive()
        self._watcher.note_received(item)
        return item

    def __aiter__(self) -> _WatchedRead:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        item: SessionMessage | Exception = await self._inner.__anext__()
        self._watcher.note_received(item)
        return item
