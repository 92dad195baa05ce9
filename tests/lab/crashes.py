"""Random requests of many clients, while servers and their database crash, and are cut and stopped.

At the end no run is live, and what clients have received equals the stored data.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import NamedTuple

from tests.kit.conditions import PATIENCE
from tests.lab.disturbances import DISTURBANCES, wait_for_answers
from tests.lab.received import Received, compare_with_rows, wait_until_idle
from tests.lab.requests import Client
from tests.lab.world import World, open_world

__all__ = [
    "BACK_SECONDS",
    "DISTURBED",
    "Outage",
    "Result",
    "add_options",
    "crash_often",
    "format_result",
    "run",
]

BACK_SECONDS = 5.0
"""Maximum time from the return of a database to the first response (security case R19)."""

LOST_SECONDS = 20.0
"""Time without a heartbeat after which other workers have ended the runs of a worker."""

CALM_SECONDS = 3.0
"""Time without new disturbances at the end of the load."""

_CRASH = ("crash of PostgreSQL", (0.0, 0.5, 2.0))
_KILL = ("server killed", (0.0, 1.0, 3.0))
_CUT = ("connections cut", (0.0,))
_POOLER = ("pooler killed", (0.0, 0.5, 2.0))
_WORKER = ("worker killed", (0.0,))
_ALL = ("server and PostgreSQL killed", (0.0, 1.0, 3.0))

Turn = tuple[str, tuple[float, ...]]
"""A disturbance, and the durations in seconds of which one is chosen."""

DISTURBED: dict[str, Sequence[Turn]] = {
    "postgresql": (_CRASH, _KILL, _CUT, _CRASH, _KILL, _ALL),
    "mixed": (_CRASH, _KILL, _CUT, _CRASH, _KILL, _ALL),
    "pgbouncer": (_CRASH, _POOLER, _KILL, _CUT, _POOLER),
    "sqlite": (
        _WORKER,
        ("file locked", (0.5, 2.0)),
        ("process stopped", (1.0, LOST_SECONDS)),
        _WORKER,
        _KILL,
    ),
}
"""The disturbances of each deployment, one after the other."""


class Outage(NamedTuple):
    """A disturbance that was."""

    disturbance: str

    duration: float
    """Its seconds, as chosen."""

    at: float
    """Seconds since the start of the experiment."""

    back: float
    """Seconds from its end until every running server has answered a request with data."""


class Result(NamedTuple):
    """The result of an experiment."""

    seconds: float
    """The duration of the load."""

    clients: int

    received: Received

    outages: list[Outage]

    idle_after: float
    """Seconds from the end of the load until no run was live."""

    lines: int
    """Number of lines in the logs of the servers."""


async def crash_often(
    deployment: str, seconds: float, clients: int, *, pause: float, is_flushed: bool = True
) -> Result:
    """Run clients in a world that is disturbed, then compare what they received with the rows.

    Args:
        seconds: duration of the load.
        clients: number of concurrent clients.
        pause: average number of seconds between two disturbances.
        is_flushed: True if PostgreSQL flushes commits to disk.
    """
    received = Received()
    async with open_world(deployment, is_flushed=is_flushed) as world:
        until = time.monotonic() + seconds
        turns = DISTURBED[deployment]
        disturbing = asyncio.create_task(_disturb(world, turns, until - CALM_SECONDS, pause))
        tasks = [
            asyncio.create_task(Client(number, world, received).work(until, clients))
            for number in range(clients)
        ]
        done, late = await asyncio.wait(tasks, timeout=seconds + PATIENCE)
        for task in done:
            task.result()
        for task in late:
            received.violations["clients that hang"] += 1
            task.print_stack(limit=4)
            task.cancel()

        outages = await disturbing
        idle_after = await wait_until_idle(world, received)
        await compare_with_rows(world, received)
        lines = sum(len(text.splitlines()) for text in world.read_logs())
    return Result(seconds, clients, received, outages, idle_after, lines)


async def _disturb(world: World, turns: Sequence[Turn], until: float, pause: float) -> list[Outage]:
    """Disturb a world in turn, until a time of `time.monotonic`."""
    started_at = time.monotonic()
    outages: list[Outage] = []
    for name, durations in cycle(turns):
        await asyncio.sleep(pause * world.dice.uniform(0.5, 1.5))
        if time.monotonic() >= until:
            return outages
        at = time.monotonic() - started_at
        duration = world.dice.choice(durations)
        async with DISTURBANCES[name](world, duration):
            ended_at = time.monotonic()
        await wait_for_answers(world)
        outages.append(Outage(name, duration, at, time.monotonic() - ended_at))
    raise AssertionError("a cycle never ends")


def format_result(result: Result) -> str:
    """Format the report that docs/internals/chaos.md contains, as Markdown."""
    return "\n".join(
        [*_format_summary(result), "", *_format_requests(result), "", *_format_outages(result)]
    )


def _format_summary(result: Result) -> Iterator[str]:
    received = result.received
    known = received.acknowledged
    final = sum(note.status is not None for note in known)
    keyed = sum(note.key is not None for note in known)
    events = sum(len(note.events) for note in known)
    yield f"- {result.clients} clients for {result.seconds:.0f} s"
    yield f"- {len(received.runs)} runs requested, {len(known)} acknowledged ({keyed} with an"
    yield f"  idempotency key), {final} with a final status; {events} events"
    yield f"- {len(result.outages)} outages; idle {result.idle_after:.1f} s after the load"
    yield f"- {result.lines} lines in the server logs"
    if not received.violations:
        yield "- the check is clean: nothing lost, nothing doubled, nothing stuck, no 500"
    for violation, count in received.violations.most_common():
        yield f"- **violated {count} times: {violation}**"


def _format_requests(result: Result) -> Iterator[str]:
    yield "| request | succeeded | 503 | broken off | p50 ms | p99 ms | longest ms |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    for name, counts in sorted(result.received.requests.items()):
        seconds = sorted(counts.seconds) or [0.0]
        figures = [_find_quantile(seconds, 0.5), _find_quantile(seconds, 0.99), seconds[-1]]
        numbers = [len(counts.seconds), counts.unavailable, counts.broken]
        cells = [*map(str, numbers), *(f"{1_000 * figure:.0f}" for figure in figures)]
        yield f"| {name} | {' | '.join(cells)} |"


def _find_quantile(seconds: list[float], share: float) -> float:
    return seconds[min(len(seconds) - 1, int(share * len(seconds)))]


def _format_outages(result: Result) -> Iterator[str]:
    yield "| at s | disturbance | back in service after s |"
    yield "| --- | --- | --- |"
    for outage in result.outages:
        lasted = f"{outage.disturbance}, {outage.duration:g} s"
        yield f"| {outage.at:.0f} | {lasted} | {outage.back:.2f} |"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--deployment", choices=DISTURBED, default="postgresql")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--pause", type=float, default=12.0, help="seconds between two outages")


async def run(options: argparse.Namespace) -> Counter[str]:
    """Run an experiment of any length, print its report, and return the violations."""
    result = await crash_often(
        options.deployment, options.minutes * 60, options.clients, pause=options.pause
    )
    print(format_result(result))
    return result.received.violations
