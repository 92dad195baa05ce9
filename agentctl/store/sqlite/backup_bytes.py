"""The bytes of files next to the backups of their databases, and back in the folder of the store.

The folder `backup-files` next to backups has the bytes of the files that they name, under the keys
of the store. So a further backup adds only new bytes: by a hard link, or on another disk by a
copy. A lock of the store lets nothing be deleted that a backup under way names.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import apsw

from agentctl.store.blobs import FolderStore, flush, get_size, lock_folder, translate_failures
from agentctl.store.repositories.files import FileBytes, list_bytes
from agentctl.store.sqlite.connection import run_unit
from agentctl.store.sqlite.thread import ShouldStop, run_on_thread

FOLDER = "backup-files"
"""The name of the folder next to backups that has the bytes of their files."""

ReportCopied = Callable[[str, int, int], None]
"""Called with the name of the step, the number of files so far, and 0."""

_PAGE = 500
"""Keys that one statement reads."""

_PART = ".part"
"""The end of the name of a file that is not complete."""


@dataclass(frozen=True, slots=True)
class CopiedFiles:
    """The bytes that a database names. Files of a user with the same bytes count once."""

    files: int = 0
    """Number of files."""

    files_bytes: int = 0
    """Bytes of all files."""

    files_copied: int = 0
    """Number of files whose bytes were copied now."""

    files_missing: int = 0
    """Number of files whose bytes are missing."""

    missing_file: str | None = None
    """The id of a file whose bytes are missing; None if there is none."""


NO_FILES = CopiedFiles()


async def copy_bytes(
    database: Path, source: Path, target: Path, report: ReportCopied, *, links: bool = False
) -> CopiedFiles:
    """Copy the bytes that a database names from a folder to another, if they are new there.

    Args:
        links: True for hard links where that is possible; copies are compared with their hashes.

    Raises:
        Unavailable: the database cannot be read, or the folder cannot be written.
    """

    def copy(connection: apsw.Connection, stop: ShouldStop) -> CopiedFiles:
        file_count = 0
        size = 0
        copied_count = 0
        missing_count = 0
        missing_file = None
        unflushed_folder = None

        for file_bytes in iterate_bytes(connection):
            if stop():
                raise apsw.InterruptError("the copy was cancelled")

            # The files of one folder follow each other: it is flushed once, after the last of them.
            place = target / file_bytes.blob
            if unflushed_folder is not None and unflushed_folder != place.parent:
                flush(unflushed_folder)
                unflushed_folder = None

            if get_size(place) != file_bytes.size:
                if _copy_or_link(source / file_bytes.blob, place, file_bytes.size, links):
                    copied_count += 1
                    unflushed_folder = place.parent
                else:
                    missing_count += 1
                    missing_file = missing_file or file_bytes.file_id

            file_count += 1
            size += file_bytes.size
            report("files copied", file_count, 0)

        if unflushed_folder is not None:
            flush(unflushed_folder)
        return CopiedFiles(file_count, size, copied_count, missing_count, missing_file)

    with translate_failures():
        return await run_on_thread(database, copy)


def iterate_bytes(connection: apsw.Connection) -> Iterator[FileBytes]:
    """Yield the bytes that a database names, in the order of their keys; none of an old schema."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'blob_checks'").get:
        return

    after = ""
    while page := run_unit(connection, list_bytes(after, _PAGE)):
        yield from page
        after = page[-1].blob


def _copy_or_link(source: Path, target: Path, size: int, links: bool) -> bool:
    """Copy or link a file to a second place; return False if it is missing or has other bytes."""
    if get_size(source) != size:
        return False

    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}{_PART}")
    part.unlink(missing_ok=True)

    try:
        if links and _link(source, part):
            part.replace(target)
            return True

        digest = hashlib.sha256()
        with source.open("rb") as reader, part.open("xb") as writer:
            part.chmod(0o600)
            while piece := reader.read(1 << 20):
                digest.update(piece)
                writer.write(piece)
            writer.flush()
            os.fsync(writer.fileno())

        if digest.hexdigest() != target.name:
            return False

        part.replace(target)
        return True
    except FileNotFoundError:
        return False
    finally:
        part.unlink(missing_ok=True)


def _link(source: Path, target: Path) -> bool:
    try:
        target.hardlink_to(source)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP):
            raise
        return False
    return True


async def names_bytes(database: Path) -> bool:
    """Return True if a database names bytes; one of an old schema names none."""
    return await run_on_thread(
        database, lambda connection, _: next(iterate_bytes(connection), None) is not None
    )


async def back_up_bytes(
    database: Path, store: Path, backups: Path, report: ReportCopied
) -> CopiedFiles:
    """Copy the bytes that a new backup names to the folder of the backups; see `copy_bytes`."""
    if not await names_bytes(database):
        return NO_FILES
    folder = backups / FOLDER
    with translate_failures():
        folder.mkdir(mode=0o700, exist_ok=True)
        with lock_folder(folder):
            return await copy_bytes(database, store, folder, report, links=True)


def remove_unnamed_bytes(backups: Path) -> None:
    """Remove the bytes that no backup in a folder names.

    Nothing is removed if a file in the folder is not a database, for it may be a compressed backup.
    A file `.json`, such as the output of `db backup -o json`, is left out.

    Raises:
        OSError: the folder cannot be read or written.
    """
    folder = backups / FOLDER
    if not folder.is_dir():
        return

    with lock_folder(folder, removes=True) as is_locked:
        if not is_locked:
            return

        named_keys = set[str]()
        for path in backups.iterdir():
            if path.is_file() and path.suffix != ".json":
                try:
                    named_keys.update(_list_named_keys(path))
                except apsw.Error:
                    return

        for stored_bytes in FolderStore(folder).iterate(""):
            if stored_bytes.blob not in named_keys:
                (folder / stored_bytes.blob).unlink(missing_ok=True)


def _list_named_keys(path: Path) -> Iterator[str]:
    uri = f"file:{quote(str(path))}?immutable=1"
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    with contextlib.closing(apsw.Connection(uri, flags=flags)) as connection:
        for file_bytes in iterate_bytes(connection):
            yield file_bytes.blob
