"""`agentctl` that kills itself with SIGKILL before a statement of its database.

    AGENTCTL_KILL_AT=7 python tests/lab/killed_server.py serve --config …

Statements are counted from the decision of an approval on: it is the first statement of a leg.
AGENTCTL_KILL_FROM is the beginning of another first statement. The code of agentctl is unchanged:
the drivers of the databases report each statement, BEGIN and COMMIT included.
"""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import apsw
import asyncpg

FIRST = os.environ.get("AGENTCTL_KILL_FROM", "UPDATE approvals SET status")
_READS = ("SELECT", "PRAGMA", "SAVEPOINT")


class Countdown:
    """Kills the process before a statement."""

    def __init__(self, number: int) -> None:
        self._left = number
        self._is_armed = False
        self._lock = threading.Lock()

    def count(self, sql: str) -> None:
        """Count a statement that is about to be executed."""
        with self._lock:
            self._is_armed = self._is_armed or sql.startswith(FIRST)
            if not self._is_armed or sql.lstrip().startswith(_READS):
                return
            self._left -= 1
            if self._left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)


def install(countdown: Countdown) -> None:
    """Report the statements of both drivers."""

    def trace(cursor: Any, sql: str, bindings: Any) -> bool:
        countdown.count(sql)
        return True

    apsw.connection_hooks.append(lambda connection: connection.set_exec_trace(trace))
    for name in ("fetch", "fetchval", "fetchrow", "execute"):
        _report(name, countdown)


def _report(name: str, countdown: Countdown) -> None:
    original = getattr(asyncpg.Connection, name)

    async def reported(self: Any, query: str, *args: Any, **options: Any) -> Any:
        countdown.count(query)
        return await original(self, query, *args, **options)

    setattr(asyncpg.Connection, name, reported)


if __name__ == "__main__":
    if number := os.environ.get("AGENTCTL_KILL_AT"):
        install(Countdown(int(number)))
    from agentctl.cli.app import main

    raise SystemExit(main())
