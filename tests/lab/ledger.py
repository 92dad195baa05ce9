"""The ledger: what tools, and programs outside of the servers, have really done.

Each entry is a line of JSON with the time at which it was written. The servers of a world have this
module as `lab_ledger` in their folders, and the variable `LAB_LEDGER`.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

__all__ = ["VARIABLE", "Ledger", "write"]

VARIABLE = "LAB_LEDGER"
"""The environment variable with the path of the file."""


def write(**fields: Any) -> None:
    """Add an entry. The writes of several processes do not mix.

    Its field `at` has seconds on the monotonic clock of the machine.
    """
    line = json.dumps({"at": time.monotonic(), **fields}).encode() + b"\n"
    descriptor = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line)
    finally:
        os.close(descriptor)


class Ledger:
    """The entries of a file, in the order in which they were written.

    Args:
        path: the file, which need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._place = 0

    def read(self) -> list[dict[str, Any]]:
        """Return all entries."""
        text = self.path.read_bytes() if self.path.exists() else b""
        return _parse(text)

    def read_new(self) -> list[dict[str, Any]]:
        """Return the entries that no call of this method has returned before."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._place)
            text = file.read()
        self._place += text.rfind(b"\n") + 1
        return _parse(text)


def _parse(text: bytes) -> list[dict[str, Any]]:
    # The last line may be in the making.
    complete = text[: text.rfind(b"\n") + 1]
    return [json.loads(line) for line in complete.splitlines()]
