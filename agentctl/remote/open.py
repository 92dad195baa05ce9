"""The operations of the server at a URL, of any product."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agentctl.interop.agentos.remote import AgentOSOperations, recognize
from agentctl.operations import Operations
from agentctl.remote.client import RemoteOperations


@asynccontextmanager
async def open_remote(
    url: str,
    token: str | None,
    *,
    allow_insecure: bool = False,
    read_timeout: float | None = None,
) -> AsyncIterator[tuple[Operations, str | None]]:
    """Open the operations of a server, and recognise its product once.

    Args:
        url, token, allow_insecure: as for `RemoteOperations`.
        read_timeout: seconds to wait for a response; None: the default of `RemoteOperations`.

    Yields:
        The operations; and the name of another product, such as `AgentOS 3.1.10`, or None.

    Raises:
        errors.Unavailable: the server cannot be reached or does not respond.
        errors.UsageError: see `RemoteOperations`.
    """
    seconds = {} if read_timeout is None else {"read_timeout": read_timeout}
    remote = RemoteOperations(url, token, allow_insecure=allow_insecure, **seconds)
    async with remote as operations:
        server = await recognize(operations.connection)
        if server is None:
            yield operations, None
        else:
            adapter = AgentOSOperations(operations.connection, server)
            yield adapter, str(server)
