"""What a server, a run, a stream and a follower cost on PostgreSQL, for `docs/scale.md`.

`python -m tests.benchmarks.scale_counts` starts two servers on one PostgreSQL, each with a role of
its own, and prints the table; `--write` replaces the one of the page. Statements are those that the
servers send, from the log of PostgreSQL; commits are transactions that have written something;
CPU time is that of all processes of PostgreSQL while it does not log.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import asyncpg
import httpx2

from tests.benchmarks.postgres_meter import Counters, Meter
from tests.benchmarks.servers import serve_endpoint
from tests.benchmarks.streams import AGENT
from tests.chaos.cluster import Server
from tests.deployment import ADMIN, SQLITE_DATABASES, Deployment, create_deployment
from tests.postgres_server import PostgresServer, run_postgres_server
from tests.server.concurrent_callers import read_events

PAGE = Path(__file__).parents[2] / "docs" / "scale.md"

BEGIN, END = "<!-- counts -->\n", "<!-- end of counts -->\n"

SCHEMA = "counted"

ROLES = ("counted_a", "counted_b")

RUNS, STREAMS, FOLLOWERS = 40, 20, 20

WORDS_PER_SECOND = 50

SETTLE_SECONDS = 3.0

HEAD = (
    "| | for | statements | commits | notifications | log KB | stored KB | CPU ms |\n"
    "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
)


class Cost(NamedTuple):
    """What happened between two moments. `statements` are those of the measured server."""

    seconds: float
    statements: float
    writes: float
    notifications: float
    wal: float
    stored: float
    cpu: float


class Cluster:
    """Two servers and their database."""

    def __init__(self, meter: Meter, servers: list[Server], headers: dict[str, str]) -> None:
        self.meter = meter
        self._servers = servers
        self._headers = headers

    @contextlib.asynccontextmanager
    async def client(self, number: int = 0) -> AsyncIterator[httpx2.AsyncClient]:
        async with httpx2.AsyncClient(
            base_url=self._servers[number].url,
            headers=self._headers,
            timeout=60,
            limits=httpx2.Limits(max_connections=None),
        ) as client:
            yield client  # fmt: skip

    async def connections(self, role: str) -> int:
        """Return the number of connections of a server."""
        query = f"SELECT count(*) FROM pg_stat_activity WHERE usename = '{role}'"
        return int(await self.meter.fetchval(query))

    async def measure(self, role: str, work: Callable[[], Awaitable[object]]) -> Cost:
        """Do the work twice: statements are counted once, the CPU time is that of the other."""
        costs = []
        for logged in (True, False):
            await self.meter.log_statements(logged)
            await asyncio.sleep(0.2)
            before, received = await self.meter.read(), self.meter.received
            await work()
            after = await self.meter.read()
            used: Counters = after.since(before)
            statements = self.meter.count_statements(before, after)[role]
            costs.append(
                Cost(used.seconds, statements, used.writes, self.meter.received - received,
                     used.wal, used.stored, used.cpu)
            )  # fmt: skip
        return costs[0]._replace(cpu=costs[1].cpu)


def _message(words: int, seconds: float) -> str:
    return json.dumps({"words": words, "size": 6, "seconds": seconds, "hold": False})


async def _start(client: httpx2.AsyncClient, session_id: str, message: str, **more: object) -> str:
    body = {"message": message, "session_id": session_id, "stream": False, **more}
    response = await client.post("/agents/paced/runs", json=body)
    assert response.status_code in (200, 202), response.text
    return str(response.json()["run_id"])


async def _stream(client: httpx2.AsyncClient, session_id: str, message: str) -> None:
    body = {"message": message, "session_id": session_id, "stream": True}
    async with client.stream("POST", "/agents/paced/runs", json=body) as response:
        async for _ in read_events(response):
            pass


async def _read_runs(cluster: Cluster, idle: Cost) -> AsyncIterator[str]:
    """Measure runs, one after the other; what the idle servers do meanwhile is taken out."""
    numbers = iter(range(1_000_000))
    async with cluster.client() as client:

        async def plain() -> None:
            for _ in range(RUNS):
                await _start(client, f"p{next(numbers)}", _message(20, 0))

        async def again() -> None:
            for _ in range(RUNS):
                await _start(client, "again", _message(20, 0))

        async def background() -> None:
            for _ in range(RUNS):
                session = f"b{next(numbers)}"
                run_id = await _start(client, session, _message(20, 0), background=True)
                status = ""
                while status != "COMPLETED":
                    path = f"/agents/paced/runs/{run_id}?session_id={session}"
                    status = (await client.get(path)).json()["status"]

        async def streamed() -> None:
            for _ in range(RUNS):
                await _stream(client, f"s{next(numbers)}", _message(100, 0))

        for name, work in (
            ("plain run, in a new session", plain),
            ("plain run, in the same session", again),
            ("run in the background, with its reads", background),
            ("streamed run of 100 tokens, at full speed", streamed),
        ):
            await work()
            cost = await cluster.measure(ROLES[0], work)
            yield _format(name, "each", _subtract(cost, idle), RUNS)


async def _read_streams(cluster: Cluster, idle: Cost, seconds: float) -> AsyncIterator[str]:
    """Measure live streams, then their followers on the other server."""
    endless = _message(1_000_000, 1 / WORDS_PER_SECOND)
    live: list[str] = []

    async def wait() -> None:
        await asyncio.sleep(seconds)

    async with cluster.client() as client, cluster.client(1) as other:

        async def start(number: int) -> None:
            for index in range(len(live), number):
                live.append(await _start(client, f"l{index}", endless, background=True))
            await asyncio.sleep(SETTLE_SECONDS)

        for number in (1, STREAMS):
            await start(number)
            cost = await cluster.measure(ROLES[0], wait)
            name = "a live stream" if number == 1 else f"{number} live streams of one server"
            yield _format(f"{name}, {WORDS_PER_SECOND} tokens/s each", "second", cost, cost.seconds)
        beside = cost
        cost = await cluster.measure(ROLES[1], wait)
        quiet = _subtract(cost, beside)._replace(statements=cost.statements)
        yield _format("an idle server while another one streams", "minute", quiet, seconds / 60)
        following: list[asyncio.Task[None]] = []
        for number in (1, FOLLOWERS):
            for index in range(len(following), number):
                following.append(
                    asyncio.create_task(_follow(other, live[index % len(live)], f"l{index}"))
                )
            await asyncio.sleep(SETTLE_SECONDS)
            cost = await cluster.measure(ROLES[1], wait)
            more = _subtract(cost, beside)._replace(statements=cost.statements)
            name = "a follower" if number == 1 else f"{number} followers of {number} streams"
            yield _format(f"{name}, on another server", "second", more, cost.seconds)
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        for index, run_id in enumerate(live):
            await client.post(f"/agents/paced/runs/{run_id}/cancel?session_id=l{index}")


async def _follow(client: httpx2.AsyncClient, run_id: str, session_id: str) -> None:
    path = f"/agents/paced/runs/{run_id}/resume?session_id={session_id}"
    async with client.stream("POST", path) as response:
        assert response.status_code == 200, await response.aread()
        async for _ in read_events(response):
            pass


async def _read_servers(cluster: Cluster, idle: Cost, seconds: float) -> AsyncIterator[str]:
    async def wait() -> None:
        await asyncio.sleep(seconds)

    yield _format("two idle servers, statements of one", "minute", idle, seconds / 60)
    async with cluster.client(1) as client:
        silent = json.dumps({"words": 1, "size": 6, "seconds": 0, "hold": True})
        run_id = await _start(client, "silent", silent, background=True)
        await asyncio.sleep(SETTLE_SECONDS)
        cost = await cluster.measure(ROLES[1], wait)
        yield _format("the same, this one with a live run", "minute", cost, seconds / 60)
        await client.post(f"/agents/paced/runs/{run_id}/cancel?session_id=silent")
    await asyncio.sleep(SETTLE_SECONDS)


def _subtract(cost: Cost, other: Cost) -> Cost:
    """Take out what happens in the same time anyway."""
    share = cost.seconds / other.seconds
    pairs = zip(cost[1:], other[1:], strict=True)
    return Cost(cost.seconds, *(max(one - share * two, 0) for one, two in pairs))


def _format(name: str, unit: str, cost: Cost, count: float) -> str:
    figures = [
        *(f"{value / count:.1f}" for value in cost[1:4]),
        *(f"{value / count / 1_000:.1f}" for value in cost[4:6]),
        f"{cost.cpu / count * 1_000:.1f}",
    ]
    return f"| {name} | {unit} | {' | '.join(figures)} |\n"


@contextlib.contextmanager
def _running_servers(postgres: PostgresServer, folder: Path) -> Iterator[list[Server]]:
    with serve_endpoint() as endpoint, contextlib.ExitStack() as stack:
        extra = AGENT.format(url=f"{endpoint}/v1")
        first = folder / "a"
        first.mkdir()
        servers = []
        for name, role in zip(("a", "b"), ROLES, strict=True):
            url = postgres.url.replace("postgres@", f"{role}@")
            main = f'url = "{url}"\nsearch_path = "{SCHEMA}"'
            if name == "a":
                databases = {"main": main, "second": SQLITE_DATABASES["second"]}
                create_deployment(first, endpoint, extra=extra, databases=databases)
            else:
                shutil.copytree(first, folder / name, ignore=shutil.ignore_patterns("*.db*"))
                path = folder / name / "agentctl.toml"
                path.write_text(path.read_text().replace(f"{ROLES[0]}@", f"{role}@"))
            servers.append(Server(name, Deployment(folder / name)))
            servers[-1].start()
            stack.callback(servers[-1].stop)
        yield servers


async def _count_connections(cluster: Cluster) -> int:
    """Return the largest number of connections of a server under load."""
    counts = [0]
    async with cluster.client() as client:
        calls = asyncio.gather(
            *(_start(client, f"c{number}", _message(20, 0.01)) for number in range(200))
        )
        while not calls.done():
            counts.append(await cluster.connections(ROLES[0]))
            await asyncio.sleep(0.01)
        await calls
    return max(counts)


async def measure(seconds: float) -> AsyncIterator[str]:
    """Yield the lines of the table, with those before and after it."""
    with run_postgres_server() as postgres, tempfile.TemporaryDirectory() as folder:
        admin = await asyncpg.connect(postgres.url)
        for role in ROLES:
            await admin.execute(f"CREATE ROLE {role} SUPERUSER LOGIN")
        await admin.close()
        with _running_servers(postgres, Path(folder)) as servers:
            deployment = servers[0].deployment
            headers = {"Authorization": f"Bearer {deployment.token('me', ADMIN, seconds=3_600)}"}
            meter = Meter(postgres, SCHEMA)
            await meter.open()
            cluster = Cluster(meter, servers, headers)
            await asyncio.sleep(SETTLE_SECONDS)
            yield HEAD
            connections = await cluster.connections(ROLES[0])
            idle = await cluster.measure(ROLES[1], lambda: asyncio.sleep(seconds))
            async for line in _read_servers(cluster, idle, seconds):
                yield line
            async for line in _read_runs(cluster, idle):
                yield line
            async for line in _read_streams(cluster, idle, seconds):
                yield line
            yield "\n"
            most = await _count_connections(cluster)
            yield f"Connections of a server: {connections} idle, {most} at most.\n"
            await meter.close()


async def _main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=20, help="of each window of time")
    parser.add_argument("--write", action="store_true", help="replace the table of docs/scale.md")
    options = parser.parse_args()
    lines = []
    async for line in measure(options.seconds):
        print(line, end="", flush=True)
        lines.append(line)
    if options.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}{''.join(lines)}{END}{after}")


if __name__ == "__main__":
    asyncio.run(_main())
