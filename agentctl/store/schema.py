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

COMPATIBLE_SINCE = 15
"""The migration that added `schema_version.compatible_from`."""

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


class StoredVersion(NamedTuple):
    """The schema version of a database.

    Attributes:
        number: the number of its last migration, 0 for none.
        compatible_from: the least schema version of a program that works with it.
    """

    number: int
    compatible_from: int

    @property
    def is_newer(self) -> bool:
        """True if a later version of agentctl has migrated the database."""
        return self.number > SCHEMA_VERSION


@cache
def load_migrations(engine: Engine) -> Sequence[Migration]:
    """Return all migrations of an engine in order."""
    return tuple(
        Migration(int(file.name[:4]), file.name.partition(".")[0], file.read_text("utf-8"))
        for file in sorted(MIGRATIONS_FOLDER.glob(f"*.{engine}.sql"))
    )


def list_pending(engine: Engine, version: StoredVersion) -> Sequence[Migration]:
    """Return the migrations that a database of this version needs."""
    return [each for each in load_migrations(engine) if each.number > version.number]


def check_version(version: StoredVersion, where: str) -> None:
    """Check that this code works with the schema of a database.

    Args:
        version: the schema version of the database.
        where: its file or its URL without a password, for messages.

    Raises:
        SchemaMismatch: the schema is older than this code, or newer and not compatible with it.
    """
    if version.number < SCHEMA_VERSION:
        raise errors.SchemaMismatch(
            "The database schema is older than this agentctl",
            cause=f"{where} has schema {version.number}; this agentctl needs {SCHEMA_VERSION}",
            command=MIGRATE_COMMAND,
        )
    check_newer(version, where)


def check_newer(version: StoredVersion, where: str) -> None:
    """Check that a schema is not too new for this code; arguments and errors of `check_version`."""
    if version.compatible_from > SCHEMA_VERSION:
        raise errors.SchemaMismatch(
            "The database schema is newer than this agentctl",
            cause=f"{where} has schema {version.number}, for agentctl with schema"
            f" {version.compatible_from} or later; this agentctl has {SCHEMA_VERSION}",
            hint="use the version of agentctl that migrated it, or a later one; the way back to"
            " this version is a backup from before the migration",
        )


def describe_newer(version: StoredVersion) -> str:
    """Return a sentence about a newer schema that this code works with."""
    return (
        f"schema {version.number} is newer than this agentctl ({SCHEMA_VERSION}) and compatible"
        f" with versions from schema {version.compatible_from} on"
    )
