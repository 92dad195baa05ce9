"""CPU time of reading a long session, with and without its kept history (docs/decisions/0029).

`python -m tests.benchmarks.reasons.kept_histories [ROUNDS]`, inside one process, on both engines.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from agentctl.auth.principal import local_principal
from agentctl.service.service import Service
from agentctl.service.session_documents import SessionHistories
from agentctl.store.repositories import sessions
from agentctl.store.visibility import EVERYONE
from tests.benchmarks.seeding import append_run, seed_database
from tests.benchmarks.work import Session, Work, create_work, sized_sessions
from tests.deployment import Deployment
from tests.postgres import running_postgres

SIZES = (100, 1_000, 10_000)


async def measure(work: Work, rounds: int) -> dict[str, list[float]]:
    """Return the CPU milliseconds of each kind of read, by session and kind."""
    found: dict[str, list[float]] = {}
    async with Service.open(Deployment(work.folder).settings) as service:
        database = service.hosting.databases["main"]
        operations = service.operations_for(local_principal("me"))

        async def read_anew(session: Session) -> None:
            row = await database.read(sessions.get(session.session_id, EVERYONE))
            assert row is not None
            await SessionHistories().read(database, row)

        async def read(session: Session) -> None:
            await operations.get_session_by_id(session.session_id)

        for number in range(rounds):
            for session in work.sessions:
                acts: dict[str, Callable[[Session], Awaitable[None]]] = {
                    "without the kept history": read_anew,
                    "after one more run": read,
                    "again": read,
                }
                await read(session)
                await database.write(append_run(work, session, session.runs + number))
                for kind, act in acts.items():
                    start = time.process_time()
                    await act(session)
                    took = (time.process_time() - start) * 1_000
                    found.setdefault(f"{session.runs:>6} runs, {kind}", []).append(took)
    return found


def main(rounds: int) -> None:
    """Measure both engines and print the medians."""
    with tempfile.TemporaryDirectory() as folder, running_postgres(durable=True) as url:
        for engine, place in (("SQLite", "sqlite:///agentctl.db"), ("PostgreSQL", url)):
            listed = sized_sessions(SIZES)
            work = create_work(Path(folder) / engine, "http://127.0.0.1:9", listed, database=place)
            seed_database(work)
            for name, values in asyncio.run(measure(work, rounds)).items():
                print(f"{engine:10} {name:40} {statistics.median(values):8.2f} ms", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 20)
