"""The `mcp` library in its major versions 1 and 2: what they name differently, and their clients.

Values of the protocol leave this module as JSON, with the names of the protocol, because the
attributes of the library's objects differ between the versions. Version 1 knows protocols up to
2025-11-25.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, NamedTuple, TypeAlias

import anyio
import mcp
from mcp.client import streamable_http
from mcp.shared.message import SessionMessage
from pydantic import TypeAdapter, ValidationError

from agentctl import __version__
from agentctl.runtime.mcp.calls import McpCall, McpCallFailed
from agentctl.runtime.tracing import HEADER, find_traceparent
from agentctl.work.event_loop import retrieve_exception

types: Any = mcp.types
"""The types of the protocol; their attributes have other names in version 1."""

IS_FIRST = not hasattr(mcp, "MCPError")
"""True for version 1, which has no protocol 2026-07-28, and so no questions that can wait."""

ProtocolError: type[Any] = getattr(mcp, "McpError" if IS_FIRST else "MCPError")
"""An error that a server sent instead of a result, in its attribute `error`."""

SESSION_TERMINATED = 32600
"""The code with which version 1 reports that the server has forgotten the session."""

Streams: TypeAlias = tuple[Any, Any]
"""The stream of received messages and that of messages to send."""

Transport: TypeAlias = AbstractAsyncContextManager[Streams]

_RELISTEN_SECONDS = 30.0

_CLOSED = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)

if not IS_FIRST:
    from mcp.types.version import MODERN_PROTOCOL_VERSIONS

    _result: TypeAdapter[Any] = TypeAdapter(types.CallToolResult | types.InputRequiredResult)

# The library logs texts of servers with tracebacks; the failures are logged elsewhere instead.
for _name in ("mcp", "client"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)
if IS_FIRST:
    # Version 1 logs them with the root logger.
    logging.getLogger().addFilter(lambda record: "mcp/shared/session" not in record.pathname)

OnChange = Callable[[], None]


class ListedTool(NamedTuple):
    """A tool as a server lists it."""

    name: str
    description: str
    schema: Mapping[str, Any]


def open_http(url: str, client: Any, message_bytes: int) -> AbstractAsyncContextManager[Any]:
    """Return the transport for streamable HTTP; the first two values of its result are the streams.

    Args:
        client: the HTTP client, which bounds bodies.
        message_bytes: maximum size of an event.
    """
    connect: Any = streamable_http.streamable_http_client
    limits = {} if IS_FIRST else {"max_sse_event_size": message_bytes}
    transport: AbstractAsyncContextManager[Any] = connect(url, http_client=client, **limits)
    return transport


def parse_message(text: str | bytes) -> SessionMessage:
    """Return the message in a line of JSON.

    Raises:
        ValueError: it is none.
    """
    if IS_FIRST:
        return SessionMessage(types.JSONRPCMessage.model_validate_json(text))
    return SessionMessage(types.jsonrpc_message_adapter.validate_json(text, by_name=False))


def build_error(request_id: int | str, text: str) -> SessionMessage:
    """Return the message of a server that refuses a request."""
    error = types.ErrorData(code=types.INTERNAL_ERROR, message=text)
    message = types.JSONRPCError(jsonrpc="2.0", id=request_id, error=error)
    return SessionMessage(types.JSONRPCMessage(message) if IS_FIRST else message)


def get_message(item: SessionMessage) -> Any:
    """Return the request, notification, response or error of a message."""
    message: Any = item.message
    return message.root if IS_FIRST else message


def follows_protocol(tools: Mapping[str, Any], version: str) -> bool:
    """Return True if the result of `tools/list` is valid.

    Args:
        version: the version of the protocol.
    """
    try:
        if IS_FIRST:
            types.ListToolsResult.model_validate(tools)
            return True
        types.methods.validate_server_result("tools/list", version, tools)
        for tool in tools["tools"]:
            types.Tool.model_validate(tool, by_name=False)
    except (KeyError, ValueError):
        return False
    return True


def to_json(value: Any) -> dict[str, Any]:
    """Return a value of the library as JSON, with the names of the protocol."""
    converted: dict[str, Any] = value.model_dump(mode="json", by_alias=True)
    return converted


class McpClient(ABC):
    """A client on an open connection.

    Attributes:
        version: the version of the protocol.
        server: name and version of the server.
        has_tools: True if the server lists tools.
    """

    def __init__(self, version: str, info: Any, tools: Any) -> None:
        self.version = version
        self.server = f"{info.name} {info.version}" if info is not None else ""
        self.has_tools = tools is not None

    @abstractmethod
    async def list_tools(self, cursor: str | None) -> tuple[list[ListedTool], str | None]:
        """Return a page of tools, and the cursor of the next one.

        Raises:
            ProtocolError, RuntimeError: the server refuses it, or the connection has ended.
            pydantic.ValidationError: the page does not follow the protocol.
        """

    @abstractmethod
    async def call(self, call: McpCall, seconds: float) -> dict[str, Any]:
        """Call a tool, and return the result as JSON. A cancel is sent to the server.

        Raises as `list_tools`.
        """

    @abstractmethod
    async def watch_changes(self) -> None:
        """Report changes of the list of tools, where the protocol sends them on request only."""


@asynccontextmanager
async def open_client(
    transport: Transport, seconds: float, on_change: OnChange
) -> AsyncIterator[McpClient]:
    """Connect through a transport.

    Args:
        seconds: maximum time of a request.
        on_change: called when the server reports that its tools have changed.
    """

    async def handle(message: Any) -> None:
        if isinstance(getattr(message, "root", message), types.ToolListChangedNotification):
            on_change()

    options: dict[str, Any] = {
        "message_handler": handle,
        "client_info": types.Implementation(name="agentctl", version=__version__),
    }
    if not IS_FIRST:
        options |= {"cache": None, "read_timeout_seconds": seconds}
        async with mcp.Client(transport, **options) as opened:
            yield _SecondClient(opened, on_change)
        return
    limit: Any = timedelta(seconds=seconds)
    async with transport as streams, mcp.ClientSession(*streams, limit, **options) as session:
        client = _FirstClient(session, await session.initialize())
        try:
            yield client
        finally:
            client.end()


class _FirstClient(McpClient):
    """The client of version 1."""

    def __init__(self, session: Any, opened: Any) -> None:
        super().__init__(str(opened.protocolVersion), opened.serverInfo, opened.capabilities.tools)
        self._session = session
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._cancels: set[asyncio.Task[None]] = set()

    async def list_tools(self, cursor: str | None) -> tuple[list[ListedTool], str | None]:
        params = types.PaginatedRequestParams(cursor=cursor) if cursor is not None else None
        page = await self._send(types.ListToolsRequest(params=params), types.ListToolsResult)
        tools = [
            ListedTool(tool.name, tool.description or "", tool.inputSchema) for tool in page.tools
        ]
        return tools, page.nextCursor

    async def call(self, call: McpCall, seconds: float) -> dict[str, Any]:
        if call.answers is not None:
            raise McpCallFailed("its questions need version 2 of the package mcp")
        params = types.CallToolRequestParams(name=call.tool, arguments=dict(call.arguments))
        if (traceparent := find_traceparent("mcp")) is not None:
            # Version 2 of the library does this itself.
            params.meta = types.RequestParams.Meta.model_validate({HEADER: traceparent})
        request = types.CallToolRequest(params=params)
        limit = timedelta(seconds=seconds)
        try:
            return to_json(await self._send(request, types.CallToolResult, limit))
        except ProtocolError as error:
            call.session_lost = error.error.code == SESSION_TERMINATED
            raise
        except asyncio.CancelledError:
            if call.request_id is not None and not self._ended.done():
                # This version does not send the cancel itself.
                task = asyncio.create_task(self._cancel(int(call.request_id)))
                self._cancels.add(task)
                task.add_done_callback(self._cancels.discard)
            raise

    async def watch_changes(self) -> None:
        """Return at once: these protocols report changes without being asked."""

    def end(self) -> None:
        """End the requests under way: the session of the library may keep them."""
        if not self._ended.done():
            self._ended.set_result(None)
        for task in self._cancels:
            task.cancel()

    async def _send(self, request: Any, result: Any, limit: timedelta | None = None) -> Any:
        sending = asyncio.ensure_future(
            self._session.send_request(types.ClientRequest(request), result, limit)
        )
        sending.add_done_callback(retrieve_exception)
        try:
            await asyncio.wait({sending, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                return sending.result()
        except _CLOSED as error:
            raise RuntimeError("the connection ended") from error
        finally:
            sending.cancel()
        raise RuntimeError("the connection ended")

    async def _cancel(self, request_id: int) -> None:
        params = types.CancelledNotificationParams(requestId=request_id)
        notification = types.CancelledNotification(params=params)
        with suppress(*_CLOSED):
            await self._session.send_notification(types.ClientNotification(notification))


class _SecondClient(McpClient):
    """The client of version 2."""

    def __init__(self, client: Any, on_change: OnChange) -> None:
        tools = client.server_capabilities.tools
        super().__init__(client.protocol_version, client.server_info, tools)
        self._listens = (
            tools is not None and tools.list_changed and self.version in MODERN_PROTOCOL_VERSIONS
        )
        self._client = client
        self._on_change = on_change

    async def list_tools(self, cursor: str | None) -> tuple[list[ListedTool], str | None]:
        params = types.PaginatedRequestParams(cursor=cursor)
        page = await self._client.session.list_tools(params=params)
        tools = [
            ListedTool(tool.name, tool.description or "", tool.input_schema) for tool in page.tools
        ]
        return tools, page.next_cursor

    async def call(self, call: McpCall, seconds: float) -> dict[str, Any]:
        request = types.CallToolRequest(params=_build_params(call))
        # Without the library's `call_tool`, which validates results against a schema of the
        # server: its regular expressions could block the event loop.
        result = await self._client.session.send_request(
            request, _result, request_read_timeout_seconds=seconds
        )
        return to_json(result)

    async def watch_changes(self) -> None:
        while self._listens:
            with suppress(ProtocolError, RuntimeError, TimeoutError):
                async with self._client.listen(tools_list_changed=True) as subscription:
                    async for _ in subscription:
                        self._on_change()
            await asyncio.sleep(_RELISTEN_SECONDS)
            self._on_change()


def _build_params(call: McpCall) -> Any:
    params = types.CallToolRequestParams(name=call.tool, arguments=dict(call.arguments))
    answers = call.answers
    if answers is None:
        return params
    try:
        responses = {
            key: types.ElicitResult.model_validate(answer)
            for key, answer in answers.responses.items()
        }
    except ValidationError:
        raise McpCallFailed("the answer has a form that the protocol does not allow") from None
    update = {"input_responses": responses, "request_state": answers.request_state}
    return params.model_copy(update=update)
