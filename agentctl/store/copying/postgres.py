"""A PostgreSQL database as the source or the target of a copy (`side.Side`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import asyncpg

from agentctl import errors
from agentctl.config.settings import Database as Entry
from agentctl.store.copying.side import (
    BATCH_BYTES,
    BATCH_ROWS,
    DRAIN,
    GUARD,
    LOCAL_TABLES,
    LOCK_ATTEMPT_SECONDS,
    LOCK_SECONDS,
    RECORDER,
    Batches,
    count_bytes,
    name_place,
)
from agentctl.store.copying.tables import Key, Row, Table
from agentctl.store.database import Work
from agentctl.store.migrating import LONGEST_SECONDS
from agentctl.store.postgres.connection import PooledConnection, connect, run_unit
from agentctl.store.postgres.failures import MOVED_STATE, MOVING_STATE, to_public_error

T = TypeVar("T")

PREFETCH = 200
"""Rows that a cursor reads at a time: a row of a run may have megabytes."""

_TYPES = {"TEXT": "text", "INTEGER": "bigint", "BLOB": "bytea", "REAL": "double precision"}

_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_TRANSACTION = "BEGIN ISOLATION LEVEL READ COMMITTED"

# Two servers do not start in the same microsecond.
_IDENTITY = """
SELECT concat_ws(' ', pg_postmaster_start_time(), current_database(), current_schema())
"""

_TABLES = """
SELECT relname FROM pg_class
WHERE relnamespace = quote_ident(current_schema())::regnamespace AND relkind IN ('r', 'p')
"""
_SEQUENCES = """
SELECT c.relname, a.attname, pg_get_serial_sequence(quote_ident(c.relname), a.attname)
FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid
WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND a.attidentity <> ''
"""
# BEFORE (2) a deletion (8) or a change (16), and not an insertion (4): pg_trigger.h.
_GUARDS = """
SELECT c.relname, t.tgname FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
WHERE c.relnamespace = quote_ident(current_schema())::regnamespace AND NOT t.tgisinternal
    AND t.tgtype & 2 > 0 AND t.tgtype & 24 > 0 AND t.tgtype & 4 = 0
"""
_FUNCTIONS = """
SELECT proname FROM pg_proc
WHERE pronamespace = quote_ident(current_schema())::regnamespace
    AND (starts_with(proname, $1) OR starts_with(proname, $2))
"""
_NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"

_FUNCTION = "CREATE FUNCTION {}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {} END $$"


class PostgresSide:
    """A database of a copy. Use `open_postgres`."""

    def __init__(
        self, entry: Entry, place: str, reader: PooledConnection, writer: PooledConnection
    ) -> None:
        self._entry = entry
        self.place = place
        self._reader = reader
        self._writer = writer
        self._reading = reader

    async def close(self) -> None:
        for connection in (self._reader, self._writer):
            connection.terminate()

    def to_public_error(self, error: Exception) -> Exception:
        if isinstance(error, (asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
            return to_public_error(error, self._entry.id)
        return error

    async def read(self, work: Work[T]) -> T:
        return await run_unit(self._reading, work)

    async def write(self, work: Work[T]) -> T:
        if self._writer.is_in_transaction():
            return await run_unit(self._writer, work)
        async with self.transaction():
            return await run_unit(self._writer, work)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[None]:
        async with _in_transaction(self._reader, _SNAPSHOT):
            yield

    @asynccontextmanager
    async def locked(self, *, exclusive: bool = False) -> AsyncIterator[None]:
        await self._lock("ACCESS EXCLUSIVE" if exclusive else "SHARE ROW EXCLUSIVE")
        self._reading = self._writer
        try:
            yield
            await self._writer.execute("COMMIT")
        except BaseException:
            await _undo(self._writer)
            raise
        finally:
            self._reading = self._reader

    async def _lock(self, mode: str) -> None:
        """Begin a transaction and lock every table against writes.

        The attempts are short: writers wait after one, and two locks in another order than that of
        a writer are a deadlock, which ends one of the two.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + LOCK_SECONDS
        names = [str(row[0]) for row in await self._reader.fetch(_TABLES)]
        tables = ", ".join(sorted(set(names) - {"copy_state", "copy_tables"}))
        while True:
            await self._writer.begin(_TRANSACTION)
            try:
                limit = f"{int(LOCK_ATTEMPT_SECONDS * 1_000)}ms"
                await self._writer.execute(f"SET LOCAL lock_timeout = '{limit}'")
                await self._writer.execute(f"LOCK TABLE {tables} IN {mode} MODE")
                return
            except (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError):
                await _undo(self._writer)
                if clock() > deadline:
                    raise errors.Unavailable(
                        "The database is busy",
                        cause=f"other transactions in {self.place} hold locks",
                        hint="try again; pg_stat_activity shows long transactions",
                    ) from None
                await asyncio.sleep(LOCK_ATTEMPT_SECONDS / 4)
            except BaseException:
                await _undo(self._writer)
                raise

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        async with _in_transaction(self._writer, _TRANSACTION):
            yield

    async def identify(self) -> str:
        return str(await self._reader.fetchval(_IDENTITY))

    async def read_batch(self, table: Table, after: Key | None) -> Sequence[Row]:
        keys = ", ".join(table.key_columns)
        marks = ", ".join(f"${number}" for number in range(1, len(table.key) + 1))
        where = "" if after is None else f" WHERE ({keys}) > ({marks})"
        # Without the limit PostgreSQL may sort the rest of the table for each batch.
        rest = f"{where} ORDER BY {keys} LIMIT {BATCH_ROWS}"
        async with aclosing(self._fetch(table, rest, after or ())) as batches:
            return await anext(batches)

    def scan(self, table: Table) -> Batches:
        return self._fetch(table, "", ())

    async def _fetch(self, table: Table, rest: str, values: Key) -> Batches:
        sql = f"SELECT {', '.join(table.columns)} FROM {table.name}{rest}"
        batch, size = list[Row](), 0
        async for record in self._reading.cursor(sql, *values, prefetch=PREFETCH):
            row = tuple(record)
            batch.append(row)
            size += count_bytes(row)
            if len(batch) == BATCH_ROWS or size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
        yield batch

    async def read_rows(self, table: Table, keys: Sequence[Key]) -> list[Row]:
        arrays = ", ".join(
            f"${number}::{_TYPES[table.types[position]]}[]"
            for number, position in enumerate(table.key, 1)
        )
        names = ", ".join(table.key_columns)
        found = await self._reading.fetch(
            f"SELECT {', '.join(f't.{name}' for name in table.columns)} FROM {table.name} t"
            f" JOIN unnest({arrays}) AS k ({names}) USING ({names})",
            *(list(values) for values in zip(*keys, strict=True)),
        )
        return [tuple(record) for record in found]

    async def count(self, table: Table) -> int:
        number: int = await self._reading.fetchval(f"SELECT count(*) FROM {table.name}")
        return number

    async def insert(self, table: Table, rows: Sequence[Row]) -> None:
        if not rows:
            return
        await self._writer.copy_records_to_table(table.name, records=rows, columns=table.columns)

    async def upsert(self, table: Table, rows: Sequence[Row]) -> None:
        others = [name for name in table.columns if name not in table.key_columns]
        values = ", ".join(f"{name} = excluded.{name}" for name in others)
        marks = ", ".join(f"${number}" for number in range(1, len(table.columns) + 1))
        await self._writer.executemany(
            f"INSERT INTO {table.name} ({', '.join(table.columns)}) OVERRIDING SYSTEM VALUE"
            f" VALUES ({marks}) ON CONFLICT ({', '.join(table.key_columns)}) DO"
            + (f" UPDATE SET {values}" if others else " NOTHING"),
            rows,
        )

    async def delete(self, table: Table, keys: Sequence[Key]) -> None:
        where = " AND ".join(
            f"{name} = ${number}" for number, name in enumerate(table.key_columns, 1)
        )
        await self._writer.executemany(f"DELETE FROM {table.name} WHERE {where}", keys)

    async def forget_changes(self, numbers: Sequence[int]) -> None:
        await self._writer.execute("DELETE FROM copy_changes WHERE seq = ANY($1)", numbers)

    async def read_counters(self) -> dict[str, int]:
        counters = dict[str, int]()
        for table, column, sequence in await self._reading.fetch(_SEQUENCES):
            counters[table] = await self._reading.fetchval(
                f"SELECT greatest(CASE WHEN is_called THEN last_value ELSE 0 END,"
                f" (SELECT max({column}) FROM {table})) FROM {sequence}"
            )
        return counters

    async def set_counters(self, counters: dict[str, int]) -> None:
        for table, column, sequence in await self._writer.fetch(_SEQUENCES):
            newest = await self._writer.fetchval(f"SELECT max({column}) FROM {table}")
            value = max(newest or 0, counters.get(table, 0))
            if value:
                await self._writer.execute("SELECT setval($1::text::regclass, $2)", sequence, value)

    async def record_changes(self, tables: Sequence[Table]) -> None:
        schema = await self._writer.fetchval("SELECT quote_ident(current_schema())")
        for table in tables:
            keys = {
                row: "json_build_array("
                + ", ".join(f"{row}.{name}" for name in table.key_columns)
                + ")::text"
                for row in ("OLD", "NEW")
            }
            changed = " OR ".join(f"OLD.{name} <> NEW.{name}" for name in table.key_columns)
            record = (
                f"INSERT INTO {schema}.copy_changes (table_name, row_key)"
                f" VALUES ('{table.name}', {{}});"
            )
            name = f"{RECORDER}_{table.name}"
            await self._writer.execute(
                _FUNCTION.format(
                    name,
                    f"IF TG_OP <> 'DELETE' THEN {record.format(keys['NEW'])} END IF;"
                    f" IF TG_OP = 'DELETE' THEN {record.format(keys['OLD'])}"
                    f" ELSIF TG_OP = 'UPDATE' AND ({changed}) THEN {record.format(keys['OLD'])}"
                    " END IF; RETURN NULL;",
                )
            )
            await self._writer.execute(
                f"CREATE TRIGGER {name} AFTER INSERT OR UPDATE OR DELETE ON {table.name}"
                f" FOR EACH ROW EXECUTE FUNCTION {name}()"
            )

        await self._refuse_starts(schema)

    async def _refuse_starts(self, schema: str) -> None:
        refuse = (
            f"RAISE EXCEPTION 'the database is moving' USING ERRCODE = '{MOVING_STATE}';"
            " END IF; RETURN NEW;"
        )
        if_draining = f"IF (SELECT drains_until FROM {schema}.copy_state) > {_NOW} THEN "
        ignore = "RETURN NULL; END IF; RETURN NEW;"
        is_claim = "OLD.owner IS NULL AND NEW.owner IS NOT NULL AND NEW.parent_run_id IS NULL"
        for name, event, condition, body in (
            (f"{DRAIN}_starts", "INSERT", "NEW.parent_run_id IS NULL", refuse),
            (f"{DRAIN}_claims", "UPDATE OF owner", is_claim, ignore),
        ):
            await self._writer.execute(_FUNCTION.format(name, if_draining + body))
            await self._writer.execute(
                f"CREATE TRIGGER {name} BEFORE {event} ON runs FOR EACH ROW"
                f" WHEN ({condition}) EXECUTE FUNCTION {name}()"
            )

    async def refuse_writes(self, tables: Sequence[Table]) -> None:
        refuse = f"RAISE EXCEPTION 'the database has moved' USING ERRCODE = '{MOVED_STATE}';"
        await self._writer.execute(_FUNCTION.format(GUARD, refuse))
        for name in (*(table.name for table in tables), *LOCAL_TABLES):
            await self._writer.execute(
                f"CREATE TRIGGER {GUARD}_{name} BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE"
                f" ON {name} FOR EACH STATEMENT EXECUTE FUNCTION {GUARD}()"
            )

    async def drop_triggers(self) -> None:
        for (name,) in await self._writer.fetch(_FUNCTIONS, RECORDER, DRAIN):
            await self._writer.execute(f"DROP FUNCTION {name}() CASCADE")

    async def suspend_guards(self) -> None:
        await self._alter_guards("DISABLE")

    async def restore_guards(self) -> None:
        await self._alter_guards("ENABLE")

    async def drop_indexes(self) -> None:
        """Keep all."""

    async def create_index(self) -> bool:
        return False

    async def _alter_guards(self, how: str) -> None:
        for table, trigger in await self._writer.fetch(_GUARDS):
            await self._writer.execute(f"ALTER TABLE {table} {how} TRIGGER {trigger}")


async def open_postgres(entry: Entry) -> PostgresSide:
    """Open a PostgreSQL database for a copy. Raises the errors of `connection.connect`."""
    patient = replace(entry, statement_seconds=LONGEST_SECONDS)
    reader = await connect(patient)
    try:
        return PostgresSide(entry, name_place(entry), reader, await connect(patient))
    except BaseException:
        reader.terminate()
        raise


@asynccontextmanager
async def _in_transaction(connection: PooledConnection, begin: str) -> AsyncIterator[None]:
    await connection.begin(begin)
    try:
        yield
        await connection.execute("COMMIT")
    except BaseException:
        await _undo(connection)
        raise


async def _undo(connection: Any) -> None:
    """Roll back. A connection that is lost, or in use by a cancelled statement, is terminated."""
    try:
        await connection.execute("ROLLBACK")
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        connection.terminate()
