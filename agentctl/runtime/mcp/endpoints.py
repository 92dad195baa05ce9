"""The two kinds of endpoints: a program (stdio), and a URL (streamable HTTP)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from agentctl.runtime.mcp.failures import McpUnavailable
from agentctl.runtime.mcp.library import IS_FIRST, Streams, open_http
from agentctl.runtime.mcp.stdio import Program, build_environment, find_command, run_program
from agentctl.runtime.mcp.values import NOBODY, McpUser, collect_secrets, expand_values

if TYPE_CHECKING:
    from agentctl.config.mcp_table import McpServer
    from agentctl.runtime.mcp.http import McpHttpClient

OnEnd = Callable[[str], None]


class Endpoint(ABC):
    """A server that connections can be opened to.

    Attributes:
        connect_seconds: maximum time of each request while a connection is opened.
        detail: a text of the server about its last failure, for operators; empty if there is none.
    """

    def __init__(self, server: McpServer, message_bytes: int) -> None:
        self.connect_seconds = server.connect_seconds
        self.detail = ""
        self._server = server
        self._message_bytes = message_bytes

    @abstractmethod
    def open(self, on_end: OnEnd) -> AbstractAsyncContextManager[Streams]:
        """Open the transport; `on_end` is called with a reason if it ends by itself.

        Raises:
            McpUnavailable: the transport cannot be opened.
        """

    def problem(self) -> str | None:
        """Return the reason of the last failure, if the transport knows it."""
        return None


class StdioEndpoint(Endpoint):
    """A program that speaks over its stdin and stdout."""

    def __init__(self, server: McpServer, folder: Path, message_bytes: int) -> None:
        super().__init__(server, message_bytes)
        self._folder = folder

    @asynccontextmanager
    async def open(self, on_end: OnEnd) -> AsyncIterator[Streams]:
        server = self._server
        command = find_command(server.command, self._folder)
        if command is None:
            raise McpUnavailable(f"there is no program {server.command}")
        program = Program(
            server=server.id,
            line=(command, *server.args),
            environment=build_environment(expand_values(server.env, NOBODY)),
            folder=self._folder,
            secrets=collect_secrets(server.env),
            message_bytes=self._message_bytes,
        )

        def note_end(reason: str, last_line: str) -> None:
            self.detail = last_line
            on_end(reason)

        self.detail = ""
        async with run_program(program, note_end) as streams:
            yield streams


class HttpEndpoint(Endpoint):
    """A URL with streamable HTTP, for one user or for all."""

    def __init__(self, server: McpServer, user: McpUser, message_bytes: int) -> None:
        super().__init__(server, message_bytes)
        self._user = user
        self._client: McpHttpClient | None = None

    @asynccontextmanager
    async def open(self, on_end: OnEnd) -> AsyncIterator[Streams]:
        from agentctl.runtime.mcp.http import McpHttpClient

        headers = expand_values(self._server.headers, self._user)
        client_type: type[McpHttpClient] = McpHttpClient
        if IS_FIRST:
            from agentctl.runtime.mcp.http_1 import FirstHttpClient

            client_type = FirstHttpClient
        self._client = client_type(headers, self.connect_seconds, self._message_bytes, on_end)
        async with (
            self._client,
            open_http(self._server.url, self._client, self._message_bytes) as opened,
        ):
            # Version 1 of the library adds a third value.
            read, write, *_ = opened
            yield read, write

    def problem(self) -> str | None:
        return self._client.problem if self._client is not None else None
