"""The client of version 2 of the `mcp` library."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from mcp import Client, types
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from agentctl.runtime.mcp.failures import McpCallFailed
from agentctl.runtime.mcp.library import ListedTool, OnChange, ProtocolError, Transport, to_json

if TYPE_CHECKING:
    from agentctl.runtime.mcp.questions import McpAnswers
    from agentctl.runtime.mcp.watched import WatchedCall

_RELISTEN_SECONDS = 30.0

_result: TypeAdapter[Any] = TypeAdapter(types.CallToolResult | types.InputRequiredResult)


@asynccontextmanager
async def open_client(
    transport: Transport, name: tuple[str, str], seconds: float, on_change: OnChange
) -> AsyncIterator[SecondClient]:
    """Connect through a transport; see `clients.open_client`."""

    async def handle(message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            on_change()

    client = Client(
        transport,
        cache=None,
        client_info=types.Implementation(name=name[0], version=name[1]),
        message_handler=handle,
        read_timeout_seconds=seconds,
    )
    async with client:
        yield SecondClient(client, on_change)


class SecondClient:
    """A client on an open connection; see `clients.McpClient`."""

    def __init__(self, client: Client, on_change: OnChange) -> None:
        info, tools = client.server_info, client.server_capabilities.tools
        self.version: str = client.protocol_version
        self.server = f"{info.name} {info.version}" if info is not None else ""
        self.has_tools = tools is not None
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

    async def call(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        watched: WatchedCall,
        answers: McpAnswers | None,
        seconds: float,
    ) -> dict[str, Any]:
        request = types.CallToolRequest(params=_build_params(tool, arguments, answers))
        # Without the library's `call_tool`, which validates results against a schema of the
        # server: its regular expressions could block the event loop.
        result = await self._client.session.send_request(
            request, _result, request_read_timeout_seconds=seconds
        )
        return to_json(result)

    async def watch_changes(self) -> None:
        while self._listens:
            with contextlib.suppress(ProtocolError, RuntimeError, TimeoutError):
                async with self._client.listen(tools_list_changed=True) as subscription:
                    async for _ in subscription:
                        self._on_change()
            await asyncio.sleep(_RELISTEN_SECONDS)
            self._on_change()


def _build_params(tool: str, arguments: Mapping[str, Any], answers: McpAnswers | None) -> Any:
    params = types.CallToolRequestParams(name=tool, arguments=dict(arguments))
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
