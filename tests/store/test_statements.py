"""The portable statements, compiled for each engine."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from agentctl.store.database import (
    SecondStatement,
    Sql,
    Statement,
    Steps,
    compile_for_postgres,
    compile_for_sqlite,
    single_unit,
    unit,
)
from agentctl.store.schema import (
    COMPATIBLE_SINCE,
    MIGRATIONS_FOLDER,
    SCHEMA_VERSION,
    TABLES,
    Engine,
    load_migrations,
)
from tests.kit.postgres import PostgresUnderTest
from tests.store.conftest import Store
from tests.store.lists import list_sessions, statements_of
from tests.store.statements import list_statements, module_statements


def test_parameters_are_numbered_in_the_order_of_first_use() -> None:
    text, names = compile_for_postgres(Sql("SELECT :b, :a, :b, :a_2"))
    assert text == "SELECT $1, $2, $1, $3"
    assert names == ("b", "a", "a_2")


def test_text_that_looks_like_a_parameter_is_unchanged() -> None:
    sql = Sql(
        "SELECT ':a', 'it''s :b', \"c:d\", \"q\"\":e\" -- :f\n/* :g\n:h */, x::text, 1::bigint, :i"
    )
    text, names = compile_for_postgres(sql)
    assert names == ("i",)
    assert text == sql.replace(":i", "$1")


def test_a_statement_is_compiled_once() -> None:
    assert compile_for_postgres(Sql("SELECT :once")) is compile_for_postgres(Sql("SELECT :once"))


def test_sqlite_statements_have_no_row_locks() -> None:
    assert compile_for_sqlite(Sql("SELECT 1 FROM t WHERE a = :a FOR UPDATE")).endswith("a = :a")
    assert compile_for_sqlite(Sql("SELECT 1 FROM t FOR SHARE")) == "SELECT 1 FROM t"
    assert compile_for_sqlite(Sql("SELECT ' FOR UPDATE'")) == "SELECT ' FOR UPDATE'"


def test_utf8_is_compiled_for_each_engine() -> None:
    sql = Sql("SELECT utf8(history), :a FROM runs")
    assert compile_for_sqlite(sql) == "SELECT CAST(history AS BLOB), :a FROM runs"
    assert compile_for_postgres(sql)[0] == "SELECT convert_to(history, 'UTF8'), $1 FROM runs"


def test_a_unit_runs_from_its_beginning_each_time() -> None:
    @unit
    def counted(name: str) -> Steps[str]:
        rows = yield Statement(Sql("SELECT 1"))
        return f"{name} {len(rows)}"

    work = counted("rows:")
    for rows in ([], [(1,), (2,)]):
        steps = iter(work)
        assert next(steps).sql == "SELECT 1"
        with pytest.raises(StopIteration) as end:
            steps.send(rows)
        assert end.value.value == f"rows: {len(rows)}"


def test_a_single_unit_with_a_second_statement_reads_again_on_a_snapshot(store: Store) -> None:
    begun = list[int]()

    @single_unit
    def count(times: int) -> Steps[int]:
        begun.append(times)
        total = 0
        for _ in range(times):
            total += len((yield Statement(Sql("SELECT count(*) FROM sessions"))))
        return total

    for times in (0, 1, 2):
        assert store.run(store.database.read(count(times))) == times
    # The first rows came without a transaction: those of the second could be of another state.
    assert begun == [0, 1, 2, 2]


def test_postgres_repeats_no_unit_with_a_second_statement(postgres: PostgresUnderTest) -> None:
    @single_unit
    def read_twice() -> Steps[None]:
        for _ in range(2):
            yield Statement(Sql("SELECT count(*) FROM sessions"))

    with pytest.raises(SecondStatement):
        postgres.runner.run(postgres.database.write(read_twice().as_repeatable()))


def test_postgres_prepares_each_statement_of_a_module(postgres: PostgresUnderTest) -> None:
    assert {"sessions", "runs", "run_reads", "events", "workers", "idempotency"} <= set(
        module_statements().values()
    )
    asyncio.run(prepare_all(postgres, module_statements()))


def test_postgres_prepares_a_sample_of_the_lists(postgres: PostgresUnderTest) -> None:
    sample = sorted(list_statements(SAMPLE_STEP))[::2]
    assert len(sample) > 1_000
    asyncio.run(prepare_all(postgres, sample))


def test_postgres_prepares_every_list(postgres: PostgresUnderTest) -> None:
    asyncio.run(prepare_all(postgres, list_statements()))


SAMPLE_STEP = 23
"""The lists with one of so many combinations of filters are a sample, for each change."""


async def prepare_all(postgres: PostgresUnderTest, statements: Iterable[Sql]) -> None:
    async with postgres.connected() as connection:
        for sql in statements:
            await connection.prepare(compile_for_postgres(sql)[0])


MANY_SESSIONS = """
INSERT INTO sessions (session_id, session_type, session_name, total_tokens, run_count,
                      history_bytes, created_at, updated_at, metrics)
SELECT 'many-' || n, 'agent', md5(cast(n AS text)), 0, 0, 0, n, n, '{}'
FROM generate_series(1, 5000) n
"""
"""Enough that what an index costs decides: how a planner reads an empty table is its own affair."""


def test_a_name_prefix_uses_the_index_on_postgres(postgres: PostgresUnderTest) -> None:
    *_, (sql, values) = statements_of(list_sessions(session_name="ab"), 1)

    async def plan() -> str:
        text, names = compile_for_postgres(sql)
        async with postgres.connected() as connection:
            transaction = connection.transaction()
            await transaction.start()
            await connection.execute(MANY_SESSIONS)
            await connection.execute("ANALYZE sessions")
            rows = await connection.fetch(f"EXPLAIN {text}", *(values[name] for name in names))
            await transaction.rollback()
        return "\n".join(row[0] for row in rows)

    steps = asyncio.run(plan()).replace("(lower(session_name))", "lower(session_name)")
    assert "Index Cond: ((lower(session_name) >= 'ab'::text)" in steps


def test_both_engines_have_the_same_tables_columns_and_indexes() -> None:
    shapes = [_shape(engine) for engine in ("sqlite", "postgres")]
    assert shapes[0] == shapes[1]


def test_the_known_tables_are_those_of_the_first_migration() -> None:
    first = [statement.split() for statement in load_migrations("sqlite")[0].statements()]
    assert {words[2] for words in first if words[:2] == ["CREATE", "TABLE"]} == TABLES


def _shape(engine: Engine) -> list[list[str]]:
    """Return the words of the statements, without the parts that only one engine has."""
    statements = [each for step in load_migrations(engine) for each in step.statements()]
    plain = ";".join(statements).replace(' COLLATE "C"', "").replace(") STRICT", ")")
    plain = plain.replace(" INCLUDE (session_name)", "")
    plain = plain.replace("BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY", "INTEGER PRIMARY KEY")
    plain = plain.replace("PRIMARY KEY AUTOINCREMENT", "PRIMARY KEY").replace("BIGINT", "INTEGER")
    # Texts of a search: places are the key in SQLite, and a column has the words in PostgreSQL.
    plain = plain.replace("place INTEGER NOT NULL", "place INTEGER PRIMARY KEY")
    plain = re.sub(r", words TSVECTOR GENERATED ALWAYS AS .*? STORED", "", plain)
    plain = ";".join(each for each in plain.split(";") if " USING " not in each)
    shapes = [statement.split() for statement in plain.split(";")]
    return [words for words in shapes if words[:2] in _BOTH or words[:1] == ["ALTER"]]


_BOTH = [["CREATE", "TABLE"], ["CREATE", "INDEX"]]
"""The statements that both engines have. PostgreSQL has functions and triggers in addition."""


def test_the_newest_migration_is_the_schema_version() -> None:
    for engine in ("sqlite", "postgres"):
        numbers = [
            int(Path(file).name[:4]) for file in sorted(MIGRATIONS_FOLDER.glob(f"*.{engine}.sql"))
        ]
        assert numbers == [*range(1, 16), *range(28, SCHEMA_VERSION + 1)]


_REMOVALS = re.compile(
    r"DROP (?:TABLE|COLUMN)|\bRENAME\b|ADD CONSTRAINT|SET NOT NULL|ALTER COLUMN \w+ .*TYPE"
    r"|ADD COLUMN (?!.*\bDEFAULT\b).*\bNOT NULL\b|^DELETE\b|^CREATE UNIQUE INDEX \w+ ON (\w+)"
)


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_migrations_only_add_for_the_programs_that_they_keep(engine: Engine) -> None:
    """A program from schema 15 on works with a later schema, unless `compatible_from` moves."""
    for migration in load_migrations(engine)[COMPATIBLE_SINCE:]:
        statements = migration.statements()
        created = {words[2] for each in statements if (words := each.split())[:2] == _BOTH[0]}
        removals = [
            found[0]
            for each in statements
            if (found := _REMOVALS.search(each)) and found[1] not in created
        ]
        moves = any("SET compatible_from" in each for each in statements)
        assert moves or removals == [], f"{migration.name}: see docs/upgrade.md"


def test_removals_of_a_migration_are_found() -> None:
    refused = (
        "DROP TABLE runs", "ALTER TABLE runs DROP COLUMN input", "ALTER TABLE a RENAME TO b",
        "ALTER TABLE a ADD COLUMN b TEXT NOT NULL", "CREATE UNIQUE INDEX a ON runs (b)",
        "ALTER TABLE a ALTER COLUMN b SET NOT NULL", "DELETE FROM runs",
    )  # fmt: skip
    assert [each for each in refused if not _REMOVALS.search(each)] == []
    added = (
        "ALTER TABLE a ADD COLUMN b TEXT", "ALTER TABLE a ADD COLUMN b BIGINT NOT NULL DEFAULT 0",
        "CREATE TABLE a (b TEXT NOT NULL)", "CREATE INDEX a ON runs (b)", "DROP INDEX a",
        "ALTER TABLE runs SET (fillfactor = 80)", "DROP TRIGGER a ON runs",
    )  # fmt: skip
    assert [each for each in added if _REMOVALS.search(each)] == []
