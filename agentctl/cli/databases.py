"""The configured databases that a command of `agentctl db` works on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from agentctl.cli.options import option
from agentctl.errors import NotFound

if TYPE_CHECKING:
    from agentctl.config.settings import Database, Settings

OnlyDatabase = Annotated[str | None, option("--db", "ID", "Database id (default: all databases)")]


def select_databases(config: Path | None, db: str | None) -> Sequence[Database]:
    """Return the configured databases, or the one with this id.

    Raises:
        NotFound: no database has this id.
    """
    return find_databases(load_settings_quietly(config), db)


def load_settings_quietly(config: Path | None) -> Settings:
    """Load the configuration without a log, because the command reports the failure."""
    from agentctl.cli.log import discard_log
    from agentctl.config import load_settings

    discard_log()
    return load_settings(config)


def find_databases(settings: Settings, db: str | None) -> Sequence[Database]:
    """Return all databases, or the one with this id; errors as those of `select_databases`."""
    entries = [entry for entry in settings.databases if db in (None, entry.id)]
    if not entries:
        ids = ", ".join(entry.id for entry in settings.databases)
        raise NotFound(f"Database {db!r} not found", hint=f"configured databases: {ids}")
    return entries
