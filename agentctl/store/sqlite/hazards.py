"""Conditions under which SQLite can damage a database: an old version, a shared filesystem."""

from __future__ import annotations

import re
from pathlib import Path

MINIMUM_SQLITE_VERSION = "3.51.3"
"""In older versions, two connections that write and checkpoint at the same time can damage a file
in WAL mode."""


def is_at_least(version: str, floor: str) -> bool:
    """Return True if `version` is `floor` or later; a pre-release such as `2.0rc1` is earlier."""
    numbers = re.match(r"\d+(?:\.\d+)*", version)
    if numbers is None:
        return False
    parts = [[*map(int, text.split("."))] for text in (numbers[0], floor)]
    size = max(map(len, parts))
    actual, needed = (part + [0] * (size - len(part)) for part in parts)
    if actual == needed:
        return re.match(r"[.-]?(a|b|rc|dev)", version[numbers.end() :]) is None
    return actual > needed


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
    """Return the type of the filesystem of a file, such as `ext4`; None: unknown.

    Args:
        path: the file or folder, which may be missing.
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
            deepest = depth, after.partition(" ")[0]
    return None if deepest is None else deepest[1]
