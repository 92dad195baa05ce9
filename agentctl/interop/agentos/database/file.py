"""SQLite files of another program, opened so that neither the file nor a side file is written.

SQLite writes side files even for a reader: `mode=ro` on a file in WAL mode creates `-shm` and an
empty `-wal` unless both exist. So the way to open a file depends on its side files:

- `-wal` and `-shm` exist: a program has the file open. `mode=ro` with `readonly_shm` reads what it
  has committed, and opens the index read-only too.
- no `-wal`, or an empty one, in WAL mode: `immutable=1` reads the file alone. If the file changes
  meanwhile, the read is repeated.
- a `-wal` without `-shm`, or a rollback journal to be applied: a program has crashed. The file and
  its log are copied to a private folder, and SQLite recovers the copy.
- no WAL mode and no journal: `mode=ro`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import apsw

from agentctl import errors

_MAGIC = b"SQLite format 3\0"
_WAL_VERSION = 2
"""The format version in the header of a file in WAL mode."""

WAIT_MILLISECONDS = 5_000
ATTEMPTS = 3

_Stamp = tuple[int, int, int]


class ForeignFile:
    """A `Source`: a file that is open for reading, on threads, one at a time.

    Raises:
        errors.Unavailable: there is no such file, it cannot be read, or it is not a database.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._real = path.resolve()
        self._copy: Path | None = None
        self._stamp: _Stamp | None = None
        self._lock = asyncio.Lock()
        try:
            with path.open("rb") as file:
                header = file.read(len(_MAGIC))
        except OSError as error:
            raise errors.Unavailable(
                "The database cannot be opened",
                cause=f"{path}: {os.strerror(error.errno or 0).lower()}",
            ) from None
        if header != _MAGIC:
            raise errors.Unavailable(
                "The file is not a database", cause=f"{path} is something else"
            )
        try:
            self._connection = self._open()
        except apsw.Error:
            raise _build_unreadable_error(path) from None

    async def read(self, sql: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a SELECT.

        Raises:
            errors.Unavailable: the file cannot be read, or changes all the time.
        """
        async with self._lock:
            return await asyncio.to_thread(self._read, sql, parameters)

    def _read(self, sql: str, parameters: Sequence[object]) -> list[tuple[Any, ...]]:
        try:
            for _ in range(ATTEMPTS):
                rows = self._connection.execute(sql, tuple(parameters)).fetchall()
                if self._stamp is None or self._stamp == self._read_stamp():
                    return rows
                # A program has opened the file, so that it is not immutable any more.
                self._connection.close(True)
                self._connection = self._open()
        except apsw.Error:
            raise _build_unreadable_error(self.path) from None
        raise errors.Unavailable(
            "The database changes while it is read", cause=str(self.path), hint="try again"
        )

    def close(self) -> None:
        """Close the file, and remove the private copy."""
        self._connection.close(True)
        if self._copy is not None:
            shutil.rmtree(self._copy.parent, ignore_errors=True)

    def _open(self) -> apsw.Connection:
        log, index = self._side_file("-wal"), self._side_file("-shm")
        self._stamp = None
        with self._real.open("rb") as file:
            header = file.read(20)
        if len(header) == 20 and header[18] == header[19] == _WAL_VERSION:
            if log.exists() and index.exists():
                with contextlib.suppress(apsw.Error):
                    return _connect(self._real, "mode=ro&readonly_shm=1")
            elif not log.exists() or log.stat().st_size == 0:
                self._stamp = self._read_stamp()
                return _connect(self._real, "immutable=1")
            return self._open_copy(log)
        with contextlib.suppress(apsw.Error):
            return _connect(self._real, "mode=ro")
        return self._open_copy(self._side_file("-journal"))

    def _open_copy(self, log: Path) -> apsw.Connection:
        folder = Path(tempfile.mkdtemp(prefix="agentctl-"))
        self._copy = folder / "copy.db"
        # The log first: what a checkpoint moves to the file meanwhile is in both.
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(log, folder / f"copy.db{log.name[len(self._real.name) :]}")
        shutil.copyfile(self._real, self._copy)
        return _connect(self._copy, "mode=rw")

    def _side_file(self, ending: str) -> Path:
        return self._real.with_name(self._real.name + ending)

    def _read_stamp(self) -> _Stamp:
        found = self._real.stat()
        log = self._side_file("-wal")
        return found.st_mtime_ns, found.st_size, log.stat().st_size if log.exists() else 0


def _connect(path: Path, options: str) -> apsw.Connection:
    flags = apsw.SQLITE_OPEN_URI
    writable = options == "mode=rw"
    flags |= apsw.SQLITE_OPEN_READWRITE if writable else apsw.SQLITE_OPEN_READONLY
    connection = apsw.Connection(f"file:{quote(str(path))}?{options}", flags=flags)
    connection.set_busy_timeout(WAIT_MILLISECONDS)
    connection.execute("PRAGMA query_only = 1")
    connection.execute("SELECT count(*) FROM sqlite_schema").fetchall()  # reads the log, too
    return connection


def _build_unreadable_error(path: Path) -> errors.Unavailable:
    return errors.Unavailable(
        "The database cannot be read",
        cause=f"{path} is damaged, or another program holds its lock",
        hint="try again, or stop the program that uses it",
    )
