"""A server whose durable runs the other servers take over, again and again."""

from __future__ import annotations

import asyncio
import random
import shutil

import httpx2

from tests.kit.conditions import PATIENCE
from tests.kit.deployment import Deployment
from tests.lab.halts.call_log import read_key
from tests.lab.halts.callers import Callers
from tests.lab.halts.counting_endpoint import TAKEOVER, VICTIM, EndpointClient
from tests.lab.halts.operator import TRUST
from tests.lab.halts.paths import PATHS, Caller
from tests.lab.halts.report import LIVE_RUNS
from tests.lab.servers import Server
from tests.lab.world import LIMITS, World

RUNS = 2
"""Runs that the server has begun when it is killed."""

LEAST_RUNS = 1
"""Runs that are left of earlier servers when the next one is started, so that some always work."""


class Takeovers:
    """The server that is killed.

    Attributes:
        kills: how often it was killed.
        worker_id: its worker while it lives.
    """

    def __init__(self, world: World, callers: Callers) -> None:
        self.kills = 0
        self.worker_id: str | None = None
        self._world = world
        self._server = _create_server(world)
        self._headers = world.headers
        # A connection of its own: another thread may use that of the experiment.
        self._endpoint = EndpointClient(world.endpoint.root_url)
        self._callers = callers

    async def take_over_often(self, over: asyncio.Event) -> None:
        """Start the server, let runs hang in it, and kill it, until an event is set."""
        while not over.is_set():
            await asyncio.to_thread(self._server.start)
            try:
                await self._fill(over)
            finally:
                await asyncio.to_thread(self._server.kill)
                self.worker_id = None
            self.kills += 1

            while not over.is_set() and await self._count_live() > LEAST_RUNS:
                await asyncio.sleep(0.2)
        self._endpoint.close()

    async def _fill(self, over: asyncio.Event) -> None:
        """Begin runs in the server until each of them hangs in its second call."""
        caller = Caller(TAKEOVER)
        begun = 0
        with httpx2.Client(
            base_url=self._server.url, headers=self._headers, timeout=PATIENCE, verify=TRUST
        ) as caller.client:
            while begun < RUNS and not over.is_set():
                answer = await asyncio.to_thread(PATHS[TAKEOVER].begin, caller)
                begun += answer.status_code == 202
                # Not as its path: a halt that refuses a request stops no takeover.
                await asyncio.to_thread(self._callers.take_answer, VICTIM, answer)
                if self.worker_id is None:
                    self.worker_id = await self._find_worker()

        while not over.is_set():
            # Another process may have taken one that waited.
            hanging = await asyncio.to_thread(self._endpoint.count_hanging_runs)
            if hanging >= await self._count_own():
                break
            await asyncio.sleep(0.05)
        await asyncio.sleep(random.uniform(0.0, 0.2))

    async def _find_worker(self) -> str | None:
        pid = self._server.process.pid
        rows = await self._world.rows(f"SELECT worker_id FROM workers WHERE pid = {pid}")
        return rows[0][0] if rows else None

    async def _count_own(self) -> int:
        rows = await self._world.rows(LIVE_RUNS)
        return sum(owner == self.worker_id for _, _, owner, _ in rows)

    async def _count_live(self) -> int:
        rows = await self._world.rows(LIVE_RUNS)
        return sum(read_key(text)[0] == TAKEOVER for _, text, *_ in rows)


def _create_server(world: World) -> Server:
    """Create a further server of a database, with slots for the runs that it begins itself only."""
    pattern = world.servers[0]
    source = pattern.deployment.folder
    folder = source.parent / VICTIM
    folder.mkdir()
    shutil.copytree(source / "keys", folder / "keys")
    limits = LIMITS.replace("1000", str(RUNS))
    for file in [*source.glob("*.py"), source / "agentctl.toml"]:
        url = world.endpoint.root_url
        text = file.read_text().replace(url, f"{url}/{VICTIM}")
        (folder / file.name).write_text(text.replace(LIMITS, limits))
    return Server(VICTIM, Deployment(folder), variables=pattern.variables)
