"""Sizes of one server: `make sizing`, or `python -m bench.sizing`.

Prints the rows of the table in docs/deployment.md: memory, CPU and descriptors of a server process
while it serves streams of 20 words a second, CPU and disk of a plain run, and the seconds from the
start of the process to the first answer. The database is SQLite; the model and the clients are
other processes. CPU time hardly depends on other work of the machine, seconds do.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path

import httpx2

from bench.idle import scheduled_seconds
from bench.load import list_processes, resident_megabytes
from bench.servers import serve_endpoint
from bench.streams import Reply, Setup, raise_file_limit, serve_deployment

STREAMS = (0, 50, 200)
WINDOW_SECONDS = 10.0
SPOKEN = Reply(words=800, size=6, seconds=0.05, hold=False)
ANSWER = Reply(words=120, size=6, seconds=0, hold=False)
WARMING = 20
RUNS = 600
CONNECTIONS = 4
STARTS = 5


def main() -> None:
    """Measure, and print a line for each figure."""
    raise_file_limit()
    with tempfile.TemporaryDirectory() as name, serve_endpoint() as url:
        folder = Path(name)
        for count in STREAMS:
            with serve_deployment(folder / f"streams-{count}", url) as place:
                asyncio.run(measure_streams(place, count))
        measure_runs(folder / "runs", url)
        starts = [measure_start(folder / f"start-{number}", url) for number in range(STARTS)]
        took, used = map(statistics.median, zip(*starts, strict=True))
        print(f"start to the first answer: {took:.2f} s, {used:.2f} s of CPU")


async def measure_streams(place: Setup, count: int) -> None:
    """Print what the process uses while the streams are open and words arrive."""
    process = place.server.process.pid
    async with asyncio.TaskGroup() as reading:
        streams = place.streams(count, SPOKEN)
        await asyncio.gather(*(stream.open() for stream in streams))
        for stream in streams:
            reading.create_task(stream.read())
        before = scheduled_seconds(process)
        start = time.monotonic()
        words = sum(stream.received for stream in streams)
        await asyncio.sleep(WINDOW_SECONDS)
        seconds = time.monotonic() - start
        used = (scheduled_seconds(process) - before) / seconds
        speed = (sum(stream.received for stream in streams) - words) / seconds
        memory = resident_megabytes(process)
        descriptors = sum(
            len([*Path(f"/proc/{each}/fd").iterdir()]) for each in list_processes(process)
        )
    print(
        f"{count} streams, {speed:.0f} words/s: {memory:.0f} MB, {used:.0%} of a core,"
        f" {descriptors} descriptors",
        flush=True,
    )


def measure_runs(folder: Path, url: str) -> None:
    """Print what a plain run costs: CPU time, and bytes in the file after the end of the server."""
    with serve_deployment(folder, url) as place:
        process = place.server.process.pid
        asyncio.run(send_runs(place, WARMING))
        before = scheduled_seconds(process)
        asyncio.run(send_runs(place, RUNS))
        used = (scheduled_seconds(process) - before) / RUNS
    empty = folder.with_name(f"streams-{STREAMS[0]}") / "main.db"
    stored = (folder / "main.db").stat().st_size - empty.stat().st_size
    size = stored / (RUNS + WARMING)
    print(f"a run: {used * 1000:.1f} ms of CPU, {size / 1000:.1f} kB on disk", flush=True)


async def send_runs(place: Setup, count: int) -> None:
    """Create plain runs over a few connections, ten in each session."""
    numbers = iter(range(count))
    headers = {"Authorization": f"Bearer {place.token}"}

    async def work(client: httpx2.AsyncClient) -> None:
        for number in numbers:
            body = {"message": ANSWER.message, "session_id": f"{count}-{number // 10}"}
            response = await client.post("/agents/paced/runs", json=body | {"stream": False})
            assert response.json()["status"] == "COMPLETED", response.text

    async with (
        httpx2.AsyncClient(base_url=place.server.url, headers=headers, timeout=60) as client,
        asyncio.TaskGroup() as group,
    ):
        for _ in range(CONNECTIONS):
            group.create_task(work(client))


def measure_start(folder: Path, url: str) -> tuple[float, float]:
    """Start a server on a new database; return the seconds to its first answer, and of CPU."""
    start = time.monotonic()
    with (
        serve_deployment(folder, url) as place,
        urllib.request.urlopen(f"{place.server.url}/health") as response,
    ):
        assert response.status == 200
        return time.monotonic() - start, scheduled_seconds(place.server.process.pid)


if __name__ == "__main__":
    main()
