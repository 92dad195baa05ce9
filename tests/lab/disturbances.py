"""The disturbances of scenarios: kills, crashes, cuts, stops, locks, full disks, wrong clocks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import asyncpg
import httpx2

from tests.kit.conditions import PATIENCE, wait_until
from tests.lab.servers import Server
from tests.lab.world import World

__all__ = ["DISTURBANCES", "Disturbance", "wait_for_answers"]

Disturbance = Callable[[World, float], AbstractAsyncContextManager[None]]
"""A disturbance of a world.

It lasts at least for some seconds before the block, for the block, and until its end.
"""

HOUR = 3_600

AHEAD = "import os, time\nreal = time.time_ns\nahead = {} * 10**9\n" + (
    "time.time_ns = lambda: real() + ahead\ntime.time = lambda: (real() + ahead) / 1e9\n"
)
"""A module `sitecustomize`, which sets the clock of a process ahead."""


@contextlib.asynccontextmanager
async def nothing(world: World, seconds: float) -> AsyncIterator[None]:
    """Disturb nothing: the deployment itself is too slow or too small."""
    await asyncio.sleep(seconds)
    yield


# The database


def stop_postgres(mode: str) -> Disturbance:
    """Return the stop of PostgreSQL in a mode of `pg_ctl`; it is started again at the end."""

    @contextlib.asynccontextmanager
    async def stop(world: World, seconds: float) -> AsyncIterator[None]:
        assert world.postgres is not None
        await asyncio.to_thread(world.postgres.stop, mode)
        await asyncio.sleep(seconds)
        await asyncio.to_thread(world.postgres.start)
        yield

    return stop


@contextlib.asynccontextmanager
async def kill_postgres(world: World, seconds: float) -> AsyncIterator[None]:
    """Kill all processes of PostgreSQL with SIGKILL, and start it again."""
    assert world.postgres is not None
    await asyncio.to_thread(world.postgres.kill)
    await asyncio.sleep(seconds)
    await asyncio.to_thread(world.postgres.start)
    yield


@contextlib.asynccontextmanager
async def kill_backend(world: World, seconds: float) -> AsyncIterator[None]:
    """Kill one process of PostgreSQL with SIGKILL: it recovers by itself."""
    assert world.postgres is not None
    await asyncio.to_thread(world.postgres.kill_backend)
    await asyncio.sleep(seconds)
    yield


@contextlib.asynccontextmanager
async def cut_connections(world: World, seconds: float) -> AsyncIterator[None]:
    """Close all connections of the servers to PostgreSQL."""
    await world.rows(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'agentctl'"
    )
    await asyncio.sleep(seconds)
    yield


@contextlib.asynccontextmanager
async def kill_pooler(world: World, seconds: float) -> AsyncIterator[None]:
    """Kill PgBouncer, and start it again."""
    assert world.pooler is not None
    await asyncio.to_thread(world.pooler.stop)
    await asyncio.sleep(seconds)
    await asyncio.to_thread(world.pooler.start)
    yield


def lock_table(table: str) -> Disturbance:
    """Return the lock of a table by another session of PostgreSQL."""

    @contextlib.asynccontextmanager
    async def lock(world: World, seconds: float) -> AsyncIterator[None]:
        connection = await world.connect()
        try:
            async with connection.transaction():
                await connection.execute(f"LOCK TABLE {table}")
                await asyncio.sleep(seconds)
                yield
        finally:
            await connection.close()

    return lock


@contextlib.asynccontextmanager
async def lock_file(world: World, seconds: float) -> AsyncIterator[None]:
    """Hold the lock of the writers of the file in this process, which is not a server."""
    connection = await asyncio.to_thread(world.open_file)
    try:
        await asyncio.to_thread(connection.execute, "BEGIN IMMEDIATE")
        await asyncio.sleep(seconds)
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


@contextlib.asynccontextmanager
async def fill_disk(world: World, seconds: float) -> AsyncIterator[None]:
    """Fill the disk of PostgreSQL; make room again, and start PostgreSQL if it has stopped."""
    assert world.postgres is not None
    filler = world.postgres.log.parent.parent / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while file.write(bytes(2**16)):
            pass
    await asyncio.sleep(seconds)
    yield
    filler.unlink()
    with contextlib.suppress(OSError, asyncpg.PostgresError):
        await (await world.connect()).close()
        return
    await asyncio.to_thread(world.postgres.start)


@contextlib.asynccontextmanager
async def slow_commits(world: World, seconds: float) -> AsyncIterator[None]:
    """Delay each commit of PostgreSQL by 20 ms, as on a slow disk."""
    connection = await world.connect()
    for name, value in (("commit_delay", 20_000), ("commit_siblings", 0)):
        await connection.execute(f"ALTER SYSTEM SET {name} = {value}")
    await connection.execute("SELECT pg_reload_conf()")
    await asyncio.sleep(seconds)
    yield
    await connection.execute("ALTER SYSTEM RESET ALL")
    await connection.execute("SELECT pg_reload_conf()")
    await connection.close()


# Servers and their workers


@contextlib.asynccontextmanager
async def kill_server(world: World, seconds: float) -> AsyncIterator[None]:
    """Kill a server with its workers (SIGKILL), and start it again after some seconds."""
    server = world.dice.choice(world.list_running())
    await asyncio.to_thread(server.kill)
    await asyncio.sleep(seconds)
    yield
    await asyncio.to_thread(server.start_until_it_stays)


@contextlib.asynccontextmanager
async def kill_server_and_postgres(world: World, seconds: float) -> AsyncIterator[None]:
    """Kill a server, and start it again while the database crashes and comes back."""

    async def restart_server() -> None:
        async with kill_server(world, seconds):
            pass

    restarting = asyncio.create_task(restart_server())
    async with stop_postgres("immediate")(world, 0.5):
        pass
    await restarting
    yield


@contextlib.asynccontextmanager
async def stop_server(world: World, seconds: float) -> AsyncIterator[None]:
    """Stop a process of a server (SIGSTOP), and continue it."""
    pid = world.dice.choice(world.list_workers())
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
        yield
    finally:
        # The others may have killed and replaced it.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextlib.asynccontextmanager
async def kill_worker(world: World, seconds: float) -> AsyncIterator[None]:
    """Kill a worker (SIGKILL), which its server replaces; one stays alive.

    A run ends that loses its process three times in one step.
    """
    ready: list[int] = []

    async def has_two() -> bool:
        ready[:] = await world.list_ready_workers()
        return len(ready) > 1

    await wait_until(has_two)
    with contextlib.suppress(ProcessLookupError):
        os.kill(world.dice.choice(ready), signal.SIGKILL)
    await asyncio.sleep(seconds)
    yield


@contextlib.asynccontextmanager
async def restart_servers(world: World, seconds: float) -> AsyncIterator[None]:
    """Restart each server with SIGTERM."""
    for server in world.servers:
        await _restart(server)
    await asyncio.sleep(seconds)
    yield


@contextlib.asynccontextmanager
async def set_clocks_apart(world: World, seconds: float) -> AsyncIterator[None]:
    """Set the clock of one server an hour ahead, and that of the other an hour back."""
    for server, ahead in zip(world.servers, (HOUR, -HOUR), strict=True):
        folder = server.deployment.folder / f"clock{ahead}"
        folder.mkdir(exist_ok=True)
        (folder / "sitecustomize.py").write_text(AHEAD.format(ahead))
        server.variables["PYTHONPATH"] = str(folder)
        await _restart(server)
    await asyncio.sleep(seconds)
    yield
    for server in world.servers:
        del server.variables["PYTHONPATH"]
        await _restart(server)


async def _restart(server: Server) -> None:
    await asyncio.to_thread(server.stop)
    await asyncio.to_thread(server.start)


DISTURBANCES: dict[str, Disturbance] = {
    "none": nothing,
    # PostgreSQL
    "crash of PostgreSQL": stop_postgres("immediate"),
    "fast stop of PostgreSQL": stop_postgres("fast"),
    "PostgreSQL killed": kill_postgres,
    "process of PostgreSQL killed": kill_backend,
    "connections cut": cut_connections,
    "pooler killed": kill_pooler,
    "full disk": fill_disk,
    "slow commits": slow_commits,
    "runs locked": lock_table("runs"),
    "sessions locked": lock_table("sessions"),
    "workers locked": lock_table("workers"),
    # SQLite
    "file locked": lock_file,
    # Servers
    "server killed": kill_server,
    "server and PostgreSQL killed": kill_server_and_postgres,
    "process stopped": stop_server,
    "worker killed": kill_worker,
    "rolling restart": restart_servers,
    "clocks apart": set_clocks_apart,
}
"""The disturbances by name."""


async def wait_for_answers(world: World) -> None:
    """Wait until every running server has answered with stored data."""
    async with httpx2.AsyncClient(headers=world.headers, timeout=PATIENCE) as client:
        for server in [server for server in world.servers if server.is_running]:

            async def has_answered(server: Server = server) -> bool:
                return not server.is_running or await _answers(client, server)

            await wait_until(has_answered)


async def _answers(client: httpx2.AsyncClient, server: Server) -> bool:
    try:
        return (await client.get(f"{server.url}/runs?limit=1")).status_code == 200
    except httpx2.TransportError:
        return False
