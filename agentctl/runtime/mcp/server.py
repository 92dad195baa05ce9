"""A configured MCP server in this process: its state, its tools, and calls of its tools.

One owner task opens the connection of a server, refreshes the list of tools, opens a new connection
with increasing pauses if it is lost, and closes it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from agentctl.runtime.mcp.connection import McpConnection
from agentctl.runtime.mcp.counters import McpCounters
from agentctl.runtime.mcp.definitions import McpTool, ToolList, build_tool_list
from agentctl.runtime.mcp.failures import McpSessionLost, McpUnavailable

if TYPE_CHECKING:
    from agentctl.config.mcp_table import McpServer
    from agentctl.runtime.mcp.endpoints import Endpoint
    from agentctl.runtime.mcp.questions import McpAnswers
    from agentctl.runtime.mcp.values import McpUser
    from agentctl.runtime.mcp.watched import WatchedCall

FIRST_PAUSE, LONGEST_PAUSE = 0.5, 60.0
"""Seconds before the first and before later attempts to connect again; each is twice as long."""

STABLE_SECONDS = 10.0
"""A connection that lasts shorter does not reset the pause."""

REFRESH_SECONDS = 300.0
"""Time after which the tools are listed again without a notification of the server."""

SETTLE_SECONDS = 0.1
"""Time to wait for further notifications before the tools are listed again."""

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
        """Return the tools for a user; those of the last list if the server is not available.

        Raises:
            McpUnavailable: the server is not available and has listed nothing before.
        """

    @abstractmethod
    async def acquire(self, user: McpUser) -> McpConnection:
        """Return an open connection for a user.

        Raises:
            McpUnavailable: there is none; the text has the reason.
        """

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        user: McpUser,
        watched: WatchedCall,
        answers: McpAnswers | None = None,
    ) -> dict[str, Any]:
        """Call a tool; once more if the server had forgotten the session.

        Args:
            answers: the answers to the questions of the same call before; None for a new call.

        Raises:
            McpCallFailed: the server answered with an error.
            McpUnavailable: there is no connection, or it ended during the call.
        """
        connection = await self.acquire(user)
        try:
            return await connection.call(tool, arguments, watched, answers)
        except McpSessionLost:
            watched.session_lost = False
            connection = await self.acquire(user)
            return await connection.call(tool, arguments, watched, answers)

    def note_failure(self, reason: str, detail: str = "") -> None:
        """Count a failure, and log a reason that is new.

        Args:
            detail: a text of the server, for operators.
        """
        self.counters.failures += 1
        if reason != self.problem:
            suffix = f" ({detail})" if detail else ""
            _log.warning("mcp server %s is not available: %s%s", self.spec.id, reason, suffix)
        self.problem, self.detail = reason, detail

    def note_tools(self, listed: ToolList) -> None:
        """Store a list of tools, and log its new problems."""
        reported = self.listed.problems if self.listed is not None else ()
        for problem in listed.problems:
            if problem not in reported:
                _log.warning("mcp server %s: %s", self.spec.id, problem)
        self.listed = listed


class SharedServer(HostedServer):
    """A server with one connection, which all runs share."""

    def __init__(self, spec: McpServer, endpoint: Endpoint) -> None:
        super().__init__(spec)
        self._endpoint = endpoint
        self._connection: McpConnection | None = None
        self._last: McpConnection | None = None
        self._owner: asyncio.Task[None] | None = None
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
        owner, self._owner = self._owner, None
        if owner is not None:
            owner.cancel()
            await asyncio.wait({owner})
        if self._last is not None:
            # The cancel may have interrupted the owner while it closed the connection.
            await self._last.close()

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
        pause = FIRST_PAUSE
        while True:
            started = time.monotonic()
            connection = self._last = McpConnection(self._endpoint, self.spec.call_seconds)
            try:
                await self._connect(connection)
                await self._hold(connection)
            except McpUnavailable as failure:
                self.note_failure(str(failure), self._endpoint.detail)
            except Exception:
                _log.exception("mcp server %s: unexpected failure", self.spec.id)
                self.note_failure("an internal error")
            finally:
                was_connected, self._connection = self._connection is not None, None
                if was_connected and time.monotonic() - started >= STABLE_SECONDS:
                    pause = FIRST_PAUSE
                if was_connected and pause == FIRST_PAUSE:
                    # Callers wait for the next attempt instead of a failure.
                    self._attempted.clear()
                else:
                    self._attempted.set()
                await connection.close()
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _connect(self, connection: McpConnection) -> None:
        await connection.open(self.spec.connect_seconds)
        await self._refresh(connection)
        self.counters.connections += 1
        if self.problem is not None:
            _log.warning("mcp server %s is available again", self.spec.id)
        _log.info("mcp server %s is connected: %s", self.spec.id, connection.description)
        self.problem = None
        self._connection = connection
        self._attempted.set()

    async def _hold(self, connection: McpConnection) -> None:
        while True:
            changed = asyncio.create_task(connection.changed.wait())
            await _wait_for_first(changed, connection.lost, REFRESH_SECONDS)
            if connection.lost.done():
                raise McpUnavailable(connection.lost.result())
            await asyncio.sleep(SETTLE_SECONDS)
            await self._refresh(connection)

    async def _refresh(self, connection: McpConnection) -> None:
        connection.changed.clear()
        listing = asyncio.create_task(connection.list_tools())
        if await _wait_for_first(listing, connection.lost, self.spec.connect_seconds):
            self.note_tools(await build_tool_list(self.spec, listing.result()))
        elif connection.lost.done():
            raise McpUnavailable(connection.lost.result())
        else:
            raise McpUnavailable("it did not list its tools in time")


async def _wait_for_first(
    task: asyncio.Task[Any], other: asyncio.Future[Any], seconds: float
) -> bool:
    futures: set[asyncio.Future[Any]] = {task, other}
    try:
        await asyncio.wait(futures, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        return task.done()
    finally:
        task.cancel()
