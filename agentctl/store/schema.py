"""The schema: numbered migrations, and the version that this code works with.

A file `migrations/NNNN_name.ENGINE.sql` is applied in one transaction, together with its row in
`schema_version`, by `sqlite.schema` and `postgres.schema`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from agentctl import errors

Engine = Literal["sqlite", "postgres"]

MIGRATIONS_FOLDER = Path(__file__).parent / "migrations"

SCHEMA_VERSION = max(int(file.name[:4]) for file in MIGRATIONS_FOLDER.glob("*.sqlite.sql"))
"""The number of the newest migration."""

MIGRATE_COMMAND = "agentctl db migrate"
"""The command that migrates a database to `SCHEMA_VERSION`."""

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
"""The tables of the first migration. A database with all of them belongs to agentctl."""

_PIECE = re.compile(
    r"""
      (?P<skip> --[^\n]* | /\*.*?\*/ )
    | (?P<end> ; )
    | \bBEGIN\b .*? \bEND\b (?=\s*;)
    | '(?:[^']|'')*' | "(?:[^"]|"")*" | (?P<quote>\$\w*\$).*?(?P=quote)
    | .
    """,
    re.VERBOSE | re.DOTALL,
)


class Migration(NamedTuple):
    """A migration, such as `0002_many_servers` with the number 2."""

    number: int
    name: str
    text: str

    def statements(self) -> list[str]:
        """Return its statements without comments, each in one line."""
        statements, parts = [], list[str]()
        for piece in _PIECE.finditer(self.text):
            if piece["end"]:
                statements.append(" ".join("".join(parts).split()))
                parts = []
            elif not piece["skip"]:
                parts.append(piece[0])
        return [statement for statement in statements if statement]

    def summary(self) -> list[str]:
        """Return the beginnings of its statements, such as `CREATE INDEX runs_parent ON runs`."""
        return [re.split(r" ?\(| AS ", statement)[0] for statement in self.statements()]


@cache
def load_migrations(engine: Engine) -> Sequence[Migration]:
    """Return all migrations of an engine in order."""
    return tuple(
        Migration(int(file.name[:4]), file.name.partition(".")[0], file.read_text("utf-8"))
        for file in sorted(MIGRATIONS_FOLDER.glob(f"*.{engine}.sql"))
    )


def list_pending(engine: Engine, version: int) -> Sequence[Migration]:
    """Return the migrations that a database of this version needs."""
    return [migration for migration in load_migrations(engine) if migration.number > version]


def check_version(version: int, where: str) -> None:
    """Check that the schema version of a database is that of this code.

    Args:
        version: the number of its last migration, 0 for none.
        where: its file or its URL without a password, for messages.

    Raises:
        SchemaMismatch: the version differs from `SCHEMA_VERSION`.
    """
    if version > SCHEMA_VERSION:
        raise build_newer_schema(version, where)
    if version < SCHEMA_VERSION:
        raise errors.SchemaMismatch(
            "The database schema is older than this agentctl",
            cause=f"{where} has schema {version}; this agentctl needs {SCHEMA_VERSION}",
            command=MIGRATE_COMMAND,
        )


def build_newer_schema(version: int, where: str) -> errors.SchemaMismatch:
    """Build the error for a database that a later version of agentctl has migrated."""
    return errors.SchemaMismatch(
        "The database schema is newer than this agentctl",
        cause=f"{where} has schema {version}; this agentctl knows {SCHEMA_VERSION}",
        hint="use the version of agentctl that migrated it, or a later one",
    )
