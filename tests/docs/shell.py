"""A bash process at a terminal."""

from __future__ import annotations

import os
import re
import select
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.kit.conditions import PATIENCE

__all__ = ["Shell"]

_END = re.compile(rb"\x1e(\d+)\x1e")


class Shell:
    """A new bash without user settings, with a pseudo terminal as its input and output.

    Args:
        folder: an empty folder; `home` in it becomes the home, `work` the current folder.
        variables: environment variables in addition to the usual ones.
    """

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        work = folder / "work"
        home = folder / "home"
        work.mkdir(parents=True)
        home.mkdir()
        self._output, terminal = os.openpty()
        stdin, self._stdin = os.pipe()
        self._process = subprocess.Popen(
            ["bash", "--noprofile", "--norc", f"/dev/fd/{stdin}"],
            cwd=work,
            env={
                "HOME": str(home),
                "PATH": os.defpath,
                "TERM": "xterm",
                "NO_COLOR": "1",
                "AGENTCTL_PAGER": "",
                "LANG": "C.UTF-8",
                "USER": "you",
                **variables,
            },
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            pass_fds=[stdin],
        )
        os.close(terminal)
        os.close(stdin)

    def __enter__(self) -> Shell:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        os.close(self._stdin)
        try:
            self._process.wait(PATIENCE if kind is None else 0.1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._output)

    def run(self, command: str) -> tuple[int, str]:
        """Run a command and return its exit code and its output."""
        os.write(self._stdin, f"{command}\nprintf '\\036%d\\036' $?\n".encode())
        output = b""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if select.select([self._output], [], [], 0.5)[0]:
                output += os.read(self._output, 65536)
            if found := _END.search(output):
                return int(found[1]), output[: found.start()].decode().replace("\r\n", "\n")
        raise AssertionError(f"still running: {command}\n{output!r}")
