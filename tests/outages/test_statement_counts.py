"""Statements that each server of a cluster sends: they do not grow with the work of the others.

Each server has its own database role, whose statements PostgreSQL logs. With AGENTCTL_TEST_LONG=1
there are up to 8 servers and 500 followers, and longer windows.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx2

from tests.kit.concurrent_callers import read_events
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.postgres_server import PostgresServer
from tests.lab.servers import Server

LONG = os.environ.get("AGENTCTL_TEST_LONG") == "1"

SIZES = (2, 4, 8) if LONG else (2,)
FOLLOWERS = 500 if LONG else 50
LATE = 50
SHARED = 10
STREAMS = 20 if LONG else 5
WINDOW = 60.0 if LONG else 5.0
ATTEMPTS = 3

LONE = 0.7
LONE_OF_TWO = 1.0
IDLE = 0.4
LIVE = 1.2
STREAMING = LIVE + 10
FOLLOWING = LIVE + 12
"""Maximum statements per second of one server; `LONE_OF_TWO` is that of two databases."""

SWEEPING = 0.6
"""Additional statements per second of the one server that sweeps: one for each sweep."""

SINGLE = 2.0
"""Statements that a count may be higher: one interval more than the window has, and a count of what
waits, each half a minute."""

SWEEP = 8.0
"""The same for the server that sweeps: the statements of one sweep."""


class Cluster:
    """Servers on one schema, each with a role that is named as the server.

    Args:
        second: True for a second database, in another schema.
    """

    def __init__(
        self, postgres: PostgresServer, folder: Path, model_url: str, *, second: bool = False
    ) -> None:
        self._second = second
        self._postgres = postgres
        self._folder = folder
        self._model_url = model_url
        self.servers: list[Server] = []
        self.headers: dict[str, str] = {}

    async def execute(self, *statements: str) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self._postgres.url)
        try:
            for statement in statements[:-1]:
                await connection.execute(statement)
            return await connection.fetch(statements[-1])
        finally:
            await connection.close()

    async def grow(self, size: int) -> None:
        """Start servers until there are `size`."""
        for number in range(len(self.servers), size):
            name = f"counted_{number}"
            await self.execute(
                f"DROP ROLE IF EXISTS {name}",
                f"CREATE ROLE {name} SUPERUSER LOGIN",
                f"ALTER ROLE {name} SET log_statement = 'all'",
            )
            url = self._postgres.url.replace("postgres@", f"{name}@")
            folder = self._folder / name
            if not self.servers:
                folder.mkdir()
                databases = {"main": f'url = "{url}"\nsearch_path = "counted"'}
                if self._second:
                    databases["second"] = f'url = "{url}"\nsearch_path = "counted_second"'
                deployment = create_deployment(
                    folder,
                    self._model_url,
                    databases=databases,
                    extra="[limits]\nconcurrent_runs = 1000\nfollowed_runs = 1000\n",
                )
                if not self._second:
                    text = deployment.path.read_text().replace('database = "second"\n', "")
                    deployment.path.write_text(text)
                self.headers = deployment.bearer("me", ADMIN)
            else:
                first = self.servers[0].deployment
                shutil.copytree(first.folder, folder, ignore=shutil.ignore_patterns("*.db*"))
                text = first.path.read_text().replace("counted_0@", f"{name}@")
                (folder / "agentctl.toml").write_text(text)
            server = Server(name, Deployment(folder))
            self.servers.append(server)
            await asyncio.to_thread(server.start)

    @contextlib.asynccontextmanager
    async def client(self, number: int) -> AsyncIterator[httpx2.AsyncClient]:
        async with httpx2.AsyncClient(
            base_url=self.servers[number].url,
            headers=self.headers,
            timeout=PATIENCE,
            limits=httpx2.Limits(max_connections=None),
        ) as client:
            yield client

    async def start_run(self, number: int, agent: str, session_id: str) -> str:
        """Start a background run on a server; return its path."""
        async with self.client(number) as client:
            body = {"message": "x", "session_id": session_id, "background": True, "stream": False}
            response = await client.post(f"/agents/{agent}/runs", json=body)
            assert response.status_code == 202, response.text
            return f"/agents/{agent}/runs/{response.json()['run_id']}"

    def log_size(self) -> int:
        return self._postgres.log.stat().st_size

    def count_since(self, size: int) -> Counter[str]:
        """Return the statements of each server since the log had this size."""
        with self._postgres.log.open("rb") as file:
            file.seek(size)
            text = file.read().decode(errors="replace")
        return Counter(re.findall(r"\[(counted_\d+)\] LOG:  (?:statement|execute)", text))

    async def check(self, name: str, *limits: float) -> None:
        """Check the statements per second of each server; the last limit is that of all others.

        A window may contain the end of a start on a busy machine, so there are `ATTEMPTS`.
        """
        for _ in range(ATTEMPTS):
            rates = await self._count(name)
            allowed = [*limits, *[limits[-1]] * len(rates)]
            if all(rate <= limit for rate, limit in zip(rates, allowed, strict=False)):
                return
        raise AssertionError(f"{name}: {rates} statements/s, more than {limits}")

    async def prepare(self) -> None:
        """Remove the schemas of another test, and name the roles in the log."""
        await self.execute(
            "ALTER SYSTEM SET log_line_prefix = '%m [%u] '",
            "DROP SCHEMA IF EXISTS counted CASCADE",
            "DROP SCHEMA IF EXISTS counted_second CASCADE",
            "SELECT pg_reload_conf()",
        )

    async def check_lone(self) -> None:
        """Check all statements of a server that has no work and no other server."""
        limit = LONE_OF_TWO if self._second else LONE
        for _ in range(ATTEMPTS):
            (rate,) = await self._count("alone", 3 * WINDOW, sweeping=False)
            if rate <= limit:
                return
        raise AssertionError(f"alone: {rate} statements/s, more than {limit}")

    async def _count(
        self, name: str, window: float = WINDOW, *, sweeping: bool = True
    ) -> list[float]:
        """Count the statements of a window; return those per second of each server.

        Those of the server that sweeps are reduced by its sweeps, unless `sweeping` is False.
        """
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(2)
        before = self.log_size()
        began = clock()
        await asyncio.sleep(window)
        found = self.count_since(before)
        seconds = clock() - began
        sweepers = await self.execute(
            "SELECT pid FROM counted.leases JOIN counted.workers ON worker_id = owner"
        )
        pids = {row["pid"] for row in sweepers}
        sweeps_for_all = [server.process.pid in pids for server in self.servers]
        assert sum(sweeps_for_all) <= 1
        rates = [
            (found[server.name] - sweeping * (SINGLE + sweeps * (SWEEP + SWEEPING * seconds)))
            / seconds
            for server, sweeps in zip(self.servers, sweeps_for_all, strict=True)
        ]
        shown = ", ".join(
            f"{found[server.name] / seconds:.2f}{' (sweeps)' if sweeps else ''}"
            for server, sweeps in zip(self.servers, sweeps_for_all, strict=True)
        )
        print(f"{len(self.servers)} servers, {name}: {shown} statements/s")
        return rates


async def test_lone_server_of_two_databases_rests(
    server: PostgresServer, tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    cluster = Cluster(server, tmp_path, model_endpoint.base_url, second=True)
    await cluster.prepare()
    try:
        await cluster.grow(1)
        await cluster.check_lone()
    finally:
        for each in cluster.servers:
            await asyncio.to_thread(each.stop)


async def test_statements_do_not_grow_with_the_work_of_others(
    server: PostgresServer, tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    cluster = Cluster(server, tmp_path, model_endpoint.base_url)
    await cluster.prepare()
    try:
        await cluster.grow(1)
        await cluster.check_lone()
        await cluster.grow(SIZES[0])
        await cluster.check("idle", IDLE)
        streams = [await cluster.start_run(0, "trickle", f"t{at}") for at in range(STREAMS)]
        for size in SIZES:
            known = len(cluster.servers) if size > SIZES[0] else 1
            await cluster.grow(size)
            for number in range(known, size):
                await cluster.start_run(number, "hang", f"live-{number}")
            await cluster.check(f"the first streams {STREAMS} runs", STREAMING, LIVE)
        await _count_followers(cluster, streams)
    finally:
        for started in cluster.servers:
            if started.is_running:
                started.kill()


async def _count_followers(cluster: Cluster, streams: list[str]) -> None:
    silent = await cluster.start_run(0, "hang", "silent")
    received = Counter[str]()
    newest = dict[object, int]()

    async def follow(client: httpx2.AsyncClient, path: str, session_id: str) -> None:
        # A resumed stream of the same run, from its beginning.
        url = f"{path}/resume?session_id={session_id}"
        async with client.stream("POST", url) as response:
            assert response.status_code == 200, await response.aread()
            is_first = True
            async for event in read_events(response):
                received[path] += 1
                received[f"followers of {path}"] += is_first
                is_first = False
                newest[asyncio.current_task()] = event.number

    async with cluster.client(1) as client:
        waiting: list[asyncio.Task[Any]] = [
            asyncio.create_task(follow(client, silent, "silent")) for _ in range(FOLLOWERS)
        ]
        await wait_until(lambda: received[f"followers of {silent}"] == FOLLOWERS)
        name = f"the second has {FOLLOWERS} silent followers"
        await cluster.check(name, STREAMING, LIVE + 5, LIVE)
        # They join late: each reads the stream from its first event on.
        (row,) = await cluster.execute(
            "SELECT max(last_seq) FROM counted.run_events"
            f" WHERE run_id = '{streams[0].rpartition('/')[2]}'"
        )
        size = cluster.log_size()
        clock = asyncio.get_running_loop().time
        began = clock()
        late = [asyncio.create_task(follow(client, streams[0], "t0")) for _ in range(LATE)]
        waiting += late
        await wait_until(lambda: all(newest.get(task, -1) >= row[0] for task in late))
        read = cluster.count_since(size)["counted_1"]
        seconds = clock() - began
        print(f"{LATE} have read {row[0]} events: {read} statements")
        # One for each to find the run; they share the reads of its events.
        assert read <= LATE + SHARED + (FOLLOWING + SWEEPING) * seconds
        before = received[streams[0]]
        name = f"{LATE} of them have joined a stream late"
        await cluster.check(name, STREAMING + 11, FOLLOWING, LIVE)
        await wait_until(lambda: received[streams[0]] - before > LATE * WINDOW * 5)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
