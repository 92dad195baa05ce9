"""A configured MCP server in this process: its state, its tools, and calls of its tools.

A server has one connection that all runs share, or, with header fields of the user, one session for
each user in a pool with a limit.
"""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from typing import Any, Literal, NamedTuple

from agentctl.config.mcp_table import McpServer
from agentctl.records.jitter import jitter
from agentctl.runtime.mcp.calls import (
    CONNECT_SECONDS,
    McpCall,
    McpCounters,
    McpSessionLost,
    McpUnavailable,
    McpUser,
    expand_values,
)
from agentctl.runtime.mcp.connection import Endpoint, HttpEndpoint, McpConnection
from agentctl.runtime.mcp.definitions import McpTool, ToolList, build_tool_list
from agentctl.work.event_loop import retrieve_exception

FIRST_PAUSE = 0.5
"""Seconds before the first attempt to connect again; the pause doubles with each attempt."""

LONGEST_PAUSE = 60.0
"""Seconds before an attempt to connect again at most."""

STABLE_SECONDS = 10.0
"""A connection that lasts shorter does not reset the pause."""

REFRESH_SECONDS = 300.0
"""Time after which the tools are listed again without a notification of the server."""

SETTLE_SECONDS = 0.1
"""Time to wait for further notifications before the tools are listed again."""

MAXIMUM_SESSIONS = 100
"""Maximum number of sessions of a process with one server, one for each user."""

IDLE_SECONDS = 300.0
"""Time after its last use after which a session is closed."""

SWEEP_SECONDS = 15.0
"""Time between two searches for idle sessions."""

RETRY_SECONDS = 2.0
"""Time after a failed attempt for which further runs of the user fail at once."""

_SessionKey = tuple[tuple[str, str], ...]
"""The header fields of a session with their values: all that the server knows of the user."""

McpState = Literal["connecting", "connected", "failed", "closed"]

_log = logging.getLogger("agentctl.mcp")


class HostedServer(ABC):
    """A server with its connections.

    Attributes:
        spec: its entry of the configuration.
        counters: its counts.
        problem: the reason of the last failure; None while it works.
        detail: a text of the server about that failure, for operators; empty if there is none.
        listed: the tools that it listed last; None before the first list.
    """

    def __init__(self, spec: McpServer) -> None:
        self.spec = spec
        self.counters = McpCounters()
        self.problem: str | None = None
        self.detail = ""
        self.listed: ToolList | None = None

    @property
    @abstractmethod
    def state(self) -> McpState: ...

    @abstractmethod
    def start(self) -> None:
        """Connect in the background, unless that was started before."""

    @abstractmethod
    async def close(self) -> None:
        """Close all connections and end all programs, in bounded time."""

    @abstractmethod
    async def find_tools(self, user: McpUser) -> tuple[McpTool, ...]:
        """Return the tools for a user; the tools of the last list if the server is not available.

        Raises:
            McpUnavailable: the server is not available and has listed nothing before.
        """

    @abstractmethod
    async def acquire(self, user: McpUser) -> McpConnection:
        """Return an open connection for a user.

        Raises:
            McpUnavailable: there is none; the text has the reason.
        """

    async def call(self, call: McpCall, user: McpUser) -> dict[str, Any]:
        """Call a tool; once more if the server had forgotten the session."""
        connection = await self.acquire(user)
        try:
            return await connection.call(call)
        except McpSessionLost:
            call.session_lost = False
            connection = await self.acquire(user)
            return await connection.call(call)

    def note_failure(self, reason: str, detail: str = "") -> None:
        """Count a failure, and log a reason that is new.

        Args:
            detail: a text of the server, for operators.
        """
        self.counters.failures += 1
        if reason != self.problem:
            suffix = f" ({detail})" if detail else ""
            _log.warning("mcp server %s is not available: %s%s", self.spec.id, reason, suffix)
        self.problem = reason
        self.detail = detail

    def note_tools(self, listed: ToolList) -> None:
        """Store a list of tools, and log its new problems."""
        reported = self.listed.problems if self.listed is not None else ()
        for problem in listed.problems:
            if problem not in reported:
                _log.warning("mcp server %s: %s", self.spec.id, problem)
        self.listed = listed


class SharedServer(HostedServer):
    """A server with one connection, which all runs share.

    One owner task opens the connection, refreshes the list of tools, opens a new connection with
    increasing pauses if it is lost, and closes it.
    """

    def __init__(self, spec: McpServer, endpoint: Endpoint) -> None:
        super().__init__(spec)
        self._endpoint = endpoint

        # The connection that is open with its tools listed; None while there is none.
        self._connection: McpConnection | None = None
        # The newest connection, open or not.
        self._last_connection: McpConnection | None = None
        self._owner: asyncio.Task[None] | None = None

        # Set while callers need not wait: the server is connected, or an attempt has failed.
        self._attempted = asyncio.Event()
        self._closed = False

    @property
    def state(self) -> McpState:
        if self._closed:
            return "closed"
        if self._connection is not None:
            return "connected"
        return "failed" if self._attempted.is_set() else "connecting"

    def start(self) -> None:
        if self._owner is None and not self._closed:
            self._owner = asyncio.create_task(self._own(), name=f"mcp server {self.spec.id}")

    async def close(self) -> None:
        self._closed = True
        self._attempted.set()
        owner = self._owner
        self._owner = None
        if owner is not None:
            owner.cancel()
            await asyncio.wait({owner})
        if self._last_connection is not None:
            # The cancel may have interrupted the owner while it closed the connection.
            await self._last_connection.close()

    async def find_tools(self, user: McpUser) -> tuple[McpTool, ...]:
        self.start()
        await self._attempted.wait()
        if self.listed is None:
            raise McpUnavailable(self.problem or "it is not connected")
        return self.listed.tools

    async def acquire(self, user: McpUser) -> McpConnection:
        self.start()
        while True:
            await self._attempted.wait()
            connection = self._connection
            if connection is None:
                raise McpUnavailable(self.problem or "it is not connected")
            if not connection.lost.done():
                return connection
            # The owner task is about to see the loss.
            await asyncio.sleep(0)

    async def _own(self) -> None:
        """Connect, and connect again after each loss, until the owner task is cancelled."""
        pause = FIRST_PAUSE
        while True:
            started = time.monotonic()
            connection = self._last_connection = McpConnection(
                self._endpoint, self.spec.call_seconds
            )
            try:
                await self._connect(connection)
                await self._hold(connection)
            except McpUnavailable as failure:
                self.note_failure(str(failure), self._endpoint.detail)
            except Exception:
                _log.exception("mcp server %s: unexpected failure", self.spec.id)
                self.note_failure("an internal error")
            finally:
                was_connected = self._connection is not None
                self._connection = None

                if was_connected and time.monotonic() - started >= STABLE_SECONDS:
                    pause = FIRST_PAUSE

                if was_connected and pause == FIRST_PAUSE:
                    # Callers wait for the next attempt instead of a failure.
                    self._attempted.clear()
                else:
                    self._attempted.set()

                await connection.close()

            # Not all processes and servers at once.
            await asyncio.sleep(pause * jitter(0.8, 1.2))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _connect(self, connection: McpConnection) -> None:
        """Open a connection and list its tools; raise `McpUnavailable` if either fails."""
        await connection.open()
        await self._refresh(connection)

        self.counters.connections += 1
        if self.problem is not None:
            _log.warning("mcp server %s is available again", self.spec.id)
        _log.info("mcp server %s is connected: %s", self.spec.id, connection.description)

        self.problem = None
        self._connection = connection
        self._attempted.set()

    async def _hold(self, connection: McpConnection) -> None:
        """List the tools again when they have changed; raise `McpUnavailable` after a loss."""
        while True:
            changed = asyncio.create_task(connection.changed.wait())
            await _wait_for_first(changed, connection.lost, REFRESH_SECONDS)
            if connection.lost.done():
                raise McpUnavailable(connection.lost.result())

            await asyncio.sleep(SETTLE_SECONDS)
            await self._refresh(connection)

    async def _refresh(self, connection: McpConnection) -> None:
        # Before the list is requested: a change while it is sent needs another list.
        connection.changed.clear()

        listing = asyncio.create_task(connection.list_tools())
        if await _wait_for_first(listing, connection.lost, CONNECT_SECONDS):
            self.note_tools(await build_tool_list(self.spec, listing.result()))
        elif connection.lost.done():
            raise McpUnavailable(connection.lost.result())
        else:
            raise McpUnavailable("it did not list its tools in time")


async def _wait_for_first(
    task: asyncio.Task[Any], lost: asyncio.Future[str], seconds: float
) -> bool:
    """Wait until a task is done, but not longer than its connection lasts, nor than `seconds`.

    Returns:
        True if the task is done; otherwise it is cancelled.
    """
    futures: set[asyncio.Future[Any]] = {task, lost}
    try:
        await asyncio.wait(futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return task.done()
    finally:
        task.cancel()


class _Session:
    """The session of one user.

    Attributes:
        used_at: the time of its last use (`time.monotonic`).
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


class _Failure(NamedTuple):
    """A failed attempt to open a session."""

    at: float
    """Its time (`time.monotonic`)."""

    reason: str

    @property
    def is_recent(self) -> bool:
        """True while further runs of the user fail at once, without another attempt."""
        return time.monotonic() - self.at < RETRY_SECONDS


class PerUserServer(HostedServer):
    """A server whose sessions belong to users. The tools of a user are never shown to another user.

    `listed` stays None: a component record has no tools of such a server.
    """

    def __init__(self, spec: McpServer, message_bytes: int) -> None:
        super().__init__(spec)
        self._message_bytes = message_bytes
        self._sessions: dict[_SessionKey, _Session] = {}
        self._failures: dict[_SessionKey, _Failure] = {}
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
        """Return the session of a user, which is ready; open it if there is none.

        Raises:
            McpUnavailable: it cannot be opened.
        """
        key: _SessionKey = tuple(expand_values(self.spec.headers, user).items())

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

    def _create(self, key: _SessionKey, user: McpUser) -> _Session:
        if self._closed:
            raise McpUnavailable("the server is shutting down")

        failure = self._failures.get(key)
        if failure is not None and failure.is_recent:
            raise McpUnavailable(failure.reason)

        if len(self._sessions) >= MAXIMUM_SESSIONS:
            self._drop_oldest_idle()

        endpoint = HttpEndpoint(self.spec, user, self._message_bytes)
        session = _Session(McpConnection(endpoint, self.spec.call_seconds))
        session.ready = asyncio.create_task(self._prepare(key, session))
        session.ready.add_done_callback(retrieve_exception)
        self._sessions[key] = session

        if self._sweeper is None:
            self._sweeper = asyncio.create_task(self._sweep())
        return session

    def _drop_oldest_idle(self) -> None:
        idle_keys = [key for key, session in self._sessions.items() if session.is_idle]
        if not idle_keys:
            raise McpUnavailable(f"all of its {MAXIMUM_SESSIONS} sessions are in use")
        self._drop(min(idle_keys, key=lambda key: self._sessions[key].used_at))

    async def _prepare(self, key: _SessionKey, session: _Session) -> ToolList:
        """Open the connection of a session, and list its tools."""
        try:
            await session.connection.open()
            async with asyncio.timeout(CONNECT_SECONDS):
                listed = await session.connection.list_tools()
        except (McpUnavailable, TimeoutError) as failure:
            reason = str(failure) or "it did not list its tools in time"
            self._failures[key] = _Failure(time.monotonic(), reason)
            self.note_failure(reason)
            # Another session may have its place by now.
            if self._sessions.get(key) is session:
                self._drop(key)
            raise McpUnavailable(reason) from failure

        self.counters.connections += 1
        self.problem = None
        return await build_tool_list(self.spec, listed)

    def _drop(self, key: _SessionKey) -> None:
        """Forget a session, and close its connection in the background."""
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
                is_unused = session.is_idle and now - session.used_at > IDLE_SECONDS
                if session.has_ended or is_unused:
                    self._drop(key)

            self._failures = {
                key: failure for key, failure in self._failures.items() if failure.is_recent
            }
