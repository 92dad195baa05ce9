"""Plain runs, written into PostgreSQL with the statements of the program, without a server."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import deque
from itertools import count
from uuid import UUID

from agentctl.config import settings
from agentctl.store.database import Steps, unit
from agentctl.store.postgres.database import PostgresDatabase
from agentctl.store.repositories import audit, events, runs, sessions
from agentctl.store.visibility import EVERYONE
from tests.kit.postgres_server import PostgresServer
from tests.kit.rows import a_run, a_session, an_end

CONNECTIONS = 4

OPEN = 4
"""Runs of a connection that are not final at the same time."""

TEXT = "The question and the answer of a run have some words that are not all the same. "


class PlainWriter:
    """Connections that write plain runs into a new schema."""

    def __init__(self, schema: str, server: PostgresServer, runs_of_session: int) -> None:
        self.schema = schema
        self._runs_of_session = runs_of_session
        self._numbers = [count() for _ in range(CONNECTIONS)]
        entry = settings.Database("main", server.url, search_path=schema, pool_size=CONNECTIONS)
        self._database = PostgresDatabase(entry, create=True)

    async def open(self) -> None:
        """Create the schema with its tables, and connect."""
        await self._database.check()

    async def close(self) -> None:
        await self._database.close()

    async def write(self, runs: int) -> None:
        """Write runs from their start to their end, over all connections."""
        lanes = (self._write(lane, runs // CONNECTIONS) for lane in range(CONNECTIONS))
        await asyncio.gather(*lanes)

    async def _write(self, lane: int, runs: int) -> None:
        write = self._database.write
        open_runs = deque[str]()
        for _ in range(runs):
            number = next(self._numbers[lane]) * CONNECTIONS + lane
            name = _build_id("run", number)
            await write(_start(name, number, self._runs_of_session))
            open_runs.append(name)
            if len(open_runs) > OPEN:
                await write(_end(open_runs.popleft(), number))
        while open_runs:
            await write(_end(open_runs.popleft(), number))


def _build_id(kind: str, number: int) -> str:
    """Return an id that begins with its time, as those of the program."""
    digest = hashlib.md5(f"{kind} {number}".encode(), usedforsecurity=False).hexdigest()
    return str(UUID(f"{1_700_000_000_000 + number * 1_000:012x}{digest[12:]}"))


@unit
def _start(name: str, number: int, runs_of_session: int) -> Steps[None]:
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
        first_status="RUNNING",
        **common,
    )
    run = a_run(
        name, row.session_id, owner="0123456789abcdef0123456789abcdef0123", created_at=at,
        input=TEXT * 2, background=False, **common,
    )  # fmt: skip
    entry = audit.AuditRow(
        at, common["user_id"], "token", "create_run", row.session_id, "allowed", 200, None,
        f"request-{number}",
    )  # fmt: skip
    stored = yield from sessions.get_or_create_for_run(row, EVERYONE)
    yield from runs.create(run, 1 if stored is row else None)
    yield from audit.append_entry(entry)


@unit
def _end(name: str, number: int) -> Steps[None]:
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
    yield from events.append_batch(name, 1, 0, 3, json.dumps({"event": "RunCompleted"}))
    assert (yield from runs.finish(end))
