"""A process that writes: `python -m tests.store.writing_process PATH WRITES`.

It creates the session `s1` in a SQLite file, prints a line, and counts a number of runs of it.
"""

from __future__ import annotations

import asyncio
import sys

from agentctl.config import settings
from agentctl.store.database import Sql, Statement, Steps, unit
from agentctl.store.databases import open_database
from agentctl.store.repositories import sessions
from tests.kit.rows import a_session

__all__ = ["take"]

_TAKE = Sql(
    "UPDATE sessions SET run_count = run_count + 1 WHERE session_id = :id RETURNING run_count"
)


@unit
def take(session_id: str = "s1") -> Steps[int]:
    """Count one more run of a session, and return their number."""
    rows = yield Statement(_TAKE, {"id": session_id})
    return rows[0][0]  # type: ignore[no-any-return]


async def main(path: str, writes: int) -> None:
    database = open_database(settings.Database("main", f"sqlite:///{path}"), create=True)
    await database.write(sessions.create(a_session()))
    print("opened", flush=True)
    for _ in range(writes):
        await database.write(take())
    await database.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
