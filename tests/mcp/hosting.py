"""A catalog with MCP servers, and calls of their tools as a run makes them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentctl.config.mcp_table import McpServer
from agentctl.config.settings import Limits
from agentctl.records import times
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.mcp.calls import NOBODY, McpUser
from agentctl.runtime.transcript.conversation import Conversation
from agentctl.runtime.transcript.events import ToolCallCompleted
from tests.kit import fake_context
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.model import ModelEndpoint

if TYPE_CHECKING:
    from agentctl.runtime.mcp.server import HostedServer

__all__ = ["SERVER", "Hosted", "host", "stdio_spec"]

SERVER = Path(__file__).with_name("stdio_server.py")


def stdio_spec(*options: str, **values: Any) -> McpServer:
    """Return the entry of the test server, with the id `files`."""
    limits = {"call_seconds": fake_context.UNREACHED_SECONDS, **values}
    # It needs the standard library only, and without the site it starts in a third of the time.
    arguments = ("-IS", str(SERVER), *options)
    return McpServer("files", command=sys.executable, args=arguments, **limits)


class Hosted:
    """A catalog whose agent `writer` has all tools of its MCP servers."""

    nobody = NOBODY

    def __init__(self, catalog: Catalog, references: tuple[str, ...]) -> None:
        self.catalog = catalog
        self.references = references

    @property
    def server(self) -> HostedServer:
        """The server `files`."""
        return self.catalog.mcp.hosted["files"]

    async def names(self, user: McpUser = NOBODY) -> list[str]:
        """Return the names of the tools that a model gets."""
        return list(await self.catalog.mcp.build_actions(self.references, user, ()))

    async def call(
        self,
        tool: str,
        /,
        *,
        user: McpUser = NOBODY,
        context: fake_context.FakeContext | None = None,
        **arguments: Any,
    ) -> tuple[str, bool]:
        """Call a tool as a run does; return the result for the model, and True for a failure."""
        context = context or fake_context.FakeContext(self.catalog)
        actions = await self.catalog.mcp.build_actions(self.references, user, ())
        conversation = Conversation(context, actions)
        text = await conversation.call("c", f"files_{tool}", arguments)
        (done,) = (event for event in context.events if isinstance(event, ToolCallCompleted))
        return text, done.tool["tool_call_error"]

    async def text(self, tool: str, /, **arguments: Any) -> str:
        """Call a tool that must not fail."""
        text, failed = await self.call(tool, **arguments)
        assert not failed, text
        return text

    async def received(self) -> list[str]:
        """Return the methods that the server received."""
        return list(json.loads(await self.text("received")))

    async def wait_for_state(self, state: str) -> None:
        """Wait until the server has a state."""
        await wait_until(lambda: self.server.state == state)

    async def call_result(self, call: asyncio.Task[tuple[str, bool]]) -> tuple[str, bool]:
        """Return the result of a call that must end soon."""
        return await asyncio.wait_for(call, PATIENCE)

    def start_call(
        self, tool: str, /, **arguments: Any
    ) -> tuple[asyncio.Task[tuple[str, bool]], fake_context.FakeContext]:
        """Start a call in the background."""
        context = fake_context.FakeContext(self.catalog)
        return asyncio.create_task(self.call(tool, context=context, **arguments)), context

    async def cancel_call(self, tool: str, /, **arguments: Any) -> fake_context.FakeContext:
        """Call a tool, cancel the call when the server has received it, and return its context."""
        before = (await self.received()).count("tools/call")
        call, context = self.start_call(tool, **arguments)

        async def arrived() -> bool:
            # Each question is a call itself.
            nonlocal before
            before += 1
            return (await self.received()).count("tools/call") > before

        await wait_until(arrived)
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        context.transcript.close_open_calls(times.now())
        return context


@contextlib.asynccontextmanager
async def host(
    *specs: McpServer,
    references: tuple[str, ...] = ("mcp:files",),
    limits: Limits | None = None,
    folder: Path | None = None,
    endpoint: ModelEndpoint | None = None,
) -> AsyncIterator[Hosted]:
    """Open a catalog with MCP servers and close it at the end."""
    path = (folder or Path.cwd()) / "agentctl.toml"
    model = "exact" if endpoint is not None else "echo"
    base = fake_context.settings(endpoint, model=model, tools=references, limits=limits, path=path)
    catalog = Catalog.from_settings(replace(base, mcp_servers=specs))
    try:
        catalog.mcp.start()
        yield Hosted(catalog, references)
    finally:
        await catalog.close()
