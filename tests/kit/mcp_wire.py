"""A client of MCP at the level of HTTP, for protocols before 2026-07-28."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterator
from typing import Any

import httpx2

__all__ = ["LEGACY", "McpWire", "read_messages"]

LEGACY = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": "2025-11-25"}


class McpWire:
    """A session of MCP.

    Args:
        client: sends the requests, with a token; each worker of the server may get any of them.
        capabilities: those of the client of MCP.
    """

    def __init__(self, client: httpx2.Client, **capabilities: Any) -> None:
        self.client = client
        self._numbers = itertools.count(1)
        self.headers = dict(LEGACY)
        hello = {
            "protocolVersion": LEGACY["MCP-Protocol-Version"],
            "capabilities": capabilities,
            "clientInfo": {"name": "wire", "version": "1"},
        }
        opened = self.post({"id": 0, "method": "initialize", "params": hello})
        assert opened.status_code == 200, opened.text
        self.headers["Mcp-Session-Id"] = opened.headers["mcp-session-id"]

    def post(self, message: dict[str, Any], **options: Any) -> httpx2.Response:
        """Send a message."""
        body = {"jsonrpc": "2.0", **message}
        client = options.pop("through", self.client)
        return client.post("/mcp", json=body, headers={**self.headers, **options})  # type: ignore[no-any-return]

    def ask(self, method: str, **params: Any) -> Any:
        """Send a request and return its result."""
        answer = self.post({"id": next(self._numbers), "method": method, "params": params})
        return answer.json()["result"]

    @contextlib.contextmanager
    def call(
        self, tool: str, request_id: int | str, *, token: str | None = None, **arguments: Any
    ) -> Iterator[Iterator[dict[str, Any]]]:
        """Call a tool and yield the messages of the response, the last one its result."""
        params: dict[str, Any] = {"name": tool, "arguments": arguments}
        if token is not None:
            params["_meta"] = {"progressToken": token}
        body = {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}
        with self.client.stream("POST", "/mcp", json=body, headers=self.headers) as answer:
            assert answer.status_code == 200, answer.read()
            yield read_messages(answer.iter_lines())

    def cancel(
        self, request_id: int | str, *, through: httpx2.Client | None = None
    ) -> httpx2.Response:
        """Send the cancel of a call."""
        message = {"method": "notifications/cancelled", "params": {"requestId": request_id}}
        return self.post(message, through=through or self.client)

    def delete(self) -> httpx2.Response:
        """End the session."""
        return self.client.delete("/mcp", headers=self.headers)


def read_messages(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Return the messages in the lines of an event stream."""
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "data":
            yield json.loads(value)
