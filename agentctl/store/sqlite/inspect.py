"""Checks of a SQLite file and of its filesystem. Nothing is changed."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from pathlib import Path

import apsw

from agentctl.store.sqlite import schema
from agentctl.store.sqlite.connection import connect_reader, connect_writer, to_public_error
from agentctl.store.sqlite.thread import run_on_thread


def read_journal_mode(path: Path) -> str:
    """Return the journal mode of a file: `wal`, unless it was changed. Raises Unavailable."""
    try:
        with contextlib.closing(connect_reader(path)) as connection:
            return str(connection.pragma("journal_mode"))
    except apsw.Error as error:
        raise to_public_error(error, path.name) from None


def try_write_lock(path: Path) -> None:
    """Take the write lock of a file and release it.

    Raises:
        Unavailable: the file cannot be written, or another process holds the lock for too long.
    """
    try:
        with contextlib.closing(connect_writer(path)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    except apsw.Error as error:
        raise to_public_error(error, path.name) from None


MAXIMUM_DAMAGES = 5
"""Maximum number of reported damages."""


async def find_damage(path: Path, *, quick: bool = False) -> list[str]:
    """Return the damages in a file, one line each. Raises Unavailable if it cannot be checked.

    The whole file is read, on a thread. The read ends at once if the task is cancelled.

    Args:
        quick: True to find the first damage only, and not to compare indexes with their tables.
    """
    check = "quick_check(1)" if quick else f"integrity_check({MAXIMUM_DAMAGES})"

    def look(connection: apsw.Connection, _: object) -> list[str]:
        rows = connection.execute(f"PRAGMA {check}").fetchall()
        texts = [" ".join(str(row[0]).split()) for row in rows]
        return [] if texts == ["ok"] else texts

    return await run_on_thread(path, look)


async def find_dangling_rows(path: Path) -> list[tuple[str, int]]:
    """Return tables with rows that refer to a missing row, and the number of these rows."""

    def look(connection: apsw.Connection, _: object) -> list[tuple[str, int]]:
        rows = connection.execute("PRAGMA foreign_key_check")
        return sorted(Counter(str(row[0]) for row in rows).items())

    return await run_on_thread(path, look)


async def find_schema_differences(path: Path, version: int) -> list[tuple[str, bool]]:
    """Compare the schema of a file with the migrations (`schema.compare_schema`)."""
    objects = await run_on_thread(path, lambda connection, _: schema.read_schema(connection))
    return list(schema.compare_schema(objects, version))


NETWORK_FILESYSTEMS = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs",
        "fuse.sshfs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "prl_fs", "smb3", "smbfs",
        "vboxsf", "vmhgfs",
    }
)  # fmt: skip
"""Types of filesystems that several machines, or a machine and its host, share."""

_MOUNTS = Path("/proc/self/mountinfo")
_octal = re.compile(r"\\([0-7]{3})")


def detect_filesystem(path: Path, mounts: Path = _MOUNTS) -> str | None:
    """Return the type of the filesystem of a file, such as `ext4`; None if it is unknown.

    Args:
        mounts: the mount table of the kernel (proc_pid_mountinfo(5)).
    """
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None

    real = path.resolve()
    deepest: tuple[int, str] | None = None

    for line in lines:
        before, _, after = line.partition(" - ")
        point = Path(_octal.sub(lambda code: chr(int(code[1], 8)), before.split(" ")[4]))
        depth = len(point.parts)

        # Of two mounts at one place the later one hides the other.
        if real.is_relative_to(point) and (deepest is None or depth >= deepest[0]):
            filesystem, _, _ = after.partition(" ")
            deepest = (depth, filesystem)

    return None if deepest is None else deepest[1]
