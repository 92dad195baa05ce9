"""Very many concurrent streams in one server process: correctness, speed and memory.

`python -m bench.streams [STREAMS]`, by default a thousand. All streams are open and have
received their first event before the model sends its first word to any of them. Every stream is
checked: numbers without a gap, RunStarted first and RunCompleted last, all words. Then 200 readers
receive long answers, first quickly, then so slowly that they pause after one event until all runs
have ended. Memory is the resident set of the server process.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from bench.measure import Row, at_most, build_figure_row
from bench.paced import build_word
from bench.servers import serve_endpoint
from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.process import ServerProcess, base_environment, serve_config

FILES = 16_384
"""Maximum number of open files of each process."""

STREAMS = 1_000
ROUNDS = 3
READERS = 200

RECEIVE_BYTES = 4_096
"""Receive buffer of a reader that does not read, in bytes."""

SAMPLE_SECONDS = 0.1

AGENT = """
[limits]
concurrent_runs = 4096

[[models]]
id = "paced"
provider = "openai"
model = "paced"
base_url = "{url}"

[[agents]]
id = "paced"
name = "Paced"
model = "paced"
history_runs = 0
"""


class Reply(NamedTuple):
    """The answer of the model for each run; see `bench.paced`."""

    words: int
    size: int
    seconds: float
    hold: bool

    @property
    def message(self) -> str:
        return json.dumps(self._asdict())

    @property
    def answer(self) -> str:
        return "".join(build_word(number, self.size) for number in range(self.words))


SHORT = Reply(words=20, size=6, seconds=0.5, hold=True)
LONG = Reply(words=128, size=4_096, seconds=0.1, hold=False)


def _build_request(token: str, body: bytes, fields: bytes = b"") -> bytes:
    head = b"POST /agents/paced/runs HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
    given = b"Authorization: Bearer %s\r\nContent-Length: %d\r\n" % (token.encode(), len(body))
    return b"".join((head, given, fields, b"\r\n", body))


class Event(NamedTuple):
    number: int
    name: str
    data: dict[str, Any]


class Stream:
    """A streamed run, parsed by hand: a client library would cost more than the server."""

    def __init__(self, port: int, token: str, reply: Reply, session_id: str) -> None:
        body = {"message": reply.message, "session_id": session_id}
        self._body = json.dumps(body).encode()
        self._port = port
        self._token = token
        self._reply = reply
        self._found: list[Event] = []
        self.first_seconds = 0.0

    async def open(self, receive_bytes: int | None = None) -> None:
        """Send the request and read the first event."""
        start = time.perf_counter()
        connection = socket.socket()
        connection.setblocking(False)
        if receive_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self._port))
        limit = receive_bytes or 65_536
        self._reader, self._writer = await asyncio.open_connection(sock=connection, limit=limit)
        self._writer.write(_build_request(self._token, self._body))
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        assert await self._next()
        self.first_seconds = time.perf_counter() - start

    async def read(self) -> None:
        """Read the stream to its end and check that all events have come."""
        while await self._next():
            pass
        self._writer.close()
        first, *said, last = self._found
        assert [event.number for event in self._found] == list(range(len(self._found)))
        assert (first.name, last.name) == ("RunStarted", "RunCompleted"), last
        assert {event.name for event in said} == {"RunContent"}
        text = "".join(event.data["content"] for event in said)
        assert text == last.data["content"] == self._reply.answer

    @property
    def received(self) -> int:
        """The number of events so far."""
        return len(self._found)

    async def _next(self) -> bool:
        """Read a chunk of complete events; return False at the end."""
        while size := int(await self._reader.readline(), 16):
            chunk = (await self._reader.readexactly(size + 2)).decode().removesuffix("\r\n")
            events = [self._parse(text) for text in chunk.split("\n\n") if text]
            found = [event for event in events if event is not None]
            self._found += found
            if found:
                return True
        return False

    def _parse(self, text: str) -> Event | None:
        lines = [line.split(": ", 1) for line in text.splitlines() if not line.startswith(":")]
        fields = dict(line for line in lines if len(line) == 2)
        if not fields:
            return None
        return Event(int(fields["id"]), fields["event"], json.loads(fields["data"]))


class Usage:
    """CPU seconds and memory in bytes that a process has used since this object was created."""

    def __init__(self, process_id: int) -> None:
        self._folder = Path(f"/proc/{process_id}")
        self._cpu_before = self._cpu()
        self.before = self.peak = self.now
        self._watching = asyncio.create_task(self._watch())

    @property
    def now(self) -> int:
        pages = (self._folder / "statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()

    @property
    def cpu_seconds(self) -> float:
        return self._cpu() - self._cpu_before

    def _cpu(self) -> float:
        fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    async def _watch(self) -> None:
        while True:
            self.peak = max(self.peak, self.now)
            await asyncio.sleep(SAMPLE_SECONDS)

    def growth(self, count: int) -> float:
        """Return the difference of the peak from the start, in KB per stream."""
        return (self.peak - self.before) / count / 1024

    def end(self) -> None:
        """Stop sampling."""
        self._watching.cancel()


@dataclass(frozen=True)
class Setup:
    """A server and its model endpoint."""

    server: ServerProcess
    endpoint: str
    deployment: Deployment

    @property
    def port(self) -> int:
        return int(self.server.url.rpartition(":")[2])

    @property
    def token(self) -> str:
        return self.deployment.token("me", ADMIN, seconds=3_600)

    def streams(self, count: int, reply: Reply) -> list[Stream]:
        """Create streams, each with a new session."""
        token = self.token
        return [Stream(self.port, token, reply, f"s{number}") for number in range(count)]

    async def all_wait(self, count: int) -> None:
        """Wait until `count` calls wait at the model."""
        async with httpx2.AsyncClient() as client:
            while (await client.get(f"{self.endpoint}/waiting")).json()["waiting"] < count:
                await asyncio.sleep(0.05)

    async def open_gate(self) -> None:
        async with httpx2.AsyncClient() as client:
            await client.post(f"{self.endpoint}/open")

    async def all_ended(self) -> None:
        """Wait until no run is live."""
        headers = {"Authorization": f"Bearer {self.token}"}
        async with httpx2.AsyncClient(headers=headers, timeout=60) as client:
            url = f"{self.server.url}/runs?live=true&limit=1"
            while (await client.get(url)).json()["data"]:
                await asyncio.sleep(0.1)


@contextmanager
def serve_deployment(folder: Path, url: str) -> Iterator[Setup]:
    """Run a new server."""
    folder.mkdir()
    deployment = create_deployment(folder, f"{url}/v1", extra=AGENT.format(url=f"{url}/v1"))
    with serve_config(deployment.path, environment=base_environment()) as server:
        yield Setup(server, url, deployment)


class ConcurrentResult(NamedTuple):
    """The result of a round: times in seconds, memory in bytes, `each` in KB per stream."""

    firsts: list[float]
    opened: float
    took: float
    cpu: float
    before: int
    waiting: int
    peak: int
    after: int
    each: float


async def measure_concurrent(place: Setup, count: int, reply: Reply) -> ConcurrentResult:
    """Open all streams, release the model, and read them all."""
    usage = Usage(place.server.process.pid)
    streams = place.streams(count, reply)
    start = time.perf_counter()
    await asyncio.gather(*(stream.open() for stream in streams))
    async with asyncio.TaskGroup() as reading:
        for stream in streams:
            reading.create_task(stream.read())
        await place.all_wait(count)
        opened = time.perf_counter() - start
        waiting = usage.now
        await place.open_gate()
    took = time.perf_counter() - start - opened
    await place.all_ended()
    usage.end()
    firsts = [stream.first_seconds for stream in streams]
    return ConcurrentResult(
        firsts,
        opened,
        took,
        usage.cpu_seconds,
        usage.before,
        waiting,
        usage.peak,
        usage.now,
        usage.growth(count),
    )


async def measure_plain(place: Setup, count: int) -> float:
    """Start runs that are not streamed; return the KB of each while all wait for the model."""
    usage = Usage(place.server.process.pid)
    usage.end()
    message = SHORT._replace(words=1).message
    body = json.dumps({"message": message, "stream": False}).encode()
    request = _build_request(place.token, body, b"Connection: close\r\n")

    async def run() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        return answer

    async with asyncio.TaskGroup() as running:
        runs = [running.create_task(run()) for _ in range(count)]
        await place.all_wait(count)
        waiting = usage.now
        await place.open_gate()
    assert all(b'"COMPLETED"' in run.result() for run in runs)
    return (waiting - usage.before) / count / 1024


def format_line(count: int, found: ConcurrentResult) -> str:
    """Format the result of a round of `count` streams."""
    p99 = statistics.quantiles(found.firsts, n=100, method="inclusive")[98]
    return (
        f"{count:>7}{statistics.median(found.firsts) * 1000:>10.0f}{p99 * 1000:>8.0f}"
        f"{found.opened:>8.1f}{found.took:>9.1f}{found.cpu:>8.1f}{_megabytes(found.before):>8}"
        f"{_megabytes(found.waiting):>8}{_megabytes(found.peak):>8}{_megabytes(found.after):>8}{found.each:>10.0f}"
    )


def measure_streams(folder: Path, url: str, count: int = STREAMS) -> Iterator[Row]:
    """Run rounds of short answers, check every stream, and yield rows."""
    raise_file_limit()
    reply = SHORT._replace(words=5, seconds=0.1)
    with serve_deployment(folder, url) as place:
        asyncio.run(warm_up(place))
        found = [asyncio.run(measure_concurrent(place, count, reply)) for _ in range(ROUNDS)]
    work = f"{count:,} streams at once"
    costs = [each.cpu / count * 1_000 for each in found]
    yield build_figure_row(f"{work}: CPU of the server for each", costs, " ms")
    # Later rounds use the memory of the first one again.
    first = found[0]
    yield build_figure_row(f"{work}: memory for each", [first.each], " KB")
    held = (first.waiting - first.before) / count / 1024
    name = "memory of a run that waits for its model"
    yield build_figure_row(f"{name}, streamed", [held], " KB", at_most(60))
    with serve_deployment(folder.with_name("plain"), url) as place:
        asyncio.run(warm_up(place))
        plain = asyncio.run(measure_plain(place, count))
    yield build_figure_row(f"{name}, plain", [plain], " KB", at_most(60))
    late = [statistics.quantiles(each.firsts, n=100, method="inclusive")[98] for each in found]
    yield build_figure_row(f"{work}: first event, p99", late, " s", at_most(2))


async def measure_readers(place: Setup, name: str, *, slow: bool) -> str:
    """Measure readers of long answers; return a line of the table."""
    usage = Usage(place.server.process.pid)
    streams = place.streams(READERS, LONG)
    start = time.perf_counter()
    await asyncio.gather(*(stream.open(RECEIVE_BYTES if slow else None) for stream in streams))
    if slow:
        await place.all_ended()
    ended = usage.now
    await asyncio.gather(*(stream.read() for stream in streams))
    took = time.perf_counter() - start
    usage.end()
    return (
        f"{READERS:>7} {name:<9}{took:>8.1f}{usage.cpu_seconds:>9.1f}{_megabytes(usage.before):>8}"
        f"{_megabytes(usage.peak):>8}{_megabytes(ended) if slow else '':>8}"
        f"{_megabytes(usage.now):>8}"
        f"{usage.growth(READERS):>10.0f}"
    )


def _megabytes(size: int) -> str:
    return f"{size / 1_048_576:.0f}"


async def warm_up(place: Setup) -> None:
    """Do the work that only the first run needs."""
    (stream,) = place.streams(1, SHORT._replace(hold=False, seconds=0))
    await stream.open()
    await stream.read()


def measure_lines(folder: Path, count: int) -> Iterator[str]:
    """Run all measurements; yield each line as soon as it is measured."""
    with serve_endpoint() as url:
        with serve_deployment(folder / "at-once", url) as place:
            asyncio.run(warm_up(place))
            yield (
                f"{'streams':>7}{'first ms':>10}{'p99':>8}{'open s':>8}{'words s':>9}"
                f"{'CPU s':>8}{'MB':>8}{'open':>8}{'peak':>8}{'after':>8}{'KB each':>10}"
            )
            for _ in range(ROUNDS):
                yield format_line(count, asyncio.run(measure_concurrent(place, count, SHORT)))
        yield ""
        yield (
            f"{'readers':>7} {'':<9}{'s':>8}{'CPU s':>9}{'MB':>8}"
            f"{'peak':>8}{'ended':>8}{'after':>8}{'KB each':>10}"
        )
        for name, slow in (("quick", False), ("slow", True)):
            with serve_deployment(folder / name, url) as place:
                asyncio.run(warm_up(place))
                yield asyncio.run(measure_readers(place, name, slow=slow))


def raise_file_limit() -> None:
    """Raise the limit of open files for this process and its children."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


if __name__ == "__main__":
    for name in [name for name in os.environ if name.startswith("AGENTCTL_")]:
        del os.environ[name]
    raise_file_limit()
    with tempfile.TemporaryDirectory() as directory:
        for line in measure_lines(Path(directory), int(sys.argv[1]) if sys.argv[1:] else STREAMS):
            print(line, flush=True)
