"""What a database lacks of the newest schema, and giving it that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentctl.config.databases import shown_url
from agentctl.config.settings import Database
from agentctl.store import migrating
from agentctl.store.schema import SCHEMA_VERSION, Migration, migrations, newer, pending

__all__ = ["Plan", "migrate", "plan_of"]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be done with a database. `version`: of its schema; None: it is not there."""

    entry: Database
    version: int | None
    migrations: Sequence[Migration]


async def plan_of(entry: Database) -> Plan:
    """What a database lacks; nothing is changed.

    Raises:
        SchemaMismatch: it is newer than this code.
        Unavailable: it cannot be used, or is not one of ours.
    """
    engine, version = migrating.engine_of(entry), await migrating.stored_version(entry)
    if version is None:
        return Plan(entry, None, migrations(engine))
    if version > SCHEMA_VERSION:
        raise newer(version, shown_url(entry.url))
    return Plan(entry, version, pending(engine, version))


async def migrate(plan: Plan, applied: Callable[[Plan, Migration], None]) -> None:
    """Do it. What another process has done meanwhile is not done again.

    Args:
        plan: of `plan_of`.
        applied: is told of each migration that this process has applied.

    Raises: as `plan_of`.
    """
    await migrating.migrate(plan.entry, lambda migration: applied(plan, migration))
