"""Streams over connections that are cut: `python -m tests.clients.cuts --streams 10000`.

Each stream starts a run through the cutting proxy and reads its events. Afterwards the events, the
stored runs and the calls of the model are compared: each run exists once, called its model once,
and each of its events arrived once and in order.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from pathlib import Path

from agentctl.client import AsyncClient, Client, Event, EventKind
from agentctl.remote import connection
from tests.clients.cutting_proxy import cutting
from tests.clients.service import Service, serving
from tests.kit.model import start_endpoint

__all__ = [
    "RESPONSE_BYTES",
    "RETRIES",
    "Streams",
    "build_messages",
    "check_streams",
    "stream_async",
    "stream_blocking",
]

_AT_ONCE = 16

RETRIES = 300
"""Enough for a start that is cut again and again: most connections end in their header."""

RESPONSE_BYTES = 8_192

# The pauses would take most of the time.
connection.FIRST_PAUSE = 0.001
connection.LONGEST_PAUSE = 0.02

Streams = dict[str, list[Event]]
"""The events of each stream, by its message."""


def build_messages(name: str, count: int) -> list[str]:
    """Return different messages: JSON objects for an agent with a tool, and texts to repeat."""
    words = " ".join(f"word{each}" for each in range(60))
    return [
        f'{{"a": {number}, "b": {len(name)}}}' if number % 2 else f"{name} {number} {words}"
        for number in range(count)
    ]


def choose_agent(message: str) -> str:
    return "tool-add" if message.startswith("{") else "echo"


def stream_async(url: str, token: str, messages: Sequence[str]) -> Streams:
    """Read the streams of an `AsyncClient`, some at once."""

    async def read_all() -> Streams:
        slots = asyncio.Semaphore(_AT_ONCE)

        async def read(message: str) -> list[Event]:
            stream = client.runs.stream(agent=choose_agent(message), message=message)
            async with slots, aclosing(stream) as events:
                return [event async for event in events]

        async with AsyncClient(url, token, retries=RETRIES) as client:
            read_events = await asyncio.gather(*map(read, messages))
        return dict(zip(messages, read_events, strict=True))

    return asyncio.run(read_all())


def stream_blocking(url: str, token: str, messages: Sequence[str]) -> Streams:
    """Read the streams of one `Client` in some threads."""

    def read(message: str) -> list[Event]:
        return [*client.runs.stream(agent=choose_agent(message), message=message)]

    with Client(url, token, retries=RETRIES) as client, ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(messages, pool.map(read, messages), strict=True))


def check_streams(service: Service, streams: Streams) -> None:
    """Check that each stream is complete, each run exists once, and each call was made once."""
    for message, events in streams.items():
        assert [event.seq for event in events] == [*range(len(events))], message
        assert events[-1].kind is EventKind.COMPLETED, message
        numbers = json.loads(message) if message.startswith("{") else None
        answer = message if numbers is None else str(numbers["a"] + numbers["b"])
        assert "".join(event.text for event in events) == answer
    runs = service.count_runs()
    calls = service.count_calls()
    assert {message: runs[message] for message in streams} == dict.fromkeys(streams, 1)
    expected = {message: 2 if message.startswith("{") else 1 for message in streams}
    assert {message: calls[message] for message in streams} == expected


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=1_000, help="half of them by each client")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    endpoint = start_endpoint()
    try:
        with (
            tempfile.TemporaryDirectory() as folder,
            serving(Path(folder), endpoint) as service,
            cutting(service.url, seed=options.seed, response_bytes=RESPONSE_BYTES) as proxy,
        ):
            for read in (stream_async, stream_blocking):
                began = time.monotonic()
                messages = build_messages(read.__name__, options.streams // 2)
                streams = read(proxy.url, service.token(), messages)
                check_streams(service, streams)
                events = sum(map(len, streams.values()))
                seconds = time.monotonic() - began
                print(
                    f"{read.__name__}: {len(streams):,} streams, {events:,} events, {seconds:.0f} s"
                )
            print(f"proxy: {proxy.counts}")
    finally:
        endpoint.stop()


if __name__ == "__main__":
    main()
