"""Backup of a SQLite file during use, with a comparison of the copy and the original.

The copy has the state at the start of the backup. No other process waits for it; the write-ahead
log grows by the changes that other processes make meanwhile. The bytes of files are copied after
the database.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import apsw

from agentctl import errors
from agentctl.records.times import format_rfc3339, now
from agentctl.store.blobs import flush, lock_folder
from agentctl.store.sqlite.backup_bytes import NO_FILES, CopiedFiles, back_up_bytes
from agentctl.store.sqlite.connection import run_unit
from agentctl.store.sqlite.schema import require_version
from agentctl.store.sqlite.thread import ShouldStop, run_on_thread

PAGES = 1_024
"""Pages that are copied in one step: 4 MB."""

CHUNK = 5_000
"""Rows between two calls of `ReportProgress`."""

ReportCopyProgress = Callable[[str, int, int], None]
"""Called with the name of the step, the number of finished parts, and of all; 0 if unknown."""

_SIDE_FILES = ("journal", "wal", "shm")

CopiedRows = tuple[dict[str, int], str]
"""The number of rows of each table, and the SHA-256 of all rows."""


@dataclass(frozen=True, slots=True)
class FinishedBackup:
    """A finished backup."""

    path: Path

    taken_at: int
    """The time of its state, in microseconds UTC; later commits are not in it."""

    bytes: int
    schema: int
    seconds: float
    tables: dict[str, int]

    digest: str
    """SHA-256 of all rows, in hexadecimal; `hash_rows` computes it for any copy."""

    copied: CopiedFiles = NO_FILES
    """The bytes of its files."""

    def describe(self) -> dict[str, object]:
        """Return the facts of the copy for output and for files."""
        return {
            "bytes": self.bytes,
            "seconds": round(self.seconds, 3),
            "taken_at": format_rfc3339(self.taken_at),
            "schema": self.schema,
            "sessions": self.tables["sessions"],
            "runs": self.tables["runs"],
            "rows": sum(self.tables.values()),
            "sha256": self.digest,
            "files": self.copied.files,
            "files_bytes": self.copied.files_bytes,
            "files_missing": self.copied.files_missing,
        }


async def back_up(
    source: Path, target: Path, report: ReportCopyProgress, files: Path | None = None
) -> FinishedBackup:
    """Copy a database to a new file that only its owner can read, and check the copy.

    The file gets its name when it is complete, checked and on the disk. Until then it is
    `NAME.part` in the same folder.

    Args:
        files: the folder of the bytes of its files, which are copied as well; None without one.

    Raises:
        Conflict: the file already exists.
        Unavailable: the database cannot be read, the file cannot be written, or the copy differs.
    """
    part = target.with_name(f"{target.name}.part")
    if os.path.lexists(target):
        raise _build_exists_error(target)

    try:
        os.close(os.open(part, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise _build_write_error(part, error) from None
    try:
        bytes_lock = lock_folder(files) if files else contextlib.nullcontext()
        with bytes_lock:
            backup = await run_on_thread(
                source, lambda connection, stop: _copy(connection, part, report, stop)
            )
            if files:
                copied = await back_up_bytes(part, files, target.parent, report)
                backup = replace(backup, copied=copied)

        _publish(part, target)
    finally:
        for leftover in (part, *(part.with_name(f"{part.name}-{end}") for end in _SIDE_FILES)):
            leftover.unlink(missing_ok=True)

    return replace(backup, path=target)


def _copy(
    source: apsw.Connection, part: Path, report: ReportCopyProgress, stop: ShouldStop
) -> FinishedBackup:
    began = time.monotonic()
    # Every page and every row is read from this snapshot.
    source.execute("BEGIN")
    taken_at = now()
    schema = run_unit(source, require_version(part)).number

    copy = apsw.Connection(str(part), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        copy.set_progress_handler(stop, 10_000)
        copy.pragma("synchronous", "OFF")

        with copy.backup("main", source, "main") as steps:
            while not steps.step(PAGES):
                report("pages copied", steps.page_count - steps.remaining, steps.page_count)
                if stop():
                    raise apsw.InterruptError("the backup was cancelled")

        tables, digest = _compare(source, copy, report)
    except apsw.FullError:
        raise _build_write_error(part, OSError(errno.ENOSPC, "")) from None
    finally:
        copy.close(True)
        source.execute("COMMIT")

    seconds = time.monotonic() - began
    size = part.stat().st_size
    return FinishedBackup(part, taken_at, size, schema, seconds, tables, digest)


def _compare(
    source: apsw.Connection, copy: apsw.Connection, report: ReportCopyProgress
) -> CopiedRows:
    """Compare the copy with the original, row by row."""
    report("pages checked", 0, 0)
    is_intact = not is_damaged(copy)

    row_count = 0
    for name in _list_tables(source):
        row_count += source.execute(f'SELECT count(*) FROM "{name}"').get

    total = 2 * row_count
    original_rows = hash_rows(source, lambda done: report("rows compared", done, total))
    half = sum(original_rows[0].values())
    copied_rows = hash_rows(copy, lambda done: report("rows compared", half + done, total))

    if is_intact and original_rows == copied_rows:
        return copied_rows

    problem = "differs from the database" if is_intact else "is damaged"
    raise errors.Unavailable(
        "The backup failed: the copy is not correct",
        cause=f"the copy {problem}",
        hint="check the disk, and the database with `agentctl doctor --db`",
    )


def is_damaged(connection: apsw.Connection) -> bool:
    """Read every page of a database. Return True if one is damaged."""
    return bool(connection.execute("PRAGMA integrity_check(1)").get != "ok")


def hash_rows(connection: apsw.Connection, report: Callable[[int], None]) -> CopiedRows:
    """Return the number of rows of each table, and a SHA-256 of all rows."""
    digest = hashlib.sha256()
    tables = dict[str, int]()
    done = 0

    for name, order in _list_tables(connection).items():
        rows = 0
        digest.update(name.encode())
        for row in connection.execute(f'SELECT * FROM "{name}"{order}'):
            digest.update(repr(row).encode("utf-8", "surrogatepass"))
            rows += 1
            if rows % CHUNK == 0:
                report(done + rows)

        tables[name] = rows
        done += rows

    return tables, digest.hexdigest()


def _list_tables(connection: apsw.Connection) -> dict[str, str]:
    """Return the tables with rows, and the order in which they are read.

    A virtual table has no rows; the rows of its index are in tables of SQLite, some without a
    rowid, which are read in the order of their keys.
    """
    rows = connection.execute(
        "SELECT name, CASE wr WHEN 1 THEN '' ELSE ' ORDER BY rowid' END FROM pragma_table_list"
        " WHERE schema = 'main' AND type IN ('table', 'shadow') AND name NOT LIKE 'sqlite%'"
        " ORDER BY name"
    )
    return dict(rows)


def _publish(part: Path, target: Path) -> None:
    try:
        flush(part)
        os.link(part, target)
        flush(target.parent)
    except FileExistsError:
        raise _build_exists_error(target) from None
    except OSError as error:
        raise _build_write_error(target, error) from None


def _build_exists_error(target: Path) -> errors.Conflict:
    return errors.Conflict(
        f"{target} already exists", hint="choose another name: a backup never overwrites a file"
    )


def _build_write_error(path: Path, error: OSError) -> errors.Unavailable:
    hint = "check the folder, its permissions, and its free space"
    if isinstance(error, FileExistsError):
        hint = f"another backup writes it, or was killed: in that case remove {path}"
    return errors.Unavailable(
        "The backup cannot be written",
        cause=f"{path}: {os.strerror(error.errno or 0).lower()}",
        hint=hint,
    )
