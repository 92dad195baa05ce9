"""The client of the `mcp` library, and conversions of its messages.

Values of the protocol leave this module as JSON, with the names of the protocol.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, NamedTuple, TypeAlias

import mcp
from mcp.client import streamable_http
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError

from agentctl import __version__
from agentctl.runtime.mcp.calls import McpCall, McpCallFailed

types: Any = mcp.types
"""The types of the protocol."""

ProtocolError: type[Any] = mcp.MCPError
"""An error that a server sent instead of a result, in its attribute `error`."""

Streams: TypeAlias = tuple[Any, Any]
"""The stream of received messages, and the stream of messages to send."""

Transport: TypeAlias = AbstractAsyncContextManager[Streams]

_RELISTEN_SECONDS = 30.0
"""Time after the end of a subscription to changes before the next one."""

_result: TypeAdapter[Any] = TypeAdapter(types.CallToolResult | types.InputRequiredResult)

# The library logs texts of servers with tracebacks; the failures are logged elsewhere instead.
for _name in ("mcp", "client"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)

OnChange = Callable[[], None]
"""Called when the server reports that its tools have changed."""


class ListedTool(NamedTuple):
    """A tool as a server lists it, unchecked."""

    name: str

    description: str
    """`""` without a description."""

    schema: Mapping[str, Any]
    """JSON Schema of the arguments."""


def open_http(url: str, client: Any, message_bytes: int) -> Transport:
    """Return the transport for streamable HTTP.

    Args:
        client: the HTTP client, which bounds bodies.
        message_bytes: maximum size of an event.
    """
    connect: Any = streamable_http.streamable_http_client
    transport: Transport = connect(url, http_client=client, max_sse_event_size=message_bytes)
    return transport


def follows_protocol(tools: Mapping[str, Any], version: str) -> bool:
    """Return True if the library accepts a list of tools.

    Args:
        tools: the result of `tools/list`.
        version: the version of the protocol.
    """
    try:
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


@asynccontextmanager
async def open_client(
    transport: Transport, seconds: float, on_change: OnChange
) -> AsyncIterator[McpClient]:
    """Connect through a transport.

    Args:
        seconds: maximum time of a request that has no limit of its own.
    """

    async def handle(message: Any) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            on_change()

    client = mcp.Client(
        transport,
        message_handler=handle,
        client_info=types.Implementation(name="agentctl", version=__version__),
        cache=None,
        read_timeout_seconds=seconds,
    )
    async with client as opened:
        yield McpClient(opened, on_change)


class McpClient:
    """A client on an open connection.

    Attributes:
        version: the version of the protocol.
        server: name and version of the server.
        has_tools: True if the server lists tools.
    """

    def __init__(self, client: Any, on_change: OnChange) -> None:
        self.version: str = client.protocol_version
        info = client.server_info
        self.server = f"{info.name} {info.version}" if info is not None else ""

        tools = client.server_capabilities.tools
        self.has_tools = tools is not None
        # Older versions of the protocol report changes without a subscription.
        self._subscribes = (
            tools is not None and tools.list_changed and self.version in MODERN_PROTOCOL_VERSIONS
        )

        self._client = client
        self._on_change = on_change

    async def list_tools(self, cursor: str | None) -> tuple[list[ListedTool], str | None]:
        """Return a page of tools, and the cursor of the next one.

        Raises:
            ProtocolError, RuntimeError: the server refuses it, or the connection has ended.
            pydantic.ValidationError: the page does not follow the protocol.
        """
        params = types.PaginatedRequestParams(cursor=cursor)
        page = await self._client.session.list_tools(params=params)
        tools = [
            ListedTool(tool.name, tool.description or "", tool.input_schema) for tool in page.tools
        ]
        return tools, page.next_cursor

    async def call(self, call: McpCall, seconds: float) -> dict[str, Any]:
        """Call a tool, and return the result as JSON. A cancel is sent to the server.

        Raises as `list_tools`.
        """
        request = types.CallToolRequest(params=_build_params(call))
        # Without the library's `call_tool`, which validates results against a schema of the
        # server: its regular expressions could block the event loop.
        result = await self._client.session.send_request(
            request, _result, request_read_timeout_seconds=seconds
        )
        return to_json(result)

    async def watch_changes(self) -> None:
        """Report changes of the list of tools, where the protocol sends them on request only."""
        while self._subscribes:
            with suppress(ProtocolError, RuntimeError, TimeoutError):
                async with self._client.listen(tools_list_changed=True) as subscription:
                    async for _ in subscription:
                        self._on_change()

            await asyncio.sleep(_RELISTEN_SECONDS)
            # The tools may have changed since the subscription ended.
            self._on_change()


def _build_params(call: McpCall) -> Any:
    """Return the parameters of the request of a call.

    Raises:
        McpCallFailed: the protocol does not allow the answer of a person, such as nested JSON.
    """
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
