"""Requests of a connection that were cancelled, and the responses that show that they stopped.

MCP has no response to a cancel: a server stops and sends nothing, or its result arrives late. This
module watches the messages, so that a run learns which of the two happened (docs/mcp.md "Cancel").
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from mcp.shared.message import SessionMessage

from agentctl.runtime.mcp.calls import McpCall, current_call
from agentctl.runtime.mcp.definitions import replace_unusable_tools
from agentctl.runtime.mcp.library import IS_FIRST, Streams, Transport, get_message, types


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
        yield _Watched(read, watcher), _Watched(write, watcher)


class _Watched:
    """A stream of received or of sent messages; all else is that of the stream of the library."""

    def __init__(self, inner: Any, watcher: CallWatcher) -> None:
        self._inner = inner
        self._watcher = watcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def __aenter__(self) -> Any:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *raised: Any) -> Any:
        return await self._inner.__aexit__(*raised)

    def __aiter__(self) -> _Watched:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        return self._note(await self._inner.__anext__())

    async def receive(self) -> SessionMessage | Exception:
        return self._note(await self._inner.receive())

    async def send(self, item: SessionMessage, /) -> None:
        self._watcher.note_sent(item)
        await self._inner.send(item)

    def _note(self, item: SessionMessage | Exception) -> SessionMessage | Exception:
        self._watcher.note_received(item)
        return item
