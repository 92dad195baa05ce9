"""Streamed tokens: the CPU time of the server for each, and their delay.

    python -m tests.benchmarks.tokens [ROUNDS]

The server is compared with a pass-through (Starlette and httpx2, which checks and stores nothing)
and, if it is installed, with AgentOS. The work is 40 answers of 50 tokens a second, and ten answers
as fast as the server takes them. CPU time is that of the process, so that the figures hold on a
busy machine too. Then streams of 50 tokens a second are added until the delay of a token, from the
write of the model to the read of the client, exceeds 100 ms at its 99th percentile.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode
from uuid import uuid4

from tests.benchmarks.measure import (
    Row,
    at_least,
    at_most,
    build_figure_row,
    build_ratio_row,
    format_text,
)
from tests.benchmarks.reads import AGENT
from tests.benchmarks.seeding import seed_database
from tests.benchmarks.servers import (
    AGENTOS_PYTHON,
    RunningServer,
    seed_agentos,
    serve_agentctl,
    serve_agentos,
    serve_endpoint,
    serve_floors,
)
from tests.benchmarks.streams import Usage, raise_file_limit
from tests.benchmarks.work import create_work, sized_sessions

__all__ = ["measure_tokens"]

ROUNDS = 3
STEPS = (40, 80, 120, 160, 200, 240, 320, 400)
"""Streams of the search for the number that one core carries."""

MAXIMUM_DELAY = 0.1

_STAMP = re.compile(rb"\b(\d{12,20}) ")


class Load(NamedTuple):
    """Answers that are streamed at the same time; `seconds` between two tokens of one."""

    name: str
    streams: int
    tokens: int
    seconds: float


PACED = Load("40 streams of 50 tokens/s", 40, 500, 0.02)
FAST = Load("10 streams at full speed", 10, 5_000, 0.0)


class Result(NamedTuple):
    """CPU seconds of the server for a token, the delays of tokens in seconds, and the CPU share."""

    cpu: float
    delays: list[float]
    share: float


@dataclass(frozen=True)
class Side:
    """A server, and its request for an answer of the model."""

    place: RunningServer
    build_request: Callable[[str], bytes]


def build_run(place: RunningServer, message: str) -> bytes:
    form = {"message": message, "session_id": uuid4().hex, "stream": "true"}
    body = urlencode(form).encode()
    kind = "application/x-www-form-urlencoded"
    return build_post(place, f"/agents/{AGENT}/runs", kind, body)


def build_call(place: RunningServer, message: str) -> bytes:
    messages = [{"role": "user", "content": message}]
    body = json.dumps({"model": "paced", "stream": True, "messages": messages}).encode()
    return build_post(place, "/stream", "application/json", body)


def build_post(place: RunningServer, path: str, kind: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Type: {kind}\r\nConnection: close\r\n"
        f"Authorization: {place.work.headers['Authorization']}\r\nContent-Length: {len(body)}\r\n"
    )
    return f"{head}\r\n".encode() + body


async def read_stream(side: Side, load: Load, *, stamped: bool) -> list[float]:
    """Read one answer to its end; return the delays of its tokens."""
    message = json.dumps(
        {
            "words": load.tokens,
            "size": 8,
            "seconds": load.seconds,
            "hold": False,
            "stamp": stamped,
        }
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", side.place.port, limit=2**20)
    writer.write(side.build_request(message))
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200"), head
    delays, total, last = list[float](), 0, b""
    while data := await reader.read(262_144):
        total += len(data)
        if stamped:
            now = time.monotonic_ns()
            delays += [now - int(stamp) for stamp in _STAMP.findall(data)][: load.tokens]
        last = data
    writer.close()
    assert b"RunCompleted" in last or b"[DONE]" in last or b"0\r\n\r\n" in last, last[-200:]
    assert total > load.tokens
    return [delay / 1e9 for delay in delays[: load.tokens]]


async def run_load(side: Side, load: Load, *, stamped: bool = False) -> Result:
    """Read all answers at the same time."""
    usage = Usage(side.place.process_id)
    start = time.monotonic_ns()
    found = await asyncio.gather(
        *(read_stream(side, load, stamped=stamped) for _ in range(load.streams))
    )
    took = (time.monotonic_ns() - start) / 1e9
    usage.end()
    cpu = usage.cpu_seconds
    delays = [delay for each in found for delay in each]
    return Result(cpu / (load.streams * load.tokens), delays, cpu / took)


def measure_tokens(folder: Path, model_url: str, rounds: int = ROUNDS) -> Iterator[Row]:
    """Compare the CPU time of a token; find the streams that one core carries."""
    raise_file_limit()
    work = create_work(folder / "tokens", model_url, sized_sessions((1,)))
    seed_database(work)
    with ExitStack() as stack:
        own = stack.enter_context(serve_agentctl(work))
        floor = stack.enter_context(serve_floors(work))
        sides = {
            "agentctl": Side(own, lambda message: build_run(own, message)),
            "a pass-through": Side(floor, lambda message: build_call(floor, message)),
        }
        if AGENTOS_PYTHON.exists():
            seed_agentos(work)
            other = stack.enter_context(serve_agentos(work))
            sides["AgentOS"] = Side(other, lambda message: build_run(other, message))
        for load, most, least in ((PACED, 1.4, 2.2), (FAST, 2.0, 5.0)):
            yield from compare_sides(sides, load, rounds, most, least)
        yield find_capacity(sides["agentctl"])


def compare_sides(
    sides: dict[str, Side], load: Load, rounds: int, most: float, least: float
) -> Iterator[Row]:
    found: dict[str, list[float]] = {name: [] for name in sides}
    for side in sides.values():
        asyncio.run(run_load(side, load._replace(streams=2, tokens=20)))
    for count in range(rounds):
        for name in sides if count % 2 == 0 else reversed(sides):
            found[name].append(asyncio.run(run_load(sides[name], load)).cpu * 1e6)
    work = f"{load.name}: CPU of a token"
    own = found.pop("agentctl")
    for name, theirs in found.items():
        if name == "AgentOS":
            times = f"{load.name}: CPU of a token of AgentOS"
            yield build_ratio_row(times, theirs, "agentctl", own, " us", at_least(least))
        else:
            yield build_ratio_row(work, own, name, theirs, " us", at_most(most))


def find_capacity(side: Side) -> Row:
    """Add streams of 50 tokens/s until the delay is too long; return the last number before."""
    carried = 0
    for streams in STEPS:
        load = PACED._replace(streams=streams, tokens=200)
        result = asyncio.run(run_load(side, load, stamped=True))
        slow = statistics.quantiles(result.delays, n=100)[98]
        print(
            f"{streams} streams: p99 {slow * 1000:.0f} ms, CPU {result.share:.0%}",
            file=sys.stderr,
            flush=True,
        )
        if slow > MAXIMUM_DELAY:
            break
        carried = streams
    work = "streams of 50 tokens/s with p99 of the delay at most 100 ms"
    return build_figure_row(work, [float(carried)], "", at_least(150))


if __name__ == "__main__":
    for name in [name for name in os.environ if name.startswith("AGENTCTL_")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory() as directory, serve_endpoint() as url:
        rows = []
        for row in measure_tokens(
            Path(directory), f"{url}/v1", int(sys.argv[1]) if sys.argv[1:] else ROUNDS
        ):
            rows.append(row)
            print(" | ".join(row.cells), file=sys.stderr, flush=True)
    print(format_text(rows))
