"""The plans of reads on PostgreSQL: custom for single lists, on the connection that has them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from agentctl.store.database import ReadSize, Sql, Statement, Steps, single_unit
from agentctl.store.postgres.database import PostgresDatabase
from tests.kit.postgres import PostgresUnderTest

CUSTOM = "force_custom_plan"
AUTO = "auto"


class Place(NamedTuple):
    """The connection of a read and two of its settings."""

    process_id: int
    plans: str
    isolation: str


PLACE = (
    "SELECT pg_backend_pid(), current_setting('plan_cache_mode'),"
    " current_setting('transaction_isolation'), pg_sleep({seconds})::text"
)


@single_unit
def locate(seconds: float = 0) -> Steps[Place]:
    rows = yield Statement(Sql(PLACE.format(seconds=seconds)))
    return Place(*tuple(rows[0])[:3])


@pytest.fixture
def database(postgres: PostgresUnderTest) -> Iterator[PostgresDatabase]:
    """A driver without open connections."""
    database = PostgresDatabase(postgres.entry, create=False)
    yield database
    postgres.runner.run(database.close())


async def read_each(database: PostgresDatabase, *sizes: ReadSize) -> list[Place]:
    return [await database.read(locate(), size=size) for size in sizes]


def test_single_list_has_custom_plans_without_a_transaction(
    postgres: PostgresUnderTest, database: PostgresDatabase
) -> None:
    sizes: tuple[ReadSize, ...] = ("unknown", "small", "large", "unknown", "small")
    found = postgres.runner.run(read_each(database, *sizes))
    assert [place.plans for place in found] == [CUSTOM, AUTO, CUSTOM, CUSTOM, AUTO]
    # A transaction would have the isolation of a snapshot.
    assert {place.isolation for place in found} == {"read committed"}
    # A second connection only for the setting would cost more than the setting.
    assert len({place.process_id for place in found}) == 1


def test_write_after_a_list_has_no_custom_plans(
    postgres: PostgresUnderTest, database: PostgresDatabase
) -> None:
    async def read_and_write() -> Place:
        await read_each(database, "unknown")
        return await database.write(locate())

    assert postgres.runner.run(read_and_write()).plans == AUTO


def test_idle_connection_with_the_wanted_plans_is_preferred(
    postgres: PostgresUnderTest, database: PostgresDatabase
) -> None:
    async def alternate() -> tuple[list[Place], list[Place]]:
        first = await asyncio.gather(
            database.read(locate(0.2), size="unknown"), database.read(locate(0.2))
        )
        return first, await read_each(database, "unknown", "small", "unknown", "small")

    first, found = postgres.runner.run(alternate())
    assert first[0].process_id != first[1].process_id
    assert [place.process_id for place in found] == [place.process_id for place in first] * 2


def test_list_continues_after_its_connection_was_lost(
    postgres: PostgresUnderTest, database: PostgresDatabase
) -> None:
    async def lose() -> Place:
        (place,) = await read_each(database, "small")
        async with postgres.connected() as other:
            await other.execute("SELECT pg_terminate_backend($1)", place.process_id)
        (found,) = await read_each(database, "unknown")
        assert found.process_id != place.process_id
        return found

    assert postgres.runner.run(lose()).plans == CUSTOM
