"""A proxy between a program and PostgreSQL: it forwards bytes, delays them, or cuts connections."""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from tests.kit.conditions import PATIENCE

__all__ = ["Proxy", "ProxyApart", "proxied", "proxied_apart"]

_NAME = ".s.PGSQL.5432"
_COMMIT = b"COMMIT\x00"
_LISTEN = re.compile(rb'\bLISTEN "(\w+)"')


class Proxy:
    """A proxy on one event loop.

    Attributes:
        url: the URL of the proxy.
        at_commit: called once, when a connection sends a COMMIT. It returns "before" to cut the
            connection before the server receives the COMMIT, or "after" to cut it before the
            response.
        dropped: names of startup parameters that the server does not receive, as with a
            connection pooler.
        is_deafening: True if the server does not receive LISTEN, as with a connection pooler in
            transaction mode.
        cut_commits: number of cut commits.
        connections: number of open connections.
    """

    def __init__(self, target: Path, folder: Path) -> None:
        self._target = target
        self._folder = folder
        self._flows = asyncio.Event()
        self._flows.set()
        self._links = set[asyncio.Task[None]]()
        self.url = f"postgresql://postgres@/postgres?host={folder}"
        self.at_commit: Callable[[], Awaitable[str]] | None = None
        self.dropped = frozenset[bytes]()
        self.is_deafening = False
        self.cut_commits = 0

    @property
    def connections(self) -> int:
        return len(self._links)

    def hold(self) -> None:
        """Accept connections and bytes, and forward nothing."""
        self._flows.clear()

    def release(self) -> None:
        """Forward the delayed bytes and all later ones."""
        self._flows.set()

    async def flowing(self) -> None:
        """Wait while nothing is forwarded."""
        await self._flows.wait()

    def lead_to(self, target: Path) -> None:
        """Connect to another server from now on. Open connections stay."""
        self._target = target

    def cut(self) -> None:
        """Cut every open connection."""
        for link in self._links:
            link.cancel()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until either side ends it."""
        link = asyncio.create_task(self._link(reader, writer))
        self._links.add(link)
        try:
            await asyncio.wait({link})
        finally:
            self._links.discard(link)
            writer.transport.abort()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server = await asyncio.open_unix_connection(str(self._target))
        except OSError:
            return
        doomed = asyncio.Event()
        decided = asyncio.Lock()
        ways = [
            asyncio.create_task(self._there(reader, server, doomed, decided)),
            asyncio.create_task(self._back(server_reader, writer, doomed, decided)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            server.transport.abort()
            await asyncio.wait(ways)

    async def _there(
        self,
        reader: asyncio.StreamReader,
        server: asyncio.StreamWriter,
        doomed: asyncio.Event,
        decided: asyncio.Lock,
    ) -> None:
        begins = True
        while data := await _read(reader):
            await self._flows.wait()
            if begins and self.dropped:
                data = _drop_parameters(data, self.dropped)
            begins = False
            if self.is_deafening:
                data = _LISTEN.sub(rb"SELECT '\1'", data)
            if self.at_commit is not None and _COMMIT in data:
                ask = self.at_commit
                self.at_commit = None
                async with decided:
                    when = await ask()
                self.cut_commits += 1
                if when == "before":
                    return
                doomed.set()
            server.write(data)

    async def _back(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        doomed: asyncio.Event,
        decided: asyncio.Lock,
    ) -> None:
        while data := await _read(reader):
            await self._flows.wait()
            if doomed.is_set():
                return
            writer.write(data)
        async with decided:
            return


def _drop_parameters(startup: bytes, names: frozenset[bytes]) -> bytes:
    """Remove parameters from the first message of a connection: its size, a version, and pairs."""
    parts = iter(startup[8:].split(b"\0"))
    kept = [
        (name, value)
        for name, value in zip(parts, parts, strict=False)
        if name and name not in names
    ]
    body = startup[4:8] + b"".join(b"%b\0%b\0" % pair for pair in kept) + b"\0"
    return (len(body) + 4).to_bytes(4, "big") + body


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(65_536)
    except OSError:
        return b""


@asynccontextmanager
async def proxied(target: Path) -> AsyncIterator[Proxy]:
    """Run a proxy on this event loop.

    Args:
        target: the path of the socket of the server.
    """
    folder = Path(tempfile.mkdtemp(prefix="agentctl-way-"))
    proxy = Proxy(target, folder)
    server = await asyncio.start_unix_server(proxy.take, path=str(folder / _NAME))
    try:
        yield proxy
    finally:
        server.close()
        # The loop takes some turns from the acceptance of a connection to its `take`.
        for _ in range(10):
            await asyncio.sleep(0)
        proxy.cut()
        while proxy.connections:
            await asyncio.sleep(0.005)
        shutil.rmtree(folder)


class ProxyApart:
    """A proxy on a separate thread, with methods that block until they are done."""

    def __init__(self, loop: asyncio.AbstractEventLoop, proxy: Proxy) -> None:
        self._loop = loop
        self._proxy = proxy
        self.url = proxy.url

    def hold(self) -> None:
        self._do(self._proxy.hold)

    def release(self) -> None:
        self._do(self._proxy.release)

    def cut(self) -> None:
        self._do(self._proxy.cut)

    def drop(self, *names: str) -> None:
        """Drop startup parameters of later connections."""
        dropped = frozenset(name.encode() for name in names)
        self._do(lambda: setattr(self._proxy, "dropped", dropped))

    def deafen(self, on: bool) -> None:
        """Drop each LISTEN from now on, or forward it again."""
        self._do(lambda: setattr(self._proxy, "is_deafening", on))

    def _do(self, work: Callable[[], None]) -> None:
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (work(), done.set()))
        assert done.wait(PATIENCE)


@contextmanager
def proxied_apart(target: Path) -> Iterator[ProxyApart]:
    """Run a proxy on a separate thread."""
    made = Future[ProxyApart]()
    ended = asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with proxied(target) as proxy:
            made.set_result(ProxyApart(loop, proxy))
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        yield made.result(PATIENCE)
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
