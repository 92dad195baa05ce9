"""Connections to MCP servers, over a program (stdio) or a URL (streamable HTTP).

One task opens a connection, holds it and closes it: the streams and task groups of the `mcp`
library have to be closed by the task that opened them. Calls may come from any task.

MCP has no response to a cancel: a server stops and sends nothing, or its result arrives late. The
messages are watched, so that a run learns which of the two happened (docs/mcp.md "Cancel").
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from agentctl.runtime.mcp import library
from agentctl.runtime.mcp.calls import (
    CONNECT_SECONDS,
    NOBODY,
    McpCall,
    McpCallFailed,
    McpSessionLost,
    McpUnavailable,
    McpUser,
    collect_secrets,
    current_call,
    expand_values,
)
from agentctl.runtime.mcp.definitions import MAXIMUM_TOOLS, clean_text, replace_unusable_tools
from agentctl.runtime.mcp.stdio import Program, RunningProgram, find_command
from agentctl.runtime.tracing import hide_trace

if TYPE_CHECKING:
    from agentctl.config.mcp_table import McpServer
    from agentctl.runtime.mcp.http import McpHttpClient


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
        message = item.message
        if not isinstance(message, library.types.JSONRPCRequest):
            return

        request_id = str(message.id)
        if message.method == "tools/list":
            self._listings.add(request_id)

        if (call := current_call.get()) is not None:
            call.request_id = request_id
            self._calls[request_id] = call
            _allow_questions(message)

    def note_received(self, item: SessionMessage | Exception) -> None:
        """Tell a call that its response has arrived, and mend a list of tools in place.

        Args:
            item: a message, or the error with which the library reports an unreadable one.
        """
        if isinstance(item, Exception):
            return

        message: Any = item.message
        is_error = isinstance(message, library.types.JSONRPCError)
        if not is_error and not isinstance(message, library.types.JSONRPCResponse):
            return

        request_id = str(message.id)
        if request_id in self._listings:
            self._listings.discard(request_id)
            if not is_error:
                self._mend_listing(message.result)

        call = self._calls.pop(request_id, None)
        if call is not None:
            call.answer(is_error=is_error)

    def _mend_listing(self, result: dict[str, Any]) -> None:
        """Replace the definitions in a list of tools for which the library would refuse it."""
        if isinstance(result.get("tools"), list):
            result["tools"] = replace_unusable_tools(result, self.version)

    def end(self) -> None:
        """End all calls: the connection is closed."""
        calls = self._calls
        self._calls = {}
        for call in calls.values():
            call.end()


def _allow_questions(request: Any) -> None:
    """Declare that a call may be answered with questions, where the protocol has that.

    The library would declare it to servers with older versions too: they would send their questions
    while the call stays open, and the call could not wait.
    """
    key = library.types.CLIENT_CAPABILITIES_META_KEY
    meta = (request.params or {}).get("_meta")
    if isinstance(meta, dict) and key in meta:
        meta[key] = {**meta[key], "elicitation": {"form": {}}}


@asynccontextmanager
async def watch_calls(
    transport: library.Transport, watcher: CallWatcher, at_end: Callable[[], Awaitable[None]]
) -> AsyncIterator[library.Streams]:
    """Connect through a transport whose messages the watcher sees.

    Args:
        at_end: awaited between the last message from the server and the end of its stream, with
            which all open calls fail.
    """
    async with transport as (read, write):
        yield _Watched(read, watcher, at_end), _Watched(write, watcher, at_end)


class _Watched:
    """A stream of received or of sent messages, with the other methods of the library's stream."""

    def __init__(
        self, inner: Any, watcher: CallWatcher, at_end: Callable[[], Awaitable[None]]
    ) -> None:
        self._inner = inner
        self._watcher = watcher
        self._at_end = at_end

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
        try:
            item: SessionMessage | Exception = await self._inner.__anext__()
        except StopAsyncIteration:
            await self._at_end()
            raise
        self._watcher.note_received(item)
        return item

    async def send(self, item: SessionMessage, /) -> None:
        self._watcher.note_sent(item)
        await self._inner.send(item)


CLOSE_SECONDS = 8.0
"""Maximum time to close a connection, with all steps that end a program."""

_LIBRARY_SECONDS = 60
"""Time by which the time limit of the library for a call is longer than the limit of its caller."""

_ERROR_BYTES = 2_000
"""Maximum size of the text of an error that a model gets."""

_MAXIMUM_PAGES = 100
"""Pages of a list of tools. A server could name a next page for ever."""

OnEnd = Callable[[str], None]
"""Called with the reason when a transport ends by itself."""


class Endpoint(ABC):
    """A server that connections can be opened to.

    Attributes:
        detail: a text of the server about its last failure, for operators; empty if there is none.
    """

    def __init__(self, server: McpServer, message_bytes: int) -> None:
        self.detail = ""
        self._server = server
        self._message_bytes = message_bytes

    @abstractmethod
    def open(self, on_end: OnEnd) -> AbstractAsyncContextManager[library.Streams]:
        """Open the transport; `on_end` is called with a reason if it ends by itself.

        Raises:
            McpUnavailable: the transport cannot be opened.
        """

    def problem(self) -> str | None:
        """Return the reason of the last failure, if the transport knows it."""
        return None

    @abstractmethod
    async def wait_for_reason(self) -> None:
        """Wait for the call of `on_end`, after the last message from the server."""


class StdioEndpoint(Endpoint):
    """A program that speaks over its stdin and stdout."""

    def __init__(self, server: McpServer, folder: Path, message_bytes: int) -> None:
        super().__init__(server, message_bytes)
        self._folder = folder
        self._program: RunningProgram | None = None

    @asynccontextmanager
    async def open(self, on_end: OnEnd) -> AsyncIterator[library.Streams]:
        server = self._server
        command = find_command(server.command, self._folder)
        if command is None:
            raise McpUnavailable(f"there is no program {server.command}")

        program = Program(
            server=server.id,
            line=(command, *server.args),
            variables=expand_values(server.env, NOBODY),
            folder=self._folder,
            secrets=collect_secrets(server.env),
            message_bytes=self._message_bytes,
        )

        def note_end(reason: str, last_line: str) -> None:
            self.detail = last_line
            on_end(reason)

        self.detail = ""
        self._program = RunningProgram(program, note_end)
        async with self._program.open() as streams:
            yield streams

    async def wait_for_reason(self) -> None:
        if self._program is not None:
            await self._program.wait_for_reason()


class HttpEndpoint(Endpoint):
    """A URL with streamable HTTP, for one user or for all."""

    def __init__(self, server: McpServer, user: McpUser, message_bytes: int) -> None:
        super().__init__(server, message_bytes)
        self._user = user
        self._client: McpHttpClient | None = None

    @asynccontextmanager
    async def open(self, on_end: OnEnd) -> AsyncIterator[library.Streams]:
        from agentctl.runtime.mcp.http import McpHttpClient

        headers = expand_values(self._server.headers, self._user)
        url = self._server.url
        self._client = McpHttpClient(headers, self._message_bytes, on_end, url)
        async with (
            self._client,
            library.open_http(url, self._client, self._message_bytes) as streams,
        ):
            yield streams

    def problem(self) -> str | None:
        return self._client.problem if self._client is not None else None

    async def wait_for_reason(self) -> None:
        """Return at once: the client has called `on_end` when a request failed."""


class McpConnection:
    """A connection that is open or being opened.

    Args:
        endpoint: opens the transport.
        call_seconds: maximum time of a call; the caller enforces it.

    Attributes:
        lost: the reason, once the connection cannot be used any more.
        changed: set when the server reports that its tools have changed.
        in_use: number of the calls that have not ended.
    """

    def __init__(self, endpoint: Endpoint, call_seconds: float) -> None:
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.changed = asyncio.Event()
        self.in_use = 0
        self._endpoint = endpoint
        self._call_seconds = call_seconds
        self._watcher = CallWatcher()
        self._client: library.McpClient
        self._opened = asyncio.Event()
        self._closing = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Connect within `CONNECT_SECONDS`.

        Raises:
            McpUnavailable: the connection failed; the text has the reason.
        """
        self._task = asyncio.create_task(self._hold(), name="mcp connection")
        opened = asyncio.create_task(self._opened.wait())

        try:
            await asyncio.wait(
                {self._task, opened}, timeout=CONNECT_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if self._opened.is_set():
                return

            if not self._task.done():
                raise McpUnavailable(f"it did not answer within {CONNECT_SECONDS:g} seconds")
            raise McpUnavailable(self.lost.result() if self.lost.done() else "it did not answer")
        # A cancel too: the task and the program of the server must not stay.
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

    async def list_tools(self) -> list[library.ListedTool]:
        """Return all tools, from all pages.

        Raises:
            McpUnavailable: the server did not list its tools.
        """
        if not self._client.has_tools:
            return []

        tools: list[library.ListedTool] = []
        cursor: str | None = None
        for _ in range(_MAXIMUM_PAGES):
            try:
                page, cursor = await self._client.list_tools(cursor)
            except ValidationError as error:
                raise McpUnavailable("its list of tools does not follow the protocol") from error
            except (library.ProtocolError, RuntimeError) as error:
                raise McpUnavailable(_describe(error, "it did not list its tools")) from error

            tools += page
            if cursor is None or len(tools) > MAXIMUM_TOOLS:
                break

        return tools

    async def call(self, call: McpCall) -> dict[str, Any]:
        """Call a tool. If this task is cancelled, the server is notified.

        Returns:
            The result, or the questions that the server has first, as JSON of the protocol.

        Raises:
            McpCallFailed: the server answered with an error, or in a way that is not valid.
            McpSessionLost: the server has forgotten the session, and did not execute the call.
            McpUnavailable: the connection ended; the call may have been executed.
        """
        call.check()

        token = current_call.set(call)
        self.in_use += 1
        try:
            with hide_trace("mcp"):
                return await self._client.call(call, self._call_seconds + _LIBRARY_SECONDS)
        except library.ProtocolError as error:
            raise self._translate(error, call) from error
        except ValidationError as error:
            raise McpCallFailed("its result does not follow the protocol") from error
        # The library raises it for a request on a connection that has ended.
        except RuntimeError as error:
            raise McpUnavailable(self._reason()) from error
        finally:
            self.in_use -= 1
            current_call.reset(token)

    def _translate(self, error: Any, call: McpCall) -> McpCallFailed | McpUnavailable:
        """Return the failure of a call that ended with an error of the protocol.

        The library reports a lost connection as an error of the protocol too, so the errors of the
        server itself are those that nothing else explains.
        """
        code = error.error.code

        if call.session_lost:
            self.lose("it has forgotten the session")
            return McpSessionLost(self.lost.result())

        if code == library.types.CONNECTION_CLOSED:
            return McpUnavailable(self._reason())

        problem = self._endpoint.problem()
        if problem is not None and code == library.types.INTERNAL_ERROR:
            return McpUnavailable(problem)

        return McpCallFailed(clean_text(str(error.error.message), _ERROR_BYTES))

    @property
    def description(self) -> str:
        """Name and version of the server, and the version of the protocol."""
        name = clean_text(self._client.server, 200) or "unnamed"
        return f"{' '.join(name.split())}, protocol {self._client.version}"

    def _reason(self) -> str:
        return self.lost.result() if self.lost.done() else "the connection ended"

    async def _hold(self) -> None:
        """Open the connection, keep it until it is lost, and close it; the work of its task."""
        endpoint = self._endpoint
        transport = watch_calls(endpoint.open(self.lose), self._watcher, endpoint.wait_for_reason)

        try:
            async with library.open_client(transport, CONNECT_SECONDS, self.changed.set) as client:
                self._client = client
                self._watcher.version = client.version
                self._opened.set()

                listening = asyncio.create_task(client.watch_changes())
                try:
                    await self._closing.wait()
                finally:
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


def _describe(error: BaseException, step: str) -> str:
    """Return the reason of a failure, on one line.

    Args:
        step: what failed, for an error without a reason for operators (`the connection failed`).
    """
    if isinstance(error, BaseExceptionGroup):
        return _describe(error.exceptions[0], step)

    if isinstance(error, McpUnavailable):
        return str(error)

    if isinstance(error, library.ProtocolError):
        message = " ".join(str(error.error.message).split())
        return f"{step}: {clean_text(message, 200)}"

    return step
