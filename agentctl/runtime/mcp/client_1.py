"""The client of version 1 of the `mcp` library, which knows protocols up to 2025-11-25."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import anyio
from mcp.client.session import ClientSession

from agentctl.runtime.mcp.failures import McpCallFailed
from agentctl.runtime.mcp.library import (
    SESSION_TERMINATED,
    ListedTool,
    OnChange,
    ProtocolError,
    Transport,
    to_json,
    types,
)
from agentctl.runtime.tracing import HEADER, find_traceparent
from agentctl.work.event_loop import retrieve_exception

if TYPE_CHECKING:
    from agentctl.runtime.mcp.questions import McpAnswers
    from agentctl.runtime.mcp.watched import WatchedCall

_CLOSED = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)


@asynccontextmanager
async def open_client(
    transport: Transport, name: tuple[str, str], seconds: float, on_change: OnChange
) -> AsyncIterator[FirstClient]:
    """Connect through a transport; see `clients.open_client`."""

    async def handle(message: Any) -> None:
        if isinstance(getattr(message, "root", None), types.ToolListChangedNotification):
            on_change()

    info = types.Implementation(name=name[0], version=name[1])
    options: dict[str, Any] = {"message_handler": handle, "client_info": info}
    limit: Any = timedelta(seconds=seconds)
    async with transport as streams, ClientSession(*streams, limit, **options) as session:
        client = FirstClient(session, await session.initialize())
        try:
            yield client
        finally:
            client.end()


class FirstClient:
    """A client on an open connection; see `clients.McpClient`."""

    def __init__(self, session: Any, opened: Any) -> None:
        self.version = str(opened.protocolVersion)
        self.server = f"{opened.serverInfo.name} {opened.serverInfo.version}"
        self.has_tools = opened.capabilities.tools is not None
        self._session = session
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._cancels: set[asyncio.Task[None]] = set()

    async def list_tools(self, cursor: str | None) -> tuple[list[ListedTool], str | None]:
        params = types.PaginatedRequestParams(cursor=cursor) if cursor is not None else None
        request = types.ClientRequest(types.ListToolsRequest(params=params))
        page = await self._send(request, types.ListToolsResult)
        tools = [
            ListedTool(tool.name, tool.description or "", tool.inputSchema) for tool in page.tools
        ]
        return tools, page.nextCursor

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        watched: WatchedCall,
        answers: McpAnswers | None,
        seconds: float,
    ) -> dict[str, Any]:
        if answers is not None:
            raise McpCallFailed("its questions need version 2 of the package mcp")
        params = types.CallToolRequestParams(name=tool, arguments=dict(arguments))
        if (traceparent := find_traceparent("mcp")) is not None:
            # Version 2 of the library does this itself.
            params.meta = types.RequestParams.Meta.model_validate({HEADER: traceparent})
        request = types.ClientRequest(types.CallToolRequest(params=params))
        limit = timedelta(seconds=seconds)
        try:
            return to_json(await self._send(request, types.CallToolResult, limit))
        except ProtocolError as error:
            watched.session_lost = error.error.code == SESSION_TERMINATED
            raise
        except asyncio.CancelledError:
            if watched.request_id is not None and not self._ended.done():
                # This version does not send the cancel itself.
                task = asyncio.create_task(self._cancel(int(watched.request_id)))
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
        sending = asyncio.ensure_future(self._session.send_request(request, result, limit))
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
