"""What lies between a program and its PostgreSQL, for tests: it passes on, holds back, and cuts."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

__all__ = ["Proxy", "ProxyApart", "proxied", "proxied_apart"]

_NAME = ".s.PGSQL.5432"
_COMMIT = b"COMMIT\x00"


class Proxy:
    """Belongs to one event loop.

    Attributes:
        url: of this end.
        at_commit: called when a connection sends a COMMIT, once; what it returns says when the
            connection is cut: "before" the server is sent it, or "after" it was answered.
        cut_commits: how many were cut so.
        connections: how many there are.
    """

    def __init__(self, target: Path, folder: Path) -> None:
        self._target = target
        self._folder = folder
        self._flows = asyncio.Event()
        self._flows.set()
        self._links = set[asyncio.Task[None]]()
        self.url = f"postgresql://postgres@/postgres?host={folder}"
        self.at_commit: Callable[[], Awaitable[str]] | None = None
        self.cut_commits = 0

    @property
    def connections(self) -> int:
        return len(self._links)

    def hold(self) -> None:
        """Be a black hole: take connections and bytes, and pass nothing on."""
        self._flows.clear()

    def release(self) -> None:
        """Pass on what was held back, and what comes."""
        self._flows.set()

    async def flowing(self) -> None:
        """Wait while it is a black hole."""
        await self._flows.wait()

    def cut(self) -> None:
        """Break off every connection that there is."""
        for link in self._links:
            link.cancel()

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on, until either side ends it."""
        link = asyncio.create_task(self._link(reader, writer))
        self._links.add(link)
        await asyncio.wait({link})
        self._links.discard(link)
        writer.transport.abort()

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server = await asyncio.open_unix_connection(str(self._target))
        except OSError:
            return
        doomed, decided = asyncio.Event(), asyncio.Lock()
        ways = [
            asyncio.create_task(self._there(reader, server, doomed, decided)),
            asyncio.create_task(self._back(server_reader, writer, doomed, decided)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.wait(ways)
            server.transport.abort()

    async def _there(
        self,
        reader: asyncio.StreamReader,
        server: asyncio.StreamWriter,
        doomed: asyncio.Event,
        decided: asyncio.Lock,
    ) -> None:
        while data := await _read(reader):
            await self._flows.wait()
            if self.at_commit is not None and _COMMIT in data:
                ask, self.at_commit = self.at_commit, None
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


async def _read(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(65_536)
    except OSError:
        return b""


@asynccontextmanager
async def proxied(target: Path) -> AsyncIterator[Proxy]:
    """A proxy on this event loop.

    Args:
        target: the socket of the server.
    """
    folder = Path(tempfile.mkdtemp(prefix="agentctl-way-"))
    proxy = Proxy(target, folder)
    server = await asyncio.start_unix_server(proxy.take, path=str(folder / _NAME))
    try:
        yield proxy
    finally:
        server.close()
        proxy.cut()
        while proxy.connections:
            await asyncio.sleep(0.005)
        shutil.rmtree(folder)


class ProxyApart:
    """A proxy on a thread of its own, for what blocks: the same by calls that return when done."""

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

    def _do(self, work: Callable[[], None]) -> None:
        done = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (work(), done.set()))
        assert done.wait(10)


@contextmanager
def proxied_apart(target: Path) -> Iterator[ProxyApart]:
    """A proxy on a thread of its own."""
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
        yield made.result(10)
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()
