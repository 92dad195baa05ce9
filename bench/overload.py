"""Twice the load that a server can serve: `python -m bench.overload`.

In each round the best rate is that of callers that each start a plain run after the end of the one
before. Then runs start at twice this rate, whether earlier ones have ended or not. The ratio is
that of the completed runs per second; the second one is that of completed runs per second of the
server's processor time, which other programs of the machine hardly change. At most `CONNECTIONS`
requests are open, as with a proxy in front; further ones are not sent. The count begins after
`LEAD` times the time in which the excess takes all slots (`limits.concurrent_runs`).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import uvloop

from bench.client import build_message
from bench.reads import AGENT
from bench.servers import RunningServer, serve_agentctl, serve_endpoint
from bench.streams import raise_file_limit
from bench.work import create_work
from tests.kit.postgres_server import run_postgres_server
from tests.lab.starts import SLOW_COMMITS

CALLERS = 32
FACTOR = 2

CONNECTIONS = 2_000
SLOTS = 1_000

LEAD = 1.5

CASES = ("SQLite", "PostgreSQL", "PostgreSQL, commits of 20 ms")


class Served(NamedTuple):
    """The completed runs of a window, the answers by status, and processor time of the server."""

    completed: int
    statuses: Counter[str]
    seconds: float
    cpu: float

    @property
    def rate(self) -> float:
        return self.completed / self.seconds

    @property
    def per_cpu(self) -> float:
        return self.completed / self.cpu


class Callers:
    """Connections to a server, each used by one request at a time and kept open."""

    def __init__(self, place: RunningServer) -> None:
        form = f"message={build_message(5, seconds=0.0)}&stream=false"
        self._request = (
            f"POST /agents/{AGENT}/runs HTTP/1.1\r\nHost: here\r\n"
            "Content-Type: application/x-www-form-urlencoded\r\n"
            f"Authorization: {place.headers['Authorization']}\r\n"
            f"Content-Length: {len(form)}\r\n\r\n{form}"
        ).encode()
        self._place = place
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.statuses = Counter[str]()
        self.open = 0

    async def call(self) -> None:
        """Start a run and wait for its answer."""
        self.open += 1
        if self._idle:
            reader, writer = self._idle.pop()
        else:
            reader, writer = await asyncio.open_connection("127.0.0.1", self._place.port)
        writer.write(self._request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0]
        await reader.readexactly(int(length))
        self.statuses[head.split()[1].decode()] += 1
        self._idle.append((reader, writer))
        self.open -= 1

    def close(self) -> None:
        for _, writer in self._idle:
            writer.close()


def _read_cpu(process_id: int) -> float:
    fields = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _serve(place: RunningServer, seconds: float, rate: float | None) -> Served:
    """Send runs by `CALLERS`, or at a rate; count those that completed within the time."""
    callers = Callers(place)
    lead = 0.0 if rate is None else LEAD * SLOTS / (rate / FACTOR)
    began = time.perf_counter()
    end = time.perf_counter() + lead + seconds
    before = (began, 0, _read_cpu(place.process_id))

    async def repeat() -> None:
        while time.perf_counter() < end:
            await callers.call()

    async with asyncio.TaskGroup() as running:
        if rate is None:
            for _ in range(CALLERS):
                running.create_task(repeat())
            await asyncio.sleep(seconds)
        else:
            sent = 0
            while (present := time.perf_counter()) < end:
                if present < began + lead:
                    before = (present, callers.statuses["200"], _read_cpu(place.process_id))
                while sent < rate * (present - began):
                    if callers.open < CONNECTIONS:
                        running.create_task(callers.call())
                    else:
                        callers.statuses["not sent"] += 1
                    sent += 1
                await asyncio.sleep(0.005)
        after = (time.perf_counter(), callers.statuses["200"], _read_cpu(place.process_id))
    callers.close()
    window, completed, used = (late - early for late, early in zip(after, before, strict=True))
    return Served(int(completed), callers.statuses, window, used)


async def measure(place: RunningServer, seconds: float, rounds: int) -> str:
    """Return the cells of a row of the table."""
    await _serve(place, 2.0, None)
    best = list[Served]()
    double = list[Served]()
    for _ in range(rounds):
        best.append(await _serve(place, seconds, None))
        double.append(await _serve(place, seconds, FACTOR * best[-1].rate))
    statuses = sum((each.statuses for each in double), Counter[str]())
    answers = ", ".join(f"{status}: {count}" for status, count in sorted(statuses.items()))
    pairs = list(zip(best, double, strict=True))
    rates = [statistics.median(each.rate for each in group) for group in (best, double)]
    ratio = statistics.median(after.rate / before.rate for before, after in pairs)
    by_cpu = statistics.median(after.per_cpu / before.per_cpu for before, after in pairs)
    return f"{rates[0]:.0f} | {rates[1]:.0f} | {ratio:.2f} | {by_cpu:.2f} | {answers}"


def main() -> None:
    """Measure all cases and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", nargs="+", default=CASES, choices=CASES)
    options = parser.parse_args()
    raise_file_limit()
    print("| | best/s | of twice as many/s | ratio | by processor time | answers |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(serve_endpoint())
        for name in options.cases:
            with ExitStack() as own:
                database = "sqlite:///agentctl.db"
                if name != "SQLite":
                    slow = SLOW_COMMITS if "20 ms" in name else ()
                    postgres = run_postgres_server(durable=True, settings=slow)
                    database = own.enter_context(postgres).url
                work = create_work(folder / str(len(name)), f"{url}/v1", [], database=database)
                place = own.enter_context(serve_agentctl(work))
                cells = uvloop.run(measure(place, options.seconds, options.rounds))
            print(f"| {name} | {cells} |", flush=True)


if __name__ == "__main__":
    for name in [name for name in os.environ if name.startswith("AGENTCTL_")]:
        del os.environ[name]
    main()
