"""Lanes of work that are halted again and again, and the count of what begins after a halt.

A lane has its own agents, so that lanes halt each other in nothing. It begins work over one path,
halts it at a random moment, and compares the endpoint and the ledger at the return of the halt with
what they have later. Then it resumes, and the path is the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from tests.chaos.cluster import Cluster, Engine, start_cluster
from tests.conditions import PATIENCE
from tests.halts.counting_endpoint import CountingEndpoint
from tests.halts.paths import HEAD, LANE, PATHS, TOOL

QUIET_SECONDS = 0.15
"""Time after a halt in which a call would show."""

KILL_SECONDS = 4.0
"""Time between two kills."""

_UNFAIR = {"WORKER_LOST"}
"""Errors of runs that a kill explains."""


@dataclass
class Report:
    """The figures of a world.

    Attributes:
        halts: the halts by path.
        late: the calls after the return of a halt, each with its lane and path.
        seconds: the times that halts took to return.
        kills: the kills of servers.
        problems: answers and runs that no halt explains.
    """

    halts: Counter[str] = field(default_factory=Counter)
    late: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    kills: int = 0
    problems: Counter[str] = field(default_factory=Counter)

    def describe(self) -> str:
        """Return the figures in lines."""
        times = sorted(self.seconds) or [0.0]
        middle = times[len(times) // 2]
        counts = ", ".join(f"{path} {count}" for path, count in self.halts.items())
        return (
            f"{sum(self.halts.values())} halts ({counts}), {self.kills} kills\n"
            f"calls after the return of a halt: {len(self.late)}\n"
            f"time of a halt: middle {middle * 1_000:.0f} ms, longest {times[-1]:.2f} s\n"
            f"problems: {dict(self.problems)}"
        )


class World:
    """The servers, the endpoint, the ledger, and the lanes.

    Args:
        ledger: the file that the tool of each call appends its note to.
    """

    def __init__(self, cluster: Cluster, endpoint: CountingEndpoint, ledger: Path) -> None:
        self.report = Report()
        self._cluster = cluster
        self._endpoint = endpoint
        self._ledger = ledger
        self._left = 0
        self._lock = threading.Lock()

    async def halt_often(
        self, halts: int, lanes: int, *, kills: bool, paths: Sequence[str] = tuple(PATHS)
    ) -> Report:
        """Halt some times in all, over all paths in turn."""
        self._left = halts
        ended = asyncio.Event()
        killer = asyncio.create_task(self._kill_often(ended)) if kills else None
        await asyncio.gather(*(asyncio.to_thread(self._work, lane, paths) for lane in range(lanes)))
        ended.set()
        if killer is not None:
            await killer
        await self._check_runs()
        return self.report

    def _take(self) -> bool:
        with self._lock:
            self._left -= 1
            return self._left >= 0

    def _work(self, lane: int, paths: Sequence[str]) -> None:
        chance = random.Random(lane)
        turn = lane
        while self._take():
            name = paths[turn % len(paths)]
            turn += 1
            self._halt_once(lane, name, chance)

    def _halt_once(self, lane: int, name: str, chance: random.Random) -> None:
        path = PATHS[name]
        stopped = threading.Event()
        worker = threading.Thread(target=self._begin_often, args=(lane, name, stopped))
        worker.start()
        try:
            time.sleep(chance.uniform(0.0, 0.3))
            body = {"scope": path.scope, "scope_id": f"{path.component}-{lane}", "reason": "proof"}
            began = time.monotonic()
            halt_id = self._create_halt(body)
            seconds = time.monotonic() - began
            if halt_id is None:
                return
            self._compare(lane, name)
            self.report.halts[name] += 1
            self.report.seconds.append(seconds)
            self._end_halt(halt_id)
        finally:
            stopped.set()
            worker.join(PATIENCE)
            if worker.is_alive():
                self.report.problems[f"{name}: a caller waits for ever"] += 1

    def _compare(self, lane: int, name: str) -> None:
        self._endpoint.settle()
        calls = self._endpoint.calls[lane]
        marks = self._count_marks(lane)
        time.sleep(QUIET_SECONDS)
        self._endpoint.settle()
        for kind, late in (
            ("model", self._endpoint.calls[lane] - calls),
            ("tool", self._count_marks(lane) - marks),
        ):
            if late:
                self.report.late.append(f"lane {lane}, {name}: {late} calls of a {kind}")

    def _count_marks(self, lane: int) -> int:
        with contextlib.suppress(FileNotFoundError):
            return self._ledger.read_bytes().count(b"lane-%d-" % lane)
        return 0

    def _create_halt(self, body: dict[str, str]) -> str | None:
        with contextlib.suppress(httpx2.HTTPError), self._open_client() as client:
            created = client.post("/halts", json=body)
            if created.status_code == 201:
                return str(created.json()["halt_id"])
            self.report.problems[f"halt: {created.status_code}"] += 1
        return None

    def _end_halt(self, halt_id: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            with contextlib.suppress(httpx2.HTTPError), self._open_client() as client:
                if client.delete(f"/halts/{halt_id}").status_code in (204, 409):
                    return
            time.sleep(0.1)
        self.report.problems["a halt could not be ended"] += 1

    def _begin_often(self, lane: int, name: str, stopped: threading.Event) -> None:
        while not stopped.is_set():
            with contextlib.suppress(httpx2.HTTPError, AssertionError), self._open_client() as one:
                PATHS[name].begin(one, lane)
            time.sleep(0.005)

    def _open_client(self) -> httpx2.Client:
        running = [server for server in self._cluster.servers if server.is_running]
        url = random.choice(running or self._cluster.servers).url
        headers = {"Authorization": f"Bearer {self._cluster.token}"}
        return httpx2.Client(base_url=url, headers=headers, timeout=PATIENCE)

    async def _kill_often(self, ended: asyncio.Event) -> None:
        while not ended.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(KILL_SECONDS):
                    await ended.wait()
                    return
            servers = self._cluster.servers
            if len(servers) > 1:
                server = random.choice(servers)
                server.kill()
                self.report.kills += 1
                await asyncio.to_thread(server.start)
                continue
            workers = servers[0].workers
            if workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(random.choice(workers), signal.SIGKILL)
                    self.report.kills += 1

    async def _check_runs(self) -> None:
        """Wait until nothing is held any more, and count the runs that have failed."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            live = await self._cluster.rows(
                "SELECT count(*) FROM runs WHERE status IN ('PENDING', 'RUNNING')"
            )
            if not live[0][0]:
                break
            await asyncio.sleep(0.2)
        rows = await self._cluster.rows(
            "SELECT status, error_code, count(*) FROM runs"
            " WHERE status NOT IN ('COMPLETED', 'PAUSED', 'CANCELLED') GROUP BY status, error_code"
        )
        for status, code, count in rows:
            if code not in _UNFAIR or not self.report.kills:
                self.report.problems[f"{status} {code}"] += count


@contextlib.asynccontextmanager
async def open_world(engine: Engine, lanes: int) -> AsyncIterator[World]:
    """Start two servers on PostgreSQL, or workers on a SQLite file, with agents for each lane."""
    endpoint = CountingEndpoint()
    extra = HEAD.replace("{url}", endpoint.url)
    extra += "".join(LANE.format(n=lane) for lane in range(lanes))
    above = 0 if engine == "sqlite" else 1
    files = {"marks.py": TOOL.replace("{above}", str(above))}
    try:
        async with start_cluster(engine, durable=False, extra=extra, files=files) as cluster:
            folder = cluster.servers[0].deployment.folder
            ledger = (folder if engine == "sqlite" else folder.parent) / "ledger.log"
            yield World(cluster, endpoint, ledger)
    finally:
        endpoint.stop()
