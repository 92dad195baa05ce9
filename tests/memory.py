"""The temporary files of a run of tests in memory, where there is room for them.

SQLite waits after each commit until the disk has it. In memory there is nothing to wait for: the
layer `check` takes a tenth less CPU time, and does not depend on a disk that others use.

The files of a test that has passed are removed at its end, so a run needs little room. If `TMPDIR`
is set, the files are in its folder.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

__all__ = ["ENOUGH_BYTES", "call_in_memory", "has_room"]

PLACE = Path("/dev/shm")
"""On Linux, a file system in memory. That of a container often has 64 MB, which is too little."""

ENOUGH_BYTES = 1024**3
"""More than ten times what a run needs: several runs at the same time have room, too."""

_PREFIX = "agentctl-tests-"
"""The beginning of the name of a run's folder; the id of its process and a random part follow."""


def call_in_memory(work: Callable[[], int], place: Path = PLACE) -> int:
    """Call a function that runs tests, with `TMPDIR` in memory; return its exit code.

    `TMPDIR` stays as it is if it is set, or if there is no room. If the exit code is not 0, the
    files stay until the next run.
    """
    if "TMPDIR" in os.environ or not has_room(place):
        return work()

    _remove_folders_of_ended_runs(place)
    # An earlier process may have had the same id.
    folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=place)
    os.environ["TMPDIR"] = folder
    code = 0
    try:
        code = work()
    finally:
        del os.environ["TMPDIR"]
        if code == 0:
            shutil.rmtree(folder, ignore_errors=True)
    if code != 0:
        print(f"The files of the tests that failed are in {folder} until the next run.")
    return code


def has_room(place: Path) -> bool:
    """Return True if the files of a run fit into a file system in memory, and into the memory."""
    try:
        space = os.statvfs(place)
        information = Path("/proc/meminfo").read_text()
    except OSError:
        return False  # Not Linux.
    lines = dict(line.split(":", 1) for line in information.splitlines())
    available = int(lines["MemAvailable"].split()[0]) * 1024
    free = space.f_bavail * space.f_frsize
    return os.access(place, os.W_OK) and min(free, available) >= ENOUGH_BYTES


def _remove_folders_of_ended_runs(place: Path) -> None:
    """Remove what runs have left that failed, or were killed."""
    for folder in place.glob(f"{_PREFIX}*"):
        process_id, _, _ = folder.name.removeprefix(_PREFIX).partition("-")
        if not Path("/proc", process_id).exists():
            # Those of other users stay.
            shutil.rmtree(folder, ignore_errors=True)
