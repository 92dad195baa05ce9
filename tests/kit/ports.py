"""Ports for servers that must listen at a port that is known before they start."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Any, TextIO

from tests.kit.conditions import wait_for

__all__ = ["find_free_port", "wait_for_port"]

_FIRST = 20_000
_LIMIT = 32_768
"""The first port that Linux gives to a listener of port 0 or to a client (ip_local_port_range)."""

_locks: list[TextIO] = []
"""The locks of the ports of this process, until its end."""


def find_free_port() -> int:
    """Return a port of 127.0.0.1 at which nothing listens, and that no other test receives.

    A port that the system chooses for a listener, which is then closed, may be chosen again for a
    server or a connection of another test before its use.
    """
    folder = Path(tempfile.gettempdir()) / f"agentctl-test-ports-{os.getuid()}"
    folder.mkdir(exist_ok=True)
    for port in range(_FIRST, _LIMIT):
        lock = (folder / str(port)).open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", port))
        except OSError:
            lock.close()
            continue
        _locks.append(lock)
        return port
    raise AssertionError("no port is free")


def wait_for_port(port: int, process: subprocess.Popen[Any], problem: object = None) -> None:
    """Wait until a process listens at a port; `problem` as for `wait_for`."""

    def is_listening() -> bool:
        assert process.poll() is None, problem() if callable(problem) else problem
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return True
        return False

    wait_for(is_listening, problem=problem)
