"""Durations of backup, restore and check of a SQLite database, during writes.

    python -m tests.benchmarks.backup [MEGABYTES]

The restored file is compared with the copy by its hash.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from pathlib import Path

from agentctl.config.settings import Database
from agentctl.service.databases import check_integrity
from agentctl.store.database import Steps, unit
from agentctl.store.databases import open_sqlite
from agentctl.store.repositories import runs, sessions
from agentctl.store.sqlite.backup import back_up
from agentctl.store.sqlite.database import SqliteDatabase
from tests.store.rows import a_run, a_session, an_end

ROWS = 500
BYTES = 10_000


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory(prefix="agentctl-backup-") as folder:
        asyncio.run(_measure(Path(folder), megabytes))


async def _measure(folder: Path, megabytes: int) -> None:
    path, copy, box = folder / "agentctl.db", folder / "copy.db", folder / "box.db"
    database = open_sqlite("main", path, create=True)
    for first in range(0, megabytes * 1_000_000 // BYTES, ROWS):
        await database.write(_write_sessions(first))
    writing = asyncio.create_task(_keep_writing(database))
    made = await back_up(path, copy, lambda *_: None)
    writing.cancel()
    began = time.monotonic()
    shutil.copy(copy, box)
    copied = time.monotonic() - began
    found = [
        each
        async for each in check_integrity(Database("box", f"sqlite:///{box}"), _ignore_progress)
    ]
    checked = time.monotonic() - began - copied
    again = await back_up(box, folder / "again.db", lambda *_: None)
    await database.close()
    assert again.digest == made.digest
    assert {each.verdict for each in found} == {"ok"}
    size = made.bytes / 1e9
    print(f"{made.bytes / 1e6:,.0f} MB, {sum(made.tables.values()):,} rows; seconds for each GB:")
    print(f"  backup with its check {made.seconds / size:.1f}")
    print(f"  restore {copied / size:.1f}, db check {checked / size:.1f}")


def _ignore_progress(what: str, done: int, total: int | None) -> None:
    """Ignore the progress of the check."""


@unit
def _write_sessions(first: int) -> Steps[None]:
    for number in range(first, first + ROWS):
        yield from sessions.create(a_session(f"s{number}"))
        yield from runs.create(a_run(f"r{number}", f"s{number}"))
        yield from runs.claim(f"r{number}", 1, "w1", 1)
        yield from runs.finish(an_end(f"r{number}", content="x" * BYTES))


async def _keep_writing(database: SqliteDatabase) -> None:
    for number in range(1_000_000):
        await database.write(sessions.create(a_session(f"more{number}")))


if __name__ == "__main__":
    main()
