"""Processes as the kernel shows them: whether they live, and what they do if they should not."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from tests.kit.conditions import PATIENCE

DUMP_SECONDS = 5.0
"""Seconds in which Python writes the stacks of a process that is aborted."""

STACKS = {"PYTHONFAULTHANDLER": "1"}
"""The environment of a process whose Python stacks `wait_for_ends` can show."""


def is_alive(pid: int) -> bool:
    """Return True if the process has not ended.

    One that has ended remains as a zombie until its parent waits for it. The parent of an orphan is
    the first process of the system or container, which may do that late or never.
    """
    return _read_state(pid) not in ("", "Z", "X")


def is_stopped(pid: int) -> bool:
    """Return True if SIGSTOP has stopped the process."""
    return _read_state(pid) == "T"


def _read_state(pid: int) -> str:
    """Return the letter of the state of a process (proc(5)); nothing if there is no process."""
    # The name of the program is in parentheses before it, and may have spaces.
    return _read(f"/proc/{pid}/stat").rpartition(")")[2].lstrip()[:1]


def wait_for_ends(pids: Collection[int], log: Path) -> None:
    """Wait until the processes have ended; fail with what they do instead.

    Args:
        log: file for the text on stderr, where an aborted process writes its Python stacks.
    """
    deadline = time.monotonic() + PATIENCE
    while left := [pid for pid in pids if is_alive(pid)]:
        if time.monotonic() > deadline:
            states = [line for pid in left for line in _describe(pid)]
            _abort(left)
            raise AssertionError("\n".join(["processes did not end:", *states, log.read_text()]))
        time.sleep(0.01)


def _describe(pid: int) -> Iterator[str]:
    place = Path(f"/proc/{pid}")
    shown = ("State:", "PPid:", "Threads:", "SigPnd:", "ShdPnd:", "SigBlk:")
    lines = _read(place / "status").splitlines()
    yield f"{pid}: " + ", ".join(" ".join(line.split()) for line in lines if line.startswith(shown))
    with contextlib.suppress(OSError):
        files = {path.name: str(path.readlink()) for path in (place / "fd").iterdir()}
        yield f"  files: {files}"
    with contextlib.suppress(OSError):
        for thread in sorted((place / "task").iterdir()):
            name = _read(thread / "comm").strip()
            state = _read(thread / "stat")
            call = _read(thread / "syscall").strip()
            channel = _read(thread / "wchan")
            yield f"  {thread.name} {name}: {state.rpartition(')')[2][:2]}, {channel}, call {call}"
            yield from (f"    {line}" for line in _read(thread / "stack").splitlines())


def _abort(pids: Collection[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGABRT)
    deadline = time.monotonic() + DUMP_SECONDS
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)


def _read(path: Path | str) -> str:
    # The file is gone, or only the superuser may read it.
    with contextlib.suppress(OSError):
        return Path(path).read_text()
    return ""
