"""The configured databases that a command works on, and the options that select them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from agentctl.cli.options import Config, DbId
from agentctl.cli.parameters import option
from agentctl.errors import NotFound
from agentctl.light_dataclass import dataclass

if TYPE_CHECKING:
    from agentctl.config.settings import Database, Settings

AnyDatabase = Annotated[str | None, option("--db", "ID", "Database id (default: all databases)")]


@dataclass(frozen=True, slots=True)
class OneDatabase:
    """The options that select a database, by default the first one."""

    config: Config = None
    db: DbId = None

    def load(self) -> tuple[Settings, Sequence[Database]]:
        """Return the settings, and the databases that the options select.

        The configuration is loaded without a log, because the command reports the failure.
        """
        from agentctl.cli.log import discard_log
        from agentctl.config import load_settings

        discard_log()
        settings = load_settings(self.config)
        return settings, find_databases(settings, self.db)


@dataclass(frozen=True, slots=True)
class AllDatabases(OneDatabase):
    """The options that select one database, by default all of them."""

    db: AnyDatabase = None


def find_databases(settings: Settings, db: str | None) -> Sequence[Database]:
    """Return all databases, or the one with this id.

    Raises:
        NotFound: no database has this id.
    """
    entries = [entry for entry in settings.databases if db in (None, entry.id)]
    if not entries:
        ids = ", ".join(entry.id for entry in settings.databases)
        raise NotFound(f"Database {db!r} not found", hint=f"configured databases: {ids}")
    return entries
