"""The operations of the server at a URL, of any product."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentctl.extensions import load_extensions
from agentctl.interface.operations import ROUTES, Operations
from agentctl.interface.operations.partial import PartialOperations
from agentctl.remote.client import RemoteOperations
from agentctl.remote.connection import DEFAULT_TIMEOUTS, Timeouts
from agentctl.remote.failures import parse_object


@asynccontextmanager
async def open_remote(
    url: str, token: str | None, *, allow_insecure: bool = False, read_timeout: float | None = None
) -> AsyncIterator[tuple[Operations, str | None]]:
    """Open the operations of a server, and recognise its product once.

    It yields the operations, and the name of another product, such as `Product 3.1.10`, or None.

    Raises:
        errors.Unavailable: the server cannot be reached or does not respond.
        errors.UsageError: see `RemoteOperations`.
    """
    timeouts = DEFAULT_TIMEOUTS if read_timeout is None else Timeouts(read=read_timeout)
    remote = RemoteOperations(url, token, timeouts=timeouts, allow_insecure=allow_insecure)
    async with remote as operations:
        raw = await operations.connection.probe(ROUTES["get_info"].template)
        info = (raw is not None and parse_object(raw)) or {}
        for extension in load_extensions():
            adapter: PartialOperations | None = extension.adapt_server(operations.connection, info)
            if adapter is not None:
                yield adapter, adapter.name
                return
        yield operations, None
