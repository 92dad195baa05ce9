"""Starts at a rate, while the world is disturbed: each answer is true.

Plain, streamed and background starts, each with another message, are sent before, during and after
a disturbance. An acknowledged start has its row, and was executed once; a refused one (429, or 503
with Retry-After) is neither in the rows nor at the model. A missing answer, or `OUTCOME_UNKNOWN`,
may be either.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import httpx2

from tests.kit.command import shift_clock
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.deployment import ADMIN
from tests.lab.disturbances import DISTURBANCES, HOUR, Disturbance
from tests.lab.judge import judge_world
from tests.lab.world import World, open_world

__all__ = [
    "CASES",
    "SLOW_COMMITS",
    "Answers",
    "Case",
    "add_options",
    "open_case",
    "run",
    "send_starts",
    "try_cases",
]

FORMS = ({"stream": "false"}, {"stream": "true"}, {"stream": "false", "background": "true"})

SLOW_COMMITS = ("commit_delay=20000", "commit_siblings=0")
"""Settings of PostgreSQL: each commit takes 20 ms, as on a slow disk."""

DISK_BYTES = 400 * 2**20
"""Size of the disk of PostgreSQL that is filled."""


class Case(NamedTuple):
    """A disturbance, with the deployment that it meets."""

    disturbance: str

    deployment: str = "postgresql"

    database: str = ""
    """Settings of the main database in the configuration."""

    seconds: float = 0.0
    """Shortest duration of the disturbance; by default that of the command line."""

    loses_runs: bool = True
    """False if each acknowledged start is executed exactly once and completed."""

    is_unready: bool = False
    """True if `/ready` reports the disturbance while it lasts."""

    wait: float = 0.0
    """`wait_seconds` of the database: a late pool refuses starts before."""

    postgres: Sequence[str] = ()
    """Settings of PostgreSQL."""

    @property
    def apply(self) -> Disturbance:
        return DISTURBANCES[self.disturbance]


_SMALL = "wait_seconds = 0.5\nstatement_seconds = 1"

CASES: dict[str, Case] = {
    "crash (`stop -m immediate`)": Case("crash of PostgreSQL"),
    "`stop -m fast`": Case("fast stop of PostgreSQL"),
    "full disk": Case("full disk"),
    "`runs` locked": Case("runs locked"),
    "`workers` locked": Case("workers locked"),
    "a server stopped (SIGSTOP)": Case("process stopped", seconds=20.0),
    "clocks an hour ahead and back": Case("clocks apart"),
    "rolling restart": Case("rolling restart"),
    "commits of 20 ms": Case("slow commits"),
    "a pool of one, slow commits": Case(
        "none",
        "one on postgresql",
        "pool_size = 1\nwait_seconds = 0.5",
        loses_runs=False,
        wait=0.5,
        postgres=SLOW_COMMITS,
    ),
    # Connections for all starts: only the failed writes show the lock.
    "`runs` locked, a pool of 40": Case(
        "runs locked",
        "one on postgresql",
        f"pool_size = 40\n{_SMALL}",
        2.5,
        loses_runs=False,
        is_unready=True,
        postgres=SLOW_COMMITS,
    ),
    "`sessions` locked, a pool of 4": Case(
        "sessions locked",
        "one on postgresql",
        f"pool_size = 4\n{_SMALL}",
        2.5,
        loses_runs=False,
        is_unready=True,
        postgres=SLOW_COMMITS,
    ),
    "the file locked": Case(
        "file locked", "one on sqlite", seconds=6.0, loses_runs=False, is_unready=True
    ),
}
"""The cases of the table in docs/internals/chaos.md."""

HEAD = (
    "| disturbance | starts | acknowledged | refused | unknown | failed | violations |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
)


@dataclass
class Answers:
    """The answers to all starts, by message, and what was really stored and executed."""

    answers: dict[str, str] = field(default_factory=dict)
    """`acknowledged`, `refused` or `unknown`."""

    executed: Counter[str] = field(default_factory=Counter)
    """Number of times that the model has received each message."""

    stored: dict[str, list[str]] = field(default_factory=dict)
    """The statuses of the runs of each message."""

    other: Counter[str] = field(default_factory=Counter)
    """Answers that a start must not get."""

    readiness: int = 0
    """The status of `/ready` during the disturbance."""

    quickest: float = 60.0
    """Seconds until the first refusal."""

    found: Counter[str] = field(default_factory=Counter)
    """The violations that the judge of all worlds has found."""

    def select(self, answer: str) -> list[str]:
        """Return the messages with an answer."""
        return [text for text, given in self.answers.items() if given == answer]

    def count_failed(self) -> int:
        """Return the number of runs that are not COMPLETED."""
        return sum(status != "COMPLETED" for row in self.stored.values() for status in row)

    def judge(self, *, loses_runs: bool) -> Counter[str]:
        """Return the violations, each with an example.

        Args:
            loses_runs: False if nothing explains a run that has not ended as COMPLETED.
        """
        found = Counter(self.found)
        found.update({f"answer {text}": count for text, count in self.other.items()})
        for text in self.select("acknowledged"):
            if text not in self.stored:
                found[f"acknowledged without a row: {text}"] += 1
            elif loses_runs:
                continue
            elif self.stored[text] != ["COMPLETED"] or self.executed[text] != 1:
                seen = f"{self.stored[text]}, executed {self.executed[text]} times"
                found[f"acknowledged, but {seen}: {text}"] += 1
        for text in self.select("refused"):
            if text in self.stored or text in self.executed:
                found[f"refused, but stored or executed: {text}"] += 1
        for text, count in self.executed.items():
            if count > 1:
                found[f"executed {count} times: {text}"] += 1
        return found

    def format(self, name: str, case: Case) -> str:
        """Return a row of the table."""
        counts = [
            len(self.answers),
            *(len(self.select(answer)) for answer in ("acknowledged", "refused", "unknown")),
            self.count_failed(),
            sum(self.judge(loses_runs=case.loses_runs).values()),
        ]
        return f"| {name} | {' | '.join(map(str, counts))} |"


async def send_starts(
    world: World, case: Case, *, rate: float, seconds: float, calm: float
) -> Answers:
    """Send starts before, during and after a disturbance, and wait until their runs have ended.

    Args:
        rate: starts a second.
        seconds: the duration of the disturbance, if it is not that of the case.
        calm: seconds of the load before and after it.
    """
    answers = Answers()
    is_over = asyncio.Event()
    # A server whose clock is an hour late accepts the token, too.
    with shift_clock(-2 * HOUR):
        headers = world.servers[0].deployment.bearer("me", ADMIN, seconds=6 * HOUR)
    limits = httpx2.Limits(max_connections=None, keepalive_expiry=1)
    async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE, limits=limits) as client:
        await _warm_up(world, client)
        world.endpoint.forget()
        before = {row[0] for row in await world.rows("SELECT run_id FROM runs")}

        async def disturb() -> None:
            await asyncio.sleep(calm)
            async with case.apply(world, case.seconds or seconds):
                if case.is_unready:
                    ready = await client.get(f"{world.servers[0].url}/ready")
                    answers.readiness = ready.status_code
            await asyncio.sleep(calm)
            is_over.set()

        async def start(number: int) -> None:
            text = f"message {number}"
            form = {"message": text, **FORMS[number % len(FORMS)]}
            answers.answers[text] = "unknown"
            with contextlib.suppress(httpx2.TransportError):
                url = f"{world.dice.choice(world.list_running()).url}/agents/echo/runs"
                answers.answers[text] = await _read_answer(client, url, form, answers)

        number = 0
        async with asyncio.TaskGroup() as starting:
            starting.create_task(disturb())
            while not is_over.is_set():
                starting.create_task(start(number))
                number += 1
                await asyncio.sleep(1 / rate)

    async def has_ended() -> bool:
        return not await world.rows("SELECT 1 FROM runs WHERE finished_at IS NULL")

    await wait_until(has_ended)
    for run_id, status, text in await world.rows("SELECT run_id, status, input FROM runs"):
        if run_id not in before:
            answers.stored.setdefault(text, []).append(status)
    sent = (body["messages"][-1]["content"] for body in world.endpoint.requests("echo"))
    answers.executed.update(sent)
    answers.found = await judge_world(world)
    return answers


async def _warm_up(world: World, client: httpx2.AsyncClient) -> None:
    """Run an agent on each server until it completes: a small pool may refuse the first start."""
    body = {"message": "first", "stream": "false"}
    for server in world.servers:

        async def has_completed(url: str = server.url) -> bool:
            answer = await client.post(f"{url}/agents/echo/runs", data=body)
            return answer.status_code == 200

        await wait_until(has_completed)


async def _read_answer(
    client: httpx2.AsyncClient, url: str, form: dict[str, str], answers: Answers
) -> str:
    answer = "unknown"
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with client.stream("POST", url, data=form) as response:
        if response.status_code in (200, 202):
            # A stream is acknowledged by its first event, also if it breaks off later.
            async for line in response.aiter_lines():
                if "run_id" in line:
                    answer = "acknowledged"
            return answer

        text = (await response.aread()).decode()
        if "OUTCOME_UNKNOWN" in text:
            return answer
        if response.status_code in (429, 503) and "Retry-After" in response.headers:
            answers.quickest = min(answers.quickest, loop.time() - began)
            return "refused"
        answers.other[f"{response.status_code} {text[:300]}"] += 1
    return answer


def open_case(case: Case, **options: Any) -> AbstractAsyncContextManager[World]:
    """Open the world of a case; further options as of `open_world`."""
    return open_world(
        case.deployment,
        database=case.database,
        postgres_settings=case.postgres,
        is_flushed=True,
        **options,
    )


@contextlib.contextmanager
def small_disk() -> Iterator[Path | None]:
    """Mount a small file system; None if this user may not."""
    folder = Path(tempfile.mkdtemp(prefix="agentctl-disk-"))
    options = f"size={DISK_BYTES},mode=755"
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    is_mounted = os.geteuid() == 0 and subprocess.run(command, check=False).returncode == 0
    try:
        yield folder if is_mounted else None
    finally:
        if is_mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)
        shutil.rmtree(folder, ignore_errors=True)


def _find_world(name: str) -> tuple[object, ...]:
    """Return what the world of a case depends on."""
    case = CASES[name]
    return case.deployment, case.database, case.postgres


async def try_cases(
    names: Sequence[str], *, rate: float, seconds: float, calm: float
) -> dict[str, Answers]:
    """Send starts in some of `CASES`, one after the other; print a row for each.

    Cases with the same world follow each other in it.
    """
    found: dict[str, Answers] = {}
    print(HEAD, flush=True)
    with small_disk() as disk:
        for _, group in groupby(names, key=_find_world):
            same = [*group]
            async with open_case(CASES[same[0]], disk=disk) as world:
                for name in same:
                    case = CASES[name]
                    if case.disturbance == "full disk" and disk is None:
                        print(f"| {name} | needs the right to mount a file system |")
                        continue
                    found[name] = await send_starts(
                        world, case, rate=rate, seconds=seconds, calm=calm
                    )
                    print(found[name].format(name, case), flush=True)
    return found


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--rate", type=float, default=20.0, help="starts per second")
    parser.add_argument("--seconds", type=float, default=6.0, help="of a disturbance")
    parser.add_argument("--calm", type=float, default=2.0, help="seconds before and after it")


async def run(options: argparse.Namespace) -> Counter[str]:
    """Try some cases, print a row for each, and return the violations."""
    found = await try_cases(
        options.cases, rate=options.rate, seconds=options.seconds, calm=options.calm
    )
    violations: Counter[str] = Counter()
    for name, answers in found.items():
        for text, count in answers.judge(loses_runs=CASES[name].loses_runs).items():
            violations[f"{name}: {text}"] += count
    return violations
