"""The schema as numbered migrations: which there are, and which versions this code works with.

`migrations/NNNN_name.ENGINE.sql` is applied in one transaction, together with its row in
`schema_version`, by `sqlite_schema` and `postgres_schema`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from agentctl import errors

__all__ = [
    "MIGRATE_COMMAND",
    "MIGRATIONS_FOLDER",
    "SCHEMA_VERSION",
    "TABLES",
    "Engine",
    "Migration",
    "build_newer_schema",
    "check_version",
    "list_pending",
    "load_migrations",
]

Engine = Literal["sqlite", "postgres"]

MIGRATIONS_FOLDER = Path(__file__).parent / "migrations"

SCHEMA_VERSION = max(int(file.name[:4]) for file in MIGRATIONS_FOLDER.glob("*.sqlite.sql"))
"""Number of the newest migration."""

MIGRATE_COMMAND = "agentctl db migrate"
"""The command that brings a database to `SCHEMA_VERSION`."""

TABLES = frozenset(
    {
        "audit_log",
        "idempotency",
        "run_events",
        "runs",
        "schema_version",
        "service_accounts",
        "sessions",
        "workers",
    }
)
"""Those of the first migration: a database that has them is one of ours, however old."""

_PIECE = re.compile(
    r"""
      (?P<skip> --[^\n]* | /\*.*?\*/ )
    | (?P<end> ; )
    | '(?:[^']|'')*' | "(?:[^"]|"")*" | (?P<quote>\$\w*\$).*?(?P=quote)
    | .
    """,
    re.VERBOSE | re.DOTALL,
)


class Migration(NamedTuple):
    """A step of the schema: `0002_many_servers`, number 2."""

    number: int
    name: str
    text: str

    def statements(self) -> list[str]:
        """Its statements, without comments, each in one line."""
        found, parts = [], list[str]()
        for piece in _PIECE.finditer(self.text):
            if piece["end"]:
                found.append(" ".join("".join(parts).split()))
                parts = []
            elif not piece["skip"]:
                parts.append(piece[0])
        return [statement for statement in found if statement]

    def summary(self) -> list[str]:
        """What each of its statements does, in short: `CREATE INDEX runs_parent ON runs`."""
        return [re.split(r" ?\(| AS ", statement)[0] for statement in self.statements()]


@cache
def load_migrations(engine: Engine) -> Sequence[Migration]:
    """Every migration of an engine, the first one first."""
    return tuple(
        Migration(int(file.name[:4]), file.name.partition(".")[0], file.read_text("utf-8"))
        for file in sorted(MIGRATIONS_FOLDER.glob(f"*.{engine}.sql"))
    )


def list_pending(engine: Engine, version: int) -> Sequence[Migration]:
    """What is still to be applied to a database of this version."""
    return [each for each in load_migrations(engine) if each.number > version]


def check_version(version: int, where: str) -> None:
    """Refuse a database that is older or newer than this code.

    Args:
        version: the number of its last migration, 0 for none.
        where: its file or url, without a password.

    Raises:
        SchemaMismatch: it is another version than `SCHEMA_VERSION`.
    """
    if version > SCHEMA_VERSION:
        raise build_newer_schema(version, where)
    if version < SCHEMA_VERSION:
        raise errors.SchemaMismatch(
            "The database's schema is older than this agentctl",
            cause=f"{where} has schema {version}; this agentctl needs {SCHEMA_VERSION}",
            command=MIGRATE_COMMAND,
        )


def build_newer_schema(version: int, where: str) -> errors.SchemaMismatch:
    """The refusal of a database that a later agentctl has changed."""
    return errors.SchemaMismatch(
        "The database's schema is newer than this agentctl",
        cause=f"{where} has schema {version}; this agentctl knows {SCHEMA_VERSION}",
        hint="run it with the agentctl that changed it, or a later one",
    )
