"""A copy of a database in a file."""

from __future__ import annotations

from pathlib import Path

from agentctl.config.databases import sqlite_path
from agentctl.config.settings import Database
from agentctl.records.times import rfc3339
from agentctl.store.migrating import stored_version
from agentctl.store.schema import MIGRATE
from agentctl.store.sqlite_backup import Report
from agentctl.store.sqlite_backup import back_up as copy

__all__ = ["back_up"]


async def back_up(entry: Database, file: Path, report: Report) -> dict[str, object]:
    """Copy a SQLite database while it is used, and check the copy.

    Returns:
        What was written: `sha256` is of all rows, the same for a restored copy.

    Raises:
        Conflict: there is a file of that name.
        Unavailable: there is no database, or it cannot be read, or the file cannot be written.
    """
    from agentctl.errors import Unavailable

    path = sqlite_path(entry.url)
    if await stored_version(entry) is None:
        raise Unavailable("There is no database yet", cause=f"{path} has none", hint=MIGRATE)
    made = await copy(path, file, report)
    return {
        "file": str(made.path),
        "db_id": entry.id,
        "bytes": made.bytes,
        "seconds": round(made.seconds, 3),
        "taken_at": rfc3339(made.taken_at),
        "schema": made.schema,
        "sessions": made.tables["sessions"],
        "runs": made.tables["runs"],
        "rows": sum(made.tables.values()),
        "sha256": made.digest,
    }
