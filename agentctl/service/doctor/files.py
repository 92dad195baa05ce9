"""Modes of files and folders: who else may change what is trusted, or read what is secret.

Which filesystem a file is on: locks and shared memory of SQLite need one of this machine.
"""

from __future__ import annotations

import re
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from agentctl.service.doctor.finding import Finding, note, wrong

__all__ = ["NETWORK_FILESYSTEMS", "check_permissions", "check_private", "detect_filesystem"]

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def check_permissions(check: str, path: Path, what: str) -> Iterator[Finding]:
    """Whether others may change a file, or put another one into its place.

    Args:
        path: the file; one that is not there is not looked at.
        what: what it is: `the configuration`.
    """
    mode = _mode(path)
    if mode is None:
        return
    if mode & stat.S_IWOTH:
        yield wrong(check, f"everybody may write {what} {path}", _format_chmod("o-w", path))
    elif mode & stat.S_IWGRP:
        yield note(check, f"a group may write {what} {path}", _format_chmod("g-w", path))
    folder = path.resolve().parent
    open_to_all = _mode(folder) or 0
    if open_to_all & stat.S_IWOTH and not open_to_all & stat.S_ISVTX:
        text = f"everybody may replace {what} {path}: its folder is open to all"
        yield wrong(check, text, _format_chmod("o-w", folder))


def check_private(check: str, path: Path, what: str) -> Iterator[Finding]:
    """Whether nobody but its owner may read a file."""
    if (_mode(path) or 0) & _OTHERS:
        yield wrong(check, f"others may read {what} {path}", _format_chmod("600", path))


def _mode(path: Path) -> int | None:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None


def _format_chmod(mode: str, path: Path) -> str:
    return f"chmod {mode} {shlex.quote(str(path))}"


NETWORK_FILESYSTEMS = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs",
        "fuse.sshfs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "prl_fs", "smb3", "smbfs",
        "vboxsf", "vmhgfs",
    }
)  # fmt: skip
"""Types of filesystems that several machines, or a machine and its host, see at once."""

_MOUNTS = Path("/proc/self/mountinfo")
_octal = re.compile(r"\\([0-7]{3})")


def detect_filesystem(path: Path, mounts: Path = _MOUNTS) -> str | None:
    """The type of the filesystem that a file is on, or would be: `ext4`; None: nobody says.

    Args:
        path: the file or folder.
        mounts: the table of the kernel (proc_pid_mountinfo(5)).
    """
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    real = path.resolve()
    found: tuple[int, str] | None = None
    for line in lines:
        before, _, after = line.partition(" - ")
        point = Path(_octal.sub(lambda code: chr(int(code[1], 8)), before.split(" ")[4]))
        depth = len(point.parts)
        # Of two at one place the later one hides the other.
        if real.is_relative_to(point) and (found is None or depth >= found[0]):
            found = depth, after.partition(" ")[0]
    return None if found is None else found[1]
