"""A shell at a terminal, as a reader of the pages has one."""

from __future__ import annotations

import os
import re
import select
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

__all__ = ["Shell"]

TIMEOUT = 60.0
_END = re.compile(rb"\x1e(\d+)\x1e")


class Shell:
    """A fresh bash without anybody's settings. What it runs writes to a terminal.

    Args:
        folder: an empty one; it becomes the home, and `work` in it the current folder.
        variables: beside those that every shell has.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        work, home = folder / "work", folder / "home"
        work.mkdir(parents=True)
        home.mkdir()
        self._screen, terminal = os.openpty()
        typed, self._typing = os.pipe()
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc", f"/dev/fd/{typed}"],
            cwd=work,
            env={
                "HOME": str(home),
                "PATH": os.defpath,
                "TERM": "xterm",
                "LANG": "C.UTF-8",
                "USER": "you",
                **variables,
            },
            stdin=subprocess.DEVNULL,
            stdout=terminal,
            stderr=terminal,
            pass_fds=[typed],
        )
        os.close(terminal)
        os.close(typed)

    def __enter__(self) -> Shell:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._typing)
        try:
            self._process.wait(TIMEOUT if kind is None else 0.1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._screen)

    def run(self, command: str) -> tuple[int, str]:
        """Run a line to its end; returns its exit code and everything that was to be seen."""
        os.write(self._typing, f"{command}\nprintf '\\036%d\\036' $?\n".encode())
        seen = b""
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            if select.select([self._screen], [], [], 0.5)[0]:
                seen += os.read(self._screen, 65536)
            if found := _END.search(seen):
                return int(found[1]), seen[: found.start()].decode().replace("\r\n", "\n")
        raise AssertionError(f"still running: {command}\n{seen!r}")
