"""Migrate a file repeatedly, killed before the first statement, the second, and so on.

    python -m tests.store.killed_migration FROM COPY STEP

With a step of 4 the process is killed before the first statement, the fifth, and so on. Each
attempt prints a line of JSON: the exit status, the schema version and damages of the file after the
kill, and after one more migration.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import apsw

from agentctl.config import settings
from agentctl.store import migrating
from agentctl.store.sqlite import schema


def main(source: Path, copy: Path, step: int) -> None:
    number = 1 - step
    status = 1
    while status:
        number += step
        for path in copy.parent.glob(f"{copy.name}*"):
            path.unlink()
        if source.exists():
            shutil.copy(source, copy)
        pid = os.fork()
        if pid == 0:
            _die_at(number)
            _migrate(copy)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        left = _state(copy)
        _migrate(copy)
        print(json.dumps({"status": status, "left": left, "then": _state(copy)}))


def _die_at(number: int) -> None:
    seen = 0

    def trace(*_: Any) -> bool:
        nonlocal seen
        seen += 1
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return True

    apsw.connection_hooks.append(lambda connection: setattr(connection, "exec_trace", trace))


def _migrate(path: Path) -> None:
    entry = settings.Database("main", f"sqlite:///{path}")
    asyncio.run(migrating.migrate(entry, lambda _: None))


def _state(path: Path) -> list[Any]:
    """Return the schema version (None for none), and the differences and damages."""
    if not path.exists():
        return [None, []]
    connection = apsw.Connection(str(path))
    try:
        found = schema.read_schema(connection)
        version = None
        if found:
            ((version,),) = connection.execute("SELECT max(version) FROM schema_version")
        wrong = [text for text, _ in schema.compare_schema(found, version or 0)]
        wrong += [row[0] for row in connection.execute("PRAGMA integrity_check")]
        return [version, [text for text in wrong if text != "ok"]]
    finally:
        connection.close(True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
