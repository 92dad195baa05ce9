"""Starts at a server whose database is too slow, too small or locked, and their runs.

`python -m tests.outages.overload` starts a thousand runs in each case of `CASES` and prints a
table. The ledger has two parts: the messages that the model has received, and the rows. An
acknowledged message is in both exactly once, a refused one in none.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import asyncpg
import httpx2

from tests.chaos.cluster import Server
from tests.conditions import PATIENCE, wait_until
from tests.deployment import ADMIN, SQLITE_DATABASES, create_deployment
from tests.endpoint import ModelEndpoint, start_endpoint
from tests.postgres_server import PostgresServer, run_postgres_server

SLOW_COMMITS = ("commit_delay=20000", "commit_siblings=0")
"""Settings of PostgreSQL: each commit takes 20 ms, as on a slow disk."""

FORMS = ({"stream": "false"}, {"stream": "true"}, {"stream": "false", "background": "true"})

LOCKED_AT = 0.3
"""Seconds after the first start at which a lock is taken."""

Fault = Callable[["Place"], AbstractAsyncContextManager[None]]


@dataclass
class Place:
    """A running server and its database."""

    server: Server
    endpoint: ModelEndpoint
    headers: dict[str, str]
    rows: Callable[[str], Awaitable[list[Any]]]
    connect: Callable[[], Awaitable[asyncpg.Connection[Any]]] | None = None
    file: Path = Path()

    def client(self) -> httpx2.AsyncClient:
        limits = httpx2.Limits(max_connections=None)
        url = self.server.url
        return httpx2.AsyncClient(
            base_url=url, headers=self.headers, timeout=PATIENCE, limits=limits
        )


@contextlib.asynccontextmanager
async def no_lock(place: Place) -> AsyncIterator[None]:
    yield


@contextlib.asynccontextmanager
async def locked_file(place: Place) -> AsyncIterator[None]:
    """Hold the lock of the writers of the file in this process, which is not the server."""
    with contextlib.closing(apsw.Connection(str(place.file))) as connection:
        connection.set_busy_timeout(30_000)
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")


def locked_table(table: str) -> Fault:
    """Return a fault: another session has locked a table."""

    @contextlib.asynccontextmanager
    async def lock(place: Place) -> AsyncIterator[None]:
        assert place.connect is not None
        connection = await place.connect()
        try:
            async with connection.transaction():
                await connection.execute(f"LOCK TABLE {table}")
                yield
        finally:
            await connection.close()

    return lock


class Case(NamedTuple):
    """A database that cannot serve all starts.

    Attributes:
        settings: of the database in the configuration; empty for SQLite.
        seconds: duration of the lock. Starts go on for as long before and after it.
        is_unready: True if `/ready` reports the fault while it lasts.
        wait: `wait_seconds` of the settings: a late pool refuses starts before.
    """

    fault: Fault
    settings: str = ""
    seconds: float = 0.0
    is_unready: bool = True
    wait: float = 0.0


CASES = {
    "a pool of one, slow commits": Case(
        no_lock, "pool_size = 1\nwait_seconds = 0.5", is_unready=False, wait=0.5
    ),
    "runs locked by another session": Case(
        # Connections for all starts: only the failed writes show the lock.
        locked_table("runs"),
        "pool_size = 40\nwait_seconds = 0.5\nstatement_seconds = 1",
        2.5,
    ),
    "sessions locked by another session": Case(
        locked_table("sessions"), "pool_size = 4\nwait_seconds = 0.5\nstatement_seconds = 1", 2.5
    ),
    "the file locked by another program": Case(locked_file, seconds=6.0),
}


@dataclass
class Outcome:
    """The answers to all starts, by message, and the runs that were executed.

    Attributes:
        refused: messages with a 429, or a 503 with Retry-After.
        unknown: messages with a 503 OUTCOME_UNKNOWN.
        other: any other answer; there must be none.
        executed: number of times that the model has received each message.
        rows: statuses of the runs of each message.
        readiness: status of `/ready` at the end of the fault.
        quickest: seconds until the first refusal.
    """

    acknowledged: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    other: list[str] = field(default_factory=list)
    executed: Counter[str] = field(default_factory=Counter)
    rows: dict[str, list[str]] = field(default_factory=dict)
    readiness: int = 0
    quickest: float = 60.0

    def check(self) -> None:
        """Raise AssertionError if an answer was untrue."""
        assert self.other == []
        assert {text for text in self.refused if text in self.executed} == set()
        assert {text for text in self.refused if text in self.rows} == set()
        wrong = {
            text: (self.executed[text], self.rows.get(text))
            for text in self.acknowledged
            if (self.executed[text], self.rows.get(text)) != (1, ["COMPLETED"])
        }
        assert wrong == {}


async def overload(place: Place, case: Case, starts: int, rate: float) -> Outcome:
    """Send starts with distinct messages at this rate, and wait for the ends of all runs."""
    outcome = Outcome()
    async with place.client() as client:
        await _warm_up(client)
        place.endpoint.forget()

        async def start(number: int) -> None:
            text = f"message {number}"
            form = {"message": text, **FORMS[number % len(FORMS)]}
            response = await client.post("/agents/echo/runs", data=form)
            _sort(outcome, text, response)
            if text in outcome.refused:
                seconds = response.elapsed.total_seconds()
                outcome.quickest = min(outcome.quickest, seconds)

        async def disturb() -> None:
            await asyncio.sleep(LOCKED_AT)
            async with case.fault(place):
                await asyncio.sleep(case.seconds)
                outcome.readiness = (await client.get("/ready")).status_code

        disturbing = asyncio.create_task(disturb())
        async with asyncio.TaskGroup() as running:
            for number in range(starts):
                running.create_task(start(number))
                await asyncio.sleep(1 / rate)
        await disturbing

    async def has_ended() -> bool:
        return not await place.rows("SELECT 1 FROM runs WHERE finished_at IS NULL")

    await wait_until(has_ended)
    for status, text in await place.rows("SELECT status, input FROM runs"):
        outcome.rows.setdefault(text, []).append(status)
    outcome.rows.pop("first", None)
    sent = (body["messages"][-1]["content"] for body in place.endpoint.requests("echo"))
    outcome.executed.update(sent)
    return outcome


async def _warm_up(client: httpx2.AsyncClient) -> None:
    async with asyncio.timeout(PATIENCE):
        while (
            await client.post("/agents/echo/runs", data={"message": "first", "stream": "false"})
        ).status_code != 200:
            await asyncio.sleep(0.05)


def _sort(outcome: Outcome, text: str, response: httpx2.Response) -> None:
    status = response.status_code
    is_final = "RunCompleted" in response.text
    if status in (200, 202) and (is_final or "event:" not in response.text):
        outcome.acknowledged.add(text)
    elif status in (429, 503) and "Retry-After" in response.headers:
        outcome.refused.add(text)
    elif status == 503 and response.json()["error_code"] == "OUTCOME_UNKNOWN":
        outcome.unknown.add(text)
    else:
        outcome.other.append(f"{text}: {status} {response.text[-300:]}")


@contextlib.contextmanager
def serving(
    case: Case,
    endpoint: ModelEndpoint,
    folder: Path,
    postgres: PostgresServer | None,
    schema: str,
    **options: Any,
) -> Iterator[Place]:
    """Start a server for a case; on SQLite if the case has no settings of PostgreSQL.

    Args:
        options: as of `create_deployment`.
    """
    databases = dict(SQLITE_DATABASES)
    if case.settings:
        assert postgres is not None
        url = f'url = "{postgres.url}"\nsearch_path = "{schema}"'
        databases["main"] = f"{url}\n{case.settings}"
    deployment = create_deployment(folder, endpoint.base_url, databases=databases, **options)
    server = Server("overloaded", deployment)
    file = folder / "main.db"

    async def connect() -> asyncpg.Connection[Any]:
        assert postgres is not None
        return await asyncpg.connect(postgres.url, server_settings={"search_path": schema})

    async def rows(sql: str) -> list[Any]:
        if not case.settings:
            flags = apsw.SQLITE_OPEN_READONLY
            with contextlib.closing(apsw.Connection(str(file), flags=flags)) as reader:
                return reader.execute(sql).fetchall()
        connection = await connect()
        try:
            return [tuple(row) for row in await connection.fetch(sql)]
        finally:
            await connection.close()

    server.start()
    try:
        headers = deployment.bearer("me", ADMIN, seconds=3_600)
        yield Place(server, endpoint, headers, rows, connect if case.settings else None, file)
    finally:
        server.kill()


def main() -> None:
    """Run all cases and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--starts", type=int, default=1_000)
    parser.add_argument("--rate", type=float, default=100.0, help="starts per second")
    options = parser.parse_args()
    print("| database | starts | acknowledged | refused | unknown | `/ready` |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    endpoint = start_endpoint()
    with contextlib.ExitStack() as stack:
        stack.callback(endpoint.stop)
        postgres = stack.enter_context(run_postgres_server(durable=True, settings=SLOW_COMMITS))
        for number, (name, case) in enumerate(CASES.items()):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            with serving(case, endpoint, folder, postgres, f"overloaded_{number}") as place:
                found = asyncio.run(overload(place, case, options.starts, options.rate))
            counts = [found.acknowledged, found.refused, found.unknown]
            shown = " | ".join(str(len(each)) for each in counts)
            print(f"| {name} | {options.starts} | {shown} | {found.readiness} |", flush=True)
            found.check()


if __name__ == "__main__":
    main()
