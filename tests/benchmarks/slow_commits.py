"""Runs on a PostgreSQL whose commits take 5 ms: `python -m tests.benchmarks.slow_commits`.

Two servers share it. Runs start at fixed times, whether earlier ones have ended or not: 110
streamed ones of ten words and 50 plain ones a second, half of them on each server; an argument is
the number of seconds. The table has the answers by status, and the time until the first event of a
stream or the answer of a plain run. With `commit_delay` each commit waits; commits that come
meanwhile share the flush, as on a slow disk.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode

import uvloop

from tests.benchmarks.client import build_message
from tests.benchmarks.load import FORM
from tests.benchmarks.reads import AGENT
from tests.benchmarks.servers import RunningServer, serve_agentctl, serve_endpoint
from tests.benchmarks.streams import raise_file_limit
from tests.benchmarks.tokens import build_post
from tests.benchmarks.work import create_work
from tests.postgres_server import run_postgres_server

SECONDS = 20.0
RATES = {"streamed": 110, "plain": 50}
"""Runs that start in a second."""

SLOW = ("commit_delay=5000", "commit_siblings=0")
WORDS = 10


@dataclass
class Answers:
    """The answers of one kind of run: their number by status, and their times in seconds."""

    statuses: Counter[str] = field(default_factory=Counter)
    first: list[float] = field(default_factory=list)


async def run_once(place: RunningServer, kind: str, answers: Answers) -> None:
    message = build_message(WORDS, seconds=0.05)
    form = urlencode({"message": message, "stream": str(kind == "streamed").lower()})
    request = build_post(place, f"/agents/{AGENT}/runs", FORM, form.encode())
    start = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    first = await reader.read(1)
    answers.first.append(time.perf_counter() - start)
    body = first + await reader.read()
    writer.close()
    status = head.split()[1].decode()
    is_whole = b"RunCompleted" in body if kind == "streamed" else b"COMPLETED" in body
    answers.statuses[status if is_whole or status != "200" else "incomplete"] += 1


async def send(places: list[RunningServer], kind: str, rate: int, seconds: float) -> Answers:
    """Start runs at this rate, and wait for all answers."""
    answers = Answers()
    start = time.perf_counter()
    async with asyncio.TaskGroup() as running:
        for number in range(int(rate * seconds)):
            await asyncio.sleep(start + number / rate - time.perf_counter())
            running.create_task(run_once(places[number % len(places)], kind, answers))
    return answers


async def measure(places: list[RunningServer], seconds: float) -> dict[str, Answers]:
    """Send both kinds of runs at the same time, after some to warm up."""
    await asyncio.gather(*(send(places, kind, 10, 1) for kind in RATES))
    found = await asyncio.gather(
        *(send(places, kind, rate, seconds) for kind, rate in RATES.items())
    )
    return dict(zip(RATES, found, strict=True))


def main(seconds: float) -> None:
    """Start the servers, send the runs, and print the table."""
    raise_file_limit()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(serve_endpoint())
        postgres = stack.enter_context(run_postgres_server(durable=True, settings=SLOW))
        places = []
        for name in ("a", "b"):
            work = create_work(folder / name, f"{url}/v1", [], database=postgres.url)
            places.append(stack.enter_context(serve_agentctl(work)))
        found = uvloop.run(measure(places, seconds))
    print("| runs | started in a second | answers by status | p50 | p99 |")
    print("| --- | --- | --- | --- | --- |")
    for kind, answers in found.items():
        times = statistics.quantiles(answers.first, n=100)
        statuses = json.dumps(answers.statuses)
        half, late = (f"{times[index] * 1_000:.0f} ms" for index in (49, 98))
        print(f"| {kind} | {RATES[kind]} | {statuses} | {half} | {late} |")


if __name__ == "__main__":
    for name in [name for name in os.environ if name.startswith("AGENTCTL_")]:
        del os.environ[name]
    main(float(sys.argv[1]) if sys.argv[1:] else SECONDS)
