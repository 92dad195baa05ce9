"""What SQLite stands on, when a server starts: a library and a filesystem that lose no data."""

from __future__ import annotations

import logging
from collections.abc import Iterator

from agentctl.config.databases import is_sqlite, sqlite_path
from agentctl.config.settings import Settings

__all__ = ["warn_of_ground"]

log = logging.getLogger("agentctl.store")


def warn_of_ground(settings: Settings) -> None:
    """Log what can damage a database of this configuration (`agentctl doctor` says more)."""
    for text in _weaknesses(settings):
        log.warning("%s", text)


def _weaknesses(settings: Settings) -> Iterator[str]:
    paths = [sqlite_path(entry.url) for entry in settings.databases if is_sqlite(entry.url)]
    if not paths:
        return
    from agentctl.service.doctor.configuration import SQLITE_FLOOR, at_least
    from agentctl.service.doctor.files import NETWORK, filesystem_of
    from agentctl.store.sqlite.inspect import sqlite_version

    if not at_least(sqlite_version(), SQLITE_FLOOR):
        yield f"SQLite {sqlite_version()} can damage a database; {SQLITE_FLOOR} is needed"
    for path in paths:
        if (kind := filesystem_of(path)) in NETWORK:
            yield f"{path} is on a filesystem of the network ({kind}), which SQLite cannot share"
