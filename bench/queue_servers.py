"""Long queues on several server processes with one PostgreSQL: order, fairness, cost of a run.

`python -m bench.queue_servers [--runs 1000] [--sessions 1000 --each 10]`. The runs are
queued over HTTP at all servers in turns, while a barrier keeps the first ones at work. An agent in
code appends the begin and the end of each run to a file, the ledger, in which the guarantees of
docs/queue.md are checked.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from bench.client import Client
from bench.cluster import read_cpu_seconds
from bench.load import cpu_seconds
from tests.kit.deployment import ADMIN, create_deployment
from tests.kit.postgres_server import run_postgres_server
from tests.kit.process import base_environment, serve_config

SERVERS = 3
SLOTS = 20

CLIENTS = 6
"""Threads that queue runs; each queues all runs of a session before those of the next one."""

SECONDS = 600.0

MOST_AHEAD = 2
"""Maximum number of runs that a session has begun more than a session with a waiting run, if there
are more sessions than slots. The turns alone allow one; a server that claims late adds one."""

CODE = """
import asyncio
import os
from pathlib import Path

from agentctl.runs.desk import turns

turns.MAXIMUM_IN_SESSION = turns.MAXIMUM_QUEUED = 20_000

FOLDER = Path(__file__).parent


def note(event, message):
    place = os.open(FOLDER / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(place, f"{event} {os.getpid()} {message}\\n".encode())
    os.close(place)


async def noted(message):
    note("begun", message)
    while not (FOLDER / "barrier").exists():
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.005)
    note("ended", message)
    return message
"""

EXTRA = """
[limits]
concurrent_runs = {slots}

[[agents]]
id = "noted"
object = "queue_server_agents:noted"
on_busy = "{on_busy}"
history_runs = 0
"""


class Note(NamedTuple):
    """A line of the ledger: a run of a session began or ended in a process."""

    event: str
    process_id: int
    session: str
    number: int


@dataclass(frozen=True)
class Found:
    """The facts in a complete ledger.

    Attributes:
        by_server: number of runs of each server process, ascending.
        ahead: maximum number of runs that a session had begun more than one that waited.
        first_end: runs that had ended when the first session had ended all of its runs.
    """

    by_server: list[int]
    ahead: int
    first_end: int


class Servers:
    """Running servers with one database; `folder` has their configuration, ledger and barrier."""

    def __init__(self, folder: Path, database: Path, headers: dict[str, str]) -> None:
        self._folder = folder
        self._database = database
        self._headers = headers
        self._barrier = folder / "barrier"
        self._ledger = folder / "ledger"
        self.places = list[tuple[int, int]]()

    def read_ledger(self) -> list[Note]:
        """Return the notes in the order in which they were written."""
        lines = (line.split() for line in self._ledger.read_text().splitlines())
        return [Note(event, int(pid), name, int(number)) for event, pid, name, number in lines]

    def read_cpu(self) -> float:
        """Return the CPU seconds of the servers and of the database so far."""
        return read_cpu_seconds(self._database) + sum(cpu_seconds(pid) for _, pid in self.places)

    def fill(self, sessions: int, each: int) -> None:
        """Queue the runs: those of a session one after the other, each at the next server."""
        with ThreadPoolExecutor(CLIENTS) as pool:
            list(pool.map(lambda part: self._fill(part, sessions, each), range(CLIENTS)))

    def _fill(self, part: int, sessions: int, each: int) -> None:
        with contextlib.ExitStack() as context:
            clients = [
                context.enter_context(Client(port, self._headers)) for port, _ in self.places
            ]
            for session in range(part, sessions, CLIENTS):
                for number in range(each):
                    client = clients[(session + number) % len(clients)]
                    client.start("noted", f"s{session}", f"s{session} {number}")

    def drain(self, total: int, seconds: float) -> list[tuple[float, int, float]]:
        """Open the barrier and wait for all ends; return samples of seconds, ended runs and CPU."""
        began = time.monotonic()
        before = self.read_cpu()
        samples = [(0.0, 0, 0.0)]
        self._barrier.touch()
        while (ended := self._ledger.read_bytes().count(b"ended")) < total:
            elapsed = time.monotonic() - began
            assert elapsed < seconds, f"{ended} of {total} runs ended in {elapsed:.0f} s"
            samples.append((elapsed, ended, self.read_cpu() - before))
            time.sleep(0.25)
        samples.append((time.monotonic() - began, total, self.read_cpu() - before))
        return samples

    def wait_for_statuses(self, total: int) -> None:
        """Wait until each server lists all runs as COMPLETED, and no other ones."""
        deadline = time.monotonic() + 60
        for port, _ in self.places:
            with Client(port, self._headers) as client:
                while (found := _count(client, "?status=COMPLETED&limit=1")) < total:
                    assert time.monotonic() < deadline, f"{found} of {total} runs are COMPLETED"
                    time.sleep(0.05)
                assert _count(client, "?limit=1") == total


def _count(client: Client, query: str) -> int:
    page: dict[str, Any] = json.loads(client.get(f"/runs{query}"))
    return int(page["meta"]["total_count"])


@contextlib.contextmanager
def serve(count: int, slots: int, on_busy: str = "enqueue") -> Iterator[Servers]:
    """Run servers with one PostgreSQL, each with a number of slots."""
    with (
        tempfile.TemporaryDirectory(prefix="agentctl-queue-") as name,
        run_postgres_server() as postgres,
        contextlib.ExitStack() as context,
    ):
        folder = Path(name)
        (folder / "queue_server_agents.py").write_text(CODE)
        place = f'url = "{postgres.url}"\nsearch_path = '
        databases = {entry: f'{place}"{entry}"' for entry in ("main", "second")}
        extra = EXTRA.format(slots=slots, on_busy=on_busy)
        deployment = create_deployment(
            folder, "http://127.0.0.1:9", extra=extra, databases=databases
        )
        token = deployment.token("ann", ADMIN, seconds=7_200)
        servers = Servers(folder, postgres.log.parent, {"Authorization": f"Bearer {token}"})
        for number in range(count):
            options = {"log": f"server-{number}.log", "environment": base_environment()}
            running = context.enter_context(serve_config(deployment.path, **options))
            servers.places.append((running.port, running.process.pid))
        yield servers


def check(notes: Sequence[Note], sessions: int, each: int, slots: int) -> Found:
    """Check the guarantees in a complete ledger.

    Args:
        slots: number of slots of all servers.

    Raises:
        AssertionError: a guarantee is violated.
    """
    begun = Counter[str]()
    ended = Counter[str]()
    # The number of sessions by the number of runs that they have begun.
    levels = Counter({0: sessions})
    ahead = 0
    lowest = 0
    first_end = 0
    for note in notes:
        name = note.session
        if note.event == "ended":
            assert (ended[name], begun[name]) == (note.number, note.number + 1), note
            ended[name] += 1
            if ended[name] == each and not first_end:
                first_end = ended.total()
            continue
        # Once, in the order of acceptance, and only when the run before has ended.
        assert (begun[name], ended[name]) == (note.number, note.number), note
        begun[name] += 1
        levels[note.number] -= 1
        levels[note.number + 1] += 1
        ahead = max(ahead, begun[name] - lowest)
        assert ahead <= MOST_AHEAD or sessions <= slots, (note, lowest)
        while lowest < each and not levels[lowest]:
            lowest += 1
    assert begun == ended == Counter({f"s{number}": each for number in range(sessions)})
    by_server = Counter(note.process_id for note in notes if note.event == "begun")
    return Found(sorted(by_server.values()), ahead, first_end)


def measure(sessions: int, each: int, *, servers: int, slots: int, seconds: float) -> str:
    """Queue and execute the runs, check the ledger; return a row of the page of measurements."""
    total = sessions * each
    with serve(servers, slots) as running:
        began = time.monotonic()
        running.fill(sessions, each)
        queued = time.monotonic() - began
        samples = running.drain(total, seconds)
        running.wait_for_statuses(total)
        found = check(running.read_ledger(), sessions, each, servers * slots)
        assert len(found.by_server) <= servers, found
    # The CPU time of a run, by the part of the queue that is left.
    part = max(total // 5, 1)
    at = [next(s for s in samples if s[1] >= min(n * part, total)) for n in range(6)]
    costs = [
        1000 * (later[2] - first[2]) / max(later[1] - first[1], 1) for first, later in pairwise(at)
    ]
    took = samples[-1][0]
    return (
        f"| {total:,} of {sessions:,} sessions | {queued:.0f} | {took:.1f} | {total / took:.0f} |"
        f" {', '.join(f'{count:,}' for count in found.by_server)} | {found.ahead} |"
        f" {found.first_end:,} | {', '.join(f'{cost:.1f}' for cost in costs)} |"
    )


def main() -> None:
    """Parse the arguments, measure both shapes and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=1_000, help="runs of one session; 0 for none")
    parser.add_argument("--sessions", type=int, default=1_000, help="0 for none")
    parser.add_argument("--each", type=int, default=10, help="runs of each session")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="maximum time of the runs")
    given = parser.parse_args()
    print(
        "| waiting runs | s to queue | s to execute | runs/s | by server | ahead |"
        " ended before the first session | CPU ms of a run, by fifth |"
    )
    print("| --- | ---: | ---: | ---: | --- | ---: | ---: | --- |")
    for sessions, each in ((1, given.runs), (given.sessions, given.each)):
        if sessions * each:
            row = measure(sessions, each, servers=SERVERS, slots=SLOTS, seconds=given.seconds)
            print(row, flush=True)
    print("load average:", os.getloadavg())


if __name__ == "__main__":
    main()
