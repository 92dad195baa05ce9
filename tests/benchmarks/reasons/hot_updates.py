"""Savings of PostgreSQL if the end of a run changed no index (docs/decisions/0096).

`python -m tests.benchmarks.reasons.hot_updates [ROUNDS]` writes the same plain runs into schemas
that differ in their indexes, in turns, with the statements of the program. It prints WAL without
page images, CPU time of the backends, HOT updates, and bytes of tables and indexes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import statistics
import sys
from collections import deque
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from agentctl.config import settings
from agentctl.store.database import Value, Work, compile_for_postgres, list_statements
from agentctl.store.postgres import plain_runs
from agentctl.store.postgres.database import PostgresDatabase
from agentctl.store.repositories.events import Batch
from agentctl.store.visibility import EVERYONE
from tests.benchmarks.postgres_meter import Meter
from tests.postgres_server import PostgresServer, run_postgres_server
from tests.store.rows import a_run, a_session, an_end

CONNECTIONS = 4
OPEN = 4
RUNS = 400
ROUNDS = 12
RUNS_OF_SESSION = 5

WARM = 4_000

UNCHANGED = "SELECT 1"

OPEN_STATUS = "('PENDING', 'RUNNING', 'PAUSED')"

CHANGED = """
DROP INDEX runs_by_status, runs_live_session, runs_live, runs_paused, runs_by_finished,
    runs_at_work, runs_live_cancels, runs_waiting, runs_next_legs, runs_queued, runs_uncounted,
    runs_user_created;
CREATE INDEX runs_user_created ON runs (user_id, created_at, run_id, component_type, component_id);
"""
"""Leaves no index that the end of a run changes: its queries are lost."""

COLUMNS = (
    "run_id, session_id, seq, parent_run_id, component_type, component_id, user_id, status, owner,"
    " attempt, created_at, started_at, cancel_requested_at, queued_at, queue_turn, purpose"
)

VALUES = ", ".join(f"NEW.{name.strip()}" for name in COLUMNS.split(","))

LIVE_TABLE = f"""
CREATE TABLE open_runs AS SELECT {COLUMNS} FROM runs WHERE false;
ALTER TABLE open_runs ADD PRIMARY KEY (run_id);
CREATE INDEX open_session ON open_runs (session_id, seq);
CREATE INDEX open_owner ON open_runs (owner, created_at);
CREATE FUNCTION keep_open() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO open_runs ({COLUMNS}) VALUES ({VALUES});
    RETURN NULL;
END
$$;
CREATE FUNCTION drop_open() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM open_runs WHERE run_id = NEW.run_id;
    RETURN NULL;
END
$$;
CREATE TRIGGER runs_keep_open AFTER INSERT ON runs
    FOR EACH ROW WHEN (NEW.status IN {OPEN_STATUS}) EXECUTE FUNCTION keep_open();
CREATE TRIGGER runs_drop_open AFTER UPDATE OF status ON runs
    FOR EACH ROW WHEN (OLD.status IN {OPEN_STATUS} AND NEW.status NOT IN {OPEN_STATUS})
    EXECUTE FUNCTION drop_open();
"""
"""A table of the runs that are not final, which triggers keep for servers of every version."""

ENDS_TABLE = """
CREATE TABLE run_ends (finished_at BIGINT NOT NULL, run_id TEXT COLLATE "C" NOT NULL);
CREATE INDEX run_ends_finished ON run_ends (finished_at, run_id);
CREATE OR REPLACE FUNCTION drop_open() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM open_runs WHERE run_id = NEW.run_id;
    INSERT INTO run_ends VALUES (NEW.finished_at, NEW.run_id);
    RETURN NULL;
END
$$;
"""
"""The times of ends in a table, for the lists by them."""

SESSIONS = "DROP INDEX sessions_by_updated, sessions_user_updated;"

ORDER_TABLE = """
CREATE TABLE session_order AS
    SELECT session_id, user_id, session_type, component_id, updated_at FROM sessions WHERE false;
ALTER TABLE session_order ADD PRIMARY KEY (session_id);
CREATE INDEX order_updated ON session_order (updated_at, session_id);
CREATE INDEX order_user
    ON session_order (user_id, updated_at, session_id, session_type, component_id);
CREATE FUNCTION add_order() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO session_order VALUES
        (NEW.session_id, NEW.user_id, NEW.session_type, NEW.component_id, NEW.updated_at);
    RETURN NULL;
END
$$;
CREATE FUNCTION change_order() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE session_order SET updated_at = NEW.updated_at WHERE session_id = NEW.session_id;
    RETURN NULL;
END
$$;
CREATE TRIGGER sessions_add_order AFTER INSERT ON sessions
    FOR EACH ROW EXECUTE FUNCTION add_order();
CREATE TRIGGER sessions_change_order AFTER UPDATE OF updated_at ON sessions
    FOR EACH ROW WHEN (OLD.updated_at <> NEW.updated_at) EXECUTE FUNCTION change_order();
"""

MORE_ORDER = """
CREATE INDEX order_component ON session_order (component_id, updated_at, session_id);
CREATE INDEX order_type ON session_order (session_type, updated_at, session_id);
"""


def fill(table: str, percent: int) -> str:
    return f"ALTER TABLE {table} SET (fillfactor = {percent});"


VARIANTS = {
    "unchanged": UNCHANGED,
    "fill factor 70": fill("runs", 70) + fill("sessions", 70),
    "no changed index": CHANGED,
    "no changed index, 70": CHANGED + fill("runs", 70),
    "no changed index, 40": CHANGED + fill("runs", 40),
    "table of open runs, 70": CHANGED + fill("runs", 70) + LIVE_TABLE,
    "table of open runs, 40": CHANGED + fill("runs", 40) + LIVE_TABLE,
    "the same, and of ends, 40": CHANGED + fill("runs", 40) + LIVE_TABLE + ENDS_TABLE,
    "sessions: none on updated_at": SESSIONS,
    "sessions: only sessions_by_updated": "DROP INDEX sessions_user_updated",
    "sessions: table of changes, two indexes": SESSIONS + ORDER_TABLE,
    "sessions: table of changes, four indexes": SESSIONS + ORDER_TABLE + MORE_ORDER,
    "both tables": CHANGED
    + fill("runs", 40)
    + LIVE_TABLE
    + ENDS_TABLE
    + SESSIONS
    + ORDER_TABLE
    + MORE_ORDER,
    "both without tables": CHANGED + fill("runs", 40) + SESSIONS,
    "unchanged, again": UNCHANGED,
}

TEXT = "The question and the answer of a run have some words that are not all the same. "

_HOT = """
SELECT relname, n_tup_upd, n_tup_hot_upd,
    pg_table_size(relid) AS rows, pg_indexes_size(relid) AS indexes
FROM pg_stat_user_tables WHERE schemaname = $1 AND relname IN ('runs', 'sessions')
ORDER BY relname
"""


class Turn(NamedTuple):
    """Costs of one run: KB of WAL and ms of CPU of the backends."""

    wal: float
    cpu: float


class Variant:
    """A schema with its connections."""

    def __init__(
        self, name: str, number: int, server: PostgresServer, runs_of_session: int = RUNS_OF_SESSION
    ) -> None:
        self.name = name
        self.schema = f"variant_{number}"
        self._runs_of_session = runs_of_session
        self._server = server
        self._numbers = [count() for _ in range(CONNECTIONS)]
        self._connections: list[asyncpg.Connection[Any]] = []
        self.turns: list[Turn] = []

    async def open(self, script: str) -> None:
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
        await self._connections[0].execute(script)

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()

    async def write(self, runs: int) -> None:
        parts = (
            self._write(each, lane, runs // CONNECTIONS)
            for lane, each in enumerate(self._connections)
        )
        await asyncio.gather(*parts)

    async def _write(self, connection: asyncpg.Connection[Any], lane: int, runs: int) -> None:
        open_runs = deque[str]()
        for _ in range(runs):
            number = next(self._numbers[lane]) * CONNECTIONS + lane
            name = build_id("run", number)
            await _run(connection, _build_start(name, number, self._runs_of_session))
            open_runs.append(name)
            if len(open_runs) > OPEN:
                await _run(connection, _build_end(open_runs.popleft(), number))
        while open_runs:
            await _run(connection, _build_end(open_runs.popleft(), number))

    def read_cpu(self) -> float:
        """Return the CPU seconds of the processes that serve the connections."""
        pids = [connection.get_server_pid() for connection in self._connections]
        return sum(int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) for pid in pids) / 1e9

    async def describe(self) -> list[asyncpg.Record]:
        return await self._connections[0].fetch(_HOT, self.schema)


def build_id(kind: str, number: int) -> str:
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
        build_id("session", session * runs_of_session),
        now=at,
        session_name=f"Question {session}",
        component_name="Agent",
        component_data=json.dumps({"model": {"id": "model", "provider": "provider"}}),
        **common,
    )
    run = a_run(
        name,
        row.session_id,
        owner="0123456789abcdef0123456789abcdef0123",
        created_at=at,
        input=TEXT * 2,
        background=False,
        **common,
    )
    entry: dict[str, Value] = {
        "at": at,
        "principal": common["user_id"],
        "via": "token",
        "operation": "create_run",
        "resource": row.session_id,
        "outcome": "allowed",
        "status": 200,
        "reason": None,
        "request_id": f"request-{number}",
        "count": 1,
        "trace_id": None,
    }
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


async def measure(rounds: int, names: list[str]) -> None:
    """Write runs into each schema in turns, and print the costs of one run."""
    # Vacuum runs at any time; its work is not that of one turn.
    with run_postgres_server(settings=["autovacuum=off"]) as server:
        meter = Meter(server, "variant_0")
        await meter.open()
        variants = [Variant(name, number, server) for number, name in enumerate(names)]
        for variant in variants:
            await variant.open(VARIANTS[variant.name])
            await variant.write(WARM)
        await meter.execute("ANALYZE")
        for turn in range(rounds):
            for variant in variants[turn % len(names) :] + variants[: turn % len(names)]:
                before = await meter.read()
                cpu = variant.read_cpu()
                await variant.write(RUNS)
                cpu = variant.read_cpu() - cpu
                used = (await meter.read()).since(before)
                variant.turns.append(Turn(used.wal / RUNS / 1e3, cpu / RUNS * 1e3))
        await asyncio.sleep(2)
        _print(variants, [await variant.describe() for variant in variants])
        for variant in variants:
            await variant.close()
        await meter.close()


def _print(variants: list[Variant], tables: list[list[asyncpg.Record]]) -> None:
    runs = len(variants[0].turns) * RUNS + WARM
    print("| | WAL KB | CPU ms | of the first | HOT runs | HOT sessions | runs KB | sessions KB |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for variant, found in zip(variants, tables, strict=True):
        cpu = _find_quartile(variant)
        ratio = cpu / _find_quartile(variants[0])
        hot = [f"{100 * row['n_tup_hot_upd'] / row['n_tup_upd']:.0f}%" for row in found]
        sizes = [
            f"{row['rows'] / runs / 1e3:.1f} + {row['indexes'] / runs / 1e3:.1f}" for row in found
        ]
        print(
            f"| {variant.name} | {statistics.median(turn.wal for turn in variant.turns):.1f}"
            f" | {cpu:.2f} | {ratio:.2f}"
            f" | {' | '.join(hot)} | {' | '.join(sizes)} |"
        )


def _find_quartile(variant: Variant) -> float:
    """Return the lower quartile of the CPU time: other work only adds to it."""
    return sorted(turn.cpu for turn in variant.turns)[len(variant.turns) // 4]


if __name__ == "__main__":
    given = int(sys.argv[1]) if sys.argv[1:] else ROUNDS
    asyncio.run(measure(given, list(VARIANTS)))
