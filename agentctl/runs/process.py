"""Which process this is, and whether another one of this machine is still there.

A pid alone names nobody: it is used again, and means something else on another machine, after a
restart of this one, and in another container. The time of the start, the id of the boot and the
namespace of the pid (proc(5), pid_namespaces(7)) make it a name.
"""

from __future__ import annotations

import os
import socket
from functools import cache
from pathlib import Path
from typing import NamedTuple

__all__ = ["ProcessIdentity", "is_gone", "this_process"]

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")

_ENDED = frozenset({"Z", "X", "x"})
"""States of a process that has ended and that its parent has not asked about yet (proc(5))."""


class ProcessIdentity(NamedTuple):
    """A process, told apart from every other one.

    Attributes:
        boot_id: kernel boot id and pid namespace; "" where the system does not tell, and then
            the pid says nothing to others.
        process_start: clock ticks from the boot to its start; 0 where the system does not tell.
    """

    host: str
    boot_id: str
    pid: int
    process_start: int


class _Seen(NamedTuple):
    """What the system says of a pid."""

    ended: bool
    start: int


def this_process() -> ProcessIdentity:
    """The identity of the calling process."""
    pid = os.getpid()
    seen = _look_up(pid)
    return ProcessIdentity(socket.gethostname(), _boot_id(), pid, seen.start if seen else 0)


def is_gone(process: ProcessIdentity) -> bool:
    """Whether a process is known to have ended. False for what cannot be judged from here."""
    if not process.boot_id or process.boot_id != _boot_id():
        return False
    if process.host != socket.gethostname():
        return False
    if not _exists(process.pid):
        return True
    seen = _look_up(process.pid)
    if seen is None:
        return False
    return seen.ended or (process.process_start != 0 and seen.start != process.process_start)


@cache
def _boot_id() -> str:
    try:
        return f"{_BOOT.read_text().strip()}/{_NAMESPACE.stat().st_ino}"
    except OSError:
        return ""


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        # It is there, and not ours to signal.
        return True
    return True


def _look_up(pid: int) -> _Seen | None:
    """State and start of a process, None where the system does not tell.

    The name of the program, the second field, may hold anything: fields are counted behind it.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return _Seen(fields[0].decode() in _ENDED, int(fields[19]))
    except (OSError, ValueError, IndexError):
        return None
