"""The schema: numbered migrations, and the version that this code works with.

A file `migrations/NNNN_name.ENGINE.sql` is applied in one transaction, together with its row in
`schema_version`, by `sqlite.schema` and `postgres.schema`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from agentctl import errors
from agentctl.config.databases import build_url

Engine = Literal["sqlite", "postgres"]

MIGRATIONS_FOLDER = Path(__file__).parent / "migrations"

SCHEMA_VERSION = max(int(file.name[:4]) for file in MIGRATIONS_FOLDER.glob("*.sqlite.sql"))
"""The number of the newest migration."""

COMPATIBLE_SINCE = 15
"""The migration that added `schema_version.compatible_from`."""

UNRELEASED = range(16, 28)
"""The versions of development between 0.2.0 and 0.3.0. No migration leads to or from them."""

TEXT_ROWS_SINCE = 27
"""The schema version of the first programs that read rows of events with pieces of text."""

FINISH_UPGRADE = (
    f"UPDATE schema_version SET compatible_from = {TEXT_ROWS_SINCE}"
    f" WHERE version = 1 AND compatible_from < {TEXT_ROWS_SINCE}"
)
"""The statement that excludes programs which cannot read everything that this program writes.

A new database needs no upgrade. For other databases the operator decides (decision 125).
"""

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

_CREATED_INDEX = re.compile(r"^CREATE INDEX (\w+)\s+ON (\w+)[^;]*;", re.MULTILINE)

_DROPPED_INDEX = re.compile(r"^DROP INDEX (\w+);", re.MULTILINE)

CLOSED_FROM = 1_000_000
"""`compatible_from` of a database that no program of any version may serve.

It is the source of a copy that has moved, or the target of a copy that is not complete.
"""


class Migration(NamedTuple):
    """A migration, such as `0002_many_servers` with the number 2; an index to build has 0."""

    number: int
    name: str
    text: str

    def statements(self) -> list[str]:
        """Return its statements without comments, each in one line."""
        statements = []
        parts = list[str]()
        for piece in _PIECE.finditer(self.text):
            if piece["end"]:
                statements.append(" ".join("".join(parts).split()))
                parts = []
            elif not piece["skip"]:
                parts.append(piece[0])
        return [statement for statement in statements if statement]

    def defer_indexes(self) -> Migration:
        """Return the migration without the indexes of tables that it does not create.

        Indexes that have successors remain until the successors are built. A later migration may
        replace an index that was not built by an index of the same name.
        """

        def keep_if_new(create: re.Match[str]) -> str:
            creates_table = f"CREATE TABLE {create[2]} (" in self.text
            return create[0] if creates_table else ""

        def drop_if_built(drop: re.Match[str]) -> str:
            if drop[1] in list_superseded():
                return ""
            return f"DROP INDEX IF EXISTS {drop[1]};"

        text = _CREATED_INDEX.sub(keep_if_new, self.text)
        return self._replace(text=_DROPPED_INDEX.sub(drop_if_built, text))

    def summary(self) -> list[str]:
        """Return the beginnings of its statements, such as `CREATE INDEX runs_parent ON runs`."""
        return [re.split(r" ?\(| AS ", statement)[0] for statement in self.statements()]


class StoredVersion(NamedTuple):
    """The schema version of a database."""

    number: int
    """The number of its last migration, 0 for none."""

    compatible_from: int
    """The oldest schema version of a program that can work with it."""

    moved_to: str | None = None
    """The new place of a database that has moved, without a password."""

    copied_from: str | None = None
    """The source of a copy that is not complete, if this database is its target."""

    @property
    def is_newer(self) -> bool:
        """True if a later version of agentctl has migrated the database."""
        return self.number > SCHEMA_VERSION

    @property
    def is_current(self) -> bool:
        """True if the database has the schema of this code, and is not part of a copy."""
        is_of_copy = self.moved_to is not None or self.copied_from is not None
        return self.number == SCHEMA_VERSION and not is_of_copy

    @property
    def allows_text_rows(self) -> bool:
        """True if all programs that work with the database read rows with pieces of text.

        Programs of earlier releases can read events as JSON only (`runs.log.event_rows`).
        """
        return self.compatible_from >= TEXT_ROWS_SINCE


@cache
def load_migrations(engine: Engine) -> Sequence[Migration]:
    """Return all migrations of an engine in order."""
    return tuple(
        Migration(int(file.name[:4]), file.name.partition(".")[0], file.read_text("utf-8"))
        for file in sorted(MIGRATIONS_FOLDER.glob(f"*.{engine}.sql"))
    )


@cache
def list_indexes(engine: Engine) -> Mapping[str, str]:
    """Return the statement of each index of the migrations, by its name."""
    indexes = dict[str, str]()
    for migration in load_migrations(engine):
        for name in _DROPPED_INDEX.findall(migration.text):
            indexes.pop(name, None)
        for create in _CREATED_INDEX.finditer(migration.text):
            indexes[create[1]] = create[0]
    return indexes


@cache
def list_superseded() -> Sequence[str]:
    """Return the names of the indexes of PostgreSQL that the migrations remove, in their order."""
    text = "".join(migration.text for migration in load_migrations("postgres"))
    dropped_names = dict.fromkeys(_DROPPED_INDEX.findall(text))
    # A dropped index may have a successor of the same name.
    return [name for name in dropped_names if name not in list_indexes("postgres")]


def list_pending(engine: Engine, version: StoredVersion, where: str) -> Sequence[Migration]:
    """Return the migrations that a database needs; arguments and errors of `check_released`."""
    check_released(version, where)
    return [migration for migration in load_migrations(engine) if migration.number > version.number]


def check_released(version: StoredVersion, where: str) -> None:
    """Check that the schema of a database is none of `UNRELEASED`.

    Args:
        where: its file or its URL without a password, for messages.

    Raises:
        SchemaMismatch: it is one of them.
    """
    if version.number in UNRELEASED:
        raise errors.SchemaMismatch(
            "The database schema is one of a development version",
            cause=f"{where} has schema {version.number}; the migration of releases leads from"
            f" schema {UNRELEASED.start - 1} to {UNRELEASED.stop}",
            hint="restore a backup of version 0.2 or earlier; to keep the data, migrate it with the"
            " last commit of agentctl that has the migration 0028_copies",
        )


def check_version(version: StoredVersion, where: str) -> None:
    """Check that this code works with the schema of a database; arguments of `check_released`.

    Raises:
        SchemaMismatch: the schema is older than this code, or newer and not compatible with it.
        Unavailable: the database was copied to another place, or is the target of a copy that is
            not complete.
    """
    check_released(version, where)
    if version.number < SCHEMA_VERSION:
        raise errors.SchemaMismatch(
            "The database schema is older than this agentctl",
            cause=f"{where} has schema {version.number}; this agentctl needs {SCHEMA_VERSION}",
            command=MIGRATE_COMMAND,
        )
    check_newer(version, where)


def check_newer(version: StoredVersion, where: str) -> None:
    """Check that a schema is not too new for this code; arguments and errors of `check_version`."""
    if version.moved_to is not None:
        raise errors.Unavailable(
            "The database has moved",
            cause=f"{where} was copied to {version.moved_to}, and is closed since then",
            hint=f"name the new place in [[databases]] url: {build_url(version.moved_to)}",
        )

    if version.copied_from is not None:
        raise errors.Unavailable(
            "The database is the target of a copy that is not complete",
            cause=f"the copy of {version.copied_from} was interrupted near its end",
            hint="repeat the same `agentctl db copy`, which finishes it",
        )

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
