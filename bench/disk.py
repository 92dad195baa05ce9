"""Disk of plain runs on PostgreSQL: bytes of the tables and of each index, HOT updates, WAL.

`python -m bench.disk` starts a PostgreSQL server and writes plain runs with the
statements of the program, in sessions of 20 agents and 997 users. Vacuum runs by itself, as in a
deployment. The WAL has no images of pages; its share of a table or an index is that of the records
whose first block is in it, with those of vacuum.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections import Counter

import asyncpg

from bench.plain_writer import PlainWriter
from bench.postgres_meter import Meter
from tests.kit.postgres_server import run_postgres_server

SCHEMA = "plain"

LOGGED_RUNS = 2_000
"""Further runs, whose records of the WAL are counted by table and index."""

_TABLES = """
SELECT relname AS table, n_tup_upd AS updates, n_tup_hot_upd AS hot,
    (SELECT reltuples FROM pg_class WHERE oid = relid) AS rows,
    pg_table_size(relid) AS bytes, pg_indexes_size(relid) AS indexes, relid
FROM pg_stat_user_tables
WHERE schemaname = $1 AND relname IN ('runs', 'sessions', 'audit_log', 'run_events', 'usage_ends')
ORDER BY relname
"""

_INDEXES = """
SELECT indexrelid::regclass::text AS name, pg_relation_size(indexrelid) AS bytes
FROM pg_index WHERE indrelid = $1 ORDER BY bytes DESC
"""

_RECORD = re.compile(r"rmgr: (\w+) .*len \(rec/tot\): +(\d+)/")

_FILE = re.compile(r"blkref #0: rel \d+/\d+/(\d+) ")

_FILES = """
SELECT pg_relation_filenode(oid), relname FROM pg_class WHERE relnamespace = $1::regnamespace
"""

_POSITION = "SELECT pg_current_wal_insert_lsn()::text"


def count_log(records: list[str], names: dict[int, str]) -> Counter[str]:
    """Return the bytes of records of the log by table or index; of others by their kind."""
    counted = Counter[str]()
    for record in records:
        if found := _RECORD.match(record):
            kind, size = found.groups()
            file = _FILE.search(record)
            counted[names.get(int(file[1]), "other tables") if file else kind] += int(size)
    return counted


async def measure(runs: int, runs_of_session: int) -> None:
    """Write runs, and print what they take on the disk."""
    vacuum = ["autovacuum=on", "autovacuum_naptime=5s"]
    with run_postgres_server(settings=[*vacuum, "wal_keep_size=1GB"]) as server:
        meter = Meter(server, SCHEMA)
        await meter.open()
        writer = PlainWriter(SCHEMA, server, runs_of_session)
        await writer.open()
        await writer.write(1_000)
        before = await meter.read()
        await writer.write(runs)
        used = (await meter.read()).since(before)
        start = await meter.fetchval(_POSITION)
        await writer.write(LOGGED_RUNS)
        end = await meter.fetchval(_POSITION)
        await meter.execute("ANALYZE")
        connection = await asyncpg.connect(server.url)
        print(f"{runs:,} runs, {runs_of_session} of a session: {used.wal / runs / 1e3:.2f} KB WAL")
        await asyncio.sleep(2)  # statistics arrive within a second
        for table in await connection.fetch(_TABLES, writer.schema):
            rows = max(table["rows"], 1)
            hot = f"{100 * table['hot'] / table['updates']:.0f}%" if table["updates"] else "none"
            print(
                f"{table['table']}: {table['bytes'] / rows:.0f} + {table['indexes'] / rows:.0f}"
                f" bytes a row, {table['updates']:,} updates, HOT {hot}"
            )
            for index in await connection.fetch(_INDEXES, table["relid"]):
                print(f"    {index['bytes'] / rows:6.1f}  {index['name'].partition('.')[2]}")
        names = dict(await connection.fetch(_FILES, writer.schema))
        for name, size in count_log(server.read_log(start, end), names).most_common():
            print(f"    {size / LOGGED_RUNS:6.0f} bytes of WAL a run: {name}")
        await connection.close()
        await writer.close()
        await meter.close()


def _main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--runs", type=int, default=50_000)
    parser.add_argument("--runs-of-session", type=int, default=1)
    options = parser.parse_args()
    asyncio.run(measure(options.runs, options.runs_of_session))


if __name__ == "__main__":
    _main()
