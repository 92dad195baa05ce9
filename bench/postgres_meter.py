"""Counters of a separate PostgreSQL server: statements by role, transactions, WAL, bytes, CPU."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import asyncpg

from tests.kit.postgres_server import PostgresServer

LOGGED = re.compile(rb"\[(\w+)\] LOG:  (?:statement|execute)")

_TICKS = os.sysconf("SC_CLK_TCK")

_COUNTERS = """
SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint,
    pg_current_wal_insert_lsn() - '0/0'::pg_lsn,
    coalesce((SELECT sum(pg_total_relation_size(oid)) FROM pg_class
        WHERE relkind = 'r' AND relnamespace = to_regnamespace($1)), 0)
"""


class Counters(NamedTuple):
    """Counters at one moment, or the differences of two moments.

    Attributes:
        seconds: the time, in seconds.
        writes: number of transactions that have written something.
        wal: bytes of the log.
        stored: bytes of the tables and indexes.
        cpu: CPU seconds of all processes of the server.
        log: position in the log of the server.
    """

    seconds: float
    writes: int
    wal: int
    stored: int
    cpu: float
    log: int

    def since(self, before: Counters) -> Counters:
        """Return the differences."""
        return Counters._make(now - then for now, then in zip(self, before, strict=True))


class Meter:
    """Reads the counters of a server.

    Args:
        server: the server; it logs statements after `log_statements(True)`.
        schema: the schema of the tables.
    """

    def __init__(self, server: PostgresServer, schema: str) -> None:
        self._server = server
        self._schema = schema
        self._log = server.log
        self.received = 0

    async def open(self) -> None:
        """Connect, and listen to the notifications of agentctl."""
        self._connection = await asyncpg.connect(self._server.url)
        await self._connection.add_listener("agentctl", self._on_notification)

    def _on_notification(self, *_: Any) -> None:
        self.received += 1

    async def close(self) -> None:
        """Close the connection."""
        await self._connection.close()

    async def execute(self, *statements: str) -> None:
        """Execute statements as an administrator."""
        for statement in statements:
            await self._connection.execute(statement)

    async def fetchval(self, sql: str) -> Any:
        """Return the first value of a query."""
        return await self._connection.fetchval(sql)

    async def log_statements(self, on: bool) -> None:
        """Log the statements of all roles but that of the meter, or none: it costs CPU time."""
        await self.execute(
            "SET log_statement = 'none'",
            "ALTER SYSTEM SET log_line_prefix = '[%u] '",
            f"ALTER SYSTEM SET log_statement = '{'all' if on else 'none'}'",
            "SELECT pg_reload_conf()",
        )

    async def read(self) -> Counters:
        """Read the counters."""
        row = await self._connection.fetchrow(_COUNTERS, self._schema)
        assert row is not None
        writes, wal, stored = (int(value) for value in row)
        size = self._log.stat().st_size
        return Counters(time.monotonic(), writes, wal, stored, self._read_cpu(), size)

    def count_statements(self, before: Counters, after: Counters) -> Counter[str]:
        """Return the numbers of logged statements between two moments, by role."""
        with self._log.open("rb") as file:
            file.seek(before.log)
            text = file.read(after.log - before.log)
        return Counter(role.decode() for role in LOGGED.findall(text))

    def _read_cpu(self) -> float:
        data = Path(self._server.socket).parent / "data" / "postmaster.pid"
        postmaster = int(data.read_text().split("\n", 1)[0])
        ticks = sum(_read_stat(postmaster)[11:15])
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                fields = _read_stat(int(folder.name))
                if fields and fields[1] == postmaster:
                    ticks += sum(fields[11:13])
        return ticks / _TICKS


def _read_stat(pid: int) -> list[int]:
    """Return the fields of /proc/PID/stat after the name: the parent is the second; utime, stime,
    cutime and cstime are those from 11."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    state, *numbers = text.rpartition(")")[2].split()
    return [ord(state), *map(int, numbers)]
