"""A server with header fields of the user: one session for each user, in a pool with a limit."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from agentctl.runtime.mcp.connection import McpConnection
from agentctl.runtime.mcp.definitions import McpTool, ToolList, build_tool_list
from agentctl.runtime.mcp.endpoints import HttpEndpoint
from agentctl.runtime.mcp.failures import McpUnavailable
from agentctl.runtime.mcp.server import HostedServer, McpState
from agentctl.runtime.mcp.values import expand_values
from agentctl.work.event_loop import retrieve_exception

if TYPE_CHECKING:
    from agentctl.config.mcp_table import McpServer
    from agentctl.runtime.mcp.values import McpUser

MAXIMUM_SESSIONS = 100
"""Maximum number of sessions of a process with one server, one for each user."""

IDLE_SECONDS = 300.0
"""Time after its last use after which a session is closed."""

SWEEP_SECONDS = 15.0
"""Time between two searches for idle sessions."""

RETRY_SECONDS = 2.0
"""Time after a failed attempt in which further runs of the user fail at once."""

Key = tuple[tuple[str, str], ...]


class _Session:
    """The session of one user.

    Attributes:
        ready: done when the connection is open and its tools are listed.
    """

    def __init__(self, connection: McpConnection) -> None:
        self.connection = connection
        self.used_at = time.monotonic()
        self.ready: asyncio.Task[ToolList]

    @property
    def is_idle(self) -> bool:
        return self.ready.done() and self.connection.in_use == 0

    @property
    def has_ended(self) -> bool:
        return self.ready.done() and self.connection.lost.done()


class PerUserServer(HostedServer):
    """A server whose sessions belong to users. The tools of a user are never shown to another one.

    `listed` stays None: a component record has no tools of such a server.
    """

    def __init__(self, spec: McpServer, message_bytes: int) -> None:
        super().__init__(spec)
        self._message_bytes = message_bytes
        self._sessions: dict[Key, _Session] = {}
        self._failed_at: dict[Key, tuple[float, str]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def state(self) -> McpState:
        if self._closed:
            return "closed"
        if any(not session.has_ended for session in self._sessions.values()):
            return "connected"
        return "failed" if self.problem is not None else "connecting"

    @property
    def session_count(self) -> int:
        """The number of sessions that are open or being opened."""
        return len(self._sessions)

    def start(self) -> None:
        """Do nothing: a session is opened for the first run of its user."""

    async def close(self) -> None:
        self._closed = True
        if self._sweeper is not None:
            self._sweeper.cancel()
        for key in list(self._sessions):
            self._drop(key)
        if self._closing:
            await asyncio.wait(set(self._closing))

    async def find_tools(self, user: McpUser) -> tuple[McpTool, ...]:
        return (await self._open(user)).ready.result().tools

    async def acquire(self, user: McpUser) -> McpConnection:
        return (await self._open(user)).connection

    async def _open(self, user: McpUser) -> _Session:
        key: Key = tuple(expand_values(self.spec.headers, user).items())
        session = self._sessions.get(key)
        if session is not None and session.has_ended:
            self._drop(key)
            session = None
        if session is None:
            session = self._create(key, user)
        session.used_at = time.monotonic()
        # The session outlives this run: a cancel of the run must not end its opening.
        try:
            await asyncio.shield(session.ready)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if session.ready.cancelled() and task is not None and not task.cancelling():
                raise McpUnavailable("the server is shutting down") from None
            raise
        return session

    def _create(self, key: Key, user: McpUser) -> _Session:
        if self._closed:
            raise McpUnavailable("the server is shutting down")
        at, reason = self._failed_at.get(key, (0.0, ""))
        if reason and time.monotonic() - at < RETRY_SECONDS:
            raise McpUnavailable(reason)
        if len(self._sessions) >= MAXIMUM_SESSIONS:
            idle = [key for key, session in self._sessions.items() if session.is_idle]
            if not idle:
                raise McpUnavailable(f"all of its {MAXIMUM_SESSIONS} sessions are in use")
            self._drop(min(idle, key=lambda key: self._sessions[key].used_at))
        endpoint = HttpEndpoint(self.spec, user, self._message_bytes)
        session = _Session(McpConnection(endpoint, self.spec.call_seconds))
        session.ready = asyncio.create_task(self._prepare(key, session))
        session.ready.add_done_callback(retrieve_exception)
        self._sessions[key] = session
        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())
        return session

    async def _prepare(self, key: Key, session: _Session) -> ToolList:
        try:
            await session.connection.open(self.spec.connect_seconds)
            async with asyncio.timeout(self.spec.connect_seconds):
                listed = await session.connection.list_tools()
        except (McpUnavailable, TimeoutError) as failure:
            reason = str(failure) or "it did not list its tools in time"
            self._failed_at[key] = (time.monotonic(), reason)
            self.note_failure(reason)
            if self._sessions.get(key) is session:
                self._drop(key)
            raise McpUnavailable(reason) from failure
        self.counters.connections += 1
        self.problem = None
        return await build_tool_list(self.spec, listed)

    def _drop(self, key: Key) -> None:
        session = self._sessions.pop(key)
        if not session.ready.done():
            session.ready.cancel()
        task = asyncio.create_task(session.connection.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            now = time.monotonic()
            for key, session in list(self._sessions.items()):
                if session.has_ended or (session.is_idle and now - session.used_at > IDLE_SECONDS):
                    self._drop(key)
            self._failed_at = {
                key: (at, reason)
                for key, (at, reason) in self._failed_at.items()
                if now - at < RETRY_SECONDS
            }
