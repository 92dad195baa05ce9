"""A server in a thread of the test process."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import httpx2
import uvicorn
import uvloop
from starlette.types import ASGIApp

from agentctl.server import create_app
from agentctl.server.transport.protocol import HttpProtocol
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import Deployment

__all__ = ["ThreadedServer", "serve_in_thread"]


@dataclass
class ThreadedServer:
    """A running server with a client.

    Attributes:
        deployment: what it serves.
        url: its base URL.
        client: an HTTP client without a credential.
        ids: ids created by the server, by the names of `tests.server.seeds`.
    """

    deployment: Deployment
    url: str
    client: httpx2.Client
    ids: dict[str, str] = field(default_factory=dict)

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def bearer(self, subject: str | None, *scopes: str) -> dict[str, str]:
        """Header fields with a token of the world."""
        return self.deployment.bearer(subject, *scopes)


@contextlib.contextmanager
def serve_in_thread(
    deployment: Deployment,
    app: ASGIApp | None = None,
    *,
    lifespan: str = "on",
    http: type[HttpProtocol] | Literal["auto"] = HttpProtocol,
    code_leaves_connections: bool = False,
) -> Iterator[ThreadedServer]:
    """Serve an application, by default that of the deployment, on a real socket, in a thread.

    Args:
        http: the class of connections; `auto` for that of plain uvicorn.
        code_leaves_connections: close the connections that are left at the end, as the end of a
            process would: the code of agents seldom closes the clients of its models. Otherwise
            they are a failure of the test.
    """
    _forget_modules(deployment.folder)
    config = uvicorn.Config(
        app or create_app(deployment.settings),
        port=0,
        loop="none",
        http=http,
        ws="none",
        lifespan=lifespan,  # type: ignore[arg-type]
        log_config=None,
        access_log=False,
        timeout_graceful_shutdown=5,
        # Clients keep their connections for 5 seconds: the server does not close them first.
        timeout_keep_alive=60,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=_run, args=(server, code_leaves_connections), daemon=True)
    thread.start()
    try:
        port = _port(server, thread)
        url = f"http://127.0.0.1:{port}"
        with httpx2.Client(base_url=url, timeout=PATIENCE) as client:
            yield ThreadedServer(deployment, url, client)
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()


class _Loop(uvloop.Loop):
    """An event loop that knows the connections which its clients have opened."""

    def __init__(self) -> None:
        super().__init__()
        self._opened = weakref.WeakSet[asyncio.Transport]()

    async def create_connection(self, *arguments: Any, **options: Any) -> Any:
        transport, protocol = await super().create_connection(*arguments, **options)
        self._opened.add(transport)
        return transport, protocol

    async def close_connections(self) -> None:
        """Close the connections that are open."""
        for transport in list(self._opened):
            transport.abort()
        # A transport is closed in the next turn of the loop.
        await asyncio.sleep(0)


def _run(server: uvicorn.Server, code_leaves_connections: bool) -> None:
    async def serve() -> None:
        await server.serve()
        if code_leaves_connections:
            await loop.close_connections()

    with asyncio.Runner(loop_factory=_Loop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, _Loop)
        runner.run(serve())


def _forget_modules(folder: Path) -> None:
    """Forget modules of other deployments whose names are those of files in the folder."""
    for file in folder.glob("*.py"):
        loaded = sys.modules.get(file.stem)
        if loaded is not None and loaded.__file__ != str(file):
            del sys.modules[file.stem]


def _port(server: uvicorn.Server, thread: threading.Thread) -> int:
    deadline = time.monotonic() + PATIENCE
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return int(server.servers[0].sockets[0].getsockname()[1])
