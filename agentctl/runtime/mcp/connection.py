"""A connection to an MCP server. One task opens it, holds it and closes it.

The streams and task groups of the `mcp` library have to be closed by the task that opened them.
Calls may come from any task.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

import mcp_types
from mcp import Client, MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from agentctl import __version__
from agentctl.runtime.mcp.definitions import MAXIMUM_TOOLS, clean_text
from agentctl.runtime.mcp.failures import McpCallFailed, McpSessionLost, McpUnavailable
from agentctl.runtime.mcp.watched import CallWatcher, WatchedCall, current_call, watch_calls

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams

    from agentctl.runtime.mcp.endpoints import Endpoint
    from agentctl.runtime.mcp.questions import McpAnswers

CLOSE_SECONDS = 8.0
"""Maximum time to close a connection, with all steps that end a program."""

_ERROR_BYTES = 2_000
_MAXIMUM_PAGES = 100
_RELISTEN_SECONDS = 30.0

_result: TypeAdapter[Any] = TypeAdapter(mcp_types.CallToolResult | mcp_types.InputRequiredResult)

# The library logs texts of servers with tracebacks; the failures are logged here instead.
for _name in ("mcp", "client"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)

OnEnd = Callable[[str], None]


class McpConnection:
    """An open connection, or one that is being opened.

    Args:
        endpoint: opens the transport.
        call_seconds: maximum time of a call; the caller enforces it.

    Attributes:
        lost: the reason, once the connection cannot be used any more.
        changed: set when the server reports that its tools have changed.
    """

    def __init__(self, endpoint: Endpoint, call_seconds: float) -> None:
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.changed = asyncio.Event()
        self.in_use = 0
        self._endpoint = endpoint
        self._call_seconds = call_seconds
        self._watcher = CallWatcher()
        self._client: Client
        self._opened = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self, seconds: float) -> None:
        """Connect within a time limit.

        Raises:
            McpUnavailable: the connection failed; the text has the reason.
        """
        self._task = asyncio.create_task(self._hold(), name="mcp connection")
        opened = asyncio.create_task(self._opened.wait())
        try:
            await asyncio.wait(
                {self._task, opened}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
            )
            if self._opened.is_set():
                return
            if not self._task.done():
                raise McpUnavailable(f"it did not answer within {seconds:g} seconds")
            raise McpUnavailable(self.lost.result() if self.lost.done() else "it did not answer")
        except BaseException:
            await self.close()
            raise
        finally:
            opened.cancel()

    async def close(self) -> None:
        """Close the connection and end its program, within `CLOSE_SECONDS`."""
        self.lose("the connection was closed")
        task = self._task
        if task is None:
            return
        if not self._opened.is_set():
            task.cancel()
        done, _ = await asyncio.wait({task}, timeout=CLOSE_SECONDS)
        if not done:
            task.cancel()

    def lose(self, reason: str) -> None:
        """Take the connection as unusable. Its own task then closes it."""
        if not self.lost.done():
            self.lost.set_result(reason)
        self._closing.set()

    async def list_tools(self) -> list[mcp_types.Tool]:
        """Return all tools, from all pages.

        Raises:
            McpUnavailable: the server did not list its tools.
        """
        if self._client.server_capabilities.tools is None:
            return []
        tools: list[mcp_types.Tool] = []
        cursor: str | None = None
        for _ in range(_MAXIMUM_PAGES):
            params = mcp_types.PaginatedRequestParams(cursor=cursor)
            try:
                page = await self._client.session.list_tools(params=params)
            except ValidationError as error:
                raise McpUnavailable("its list of tools does not follow the protocol") from error
            except (MCPError, RuntimeError) as error:
                raise McpUnavailable(_describe(error, "it did not list its tools")) from error
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None or len(tools) > MAXIMUM_TOOLS:
                break
        return tools

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        watched: WatchedCall,
        answers: McpAnswers | None = None,
    ) -> mcp_types.CallToolResult | mcp_types.InputRequiredResult:
        """Call a tool. If this task is cancelled, the server is notified.

        Args:
            answers: the answers to the questions of the same call before; None for a new call.

        Returns:
            The result, or the questions that the server has first.

        Raises:
            McpCallFailed: the server answered with an error, or in a way that is not valid.
            McpSessionLost: the server has forgotten the session, and did not execute the call.
            McpUnavailable: the connection ended; the call may have been executed.
        """
        request = mcp_types.CallToolRequest(
            params=mcp_types.CallToolRequestParams(
                name=tool,
                arguments=dict(arguments),
                input_responses=dict(answers.responses) if answers is not None else None,
                request_state=answers.request_state if answers is not None else None,
            )
        )
        token = current_call.set(watched)
        self.in_use += 1
        try:
            # Without the library's `call_tool`, which validates results against a schema of the
            # server: its regular expressions could block the event loop.
            result = await self._client.session.send_request(
                request, _result, request_read_timeout_seconds=self._call_seconds + 60
            )
        except MCPError as error:
            if watched.session_lost:
                self.lose("it has forgotten the session")
                raise McpSessionLost(self.lost.result()) from error
            if error.error.code == mcp_types.CONNECTION_CLOSED:
                raise McpUnavailable(self._reason()) from error
            problem = self._endpoint.problem()
            if problem is not None and error.error.code == mcp_types.INTERNAL_ERROR:
                raise McpUnavailable(problem) from error
            raise McpCallFailed(clean_text(str(error.error.message), _ERROR_BYTES)) from error
        except ValidationError as error:
            raise McpCallFailed("its result does not follow the protocol") from error
        except RuntimeError as error:
            raise McpUnavailable(self._reason()) from error
        finally:
            self.in_use -= 1
            current_call.reset(token)
        assert isinstance(result, mcp_types.CallToolResult | mcp_types.InputRequiredResult)
        return result

    @property
    def description(self) -> str:
        """Name and version of the server, and the version of the protocol."""
        info = self._client.server_info
        name = clean_text(f"{info.name} {info.version}", 200) if info is not None else "unnamed"
        return f"{' '.join(name.split())}, protocol {self._client.protocol_version}"

    def _reason(self) -> str:
        return self.lost.result() if self.lost.done() else "the connection ended"

    async def _hold(self) -> None:
        transport = watch_calls(_as_transport(self._endpoint.open(self.lose)), self._watcher)
        client = Client(
            _as_transport(transport),
            cache=None,
            client_info=mcp_types.Implementation(name="agentctl", version=__version__),
            message_handler=self._handle_message,
            read_timeout_seconds=self._endpoint.connect_seconds,
        )
        listening: asyncio.Task[None] | None = None
        try:
            async with client:
                self._client = client
                self._watcher.version = client.protocol_version
                self._opened.set()
                if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
                    listening = asyncio.create_task(self._listen(client))
                try:
                    await self._closing.wait()
                finally:
                    if listening is not None:
                        listening.cancel()
                        await asyncio.wait({listening})
        except asyncio.CancelledError:
            self.lose("the connection was closed")
            raise
        except Exception as error:
            self.lose(self._endpoint.problem() or _describe(error, "the connection failed"))
        finally:
            self.lose("the connection ended")
            self._watcher.end()

    async def _handle_message(self, message: object) -> None:
        if isinstance(message, mcp_types.ToolListChangedNotification):
            self.changed.set()

    async def _listen(self, client: Client) -> None:
        tools = client.server_capabilities.tools
        if tools is None or not tools.list_changed:
            return
        while True:
            with contextlib.suppress(MCPError, RuntimeError, TimeoutError):
                async with client.listen(tools_list_changed=True) as subscription:
                    async for _ in subscription:
                        self.changed.set()
            await asyncio.sleep(_RELISTEN_SECONDS)
            self.changed.set()


def _as_transport(manager: AbstractAsyncContextManager[TransportStreams]) -> Any:
    return manager


def _describe(error: BaseException, otherwise: str) -> str:
    if isinstance(error, BaseExceptionGroup):
        return _describe(error.exceptions[0], otherwise)
    if isinstance(error, McpUnavailable):
        return str(error)
    if isinstance(error, MCPError):
        return f"{otherwise}: {clean_text(' '.join(str(error.error.message).split()), 200)}"
    return otherwise
