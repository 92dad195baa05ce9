"""The table of faults of docs/internals/chaos.md: `python -m tests.chaos.table`, some minutes.

Two servers on one PostgreSQL get plain, streamed and background starts at a rate, each with another
message, before, during and after each fault. Everything is counted from outside: the answers, the
messages that the model has received, and the rows. An acknowledged start must have its row, and a
refused one (429, or 503 with Retry-After) must be neither in the rows nor at the model. A missing
answer is an unknown outcome.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path

import asyncpg
import httpx2

from tests.chaos.cluster import SCHEMA, PostgresCluster, Server, start_cluster
from tests.commands import shift_clock
from tests.conditions import PATIENCE, wait_until
from tests.deployment import ADMIN

FORMS = ({"stream": "false"}, {"stream": "true"}, {"stream": "false", "background": "true"})

CALM_SECONDS = 2.0
"""Time of the load before and after a fault."""

DISK_BYTES = 400 * 2**20
"""Size of the disk of PostgreSQL that is filled."""

HOUR = 3_600

AHEAD = "import os, time\nreal = time.time_ns\nahead = {} * 10**9\n" + (
    "time.time_ns = lambda: real() + ahead\ntime.time = lambda: (real() + ahead) / 1e9\n"
)
"""A module `sitecustomize`, which sets the clock of a process ahead."""

Fault = Callable[[PostgresCluster, float], AbstractAsyncContextManager[None]]
"""A fault that lasts for the block and its end, at least for some seconds."""


@dataclass
class Outcome:
    """The outcome of each start during a fault, by message."""

    answers: dict[str, str] = field(default_factory=dict)
    executed: Counter[str] = field(default_factory=Counter)
    stored: dict[str, str] = field(default_factory=dict)
    other: list[str] = field(default_factory=list)

    def select(self, answer: str) -> list[str]:
        """Return the messages with `acknowledged`, `refused` or `unknown` as their answer."""
        return [text for text, given in self.answers.items() if given == answer]

    @property
    def missing(self) -> list[str]:
        """The messages of acknowledged starts without a row."""
        return [text for text in self.select("acknowledged") if text not in self.stored]

    @property
    def wrongly_executed(self) -> list[str]:
        """The messages of refused starts that the model has received, or that have a row.

        Those that were executed more than once are in it, too.
        """
        refused = self.select("refused")
        executed = [text for text in refused if text in self.executed or text in self.stored]
        return executed + [text for text, count in self.executed.items() if count > 1]

    def format(self, fault: str) -> str:
        """Return a row of the table."""
        failed = sum(status != "COMPLETED" for status in self.stored.values())
        counts = [
            len(self.answers),
            *map(len, map(self.select, ("acknowledged", "refused", "unknown"))),
            failed,
            len(self.missing),
            len(self.wrongly_executed),
        ]
        return f"| {fault} | {' | '.join(map(str, counts))} |"


HEAD = (
    "| fault | starts | acknowledged | refused | unknown | failed | missing | refused, executed |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
)


def stopped(mode: str) -> Fault:
    """Return a fault: PostgreSQL is stopped, and started again."""

    @contextlib.asynccontextmanager
    async def stop(cluster: PostgresCluster, seconds: float) -> AsyncIterator[None]:
        await asyncio.to_thread(cluster.postgres.stop, mode)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(cluster.postgres.start)
        yield

    return stop


def locked(table: str) -> Fault:
    """Return a fault: another session has locked a table."""

    @contextlib.asynccontextmanager
    async def lock(cluster: PostgresCluster, seconds: float) -> AsyncIterator[None]:
        connection = await asyncpg.connect(cluster.postgres.url)
        async with connection.transaction():
            await connection.execute(f"LOCK TABLE {SCHEMA}.{table}")
            await asyncio.sleep(seconds)
            yield
        await connection.close()

    return lock


@contextlib.asynccontextmanager
async def full_disk(cluster: PostgresCluster, seconds: float) -> AsyncIterator[None]:
    """Fill the disk of PostgreSQL; make room again, and start PostgreSQL if it has stopped."""
    filler = cluster.postgres.log.parent.parent / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(2**16)):
            pass
    await asyncio.sleep(seconds)
    yield
    filler.unlink()
    with contextlib.suppress(OSError, asyncpg.PostgresError):
        await (await asyncpg.connect(cluster.postgres.url)).close()
        return
    await asyncio.to_thread(cluster.postgres.start)


@contextlib.asynccontextmanager
async def stopped_server(cluster: PostgresCluster, seconds: float) -> AsyncIterator[None]:
    """Stop a server (SIGSTOP) until others have ended its runs, and continue it."""
    process = cluster.servers[0].process
    process.send_signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(max(seconds, 20.0))
        yield
    finally:
        process.send_signal(signal.SIGCONT)


async def _restart(server: Server) -> None:
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(server.start)


@contextlib.asynccontextmanager
async def clocks_apart(cluster: PostgresCluster, seconds: float) -> AsyncIterator[None]:
    """Set the clock of one server an hour ahead, and that of the other an hour back."""
    for server, ahead in zip(cluster.servers, (HOUR, -HOUR), strict=True):
        folder = server.deployment.folder / f"clock{ahead}"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(AHEAD.format(ahead))
        server.variables["PYTHONPATH"] = str(folder)
        await _restart(server)
    await asyncio.sleep(seconds)
    yield
    for server in cluster.servers:
        del server.variables["PYTHONPATH"]
        await _restart(server)


@contextlib.asynccontextmanager
async def rolling_restart(cluster: PostgresCluster, seconds: float) -> AsyncIterator[None]:
    """Restart each server with SIGTERM."""
    for server in cluster.servers:
        await _restart(server)
    yield


@contextlib.asynccontextmanager
async def slow_commits(cluster: PostgresCluster, seconds: float) -> AsyncIterator[None]:
    """Delay each commit by 20 ms."""
    connection = await asyncpg.connect(cluster.postgres.url)
    for name, value in (("commit_delay", 20_000), ("commit_siblings", 0)):
        await connection.execute(f"ALTER SYSTEM SET {name} = {value}")
    await connection.execute("SELECT pg_reload_conf()")
    await asyncio.sleep(seconds)
    yield
    await connection.execute("ALTER SYSTEM RESET ALL")
    await connection.execute("SELECT pg_reload_conf()")
    await connection.close()


FAULTS: dict[str, Fault] = {
    "crash (`stop -m immediate`)": stopped("immediate"),
    "`stop -m fast`": stopped("fast"),
    "full disk": full_disk,
    "`runs` locked": locked("runs"),
    "`workers` locked": locked("workers"),
    "a server stopped (SIGSTOP)": stopped_server,
    "clocks an hour ahead and back": clocks_apart,
    "rolling restart": rolling_restart,
    "commits of 20 ms": slow_commits,
}


async def inject(cluster: PostgresCluster, fault: Fault, rate: float, seconds: float) -> Outcome:
    """Send starts at a rate before, during and after a fault, and wait until their runs ended."""
    assert cluster.endpoint is not None
    outcome = Outcome()
    dice = random.Random(5)
    is_over = asyncio.Event()
    with shift_clock(-2 * HOUR):
        headers = cluster.servers[0].deployment.bearer("me", ADMIN, seconds=6 * HOUR)
    cluster.endpoint.forget()
    before = {row[0] for row in await cluster.rows("SELECT run_id FROM runs")}
    limits = httpx2.Limits(max_connections=None, keepalive_expiry=1)

    async def disturb() -> None:
        await asyncio.sleep(CALM_SECONDS)
        async with fault(cluster, seconds):
            pass
        await asyncio.sleep(CALM_SECONDS)
        is_over.set()

    async with httpx2.AsyncClient(headers=headers, timeout=PATIENCE, limits=limits) as client:

        async def start(number: int) -> None:
            running = [each for each in cluster.servers if each.is_running] or cluster.servers
            text = f"message {number}"
            form = {"message": text, **FORMS[number % len(FORMS)]}
            outcome.answers[text] = "unknown"
            with contextlib.suppress(httpx2.TransportError):
                url = f"{dice.choice(running).url}/agents/echo/runs"
                outcome.answers[text] = await _read_answer(client, url, form, outcome)

        number = 0
        async with asyncio.TaskGroup() as running:
            running.create_task(disturb())
            while not is_over.is_set():
                running.create_task(start(number))
                number += 1
                await asyncio.sleep(1 / rate)

    async def has_ended() -> bool:
        return not await cluster.rows("SELECT 1 FROM runs WHERE finished_at IS NULL")

    await wait_until(has_ended)
    rows = await cluster.rows("SELECT run_id, status, input FROM runs")
    outcome.stored = {text: status for run_id, status, text in rows if run_id not in before}
    sent = (body["messages"][-1]["content"] for body in cluster.endpoint.requests("echo"))
    outcome.executed.update(sent)
    return outcome


async def _read_answer(
    client: httpx2.AsyncClient, url: str, form: dict[str, str], outcome: Outcome
) -> str:
    answer = "unknown"
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
            return "refused"
        outcome.other.append(f"{response.status_code} {text[:300]}")
    return answer


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


async def make_table(faults: Sequence[str], rate: float, seconds: float) -> dict[str, Outcome]:
    """Inject some of `FAULTS`, one after the other; print a row for each."""
    found: dict[str, Outcome] = {}
    with small_disk() as disk:
        async with start_cluster("postgresql", durable=True, folder=disk) as cluster:
            assert isinstance(cluster, PostgresCluster)
            print(HEAD, flush=True)
            for name in faults:
                if FAULTS[name] is full_disk and disk is None:
                    print(f"| {name} | needs the right to mount a file system |")
                    continue
                found[name] = await inject(cluster, FAULTS[name], rate, seconds)
                print(found[name].format(name), flush=True)
                for answer, count in Counter(found[name].other).items():
                    print(f"\n{count} times: {answer}\n")
    return found


def main() -> int:
    """Print the table; return 1 if a run is missing, or a refused one was executed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--faults", nargs="+", default=list(FAULTS), choices=list(FAULTS))
    parser.add_argument("--rate", type=float, default=20.0, help="starts per second")
    parser.add_argument("--seconds", type=float, default=6.0, help="of a fault")
    options = parser.parse_args()
    found = asyncio.run(make_table(options.faults, options.rate, options.seconds))
    wrong = [each for each in found.values() if each.missing or each.wrongly_executed]
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
