"""The choice of schedules, their execution on one engine, and the table of the results."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import apsw
import asyncpg

from agentctl.config.files import Files
from agentctl.config.settings import Database
from agentctl.store.repositories import workers
from tests.kit.conditions import wait_until
from tests.kit.model import ModelEndpoint
from tests.kit.postgres import drop_schema
from tests.lab.judge import judge_rows
from tests.lab.pairs import hosted
from tests.lab.pairs.judge import Facts, read_facts
from tests.lab.pairs.operations import Place
from tests.lab.pairs.queued import ATOMIC, OPERATIONS, SCENES, SECOND, list_kinds
from tests.lab.pairs.schedule import create_task
from tests.lab.pairs.servers import KINDS, Server, build_settings
from tests.lab.pairs.trial import Outcome, Schedule, run_schedule

__all__ = ["Arena", "Table", "list_pairs", "opened"]

MOST = 2_000
"""More points than any operation has."""

POLLS = 2
"""The looks of a waiting client at which it is stopped."""


def list_pairs(scenes: Iterable[str] = SCENES) -> list[tuple[str, str, str]]:
    """Return every scene with its pairs of operations."""
    return [
        (scene, first, second)
        for scene in scenes
        for first in SCENES[scene][1]
        for second in SECOND[scene]
    ]


class Table:
    """The numbers of the pairs."""

    def __init__(self) -> None:
        self.schedules: Counter[tuple[str, str]] = Counter()
        self.points: defaultdict[tuple[str, str], int] = defaultdict(int)
        self.waited = 0
        self.skipped = 0
        self.threes = 0
        self.violations: list[str] = []

    def add(self, schedule: Schedule, outcome: Outcome) -> None:
        pair = schedule.operations[0], schedule.operations[-1]
        if not outcome.applied:
            self.skipped += 1
            return
        self.schedules[pair] += 1
        self.threes += len(schedule.operations) > 2
        self.points[pair] = max(self.points[pair], outcome.points)
        self.waited += outcome.waited
        if outcome.violations:
            told = " / ".join(dict.fromkeys(outcome.violations))
            self.violations.append(
                f"{schedule} [{'; '.join(outcome.reached)}] -> {outcome.results}: {told}"
                f"\n      {outcome.facts}"
            )

    def format(self) -> str:
        """Return the table: schedules of each first operation (row) and second one (column)."""
        firsts = sorted({first for first, _ in self.schedules})
        seconds = sorted({second for _, second in self.schedules})
        width = max((len(name) for name in (*firsts, *seconds)), default=0) + 1
        lines = [" " * width + "".join(f"{name[:9]:>10}" for name in seconds) + "    points"]
        for first in firsts:
            counts = [self.schedules[first, second] for second in seconds]
            most = max(self.points[first, second] for second in seconds)
            cells = "".join(f"{count or '-':>10}" for count in counts)
            lines.append(f"{first:<{width}}{cells}{most:>10}")
        lines.append(
            f"{sum(self.schedules.values())} schedules ({self.threes} of three operations),"
            f" {self.waited} with an operation that waited, {self.skipped} scenes that did not"
            f" apply, {len(self.violations)} violations"
        )
        return "\n".join([*lines, *self.violations])


class Arena:
    """Two servers on one database, and the run of a witness.

    Args:
        folder: has the files of the servers.
    """

    def __init__(
        self, engine: str, entry: Database, folder: Path, endpoint: ModelEndpoint, kinds: list[str]
    ) -> None:
        self.engine = engine
        self.entry = entry
        self._endpoint = endpoint
        self.watch: asyncpg.Connection[Any] | None = None
        settings = build_settings(entry, endpoint.base_url, kinds)
        self._settings = replace(settings, files=Files(folder=folder / "files"))
        self._servers: list[Server] = []
        self._witness: Place | None = None
        self._witnessed: str = ""
        self._before = ""

    async def open(self) -> None:
        if self.engine == "postgres":
            given = {"search_path": self.entry.search_path}
            self.watch = await asyncpg.connect(self.entry.url, server_settings=given)
        for _ in range(2):
            self._servers.append(await self._open_server())

    async def _open_server(self) -> Server:
        server = Server(self._settings)
        await server.open()
        return server

    async def close(self) -> None:
        for server in self._servers:
            if server.alive:
                await server.close()
        if self.watch is not None:
            await self.watch.close()

    async def prepare(self, kind: str) -> Place:
        """Return a place for a schedule, with two live servers."""
        for number, server in enumerate(self._servers):
            if not server.alive:
                self._servers[number] = await self._open_server()
            await wait_until(self._is_registered(self._servers[number]))
        first, second = self._servers
        return Place(kind, (first, second), self._endpoint, self.watch)

    @staticmethod
    def _is_registered(server: Server) -> Any:
        async def is_registered() -> bool:
            rows = await server.database.read(workers.list_workers())
            return server.worker.id in {row.worker_id for row in rows}

        return is_registered

    async def run(self, schedule: Schedule) -> Outcome:
        """Execute a schedule, and look after the witness."""
        place = await self.prepare(schedule.kind)
        if self._witness is None:
            self._witness = await self.prepare("agent")
            await self._witness.start_run(self._witness.servers[0])
            self._witnessed = (await self._read_witness(place)).describe()
        outcome = await run_schedule(schedule, place)
        if outcome.violations:
            outcome.facts += f" || the schedule before it: {self._before}"
        self._before = str(schedule)
        seen = (await self._read_witness(place)).describe()
        if seen != self._witnessed:
            outcome.violations.append(f"the witness changed: {seen}")
            self._witnessed = seen
        return outcome

    async def _read_witness(self, place: Place) -> Facts:
        assert self._witness is not None
        return await read_facts(place.other.database, self._witness.session_id)

    async def find_remaining(self) -> list[str]:
        """Let the witness go on, and return the violations in all rows after its end."""
        violations: list[str] = []
        if self._witness is not None:
            ended = await self._end_witness(self._witness)
            if ended != "COMPLETED 1":
                violations.append(f"the witness ended as {ended}")
        violations += await judge_rows(self)
        return violations

    async def rows(self, sql: str) -> Sequence[Sequence[Any]]:
        """Query the database directly."""
        if self.watch is not None:
            rows: Sequence[Sequence[Any]] = await self.watch.fetch(sql)
            return rows
        path = self.entry.url.removeprefix("sqlite:///")
        with contextlib.closing(apsw.Connection(path, apsw.SQLITE_OPEN_READONLY)) as connection:
            return connection.execute(sql).fetchall()

    async def _end_witness(self, witness: Place) -> str:
        """Return the status of the witness, and its payments."""
        place = await self.prepare("agent")
        witness.servers = place.servers
        await OPERATIONS["approve"](witness, place.other)

        async def has_ended() -> bool:
            return not (await self._read_witness(place)).open_runs

        await wait_until(has_ended)
        (run,) = (await self._read_witness(place)).runs
        return f"{run['status']} {hosted.ledger[witness.session_id]}"


@contextlib.asynccontextmanager
async def opened(
    engine: str, url: str, endpoint: ModelEndpoint, kinds: list[str]
) -> AsyncIterator[Arena]:
    """Open an arena on a new database."""
    asyncio.get_running_loop().set_task_factory(create_task)
    with tempfile.TemporaryDirectory(prefix="agentctl-pairs-") as folder:
        if engine == "sqlite":
            entry = Database("main", f"sqlite:///{Path(folder) / 'main.db'}")
        else:
            entry = Database("main", url, search_path=f"pairs_{uuid4().hex}")
        arena = Arena(engine, entry, Path(folder), endpoint, kinds)
        await arena.open()
        try:
            yield arena
        finally:
            await arena.close()
            if engine == "postgres":
                await drop_schema(entry)


async def search_pair(
    arena: Arena,
    table: Table,
    kind: str,
    pair: tuple[str, str, str],
    *,
    random: Random,
    samples: int | None = None,
) -> None:
    """Run a pair with the first operation stopped at each of its points, or at some.

    Args:
        samples: number of points; None for all.
    """
    scene, first, second = pair
    stop = 0
    most = 0
    polls = 0
    for number in range(samples or MOST):
        if samples is None or number == 0:
            stop = number + 1 if samples is None else random.randint(1, 12)
        else:
            stop = random.randint(1, max(most, 1))
        places = random.randrange(2), random.randrange(2)
        schedule = Schedule(kind, scene, (first, second), (stop,), places)
        outcome = await arena.run(schedule)
        table.add(schedule, outcome)
        most = max(most, outcome.points)
        if not outcome.applied or outcome.violations:
            return
        # An operation that waits for another one, or a busy machine, does not reach its point.
        has_passed = not outcome.waited or stop > outcome.points
        if samples is None and not outcome.reached and has_passed:
            return
        # A client that waits for another run looks again and again.
        polls += outcome.reached[:1] == ["before list_followed"]
        if samples is None and polls > POLLS:
            return


async def search_three(arena: Arena, table: Table, kinds: list[str], random: Random) -> None:
    """Run three operations, two of them stopped at random points."""
    scene = random.choice(list(SCENES))
    kind = random.choice(list_kinds(scene, kinds) or [""])
    if not kind:
        return
    names = [random.choice(SCENES[scene][1]), *random.choices(SECOND[scene], k=2)]
    stops = tuple(None if name in ATOMIC else random.randint(1, 60) for name in names[:2])
    order = random.choice(((0, 1), (1, 0)))
    places: Any = tuple(random.randrange(2) for _ in names)
    schedule = Schedule(kind, scene, tuple(names), stops, places, order)
    table.add(schedule, await arena.run(schedule))


__all__ += ["KINDS", "search_pair", "search_three"]
