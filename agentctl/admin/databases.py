"""The work of `agentctl db`: status, migration, upgrade, check, index and backup of a database.

Only the local command line uses this module: it works on files and servers directly and asks no
policy. Checks read snapshots, so they change nothing and block no writer.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from agentctl import errors
from agentctl.admin.file_checks import FILE_REMEDIES, check_files, count_files, find_unnamed
from agentctl.config.databases import display_url, is_sqlite_url, sqlite_path
from agentctl.config.files import Files
from agentctl.config.settings import Database, Settings
from agentctl.errors import AgentctlError, Unavailable
from agentctl.records.system import Finding, from_failure, note, ok, wrong
from agentctl.records.text import format_bytes, format_count
from agentctl.runs.workers.liveness import WorkerMonitor
from agentctl.store import migrating, schema
from agentctl.store.blobs import BlobStore
from agentctl.store.database import Database as OpenDatabase
from agentctl.store.databases import Databases, open_database
from agentctl.store.repositories import integrity, search, workers
from agentctl.store.repositories.search import NEWEST, OLDEST
from agentctl.store.schema import SCHEMA_VERSION
from agentctl.store.search import Tokenizer
from agentctl.store.sqlite.backup import ReportCopyProgress
from agentctl.store.sqlite.backup import back_up as copy
from agentctl.store.sqlite.backup_bytes import CopiedFiles, names_bytes, remove_unnamed_bytes
from agentctl.store.sqlite.connection import get_file_size
from agentctl.store.threads import complete_in_thread
from agentctl.store.versions import exclude_earlier_programs

DatabaseState = Literal[
    "ok", "missing", "old", "ahead", "new", "moved", "incomplete", "unavailable"
]
"""The state of a database: `ahead` is newer and usable, `new` is newer and not usable, `moved` was
copied to another database, and `incomplete` is the target of a copy that is not finished."""

ReportProgress = Callable[[str, int, int | None], None]
"""Receives the name of the work, the part done and the total, if known."""

RESTORE = "restore it from a backup (agentctl db backup creates backups)"
_COMPARES = "compares its schema with the migrations (agentctl doctor --db)"
_CHANGED_BY_HAND = "check who changed it by hand; agentctl doctor --runs --fix repairs runs"

PAGE_SIZE = 500
"""Rows of one read of a check."""


@dataclass(slots=True)
class DatabaseStatus:
    """The status of a configured database."""

    db_id: str
    engine: str

    url: str
    """Its URL without a password."""

    state: DatabaseState = "ok"

    schema: int | None = None
    """Number of the last migration; None if there is no database, or it cannot be read."""

    newest: int = SCHEMA_VERSION

    compatible_from: int | None = None
    """The oldest schema version of a program that can work with it, or None."""

    pending: list[str] = field(default_factory=list)

    bytes: int | None = None
    """Size of the file, or of the tables."""

    wal_bytes: int | None = None
    """Size of the write-ahead log of a SQLite file."""

    sessions: int | None = None
    runs: int | None = None

    estimated: bool = False
    """True if the numbers of rows are estimates."""

    failure: AgentctlError | None = None

    def record(self) -> dict[str, object]:
        """Return the fields for output, with the text of the failure as `problem`."""
        names = [name for name in self.__slots__ if name != "failure"]
        failure = None if self.failure is None else self.failure.detail
        return {name: getattr(self, name) for name in names} | {"problem": failure}


async def read_database_status(entry: Database) -> DatabaseStatus:
    """Read the status of a database; errors are returned as `failure` and not raised."""
    engine = migrating.get_engine(entry)
    status = DatabaseStatus(entry.id, engine, entry.url)
    try:
        version = await migrating.read_version(entry)
        if version is None:
            status.state = "missing"
            status.pending = [migration.name for migration in schema.load_migrations(engine)]
            status.failure = _build_missing_error(display_url(entry.url))
            return status

        status.schema = version.number
        status.compatible_from = version.compatible_from
        sizes = await migrating.read_sizes(entry)
        status.bytes, status.wal_bytes, status.sessions, status.runs, status.estimated = sizes

        try:
            pending = schema.list_pending(engine, version, display_url(entry.url))
            indexes = await migrating.list_missing_indexes(entry, version)
            status.pending = [migration.name for migration in (*pending, *indexes)]
            schema.check_version(version, display_url(entry.url))
            status.state = "ahead" if version.is_newer else "ok"
        except AgentctlError as failure:
            status.failure = failure
            if version.moved_to is not None:
                status.state = "moved"
            elif version.copied_from is not None:
                status.state = "incomplete"
            else:
                status.state = "new" if version.is_newer else "old"
    except AgentctlError as failure:
        status.state = "unavailable"
        status.failure = failure

    return status


def _build_missing_error(place: str) -> Unavailable:
    return Unavailable(
        "The database does not exist", cause=f"{place} has none", command=schema.MIGRATE_COMMAND
    )


@dataclass(frozen=True, slots=True)
class MigrationPlan:
    """The pending migrations of a database."""

    version: schema.StoredVersion | None
    """Its schema version; None if there is no database."""

    migrations: Sequence[schema.Migration]


async def plan_migration(entry: Database) -> MigrationPlan:
    """Return the pending migrations of a database without changing it.

    Raises:
        SchemaMismatch: the schema is newer than this code, and not compatible with it, or it is
            one of a development version.
        Unavailable: the database cannot be used, or is not a database of agentctl.
    """
    engine = migrating.get_engine(entry)
    version = await migrating.read_version(entry)
    if version is None:
        return MigrationPlan(None, schema.load_migrations(engine))

    schema.check_newer(version, display_url(entry.url))
    pending = schema.list_pending(engine, version, display_url(entry.url))
    indexes = await migrating.list_missing_indexes(entry, version)
    return MigrationPlan(version, [*pending, *indexes])


CHECK_STEPS = ("pages", "references", "schema", *integrity.CHECKED_TABLES, "files", "bytes")
"""The steps of a check, in their order."""


@dataclass(slots=True)
class CheckState:
    """The place that a check of a database has reached, and the violations found so far."""

    step: str = CHECK_STEPS[0]
    """The step that comes next."""

    after: str = ""
    """The key of the last row that the step has checked."""

    broken: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The number of violations and one key, by rule."""

    @property
    def steps_left(self) -> Sequence[str]:
        """The steps that are not finished."""
        return CHECK_STEPS[CHECK_STEPS.index(self.step) :]

    def list_violations(self, check: str) -> list[Finding]:
        """Return a finding for each violated rule."""
        return [
            wrong(
                check,
                f"{rule}: {count}, for example {key}",
                FILE_REMEDIES.get(rule, _CHANGED_BY_HAND),
            )
            for rule, (count, key) in self.broken.items()
        ]

    def add(self, rule: str, key: str, count: int = 1) -> None:
        """Add violations of a rule."""
        before, example = self.broken.get(rule, (0, key))
        self.broken[rule] = before + count, example


@dataclass(frozen=True, slots=True)
class CheckedStore:
    """The store of files that a check of a database reads."""

    store: BlobStore

    deep: bool
    """True to compare the hashes of all bytes."""

    entries: Sequence[Database]
    """The databases that may name bytes; empty not to look for unnamed bytes."""


async def check_integrity(
    entry: Database,
    at: ReportProgress,
    state: CheckState | None = None,
    files: CheckedStore | None = None,
) -> AsyncIterator[Finding]:
    """Check the integrity of one database; it reads all data, which may take long.

    Args:
        state: the place to begin at. It follows the check, so that a copy without `broken`
            continues an interrupted one.
        files: the store of its files; None not to check their bytes.
    """
    check = f"database {entry.id}"
    state = state or CheckState()
    try:
        version = await migrating.read_version(entry)
        if version is None:
            yield wrong(
                check, f"there is no database at {display_url(entry.url)}", schema.MIGRATE_COMMAND
            )
            return

        if is_sqlite_url(entry.url):
            async for finding in _check_pages(sqlite_path(entry.url), check, at, state):
                yield finding

        schema.check_released(version, display_url(entry.url))
        if "schema" in state.steps_left:
            state.step = "schema"
            async for finding in _check_schema(entry, check, version):
                yield finding

        schema.check_version(version, display_url(entry.url))
        await _check_rows(entry, at, state)

        good = [ok(check, "the counters of its sessions match their runs")]
        if files is not None:
            await _check_files(entry, at, state, files)
            good.append(ok(check, "the store has the bytes of its files"))
        for finding in state.list_violations(check) or good:
            yield finding
    except AgentctlError as failure:
        yield from_failure(check, failure)


async def _check_pages(
    path: Path, check: str, at: ReportProgress, state: CheckState
) -> AsyncIterator[Finding]:
    from agentctl.store.sqlite import inspect

    if state.step == "pages":
        at(f"pages read, of {format_bytes(get_file_size(path))}", 0, None)
        damage = await inspect.find_damage(path)
        for text in damage:
            yield wrong(check, f"it is damaged: {text}", RESTORE)
        if not damage:
            yield ok(check, "no damaged pages")
        state.step = "references"

    if state.step == "references":
        at("tables searched", 0, None)
        for table, rows in await inspect.find_dangling_rows(path):
            yield wrong(
                check,
                f"{table}: {format_count(rows, 'reference')} to missing rows",
                _CHANGED_BY_HAND,
            )


async def _check_schema(
    entry: Database, check: str, version: schema.StoredVersion
) -> AsyncIterator[Finding]:
    if version.is_newer:
        yield note(
            check, schema.describe_newer(version), f"the version that migrated it {_COMPARES}"
        )
        return

    is_complete = True
    for text, is_additional in await _find_schema_differences(entry, version):
        if is_additional:
            yield note(check, text)
            continue

        is_complete = False
        # A migration builds the indexes of PostgreSQL while servers work, and may be interrupted.
        is_built = text.startswith("index ") and not is_sqlite_url(entry.url)
        yield wrong(check, text, schema.MIGRATE_COMMAND if is_built else RESTORE)

    if is_complete:
        yield ok(check, f"its schema is that of the migrations, version {version.number}")


async def _find_schema_differences(
    entry: Database, version: schema.StoredVersion
) -> list[tuple[str, bool]]:
    """Return the differences from the migrations: a text, and True for an additional object."""
    if is_sqlite_url(entry.url):
        from agentctl.store.sqlite import inspect

        path = sqlite_path(entry.url)
        return await inspect.find_schema_differences(path, version.number)

    from agentctl.store.postgres.connection import open_connection
    from agentctl.store.postgres.schema import find_schema_differences

    async with open_connection(entry) as connection:
        texts = await find_schema_differences(connection, version.number)
    return [(text, False) for text in texts]


async def _check_rows(entry: Database, at: ReportProgress, state: CheckState) -> None:
    """Check the rows of the tables that are left, a page at a time."""
    sizes = await migrating.read_sizes(entry)
    totals = {"runs": sizes.runs, "sessions": sizes.sessions}

    async with migrating.open_reader(entry) as read:
        tables = [step for step in state.steps_left if step in integrity.CHECKED_TABLES]
        for table in tables:
            if state.step != table:
                state.step = table
                state.after = ""

            text = f"rows of {table} checked"
            done = 0
            at(text, done, totals.get(table))
            while True:
                page = await read(integrity.check_page(table, state.after, PAGE_SIZE))
                if not page.rows:
                    break
                for rule, (count, key) in page.broken.items():
                    state.add(rule, key, count)
                state.after = page.last
                done += page.rows
                at(text, done, totals.get(table))


async def _check_files(
    entry: Database, at: ReportProgress, state: CheckState, files: CheckedStore
) -> None:
    """Check the bytes of files that are left."""
    text = ""
    done = 0

    def report(rule: str, blob: str, key: str) -> None:
        nonlocal done
        state.after = blob
        done += 1
        at(text, done, None)
        if rule:
            state.add(rule, key)

    if state.step != "bytes":
        if state.step != "files":
            state.step = "files"
            state.after = ""
        text = "files looked for"
        async with migrating.open_reader(entry) as read:
            await check_files(
                read,
                files.store,
                state.after,
                lambda rule, file_bytes: report(rule, file_bytes.blob, file_bytes.file_id),
                deep=files.deep,
            )
        state.step = "bytes"
        state.after = ""
        done = 0

    if files.entries:
        text = "stored files looked for in databases"
        await find_unnamed(
            files.entries, files.store, state.after, lambda rule, blob: report(rule, blob, blob)
        )


async def back_up(
    entry: Database, file: Path, report: ReportCopyProgress, files: Files
) -> tuple[dict[str, object], CopiedFiles]:
    """Copy a SQLite database while it is in use, and check the copy.

    Bytes of files next to the backups that no backup in the folder names any more are removed.

    Returns:
        The facts of the copy, and the bytes of its files. `sha256` is the hash of all rows, the
        same for a restored copy. The bytes are copied from a folder, and only looked up in a
        bucket.

    Raises:
        Conflict: the file exists.
        Unavailable: the database does not exist or cannot be read, or the file cannot be written.
    """
    path = sqlite_path(entry.url)
    if await migrating.read_version(entry) is None:
        raise _build_missing_error(str(path))

    in_bucket = files.store == "s3"
    backup = await copy(path, file, report, None if in_bucket else files.folder)
    if in_bucket and await names_bytes(path):
        backup = replace(backup, copied=await count_files(entry, files, report))

    # The backup is complete whatever happens here, and the next one removes what is left.
    with contextlib.suppress(OSError):
        await complete_in_thread(partial(remove_unnamed_bytes, file.parent))

    return {"file": str(backup.path), "db_id": entry.id, **backup.describe()}, backup.copied


def format_dump_command(entry: Database, file: Path) -> str:
    """Return the `pg_dump` command that copies a PostgreSQL database to a file.

    The command contains no password: libpq reads PGPASSWORD or the file of PGPASSFILE.
    """
    words = ["pg_dump", "--format=custom", "--no-owner", f"--file={file}"]
    if entry.search_path:
        words.append(f"--schema={entry.search_path}")
    return shlex.join([*words, f"--dbname={entry.url}"])


def format_restore_command(entry: Database, file: Path) -> str:
    """Return the `pg_restore` command that restores a copy into an empty database."""
    words = ["pg_restore", "--exit-on-error", "--single-transaction", "--no-owner"]
    return shlex.join([*words, f"--dbname={entry.url}", str(file)])


async def check_servers(settings: Settings) -> None:
    """Check that no server of an earlier release is at work.

    Raises:
        Conflict: an earlier server works.
        Unavailable, SchemaMismatch: the system database cannot be used.
    """
    databases = Databases(settings, create=False)
    try:
        deaths = await WorkerMonitor(databases).check_all()
        rows = await databases.system.read(workers.list_workers())
    finally:
        await databases.close()

    old_workers = [
        f"pid {row.pid} on {row.host}"
        for row in rows
        if (row.schema_version or 0) < schema.TEXT_ROWS_SINCE and deaths.get(row.worker_id) is None
    ]

    if old_workers:
        raise errors.Conflict(
            "Servers of an earlier version work with the database",
            cause=", ".join(old_workers),
            hint="replace them by servers of this version, then repeat the command",
        )


async def finish_upgrade(settings: Settings, database_id: str) -> None:
    """Exclude programs of earlier releases from a migrated database; see `check_servers`.

    From then on rows may have forms that only the programs of this schema read, see
    `schema.FINISH_UPGRADE` (decision 125).
    """
    databases = Databases(settings, create=False)
    try:
        await databases[database_id].write(exclude_earlier_programs())
    finally:
        await databases.close()


PROBED = 20
"""Groups of sessions that a check reads at each end of the list."""

INDEX_COMMAND = "agentctl db index"


@dataclass(slots=True)
class IndexResult:
    """The result of `db index`."""

    db_id: str
    tokenizer: str
    sessions: int = 0

    added: int = 0
    """Number of texts that the index lacked, or had in another form."""


async def index_texts(entry: Database, tokenizer: Tokenizer, report: ReportProgress) -> IndexResult:
    """Add the texts that the index of a database lacks, the newest sessions first.

    Each unit has the texts of 20 sessions. Servers work meanwhile. After an interruption the next
    call adds the rest.

    Raises:
        Unavailable: the database does not exist or does not answer.
        SchemaMismatch: its schema is older or newer than this code.
    """
    database = open_database(entry, create=False)
    try:
        total = await database.read(integrity.count_sessions(), size="large")
        result = IndexResult(database.id, tokenizer)
        after = NEWEST
        while True:
            next_group = await database.read(search.find_missing(after, tokenizer), size="large")
            if next_group is None:
                return result

            group, after = next_group
            if group.missing or group.stale:
                result.added += await database.write(search.add_missing(group, tokenizer))
            result.sessions += len(group.session_ids)
            report("sessions", result.sessions, total)
    finally:
        await database.close()


async def count_unindexed(database: OpenDatabase, tokenizer: Tokenizer) -> tuple[int, int]:
    """Return the number of sessions with texts that the index lacks, and of all read sessions.

    The newest and the oldest sessions are read, at most `PROBED` groups of each.
    """
    lacking_ids = set[str]()
    read_ids = set[str]()
    for first, oldest_first in ((NEWEST, False), (OLDEST, True)):
        after = first
        for _ in range(PROBED):
            work = search.find_missing(after, tokenizer, oldest_first=oldest_first)
            next_group = await database.read(work, size="large")
            if next_group is None:
                break

            group, after = next_group
            read_ids.update(group.session_ids)
            lacking_ids.update(group.missing)
            if group.stale:
                lacking_ids.update(group.session_ids)

    return len(lacking_ids), len(read_ids)


async def check_index(entry: Database, tokenizer: Tokenizer) -> Finding:
    """Describe the index of a database that exists. Raises the errors of `index_texts`."""
    database = open_database(entry, create=False)
    try:
        lacking_count, read_count = await count_unindexed(database, tokenizer)
    finally:
        await database.close()

    check = f"search in {entry.id}"
    read_sessions = f"{format_count(read_count, 'session')} read"
    if lacking_count:
        text = f"{read_sessions}, {lacking_count} with texts that are not indexed"
        return note(check, text, INDEX_COMMAND)
    return ok(check, f"{read_sessions}, all texts are indexed")
