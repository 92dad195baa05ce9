"""The costs of servers, runs, streams and followers on PostgreSQL, for `docs/scale.md`.

`python -m bench.scale_counts` starts two servers on one PostgreSQL, each with a separate
role, and prints the table; `--write` replaces the one of the page. Statements are those that the
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

import httpx2

from bench.postgres_meter import Counters, Meter
from bench.servers import serve_endpoint
from bench.streams import AGENT
from tests.kit.concurrent_callers import read_events
from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.postgres_server import PostgresServer, execute, run_postgres_server
from tests.lab.servers import Server

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"

BEGIN = "<!-- counts -->\n"
END = "<!-- end of counts -->\n"

SCHEMA = "counted"

ROLES = ("counted_a", "counted_b")

RUNS = 40
STREAMS = 20
FOLLOWERS = 20

WORDS_PER_SECOND = 50

SETTLE_SECONDS = 3.0

HEAD = (
    "| | for | statements | commits | notifications | log KB | stored KB | CPU ms |\n"
    "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n"
)


class Cost(NamedTuple):
    """The differences between two moments. `statements` are those of the measured server."""

    seconds: float
    statements: float
    writes: float
    notifications: float
    wal: float
    stored: float
    cpu: float


class Row(NamedTuple):
    """A row of the table: a cost, for a number of units."""

    name: str
    unit: str
    cost: Cost
    units: float

    def __str__(self) -> str:
        each = _divide(self.cost, self.units)
        figures = [
            *(f"{value:.1f}" for value in each[1:4]),
            *(f"{value / 1_000:.1f}" for value in each[4:6]),
            f"{each.cpu * 1_000:.1f}",
        ]
        return f"| {self.name} | {self.unit} | {' | '.join(figures)} |\n"


Rows = AsyncIterator[tuple[str, Row]]


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
            yield client

    async def stop(self, number: int) -> None:
        """Stop a server."""
        await asyncio.to_thread(self._servers[number].stop)
        await asyncio.sleep(SETTLE_SECONDS)

    async def start(self, number: int) -> None:
        """Start a server again."""
        await asyncio.to_thread(self._servers[number].start)
        await asyncio.sleep(SETTLE_SECONDS)

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
            before = await self.meter.read()
            received = self.meter.received
            await work()
            after = await self.meter.read()
            used: Counters = after.since(before)
            statements = self.meter.count_statements(before, after)[role]
            costs.append(
                Cost(
                    used.seconds,
                    statements,
                    used.writes,
                    self.meter.received - received,
                    used.wal,
                    used.stored,
                    used.cpu,
                )
            )
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


async def _read_runs(cluster: Cluster, idle: Cost) -> Rows:
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

        for key, name, work in (
            ("plain", "a plain run, in a new session", plain),
            ("again", "a plain run, in the same session", again),
            ("background", "a run in the background, with its reads", background),
            ("streamed", "a streamed run of 100 tokens, at full speed", streamed),
        ):
            await work()
            cost = await cluster.measure(ROLES[0], work)
            yield key, Row(name, "each", _subtract(cost, idle), RUNS)


async def _read_streams(cluster: Cluster, idle: Cost, seconds: float) -> Rows:
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
            name = f"{name}, {WORDS_PER_SECOND} tokens/s each"
            yield f"live {number}", Row(name, "second", cost, cost.seconds)
        beside = cost
        cost = await cluster.measure(ROLES[1], wait)
        quiet = _subtract(cost, beside)._replace(statements=cost.statements)
        yield "beside", Row("an idle server next to them", "minute", quiet, seconds / 60)
        following: list[asyncio.Task[None]] = []
        for number in (1, FOLLOWERS):
            for index in range(len(following), number):
                # From the present on: the read of stored events would be another cost.
                query = f"SELECT max(last_seq) FROM {SCHEMA}.run_events WHERE run_id = '{{}}'"
                known = await cluster.meter.fetchval(query.format(live[index]))
                following.append(
                    asyncio.create_task(_follow(other, live[index], f"l{index}", known))
                )
            await asyncio.sleep(SETTLE_SECONDS)
            cost = await cluster.measure(ROLES[1], wait)
            more = _subtract(cost, beside)._replace(statements=cost.statements)
            name = "a follower" if number == 1 else f"{number} followers of {number} streams"
            yield (
                f"follow {number}",
                Row(f"{name}, on another server", "second", more, cost.seconds),
            )
        for task in following:
            task.cancel()
        await asyncio.gather(*following, return_exceptions=True)
        for index, run_id in enumerate(live):
            await client.post(f"/agents/paced/runs/{run_id}/cancel?session_id=l{index}")


async def _follow(client: httpx2.AsyncClient, run_id: str, session_id: str, known: int) -> None:
    path = f"/agents/paced/runs/{run_id}/resume?session_id={session_id}&last_event_index={known}"
    async with client.stream("POST", path) as response:
        assert response.status_code == 200, await response.aread()
        async for _ in read_events(response):
            pass


async def _read_servers(cluster: Cluster, idle: Cost, seconds: float) -> Rows:
    async def wait() -> None:
        await asyncio.sleep(seconds)

    await cluster.stop(1)
    cost = await cluster.measure(ROLES[0], wait)
    yield "lone", Row("a lone idle server", "minute", cost, cost.seconds / 60)
    await cluster.start(1)
    half = _divide(idle, 2)._replace(statements=idle.statements)
    yield "idle", Row("one of several idle servers", "minute", half, idle.seconds / 60)
    cost = await cluster.measure(ROLES[0], wait)
    sweeping = _subtract(cost, half)._replace(statements=cost.statements)
    yield "sweeping", Row("the one of them that sweeps", "minute", sweeping, cost.seconds / 60)
    async with cluster.client(1) as client:
        silent = json.dumps({"words": 1, "size": 6, "seconds": 0, "hold": True})
        run_id = await _start(client, "silent", silent, background=True)
        await asyncio.sleep(SETTLE_SECONDS)
        cost = await cluster.measure(ROLES[1], wait)
        live = _subtract(cost, half)._replace(statements=cost.statements)
        yield "busy", Row("a server with a live run", "minute", live, cost.seconds / 60)
        await client.post(f"/agents/paced/runs/{run_id}/cancel?session_id=silent")
    await asyncio.sleep(SETTLE_SECONDS)


def _subtract(cost: Cost, other: Cost) -> Cost:
    """Take out what happens in the same time anyway."""
    share = cost.seconds / other.seconds
    pairs = zip(cost[1:], other[1:], strict=True)
    return Cost(cost.seconds, *(max(one - share * two, 0) for one, two in pairs))


def _divide(cost: Cost, number: float) -> Cost:
    return Cost(cost.seconds, *(value / number for value in cost[1:]))


def create_roles(postgres: PostgresServer) -> None:
    """Create `ROLES`."""
    execute(postgres, *(f"CREATE ROLE {role} SUPERUSER LOGIN" for role in ROLES))


@contextlib.contextmanager
def running_servers(
    postgres: PostgresServer, folder: Path, settings: str = "", limits: str = ""
) -> Iterator[list[Server]]:
    """Start a server for each of `ROLES`, with an agent whose model is paced.

    Args:
        settings: lines of TOML for the database.
        limits: lines of TOML for `limits`.
    """
    with serve_endpoint() as endpoint, contextlib.ExitStack() as stack:
        extra = AGENT.format(url=f"{endpoint}/v1").replace("[limits]\n", f"[limits]\n{limits}")
        first = folder / "a"
        first.mkdir()
        servers = []
        for name, role in zip(("a", "b"), ROLES, strict=True):
            url = postgres.url.replace("postgres@", f"{role}@")
            main = f'url = "{url}"\nsearch_path = "{SCHEMA}"\n{settings}'
            if name == "a":
                path = create_deployment(
                    first, endpoint, extra=extra, databases={"main": main}
                ).path
                path.write_text(path.read_text().replace('database = "second"\n', ""))
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
    """Yield the lines of the table, the numbers of connections, and an example."""
    with run_postgres_server() as postgres, tempfile.TemporaryDirectory() as folder:
        await asyncio.to_thread(create_roles, postgres)
        with running_servers(postgres, Path(folder)) as servers:
            deployment = servers[0].deployment
            headers = deployment.bearer("me", ADMIN, seconds=3_600)
            meter = Meter(postgres, SCHEMA)
            await meter.open()
            cluster = Cluster(meter, servers, headers)
            await asyncio.sleep(SETTLE_SECONDS)
            idle_connections = await cluster.connections(ROLES[0])
            idle = await cluster.measure(ROLES[1], lambda: asyncio.sleep(seconds))
            yield HEAD
            rows: dict[str, Row] = {}
            for part in (
                _read_servers(cluster, idle, seconds),
                _read_runs(cluster, idle),
                _read_streams(cluster, idle, seconds),
            ):
                async for key, row in part:
                    rows[key] = row
                    yield str(row)
            most = await _count_connections(cluster)
            yield f"\nConnections of a server: {idle_connections} idle, {most} at most.\n\n"
            for line in format_example(rows, idle_connections, most):
                yield line
            for line in format_sizes(rows, idle_connections, most):
                yield line
            await meter.close()


class Demand(NamedTuple):
    """The load of the example.

    Attributes:
        plain, streamed: runs a second.
        seconds: duration of a streamed run.
        following: servers with followers of streams elsewhere, 20 each.
    """

    servers: int = 50
    plain: float = 200
    streamed: float = 50
    seconds: float = 20
    following: int = 10


def format_example(rows: dict[str, Row], idle: int, most: int) -> Iterator[str]:
    """Compute the load of a cluster on PostgreSQL, from the rows of the table."""
    load = Demand()
    live = load.streamed * load.seconds
    terms = [
        (f"{load.servers} servers with live runs", "busy", load.servers / 60),
        (f"{load.plain:.0f} plain runs a second", "plain", load.plain),
        (
            f"{load.streamed:.0f} streamed runs a second: their beginnings and ends",
            "streamed",
            load.streamed,
        ),
        (
            f"{live:.0f} live streams, of {load.seconds:.0f} s each",
            f"live {STREAMS}",
            live / STREAMS,
        ),
        (
            f"{load.following} servers with {FOLLOWERS} followers each",
            f"follow {FOLLOWERS}",
            load.following,
        ),
    ]
    yield "| a second | statements | commits | log MB | stored GB a day | cores |\n"
    yield "| --- | ---: | ---: | ---: | ---: | ---: |\n"
    total = [0.0] * 5
    for name, key, number in terms:
        each = _divide(rows[key].cost, rows[key].units / number)
        figures = [
            each.statements,
            each.writes,
            each.wal / 1e6,
            each.stored * 86_400 / 1e9,
            each.cpu,
        ]
        total = [one + two for one, two in zip(total, figures, strict=True)]
        yield _format_figures(name, figures)
    yield _format_figures("**together**", total)
    yield (
        f"\nConnections: {load.servers} x {idle} = {load.servers * idle} idle, "
        f"{load.servers} x {most} = {load.servers * most} at most.\n"
    )


WALLS = {
    1: "its core",
    10: "cores of PostgreSQL",
    100: "`max_connections`",
    1_000: "connections, then wake-ups",
}
"""The first wall of a cluster by its number of servers (`docs/scale.md`)."""


def format_sizes(rows: dict[str, Row], idle: int, most: int) -> Iterator[str]:
    """Compute the load of clusters of several sizes on PostgreSQL, from the rows of the table."""
    each = {key: _divide(row.cost, row.cost.seconds) for key, row in rows.items()}
    yield (
        "\n| servers | statements/s idle | each with a live run | each with followers |"
        " log KB/s idle | connections | first wall |\n"
        "| ---: | ---: | ---: | ---: | ---: | ---: | --- |\n"
    )
    for number, wall in WALLS.items():
        sweep = each["sweeping" if number > 1 else "lone"]
        besides = sweep.statements - each["idle"].statements
        statements = [
            number * each[key].statements + max(besides, 0)
            for key in ("idle", "busy", f"follow {FOLLOWERS}")
        ]
        log = (sweep.wal + (number - 1) * each["idle"].wal) / 1_000
        shown = " | ".join(f"{count:,.1f}" for count in (*statements, log))
        yield f"| {number:,} | {shown} | {number * idle:,} to {number * most:,} | {wall} |\n"


def _format_figures(name: str, figures: list[float]) -> str:
    statements, commits, *others = figures
    shown = " | ".join(f"{value:.2f}" for value in others)
    return f"| {name} | {statements:,.0f} | {commits:,.0f} | {shown} |\n"


async def _main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=20, help="of each window of time")
    parser.add_argument("--write", action="store_true", help="replace the table of docs/scale.md")
    options = parser.parse_args()
    lines: list[str] = []
    async for line in measure(options.seconds):
        print(line, end="", flush=True)
        lines.append(line)
    if options.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        after = rest.partition(END)[2]
        PAGE.write_text(f"{before}{BEGIN}{''.join(lines)}{END}{after}")


if __name__ == "__main__":
    asyncio.run(_main())
