"""The cost to receive a streamed token: the transport for streams next to that of httpx2.

`python -m tests.benchmarks.reasons.stream_transport` reads streams of the paced endpoint, with and
without pauses between their tokens, and prints the CPU microseconds of a token and the number of
tokens in a piece; then streams runs of two servers, one with each transport, and prints the CPU
microseconds of the server for a token. Medians of rounds that alternate between the transports.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import uvloop

from agentctl.runtime.models.stream_transport import StreamTransport
from tests.benchmarks.client import build_message
from tests.benchmarks.seeding import seed_database
from tests.benchmarks.servers import RunningServer, serve_endpoint
from tests.benchmarks.tokens import FAST, PACED, Side, build_run_side, measure_sides
from tests.benchmarks.work import create_work, sized_sessions
from tests.process import base_environment, serve_config

ROUNDS = 5
LOADS = {"40 streams of 50 tokens/s": (40, 100, 0.02), "10 streams at full speed": (10, 2_000, 0.0)}
TLS = httpx2.create_ssl_context()
TRANSPORTS: dict[str, Callable[[], httpx2.AsyncBaseTransport]] = {
    "transport for streams": lambda: StreamTransport(TLS),
    "transport of httpx2": lambda: httpx2.AsyncHTTPTransport(
        verify=TLS, limits=httpx2.Limits(max_connections=None)
    ),
}


async def read(client: httpx2.AsyncClient, url: str, words: int, seconds: float) -> int:
    """Read one answer; return the number of its pieces."""
    messages = [{"role": "user", "content": build_message(words, 8, seconds)}]
    body: dict[str, Any] = {"model": "paced", "stream": True, "messages": messages}
    async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
        return len([piece async for piece in answer.aiter_raw()])


async def measure(url: str) -> None:
    for load, (streams, words, seconds) in LOADS.items():
        spent: dict[str, list[tuple[float, float]]] = {name: [] for name in TRANSPORTS}
        for _ in range(ROUNDS):
            for name, build in TRANSPORTS.items():
                async with httpx2.AsyncClient(transport=build(), timeout=60) as client:
                    start = time.process_time()
                    found = await asyncio.gather(
                        *(read(client, url, words, seconds) for _ in range(streams))
                    )
                    used = time.process_time() - start
                    count = streams * words
                    spent[name].append((used / count * 1e6, count / sum(found)))
        print(load)
        for name, figures in spent.items():
            cpu, tokens = (statistics.median(values) for values in zip(*figures, strict=True))
            print(f"  {name:<24}{cpu:8.1f} us a token {tokens:8.1f} tokens a piece")


ENVIRONMENTS = {
    "transport for streams": {},
    # A server with a proxy has the transport of httpx2, and this one uses no proxy.
    "transport of httpx2": {"HTTPS_PROXY": "http://127.0.0.1:9", "NO_PROXY": "*"},
}


def measure_servers(folder: Path, url: str) -> None:
    """Print the CPU time of a server for a token of a streamed run, with each transport."""
    with ExitStack() as stack:
        sides: dict[str, Side] = {}
        for name, variables in ENVIRONMENTS.items():
            work = create_work(folder / name, f"{url}/v1", sized_sessions((1,)))
            seed_database(work)
            config = work.folder / "agentctl.toml"
            environment = base_environment() | variables
            server = stack.enter_context(serve_config(config, environment=environment))
            port = server.port
            sides[name] = build_run_side(RunningServer(port, server.process.pid, work))
        for load in (PACED, FAST):
            print(f"a server, {load.title}")
            for name, figures in measure_sides(sides, load, ROUNDS).items():
                print(f"  {name:<24}{statistics.median(figures):8.1f} us a token")


if __name__ == "__main__":
    with serve_endpoint() as address, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(address))
        with tempfile.TemporaryDirectory() as directory:
            measure_servers(Path(directory), address)
