"""Ports for servers that must listen at a port that is known before they start."""

from __future__ import annotations

import fcntl
import os
import socket
import tempfile
from pathlib import Path
from typing import TextIO

__all__ = ["find_free_port"]

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
