"""Durations of backup, restore and check of a SQLite database, during writes.

    python -m bench.backup [MEGABYTES]

The restored file is compared with the copy by its hash. The writes and reads of one client are
timed without a backup, and during one by `agentctl db backup`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from agentctl.admin.databases import check_integrity
from agentctl.config.settings import Database
from agentctl.store.database import Steps, unit
from agentctl.store.databases import open_sqlite
from agentctl.store.repositories import runs, sessions
from agentctl.store.sqlite.backup import back_up
from agentctl.store.sqlite.database import SqliteDatabase
from agentctl.store.visibility import EVERYONE
from tests.kit.rows import a_run, a_session, an_end

T = TypeVar("T")

ROWS = 500
BYTES = 10_000


def main() -> None:
    megabytes = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    with tempfile.TemporaryDirectory(prefix="agentctl-backup-") as folder:
        asyncio.run(_measure(Path(folder), megabytes))


async def _measure(folder: Path, megabytes: int) -> None:
    path = folder / "agentctl.db"
    copy = folder / "copy.db"
    box = folder / "box.db"
    database = open_sqlite("main", path, create=True)
    for first in range(0, megabytes * 1_000_000 // BYTES, ROWS):
        await database.write(_write_sessions(first))
    await _time_requests(database, "none", asyncio.sleep(5))
    made = await _time_requests(database, "by the command", _back_up_by_command(folder, copy))
    began = time.monotonic()
    shutil.copy(copy, box)
    copied = time.monotonic() - began
    found = [
        each
        async for each in check_integrity(Database("box", f"sqlite:///{box}"), _ignore_progress)
    ]
    checked = time.monotonic() - began - copied
    again = await back_up(box, folder / "again.db", _ignore_progress)
    await database.close()
    assert again.digest == made["sha256"]
    assert {each.verdict for each in found} == {"ok"}
    size = made["bytes"] / 1e9
    print(f"{made['bytes'] / 1e6:,.0f} MB, {made['rows']:,} rows; seconds for each GB:")
    print(f"  backup with its check {made['seconds'] / size:.1f}")
    print(f"  restore {copied / size:.1f}, doctor --db {checked / size:.1f}")


async def _back_up_by_command(folder: Path, copy: Path) -> dict[str, Any]:
    """Return the facts that `agentctl db backup` prints."""
    config = folder / "agentctl.toml"
    config.write_text('[[databases]]\nid = "main"\nurl = "sqlite:///agentctl.db"\n')
    command = ("db", "backup", str(copy), "--config", str(config), "-o", "json")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "agentctl", *command, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert process.returncode == 0
    facts: dict[str, Any] = json.loads(output)
    return facts


def _ignore_progress(what: str, done: int, total: int | None) -> None:
    """Ignore the progress of the check."""


@unit
def _write_sessions(first: int) -> Steps[None]:
    for number in range(first, first + ROWS):
        yield from sessions.create(a_session(f"s{number}"))
        yield from runs.create(a_run(f"r{number}", f"s{number}"))
        yield from runs.claim(f"r{number}", 1, "w1", 1)
        yield from runs.finish(an_end(f"r{number}", content="x" * BYTES))


async def _time_requests(database: SqliteDatabase, name: str, work: Coroutine[Any, Any, T]) -> T:
    """Write and read in turns until some work is done; print the times of both."""
    task = asyncio.ensure_future(work)
    seconds: dict[str, list[float]] = {"write": [], "read": []}
    while not task.done():
        session_id = f"{name}{time.time_ns()}"
        for kind, request in (
            ("write", database.write(sessions.create(a_session(session_id)))),
            ("read", database.read(sessions.get(session_id, EVERYONE))),
        ):
            began = time.perf_counter()
            await request
            seconds[kind].append(time.perf_counter() - began)
        await asyncio.sleep(0.002)
    for kind, times in seconds.items():
        p50, p99 = (sorted(times)[int(len(times) * part)] * 1_000 for part in (0.5, 0.99))
        print(f"backup {name}: {len(times):,} {kind}s, p50 {p50:.2f} ms, p99 {p99:.2f} ms")
    return task.result()


if __name__ == "__main__":
    main()
