"""Plain runs, written into PostgreSQL with the statements of the program, without a server."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import deque
from itertools import count
from typing import Any
from uuid import UUID

import asyncpg

from agentctl.config import settings
from agentctl.store.database import Value, Work, compile_for_postgres, list_statements
from agentctl.store.postgres import plain_runs
from agentctl.store.postgres.database import PostgresDatabase
from agentctl.store.repositories.events import Batch
from agentctl.store.visibility import EVERYONE
from tests.postgres_server import PostgresServer
from tests.store.rows import a_run, a_session, an_end

CONNECTIONS = 4

OPEN = 4
"""Runs of a connection that are not final at the same time."""

TEXT = "The question and the answer of a run have some words that are not all the same. "


class PlainWriter:
    """Connections that write plain runs into a new schema."""

    def __init__(self, schema: str, server: PostgresServer, runs_of_session: int) -> None:
        self.schema = schema
        self._runs_of_session = runs_of_session
        self._server = server
        self._numbers = [count() for _ in range(CONNECTIONS)]
        self._connections: list[asyncpg.Connection[Any]] = []

    async def open(self) -> None:
        """Create the schema with its tables, and connect."""
        entry = settings.Database("main", self._server.url, search_path=self.schema)
        database = PostgresDatabase(entry, create=True)
        await database.check()
        await database.close()
        for _ in range(CONNECTIONS):
            self._connections.append(
                await asyncpg.connect(
                    self._server.url,
                    server_settings={"search_path": self.schema},
                    statement_cache_size=1_000,
                )
            )

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()

    async def write(self, runs: int) -> None:
        """Write runs from their start to their end, over all connections."""
        parts = (
            self._write(each, lane, runs // CONNECTIONS)
            for lane, each in enumerate(self._connections)
        )
        await asyncio.gather(*parts)

    async def _write(self, connection: asyncpg.Connection[Any], lane: int, runs: int) -> None:
        open_runs = deque[str]()
        for _ in range(runs):
            number = next(self._numbers[lane]) * CONNECTIONS + lane
            name = _build_id("run", number)
            await _run(connection, _build_start(name, number, self._runs_of_session))
            open_runs.append(name)
            if len(open_runs) > OPEN:
                await _run(connection, _build_end(open_runs.popleft(), number))
        while open_runs:
            await _run(connection, _build_end(open_runs.popleft(), number))


def _build_id(kind: str, number: int) -> str:
    """Return an id that begins with its time, as those of the program."""
    digest = hashlib.md5(f"{kind} {number}".encode(), usedforsecurity=False).hexdigest()
    return str(UUID(f"{1_700_000_000_000 + number * 1_000:012x}{digest[12:]}"))


def _build_start(name: str, number: int, runs_of_session: int) -> Work[Any]:
    lane = number % CONNECTIONS
    at = number // CONNECTIONS
    session = at // runs_of_session * CONNECTIONS + lane
    common = {"user_id": f"user-{session % 997}", "component_id": f"agent-{session % 20}"}
    at = 1_700_000_000_000_000 + number * 1_000_000
    row = a_session(
        _build_id("session", session * runs_of_session),
        now=at,
        session_name=f"Question {session}",
        component_name="Agent",
        component_data=json.dumps({"model": {"id": "model", "provider": "provider"}}),
        **common,
    )
    run = a_run(
        name, row.session_id, owner="0123456789abcdef0123456789abcdef0123", created_at=at,
        input=TEXT * 2, background=False, **common,
    )  # fmt: skip
    entry: dict[str, Value] = {
        "at": at, "principal": common["user_id"], "via": "token", "operation": "create_run",
        "resource": row.session_id, "outcome": "allowed", "status": 200, "reason": None,
        "request_id": f"request-{number}", "count": 1, "trace_id": None,
    }  # fmt: skip
    return plain_runs.start(row, EVERYONE, run, entry)


def _build_end(name: str, number: int) -> Work[Any]:
    at = 1_700_000_000_500_000 + number * 1_000_000
    answer = TEXT * 6
    question = TEXT * 2
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    end = an_end(
        name,
        content=answer,
        history=json.dumps(messages),
        messages=json.dumps(messages),
        metrics=json.dumps(dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), 99)),
        spans=json.dumps([{"kind": "model", "name": "model", "start": 1, "end": 400_000}] * 2),
        model="model",
        finished_at=at,
        stopped_at=at,
    )
    return plain_runs.end(end, Batch(name, 1, 0, 3, json.dumps({"event": "RunCompleted"})))


async def _run(connection: asyncpg.Connection[Any], work: Work[Any]) -> None:
    (statement,) = list_statements(work)
    text, order = compile_for_postgres(statement.sql)
    rows = await connection.fetch(text, *[statement.parameters[name] for name in order])
    assert rows
