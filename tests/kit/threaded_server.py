"""A server in a thread of the test process."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal
from unittest.mock import patch

import httpx2
import uvicorn
import uvloop
from starlette.types import ASGIApp

from agentctl.server import create_app
from agentctl.server.app import get_app_state
from agentctl.server.transport.protocol import HttpProtocol
from agentctl.service.service import Service
from tests.kit.conditions import PATIENCE
from tests.kit.deaths import kill_service
from tests.kit.deployment import Deployment

__all__ = ["ThreadedServer", "forget_modules", "serve_in_thread"]


@dataclass
class ThreadedServer:
    """A running server with a client.

    Attributes:
        deployment: what it serves.
        url: its base URL.
        client: an HTTP client without a credential.
        ids: ids created by the server, by the names of `tests.server.seeds`.
        thread: its thread, if it is one of `serve_in_thread`.
    """

    deployment: Deployment
    url: str
    client: httpx2.Client
    ids: dict[str, str] = field(default_factory=dict)
    thread: ServerThread | None = None

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def bearer(self, subject: str | None, *scopes: str) -> dict[str, str]:
        """Header fields with a token of the world."""
        return self.deployment.bearer(subject, *scopes)

    def stop(self) -> None:
        """Stop the server as a signal does: its runs may end during the drain."""
        assert self.thread is not None
        self.thread.stop()

    def kill(self) -> None:
        """Let the server die, as SIGKILL does: it ends nothing and stores nothing any more.

        A tool that works in a thread of its own works on until its end.
        """
        assert self.thread is not None
        self.thread.kill()


@contextlib.contextmanager
def serve_in_thread(
    deployment: Deployment,
    app: ASGIApp | None = None,
    *,
    lifespan: str = "on",
    http: type[HttpProtocol] | Literal["auto"] = HttpProtocol,
    code_leaves_connections: bool = False,
    variables: Mapping[str, str] | None = None,
) -> Iterator[ThreadedServer]:
    """Serve an application, by default that of the deployment, on a real socket, in a thread.

    Args:
        http: the class of connections; `auto` for that of plain uvicorn.
        code_leaves_connections: close the connections that are left at the end, as the end of a
            process would: the code of agents seldom closes the clients of its models. Otherwise
            they are a failure of the test.
        variables: environment variables while the server starts and imports the modules of users.
    """
    _forget_modules_of_others(deployment.folder)
    served_app = app or create_app(deployment.settings)
    config = uvicorn.Config(
        served_app,
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
    thread = ServerThread(served_app, config, code_leaves_connections)
    try:
        with patch.dict(os.environ, variables or {}):
            thread.start()
            port = _port(thread.server, thread)
        url = f"http://127.0.0.1:{port}"
        with httpx2.Client(base_url=url, timeout=PATIENCE) as client:
            yield ThreadedServer(deployment, url, client, thread=thread)
    finally:
        thread.end()


class _Loop(uvloop.Loop):
    """An event loop that knows the connections which its clients have opened."""

    def __init__(self) -> None:
        super().__init__()
        # They are kept: one that the code of an agent has dropped without closing it would else be
        # a warning in any later test, when its garbage is collected.
        self._opened = set[asyncio.Transport]()

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


class ServerThread(threading.Thread):
    """The thread of a server, with its event loop."""

    def __init__(self, app: ASGIApp, config: uvicorn.Config, code_leaves_connections: bool) -> None:
        super().__init__(daemon=True)
        self.server = uvicorn.Server(config)
        self._app: Any = app
        self._code_leaves_connections = code_leaves_connections
        self._loop: _Loop | None = None
        self._main: asyncio.Task[Any] | None = None

    @property
    def service(self) -> Service:
        """The service of the application, while it runs."""
        service = get_app_state(self._app).service
        assert service is not None
        return service

    def run(self) -> None:
        with asyncio.Runner(loop_factory=_Loop) as runner:
            loop = runner.get_loop()
            assert isinstance(loop, _Loop)
            self._loop = loop
            runner.run(self._serve(loop))

    async def _serve(self, loop: _Loop) -> None:
        self._main = asyncio.current_task()
        await self.server.serve()
        if self._code_leaves_connections:
            await loop.close_connections()

    def end(self) -> None:
        """End the server without a drain, and wait for the end."""
        self.server.should_exit = True
        self.join(PATIENCE)
        assert not self.is_alive()

    def stop(self) -> None:
        """Drain the server, end it, and wait for the end."""
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(self.service.drain(), self._loop).result(PATIENCE)
        self.end()

    def kill(self) -> None:
        """Let the server die, and wait for the end of its thread."""
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(self._die(self._loop), self._loop).result(PATIENCE)
        self.end()

    async def _die(self, loop: _Loop) -> None:
        service = self.service
        # Until the first await nothing else runs: this is the moment of the death.
        kill_service(service)
        for connection in self.server.server_state.connections:
            connection.transport.abort()
        while others := asyncio.all_tasks() - {self._main, asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.wait(others, timeout=0.1)

        await service.hosting.catalog.close()
        await loop.close_connections()
        # The tools in its threads would die with the process: the end of the loop waits for none.
        loop.set_default_executor(ThreadPoolExecutor(1))
        self.server.force_exit = True


def forget_modules(folder: Path) -> None:
    """Forget the modules of a folder: the next server there is as another process."""
    for file in folder.glob("*.py"):
        sys.modules.pop(file.stem, None)


def _forget_modules_of_others(folder: Path) -> None:
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
