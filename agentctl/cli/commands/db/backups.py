"""`agentctl db backup`, `restore`, `settle` and `copy`: copies of databases."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from agentctl.cli.options import Config, OneDatabase, Yes, find_databases
from agentctl.cli.parameters import argument, flag, option
from agentctl.cli.show.output import CommandOutput, write_line
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.table import Column, plain_columns
from agentctl.cli.show.terminal import confirm, note
from agentctl.errors import NotFound, SomethingWrong, UsageError
from agentctl.records.text import format_count

if TYPE_CHECKING:
    from agentctl.config.settings import Database, Settings
    from agentctl.store.sqlite.backup_bytes import CopiedFiles

_BACKUP = [
    *plain_columns("file", "db_id", "bytes", "seconds", "taken_at"),
    *plain_columns("schema", "sessions", "runs", "rows", "sha256"),
    *plain_columns("files", "files_bytes", "files_missing"),
]

_SETTLED = plain_columns("ended_runs", "unknown_calls", "held_deliveries")
"""The changes to the unfinished work of a restored database."""

_RESTORED = [
    *plain_columns("file", "db_id", "sessions", "runs", "rows", "sha256"),
    *_SETTLED,
    *plain_columns("moved_to", "files", "files_missing"),
]

_COPIED = plain_columns("from", "to", "rows", "seconds")


async def back_up(
    out: CommandOutput,
    file: Annotated[Path, argument("FILE", "New file; never overwritten")],
    chosen: OneDatabase,
) -> None:
    """Copy a SQLite database to a new file, and check the copy.

    Servers continue to write; the copy has everything that was committed when it started. The bytes
    of its files are copied to the folder backup-files next to FILE, if they are not there; those of
    a bucket of S3 are only looked for. Exit code 1 if some are missing. Bytes there that no backup
    next to FILE names any more are removed. For PostgreSQL, prints the pg_dump command instead.
    """
    from agentctl.admin import databases
    from agentctl.config.databases import is_sqlite_url

    settings, (entry, *others) = chosen.load()
    if not is_sqlite_url(entry.url):
        _write_dump_command(entry, file, settings)
        return

    counter = Counter("")
    async with showing_progress(counter):
        backup, copied = await databases.back_up(
            entry, file.absolute(), counter.show, settings.files
        )

    out.show_record(backup, _BACKUP, "file")
    note(
        f"copied {entry.id} to {backup['file']} and checked it; to restore it:"
        f" agentctl db restore {backup['file']}"
    )
    if others:
        names = ", ".join(other.id for other in others)
        note(f"the backup contains one database; back up the rest with --db: {names}")

    place = f"in backup-files next to {backup['file']}: keep both"
    if settings.files.store == "s3":
        place = f"in {_describe_store(settings)}: back it up separately, for example by versions"
    _report_files(copied, place)


def _write_dump_command(entry: Database, file: Path, settings: Settings) -> None:
    """Write the pg_dump command of a PostgreSQL database, and note what else a backup needs."""
    from agentctl.admin.databases import format_dump_command, format_restore_command

    write_line(format_dump_command(entry, file))
    note("nothing was copied: run this command where the PostgreSQL client programs are installed")

    password = f"PGPASSWORD=${entry.password_env}, or " if entry.password_env else ""
    note(f"  password: {password}a file in PGPASSFILE")
    if entry.tls != "prefer":
        certificates = f" PGSSLROOTCERT={entry.tls_ca_file}" if entry.tls_ca_file else ""
        note(f"  encryption: PGSSLMODE={entry.tls}{certificates}")
    note(f"  restore into an empty database: {format_restore_command(entry, file)}")
    note(f"  bytes of files: when pg_dump has ended, copy {_describe_store(settings)}")


def _describe_store(settings: Settings) -> str:
    files = settings.files
    return f"the bucket {files.bucket}" if files.store == "s3" else f"the folder {files.folder}"


def _report_files(copied: CopiedFiles, place: str) -> None:
    """Write where the bytes of files are; SomethingWrong if some are missing."""
    if copied.files:
        kept = format_count(copied.files - copied.files_missing, "file")
        note(f"the bytes of {kept} are {place}")
    if copied.files_missing:
        raise SomethingWrong(
            f"The bytes of {format_count(copied.files_missing, 'file')} are missing",
            cause=f"such as those of file {copied.missing_file}; the rest was done",
            hint="look for more with: agentctl doctor --db",
        )


async def restore(
    out: CommandOutput,
    file: Annotated[Path, argument("FILE", "File of `db backup`")],
    replace: bool = flag("--replace", "Move the current database aside first"),
    sha256: str | None = option("--sha256", "HASH", "Hash that `db backup` printed"),
    *,
    chosen: OneDatabase,
) -> None:
    """Restore a SQLite database from a backup.

    Stop the servers of the database first. The backup is checked and migrated in a copy, which then
    takes the place of the database by one rename; the present files are moved aside, never deleted.
    Nothing goes on by itself: runs that were live in the backup end as WORKER_LOST, approved calls
    without an end become unknown, and waiting webhook deliveries are held until `webhooks
    redeliver`. The bytes of files come from the folder backup-files next to the backup; exit code 1
    if some are missing. For PostgreSQL, prints the pg_restore command instead.
    """
    from agentctl.admin import restores
    from agentctl.admin.databases import format_restore_command
    from agentctl.config.databases import is_sqlite_url

    settings, (entry, *_) = chosen.load()
    if not is_sqlite_url(entry.url):
        write_line(format_restore_command(entry, file))
        note("nothing was restored: run this command on an empty database")
        note(f"afterwards, before a server starts: agentctl db settle --db {entry.id}")
        return

    path = file.absolute()
    counter = Counter("")
    async with showing_progress(counter):
        restored, copied = await restores.restore(
            entry, path, replace=replace, sha256=sha256, files=settings.files, report=counter.show
        )

    out.show_record(restored, _RESTORED, "file")
    note(f"restored {entry.id} from {path}")
    if restored["moved_to"] is not None:
        note(f"the former database is {restored['moved_to']}")
    _note_held_deliveries(restored)
    _report_files(copied, f"in {_describe_store(settings)}")


def _note_held_deliveries(settled: Mapping[str, object]) -> None:
    """Write how to list the webhook deliveries that a restore holds."""
    if settled["held_deliveries"]:
        note("list the held deliveries with: agentctl webhooks deliveries --state dead")


async def settle(out: CommandOutput, chosen: OneDatabase, yes: Yes = False) -> None:
    """End the unfinished work in a restored PostgreSQL database.

    Run it once, before a server starts on a database of pg_restore or of a recovery to an earlier
    time. No work goes on by itself then: live runs end as WORKER_LOST, approved calls without an
    end become unknown, and waiting webhook deliveries are held until `webhooks redeliver`. For
    SQLite, `db restore` does the same.
    """
    from agentctl.admin.restores import settle_recovered
    from agentctl.config.databases import display_url, is_sqlite_url

    settings, (entry, *_) = chosen.load()
    if is_sqlite_url(entry.url):
        raise UsageError(
            "db settle is for PostgreSQL databases",
            hint="agentctl db restore FILE restores a SQLite database, and settles it",
        )
    confirm(f"End all unfinished work in {display_url(entry.url)}?", yes=yes)
    async with showing_progress(f"settling {entry.id}"):
        settled = await settle_recovered(settings, entry)
    out.show_record(settled, [Column("db_id"), *_SETTLED], "db_id")
    _note_held_deliveries(settled)


async def copy(
    out: CommandOutput,
    source: str | None = option("--from", "ID", "SQLite database to copy (default: the first)"),
    target: str | None = option("--to", "ID|URL", "Empty PostgreSQL database"),
    config: Config = None,
    yes: Yes = False,
) -> None:
    """Move a SQLite database to PostgreSQL.

    Stop the servers of the database first. All rows are copied and compared, and then the source is
    closed: no server starts with it any more. If the command ends early, the source is unchanged:
    run it again. Exit code 1 if the store of [files] lacks bytes of files.
    """
    if target is None:
        raise UsageError("give the target with --to, an id or a URL")
    from agentctl.admin import database_copy
    from agentctl.config.databases import build_url, display_url

    settings, entries = OneDatabase(config, source).load()
    entry = entries[0]
    other = _find_target(settings, target)
    database_copy.check_engines(entry, other)
    places = f"{display_url(entry.url)} to {display_url(other.url)}"
    confirm(f"Move {places}, and close the file?", yes=yes)

    counter = Counter("rows copied")
    async with showing_progress(counter):
        facts = await database_copy.copy_database(entry, other, counter.show)
    out.show_record(facts, _COPIED, "to")
    note(f"{facts['from']} is closed: keep it until you have a backup of the new database")
    url = build_url(str(facts["to"]))
    note(f"moved to {url}: name it in [[databases]] url, and start the servers again")
    if settings.search.enabled:
        await _index_texts(other)
    await _look_for_bytes(settings, entry)


async def _index_texts(target: Database) -> None:
    """Build the index of a search in the target of a copy. Servers can work meanwhile."""
    from agentctl.admin.databases import index_texts

    counter = Counter("sessions indexed")
    async with showing_progress(counter):
        # PostgreSQL has this tokenizer only.
        await index_texts(target, "words", counter.show)
    note("its texts are indexed for a search")


async def _look_for_bytes(settings: Settings, source: Database) -> None:
    """Write where the bytes of the files of a copy are; its source has the same rows."""
    from agentctl.admin.file_checks import count_files

    counter = Counter("")
    async with showing_progress(counter):
        found = await count_files(source, settings.files, counter.show)
    _report_files(found, f"in {_describe_store(settings)}: do not change [files]")


def _find_target(settings: Settings, target: str) -> Database:
    """Return the configured database with this id, or one for a URL."""
    from agentctl.config.databases import check_database_url
    from agentctl.config.places import Place
    from agentctl.config.settings import Database

    if "://" in target:
        return Database("target", check_database_url(target, Path.cwd(), Place("--to")))
    try:
        return find_databases(settings, target)[0]
    except NotFound as error:
        hint = f'{error.hint}; a URL such as "postgresql://db/new" names any other one'
        raise NotFound(error.detail, hint=hint) from None
