"""The `mcp` library: what its major versions 1 and 2 name differently.

Values of the protocol leave this module, `client_1` and `client_2` as JSON, with the names of
the protocol, because the attributes of the library's objects differ between the versions.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple, TypeAlias

import mcp
from mcp.shared.message import SessionMessage

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
    from mcp.client import streamable_http

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
