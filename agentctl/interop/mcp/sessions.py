"""The open sessions of MCP, with a bound for each caller.

The SDK bounds the sessions of a process only, so that one caller could open all of them. Sessions
are ended here as a client ends one: by a DELETE of their owner.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.types import Message, Scope, Send

from agentctl.errors import TooManyRequests

SESSIONS_PER_CALLER = 20
"""Open sessions of one caller in a process; the oldest idle one ends when another is opened."""

MAXIMUM_SESSIONS = 1_000
"""Open sessions of MCP in a process."""

IDLE_SECONDS = 1_800.0
"""Seconds without a request after which a session ends."""

_HEADER = MCP_SESSION_ID_HEADER.encode()
_VERSION_HEADER = MCP_PROTOCOL_VERSION_HEADER.encode()


@dataclass(slots=True)
class _Session:
    """An open session, or one that is being opened.

    Attributes:
        owner: the identity of its caller.
        user: the `user` of the scopes of its requests.
        requests: its requests under way.
        used_at: the end of its last request.
    """

    owner: str
    user: Any
    id: bytes | None = None
    requests: int = 0
    used_at: float = field(default_factory=time.monotonic)


class McpSessions:
    """The open sessions of one process.

    Args:
        handle: handles a request, given its scope, `receive` and `send`, as the SDK does.
    """

    def __init__(self, handle: Callable[..., Awaitable[None]]) -> None:
        self._handle = handle
        self._sessions: list[_Session] = []

    @asynccontextmanager
    async def serving(self, scope: Scope, send: Send, owner: str) -> AsyncIterator[Send]:
        """Count a request of a caller while the block is active, and yield the `send` for it.

        Raises:
            TooManyRequests: the request would open a session, and every session that could end
                instead has requests under way.
        """
        headers = dict(scope["headers"])
        version, session_id = headers.get(_VERSION_HEADER), headers.get(_HEADER)
        session: _Session | None = None
        if version is not None and version.decode("latin-1") not in HANDSHAKE_PROTOCOL_VERSIONS:
            pass  # Newer protocols have no sessions.
        elif session_id is None:
            session = await self._open(owner, scope["user"])
        else:
            found = (item for item in self._sessions if item.id == session_id)
            session = next((item for item in found if item.owner == owner), None)
        if session is None:
            yield send
            return

        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                named = (value for name, value in message["headers"] if name.lower() == _HEADER)
                if session.id is None and status < 400:
                    session.id = next(named, None)
            await send(message)

        session.requests += 1
        try:
            yield watched
        finally:
            session.requests -= 1
            session.used_at = time.monotonic()
            # A request that is refused opens no session; a session that is not found has ended.
            if session.id is None or status == 404 or scope["method"] == "DELETE":
                self._forget(session)

    async def _open(self, owner: str, user: Any) -> _Session:
        oldest = time.monotonic() - IDLE_SECONDS
        self._sessions = [it for it in self._sessions if it.requests or it.used_at > oldest]
        own = [session for session in self._sessions if session.owner == owner]
        replaced: _Session | None = None
        if len(own) >= SESSIONS_PER_CALLER:
            replaced = _find_oldest(own, "This caller has")
        elif len(self._sessions) >= MAXIMUM_SESSIONS:
            replaced = _find_oldest(self._sessions, "There are")
        session = _Session(owner, user)
        # Before the wait for the end of the other one: requests at the same time count this one.
        self._sessions.append(session)
        if replaced is not None:
            self._forget(replaced)
            await self._end(replaced)
        return session

    async def _end(self, session: _Session) -> None:
        scope = {
            "type": "http",
            "method": "DELETE",
            "path": "/",
            "query_string": b"",
            "headers": [(_HEADER, session.id)],
            "user": session.user,
        }
        await self._handle(scope, _receive_nothing, _send_nowhere)

    def _forget(self, session: _Session) -> None:
        if session in self._sessions:
            self._sessions.remove(session)


def _find_oldest(sessions: list[_Session], subject: str) -> _Session:
    idle = [session for session in sessions if session.id and not session.requests]
    if not idle:
        raise TooManyRequests(f"{subject} too many sessions of MCP with calls under way")
    return min(idle, key=lambda session: session.used_at)


async def _receive_nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _send_nowhere(message: Message) -> None:
    return None
