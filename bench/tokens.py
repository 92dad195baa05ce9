"""Streamed tokens: the CPU time of the server for each, and their delay.

    python -m bench.tokens [ROUNDS]

The server is compared with a pass-through (Starlette and httpx2, which checks and stores nothing)
and with the installed releases of AgentOS. The work is 40 answers of 50 tokens a second, and ten
answers as fast as the server takes them, short ones and long ones. CPU time is that of the process,
so that the figures hold on a busy machine too. Then streams of 50 tokens a second are added until
the delay of a token, from the write of the model to the read of the client, exceeds 100 ms at its
99th percentile. They start one after the other within a second, and only the tokens after that
count, as in a load that lasts. The model and the client are separate processes, with which the
server shares the cores.
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
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import urlencode
from uuid import uuid4

import uvloop

from bench.measure import (
    Row,
    Target,
    at_least,
    at_most,
    build_figure_row,
    build_ratio_row,
    format_text,
    run_rounds,
)
from bench.peers import AGENTOS, seed_agentos, serve_agentos
from bench.reads import AGENT
from bench.seeding import seed_database
from bench.servers import RunningServer, serve_agentctl, serve_endpoint, serve_floors
from bench.streams import Usage, raise_file_limit
from bench.work import create_work, sized_sessions
from tests.kit.postgres import running_postgres

__all__ = ["measure_tokens"]

ROUNDS = 3
STEPS = (80, 120, 150, 180, 210, 240, 300)
"""Streams of the search for the number that one core carries."""

MAXIMUM_DELAY = 0.1

FULL_SHARE = 0.8
"""Share of a core from which on the server itself delays the tokens."""

CAPACITY_TOKENS = 250
"""Tokens of each stream of the search; the first ones arrive while streams are added."""

START_SECONDS = 1.0
"""Time in which the streams of the search start, and the time after that without counting."""

_STAMP = re.compile(rb"\b(\d{20}) ")


class Load(NamedTuple):
    """Answers that are streamed at the same time; `seconds` between two tokens of one."""

    streams: int
    tokens: int
    seconds: float

    @property
    def title(self) -> str:
        speed = f"of {1 / self.seconds:.0f} tokens/s" if self.seconds else "at full speed"
        return f"{self.streams} streams {speed}, {self.tokens:,} tokens each"


PACED = Load(40, 300, 0.02)
FAST = Load(10, 500, 0.0)
FAST_LONG = FAST._replace(tokens=2_500)

FLOOR = "a pass-through"
GOALS: dict[Load, dict[str, Target]] = {
    PACED: {FLOOR: at_most(1.4), AGENTOS.title: at_most(0.5)},
    FAST: {FLOOR: at_most(2), AGENTOS.title: at_most(0.2)},
}
GOALS[FAST_LONG] = GOALS[FAST]
"""Targets of the CPU time of a token, in relation to the other sides."""


class Result(NamedTuple):
    """CPU seconds of the server for a token, the delays of tokens in seconds, and the CPU share."""

    cpu: float
    delays: list[float]
    share: float


@dataclass(frozen=True)
class Side:
    """A server, its request for an answer of the model, and a mark at the end of the response."""

    place: RunningServer
    build_request: Callable[[str], bytes]
    end: bytes = b"RunCompleted"


def build_run(place: RunningServer, message: str, agent: str = AGENT) -> bytes:
    form = {"message": message, "session_id": uuid4().hex, "stream": "true"}
    body = urlencode(form).encode()
    kind = "application/x-www-form-urlencoded"
    return build_post(place, f"/agents/{agent}/runs", kind, body)


def build_completion(place: RunningServer, path: str, model: str, message: str) -> bytes:
    messages = [{"role": "user", "content": message}]
    body = json.dumps({"model": model, "stream": True, "messages": messages}).encode()
    return build_post(place, path, "application/json", body)


def build_post(place: RunningServer, path: str, kind: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Type: {kind}\r\nConnection: close\r\n"
        f"Authorization: {place.headers['Authorization']}\r\nContent-Length: {len(body)}\r\n"
    )
    return f"{head}\r\n".encode() + body


class Delay(NamedTuple):
    """The time at which the model wrote a token, and the time until it was read, in seconds."""

    written: float
    seconds: float


class _Reader(asyncio.Protocol):
    """The received parts of one answer, with their times; they are parsed after its end."""

    def __init__(self, request: bytes) -> None:
        self.parts: list[tuple[int, bytes]] = []
        self.ended = asyncio.get_running_loop().create_future()
        self._request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        self.parts.append((time.monotonic_ns(), data))

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set_result(None)


async def read_stream(side: Side, load: Load, *, stamped: bool) -> list[Delay]:
    """Read one answer to its end; return the delays of its tokens."""
    message = json.dumps(
        {"words": load.tokens, "size": 8, "seconds": load.seconds, "hold": False, "stamp": stamped}
    )
    request = side.build_request(message)
    _, reader = await asyncio.get_running_loop().create_connection(
        lambda: _Reader(request), "127.0.0.1", side.place.port
    )
    await reader.ended
    answer = b"".join(data for _, data in reader.parts)
    assert answer.startswith(b"HTTP/1.1 200"), answer[:1_000]
    assert side.end in answer[-50_000:], answer[-200:]
    assert len(answer) > load.tokens
    if not stamped:
        return []
    delays = [
        Delay(int(stamp) / 1e9, (at - int(stamp)) / 1e9)
        for at, data in reader.parts
        for stamp in _STAMP.findall(data)
    ]
    # The last event repeats the text, with all stamps.
    return delays[: load.tokens]


async def run_load(
    side: Side, load: Load, *, stamped: bool = False, start_seconds: float = 0
) -> Result:
    """Read all answers at the same time, and count the delays after twice `start_seconds`."""
    usage = Usage(side.place.process_id)
    start = time.monotonic()

    async def read_late(number: int) -> list[Delay]:
        await asyncio.sleep(start_seconds * number / load.streams)
        return await read_stream(side, load, stamped=stamped)

    found = await asyncio.gather(*map(read_late, range(load.streams)))
    took = time.monotonic() - start
    usage.end()
    cpu = usage.cpu_seconds
    counted = start + 2 * start_seconds
    delays = [delay.seconds for each in found for delay in each if delay.written >= counted]
    return Result(cpu / (load.streams * load.tokens), delays, cpu / took)


def measure_tokens(folder: Path, model_url: str, rounds: int = ROUNDS) -> Iterator[Row]:
    """Compare the CPU time of a token; find the streams that one core carries."""
    raise_file_limit()
    work = create_work(folder / "tokens", model_url, sized_sessions((1,)))
    seed_database(work)
    with ExitStack() as stack:
        sides = {"agentctl": build_run_side(stack.enter_context(serve_agentctl(work)))}
        floor = stack.enter_context(serve_floors(work))
        sides[FLOOR] = Side(floor, partial(build_completion, floor, "/stream", "paced"), b"[DONE]")
        url = stack.enter_context(running_postgres(durable=True))
        twin = create_work(folder / "twin", model_url, sized_sessions((1,)), database=url)
        seed_database(twin)
        sides["PostgreSQL"] = build_run_side(stack.enter_context(serve_agentctl(twin)))
        if AGENTOS.is_installed:
            seed_agentos(work, AGENTOS)
            place = stack.enter_context(serve_agentos(work, AGENTOS))
            sides[AGENTOS.title] = build_run_side(place)
        for load, goals in GOALS.items():
            found = measure_sides(sides, load, rounds)
            own = found.pop("agentctl")
            twins = found.pop("PostgreSQL")
            for name, theirs in found.items():
                row = build_token_row(load, own, name, theirs, goals[name])
                yield row.with_postgres(twins, own, " us") if name == FLOOR else row
        yield find_capacity(sides["agentctl"])


def build_run_side(place: RunningServer, agent: str = AGENT) -> Side:
    """Return the side that streams runs of an agent."""
    return Side(place, partial(build_run, place, agent=agent))


def measure_sides(sides: Mapping[str, Side], load: Load, rounds: int) -> dict[str, list[float]]:
    """Return the CPU time of a token in µs for each side, one figure per round."""
    for side in sides.values():
        uvloop.run(run_load(side, load._replace(streams=2, tokens=20)))
    acts = {
        name: lambda side=side: uvloop.run(run_load(side, load)).cpu * 1e6
        for name, side in sides.items()
    }
    return run_rounds(acts, rounds)


def build_token_row(
    load: Load, own: list[float], name: str, theirs: list[float], goal: Target, agent: str = ""
) -> Row:
    """Build the row of the CPU time of a token; `agent` names the agent if there are several."""
    work = f"{agent}{', ' * bool(agent)}{load.title}: CPU of a token"
    return build_ratio_row(work, own, name, theirs, " us", goal)


def find_capacity(side: Side) -> Row:
    """Add streams of 50 tokens/s until the delay is too long; return the last number before.

    A number whose delay is too long is measured a second time: other work may have caused it. If
    the server had CPU time left then, its limit is unknown, and the row states that.
    """
    carried = 0
    failure = ""
    for streams in STEPS:
        delay, share = min_delay(side, streams)
        if delay > MAXIMUM_DELAY:
            if share < FULL_SHARE:
                failure = f"late at {streams} streams with {share:.0%} of a core"
            break
        carried = streams
    work = "streams of 50 tokens/s with p99 of the delay at most 100 ms"
    row = build_figure_row(work, [float(carried)], "", at_least(150))
    # A target that was reached before the search stopped remains reached.
    return row if row.reached else replace(row, failure=failure)


def min_delay(side: Side, streams: int) -> tuple[float, float]:
    """Return the p99 of the delay in seconds, and the share of a core that the server used.

    If the delay is too long, the smaller one of two is returned.
    """
    load = PACED._replace(streams=streams, tokens=CAPACITY_TOKENS)
    found = list[tuple[float, float]]()
    while len(found) < 2 and all(delay > MAXIMUM_DELAY for delay, _ in found):
        result = uvloop.run(run_load(side, load, stamped=True, start_seconds=START_SECONDS))
        found.append((statistics.quantiles(result.delays, n=100)[98], result.share))
        print(
            f"{streams} streams: p99 {found[-1][0] * 1000:.0f} ms, CPU {result.share:.0%},"
            f" {result.cpu * 1e6:.0f} us a token",
            file=sys.stderr,
            flush=True,
        )
    return min(found)


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
