"""Many clients that disconnect: the state of their runs, and no leaked connection or task."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentctl.runs.engine.engine import CLIENT_DISCONNECTED, Engine
from agentctl.runtime.models import stream_transport
from agentctl.server import create_app
from agentctl.server.answers import cancelling_on_disconnect
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.server.database_checks import open_read_only
from tests.server.seeds import as_caller

CLIENTS = 12
"""Clients that disconnect in one way; there are four ways, three with a provider call."""

POOL = 20
"""Connections to a provider that are kept for later calls: fewer than the clients need."""

LISTENS = "0A"


class Watched:
    """An application whose state is read from outside of its event loop."""

    def __init__(self, deployment: Deployment) -> None:
        self.app = create_app(deployment.settings)
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._loop = asyncio.get_running_loop()
        app: ASGIApp = self.app
        await app(scope, receive, send)

    @property
    def engine(self) -> Engine:
        engine: Engine = self.app.state.agentctl.running_service.hosting.engine
        return engine

    @property
    def tasks(self) -> int:
        assert self._loop is not None
        return len(asyncio.all_tasks(self._loop))


def sockets(port: int, *, remote: bool) -> int:
    """Return the number of connections of this process on or to a port."""
    count = 0
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        _, here, there, state, *_, inode = line.split()[:10]
        side = there if remote else here
        count += side.endswith(f":{port:04X}") and state != LISTENS and inode != "0"
    return count


@contextlib.asynccontextmanager
async def connected(
    host: ThreadedServer,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a connection that is closed at the end, every second time with a reset."""
    reader, writer = await asyncio.open_connection("127.0.0.1", host.port)
    try:
        yield reader, writer
    finally:
        connection = writer.get_extra_info("socket")
        if connection.getsockname()[1] % 2:
            linger = struct.pack("ii", 1, 0)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def request(host: ThreadedServer, agent: str, message: str, *, stream: bool) -> tuple[bytes, bytes]:
    """Return header and body of a request that starts a run."""
    body = orjson.dumps({"message": message, "session_id": "s1", "stream": stream})
    fields = {**as_caller(host, "me"), "Host": "here", "Content-Type": "application/json"}
    fields["Content-Length"] = str(len(body))
    lines = [f"POST /agents/{agent}/runs HTTP/1.1", *(f"{k}: {v}" for k, v in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode(), body


async def leave_mid_body(host: ThreadedServer, agent: str, message: str) -> None:
    head, body = request(host, agent, message, stream=True)
    async with connected(host) as (_, writer):
        writer.write(head + body[:-5])
        await writer.drain()


async def leave_before_the_first_event(host: ThreadedServer, agent: str, message: str) -> None:
    head, body = request(host, agent, message, stream=True)
    async with connected(host) as (_, writer):
        writer.write(head + body)
        await writer.drain()


async def leave_mid_stream(host: ThreadedServer, agent: str, message: str) -> None:
    head, body = request(host, agent, message, stream=True)
    async with connected(host) as (reader, writer):
        writer.write(head + body)
        assert (await reader.readline()).split()[1] == b"200"
        await reader.readuntil(b"data: ")


async def leave_while_it_works(host: ThreadedServer, agent: str, message: str) -> None:
    head, body = request(host, agent, message, stream=False)
    async with connected(host) as (_, writer):
        writer.write(head + body)
        async with asyncio.timeout(PATIENCE):
            while not has_run(host.deployment, message):
                await asyncio.sleep(0.1)


def has_run(deployment: Deployment, message: str) -> bool:
    """Return True if there is a run with this message."""
    with open_read_only(deployment.folder / "main.db") as connection:
        sql = "SELECT count(*) FROM runs WHERE input = ?"
        return connection.execute(sql, (message,)).fetchall() != [(0,)]


WAYS = (leave_mid_body, leave_before_the_first_event, leave_mid_stream, leave_while_it_works)


async def leave(host: ThreadedServer, agent: str, message: str, clients: int) -> None:
    """Have this number of clients disconnect in each way."""
    async with asyncio.TaskGroup() as leaving:
        for way in WAYS:
            for number in range(clients):
                said = f'{message} {way.__name__} {number} {{"seconds": 1}}'
                leaving.create_task(way(host, agent, said))


@pytest.mark.parametrize(
    ("on_disconnect", "agent", "status"),
    [("cancel", "half", "CANCELLED"), ("detach", "tool-wait", "COMPLETED")],
)
async def test_disconnected_clients_leak_nothing(
    tmp_path: Path,
    model_endpoint: ModelEndpoint,
    monkeypatch: pytest.MonkeyPatch,
    on_disconnect: str,
    agent: str,
    status: str,
) -> None:
    monkeypatch.setattr(stream_transport, "MAXIMUM_IDLE", POOL)
    server = f'on_disconnect = "{on_disconnect}"'
    deployment = create_deployment(tmp_path, model_endpoint.base_url, server=server)
    watched = Watched(deployment)
    with serve_in_thread(deployment, watched) as host:
        await leave(host, agent, "first", 1)
        await wait_until(lambda: not watched.engine.live_runs())
        await wait_until(lambda: sockets(host.port, remote=False) == 0)
        tasks = watched.tasks
        calls = sockets(model_endpoint.port, remote=True)
        await leave(host, agent, "then", CLIENTS)
        await wait_until(lambda: not watched.engine.live_runs())
        await wait_until(lambda: sockets(host.port, remote=False) == 0)
        await wait_until(lambda: watched.tasks <= tasks)
        # What other servers of this process keep open to the endpoint is in `calls`.
        kept = calls if on_disconnect == "cancel" else calls + POOL
        await wait_until(lambda: sockets(model_endpoint.port, remote=True) <= kept)
    check_runs(deployment, status)


def check_runs(deployment: Deployment, status: str) -> None:
    """Check that exactly the complete requests have runs, unless the client left too early."""
    with open_read_only(deployment.folder / "main.db") as connection:
        sql = "SELECT input, status, cancel_requested_by, cancel_reason FROM runs"
        ends = {message: end for message, *end in connection.execute(sql)}
    cancelled = ["CANCELLED", "me", CLIENT_DISCONNECTED]
    wanted = cancelled if status == "CANCELLED" else ["COMPLETED", None, None]
    for way in WAYS:
        found = [end for message, end in ends.items() if way.__name__ in message]
        assert [end for end in found if end != wanted] == [], way
        if way is leave_mid_body:
            assert found == []
        elif way is not leave_before_the_first_event:
            assert len(found) == CLIENTS + 1


async def test_disconnect_at_the_end_of_the_work_cancels_nothing_after_it() -> None:
    loop = asyncio.get_running_loop()
    disconnect: asyncio.Future[Message] = loop.create_future()
    work: asyncio.Future[str] = loop.create_future()

    async def answer() -> str:
        async with cancelling_on_disconnect(lambda: disconnect):
            result = await work
        for _ in range(3):
            await asyncio.sleep(0)
        return result

    task = asyncio.create_task(answer())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    disconnect.set_result({"type": "http.disconnect"})
    work.set_result("done")
    assert await task == "done"
