"""`agentctl serve` as a process of its own."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["ServerProcess", "serving"]

START_SECONDS = 30.0
STOP_SECONDS = 20.0

_LISTENS = re.compile(r"listens on (http://\S+?),? ")


@dataclass
class ServerProcess:
    """A server that listens: its URL, its process, and what it wrote to stderr so far."""

    url: str
    process: subprocess.Popen[str]
    stderr: list[str] = field(default_factory=list)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(STOP_SECONDS)


@contextlib.contextmanager
def serving(config: Path, *options: str, cwd: Path | None = None) -> Iterator[ServerProcess]:
    """Serve a configuration on a free port; the process is ended, at the latest, on leaving."""
    command = [sys.executable, "-m", "agentctl", "serve", "--config", str(config), *options]
    with started(command, cwd or config.parent) as server:
        yield server


@contextlib.contextmanager
def started(command: Sequence[str], cwd: Path) -> Iterator[ServerProcess]:
    """A process that says where it listens."""
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, cwd=cwd, env=environment, text=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stderr is not None
    lines: list[str] = []
    try:
        server = ServerProcess(_wait_for_url(process, lines), process, lines)
        reader = threading.Thread(target=lines.extend, args=(process.stderr,), daemon=True)
        reader.start()
        yield server
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if "reader" in locals():
            reader.join(STOP_SECONDS)
        process.stderr.close()


def _wait_for_url(process: subprocess.Popen[str], lines: list[str]) -> str:
    assert process.stderr is not None
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        ready, _, _ = select.select([process.stderr], [], [], 0.5)
        line = process.stderr.readline() if ready else ""
        if line:
            lines.append(line)
            found = _LISTENS.search(line)
            if found:
                return found[1]
        elif process.poll() is not None:
            break
    raise AssertionError(f"the server did not start: {''.join(lines)}")
