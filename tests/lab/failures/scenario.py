"""Failures of runs, each followed by a message in the same session that must be answered.

    python -m tests.lab failures --kinds configured durable

All failures are tried with every kind of agent: of the model endpoint, of tools, of the caller, of
stored data, and of servers that are killed or stopped with live runs.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Sequence

from tests.kit.conditions import wait_until
from tests.lab.failures.table import FAILURES
from tests.lab.failures.trial import Clients, Trial
from tests.lab.failures.world import KINDS, SERVERS, find_component, open_failing_world
from tests.lab.judge import LIVE, judge_world
from tests.lab.world import World

__all__ = ["ENDS", "WORK", "add_options", "judge_rows", "run", "run_ends_of_servers", "run_trials"]

WORK = (
    "cancelled-in-a-model-call", "cancelled-in-a-stream", "cancelled-in-a-tool",
    "cancelled-in-a-second-model-call", "cancelled-while-paused",
)  # fmt: skip
"""The failures whose runs are live, or wait, when their server ends."""

ENDS = {"killed": signal.SIGKILL, "stopped": signal.SIGTERM}
"""The ends of servers, with their signals."""


async def run_trials(world: World, trials: Sequence[Trial], parallel: int = 12) -> None:
    """Run trials with the clients of a server."""
    clients = Clients(world)
    async with clients.open():
        await clients.run_all(trials, parallel)


async def run_ends_of_servers(world: World, kinds: Sequence[str]) -> list[Trial]:
    """End a server with live runs of all kinds, and continue their sessions on another one."""
    trials: list[Trial] = []
    (server,) = world.servers
    for name, number in ENDS.items():
        ended_trials = [Trial(kind, FAILURES[work], prefix=name) for kind in kinds for work in WORK]
        clients = Clients(world)
        async with clients.open(), clients.watch():
            await asyncio.gather(*map(clients.start, ended_trials))
        end = server.kill if number == signal.SIGKILL else server.stop
        await asyncio.to_thread(end)
        await asyncio.to_thread(server.start)

        clients = Clients(world)
        async with clients.open(), clients.watch():
            await asyncio.gather(*map(clients.go_on, ended_trials))
        trials += ended_trials
    return trials


async def judge_rows(world: World) -> Counter[str]:
    """Return the violations of the judge of all worlds, when no run works any more."""

    async def has_ended() -> bool:
        return not await world.rows(f"SELECT 1 FROM runs WHERE {LIVE}")

    await wait_until(has_ended)
    return await judge_world(world, code_fails=True)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--only", default="", help="failures whose names contain this text")
    parser.add_argument("--parallel", type=int, default=12, help="trials at the same time")
    parser.add_argument("--log", action="store_true", help="print the log of the server")


async def run(options: argparse.Namespace) -> Counter[str]:
    """Run the failures, print the table, and return the violations."""
    began = time.monotonic()
    trials: list[Trial] = []
    violations: Counter[str] = Counter()
    for server_kinds in SERVERS:
        kinds = [kind for kind in server_kinds if kind in options.kinds]
        own_trials = [
            Trial(kind, failure)
            for failure in FAILURES.values()
            for kind in kinds
            if options.only in failure.name and find_component(kind, failure.variant)
        ]
        if not own_trials:
            continue
        async with open_failing_world(kinds) as world:
            await run_trials(world, own_trials, options.parallel)
            if options.only in "killed stopped":
                own_trials += await run_ends_of_servers(world, kinds)
            violations += await judge_rows(world)
            if options.log:
                print("\n".join(world.read_logs()))
        trials += own_trials
    print_table(trials)
    print(f"{time.monotonic() - began:.0f} s")
    violations.update(f"{trial.name}: {text}" for trial in trials for text in trial.problems)
    return violations


def print_table(trials: Sequence[Trial]) -> None:
    """Print the number of failures and answers of each kind of agent."""
    trials_by_kind: dict[str, list[Trial]] = defaultdict(list)
    for trial in trials:
        trials_by_kind[trial.kind].append(trial)
    print("\n| agent | failures | answers | ends |\n| --- | ---: | ---: | --- |")
    for kind, own_trials in trials_by_kind.items():
        answers = sum(not trial.problems for trial in own_trials)
        ends = Counter(trial.ended for trial in own_trials)
        shown = ", ".join(f"{end} {number}" for end, number in ends.most_common())
        print(f"| {kind} | {len(own_trials)} | {answers} | {shown} |")
