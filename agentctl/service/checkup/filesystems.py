"""Which filesystem a file is on: locks and shared memory of SQLite need one of this machine."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["NETWORK", "filesystem_of"]

NETWORK = frozenset(
    {
        "9p", "afs", "beegfs", "ceph", "cifs", "fuse.ceph", "fuse.glusterfs", "fuse.s3fs",
        "fuse.sshfs", "glusterfs", "lustre", "ncpfs", "nfs", "nfs4", "prl_fs", "smb3", "smbfs",
        "vboxsf", "vmhgfs",
    }
)  # fmt: skip
"""Types of filesystems that several machines, or a machine and its host, see at once."""

_MOUNTS = Path("/proc/self/mountinfo")
_octal = re.compile(r"\\([0-7]{3})")


def filesystem_of(path: Path, mounts: Path = _MOUNTS) -> str | None:
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
