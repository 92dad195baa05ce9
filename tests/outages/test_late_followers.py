"""Late followers share the reads of a server, and each has every event once, in order."""

from __future__ import annotations

import asyncio
import random
import re
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import httpx2
import orjson
import pytest

from agentctl.runs.log.event_rows import decode_events
from agentctl.store.repositories.events import PART_BYTES, EventRow
from tests.kit.concurrent_callers import read_events
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.postgres_server import PostgresServer
from tests.lab.servers import Server

EVENTS = 5_000
MAXIMUM_READS = EVENTS * 400 / 100_000
FOLLOWERS = 12
STARTED = 1_763_892_000_123_456

ROLE = "late_followers"


def build_batches(run_id: str, session_id: str) -> list[EventRow]:
    """Return the stored events of a run: about ten in a batch, and some large ones."""
    chance = random.Random(42)
    batches = list[EventRow]()
    seq = 0
    while seq < EVENTS:
        count = chance.randint(1, 19)
        size = 20_000 if len(batches) % 97 == 50 else 6
        texts = [f"{seq + index:0{size}}" for index in range(count)]
        times = [STARTED + seq, *[20_000] * (count - 1)]
        data = orjson.dumps([["agent", "echo", "Echo"], times, texts]).decode()
        row = EventRow(run_id, seq, seq + count - 1, f"RunContent {data}\n", session_id)
        batches.append(row)
        seq += count
    return batches


async def store(url: str, batches: list[EventRow]) -> None:
    values = [(row.run_id, row.first_seq, row.last_seq, row.events) for row in batches]
    columns = "INSERT INTO run_events (run_id, first_seq, last_seq, events) VALUES"
    if not url.startswith("postgres"):
        connection = apsw.Connection(url)
        with connection:
            connection.executemany(f"{columns} (?, ?, ?, ?)", values)
        connection.close()
        return
    database = await asyncpg.connect(url, server_settings={"search_path": ROLE})
    await database.executemany(f"{columns} ($1, $2, $3, $4)", values)
    await database.close()


async def follow(
    client: httpx2.AsyncClient, path: str, after: int, pause: asyncio.Event | None = None
) -> list[Any]:
    """Return numbers and data of the events after one; read on after the first when `pause` is set.

    The last event is that of a run whose row is final.
    """
    found = []
    async with client.stream(
        "GET", f"{path}/events", params={"last_event_index": after}
    ) as response:
        assert response.status_code == 200, await response.aread()
        async for event in read_events(response):
            found.append((event.number, event.data))
            if pause is not None:
                await pause.wait()
    return found


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
async def test_late_followers_share_the_reads_of_a_server(
    server: PostgresServer, tmp_path: Path, model_endpoint: ModelEndpoint, engine: str
) -> None:
    url = str(tmp_path / "main.db")
    databases = {"main": 'url = "sqlite:///main.db"'}
    if engine == "postgres":
        url = server.url.replace("postgres@", f"{ROLE}@")
        owner = await asyncpg.connect(server.url)
        await owner.execute(
            f"DROP ROLE IF EXISTS {ROLE}; CREATE ROLE {ROLE} SUPERUSER LOGIN;"
            f" DROP SCHEMA IF EXISTS {ROLE} CASCADE"
        )
        await owner.close()
        pooled = f'url = "{url}"\nsearch_path = "{ROLE}"\npool_size = 2'
        databases = {"main": pooled}
    databases["second"] = 'url = "sqlite:///second.db"'
    deployment = create_deployment(
        tmp_path,
        model_endpoint.base_url,
        databases=databases,
        extra="[limits]\nfollowed_runs = 1000\n",
    )
    started = Server("late", deployment)
    await asyncio.to_thread(started.start)
    try:
        await _follow_late(started, deployment, server if engine == "postgres" else None, url)
    finally:
        started.kill()


async def _follow_late(
    started: Server, deployment: Deployment, postgres: PostgresServer | None, url: str
) -> None:
    async with httpx2.AsyncClient(
        base_url=started.url,
        headers=deployment.bearer("me", ADMIN),
        timeout=PATIENCE,
        limits=httpx2.Limits(max_connections=None),
    ) as client:
        response = await client.post("/agents/echo/runs", json={"message": "x", "stream": False})
        run = response.json()
        path = f"/agents/echo/runs/{run['run_id']}"
        batches = build_batches(run["run_id"], run["session_id"])
        await store(url, batches)
        log = [
            (event.seq, orjson.loads(event.data))
            for batch in batches
            for event in decode_events(batch)
        ]

        one = await _count(postgres, follow(client, path, -1))
        assert one[0] == log
        chance = random.Random(7)
        paused = asyncio.Event()
        # Those with the most first: a read for them lacks events of the others.
        places = sorted((chance.randrange(EVENTS // 4) for _ in range(FOLLOWERS)), reverse=True)
        places += [-1, -1, -1]
        slow = asyncio.create_task(follow(client, path, -1, paused))
        # The slow one has one event only until all others have everything.
        many = await _count(
            postgres, asyncio.gather(*(follow(client, path, after) for after in places))
        )
        assert many[0] == [log[after + 1 :] for after in places]
        paused.set()
        assert await slow == log

        stored = sum(len(batch.events) for batch in batches)
        parts = 2 * stored / PART_BYTES + 2
        if postgres is not None:
            print(f"{len(log)} events: {one[1]} reads by one, {many[1]} by {len(places)}")
            assert 0 < one[1] <= min(parts, MAXIMUM_READS)
            # The followers begin at different places: at first each may need a separate read.
            assert many[1] <= one[1] + len(places)


async def _count(postgres: PostgresServer | None, awaited: Any) -> tuple[Any, int]:
    """Return a result, and the number of statements that have read events for it."""
    if postgres is None:
        return await awaited, 0
    owner = await asyncpg.connect(postgres.url)
    await owner.execute(f"ALTER ROLE {ROLE} SET log_statement = 'all'")
    await owner.execute("ALTER SYSTEM SET log_line_prefix = '%m [%u] '")
    await owner.execute("SELECT pg_reload_conf()")
    await owner.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = $1", ROLE
    )
    await owner.close()
    before = postgres.log.stat().st_size
    result = await awaited
    with postgres.log.open("rb") as file:
        file.seek(before)
        text = file.read().decode(errors="replace")
    found = re.findall(rf"\[{ROLE}\] LOG:  (?:statement|execute)[^\n]*run_events", text)
    return result, len(found)
