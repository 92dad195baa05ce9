"""The cost of a run from a queue, by the number of runs that wait after it (docs/queue.md).

`python -m bench.queue_costs [--engine postgresql]`. One server with one slot executes
runs that wait, one after the other: it claims a run, executes a function that returns at once,
stores the end, and lets the next one begin. The same number of runs is measured at each length of
the queue, in one session and in a session for each run.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import get_args
from unittest.mock import patch

from agentctl.auth.principal import local_principal
from agentctl.interface.requests import RunRequest
from agentctl.runs.desk import turns
from agentctl.service.service import Service
from agentctl.store.database import Sql
from bench.database_costs import Costs, Engine, Measured, open_measured
from tests.kit.conditions import wait_until
from tests.kit.deployment import SQLITE_DATABASES, create_deployment

LENGTHS = (100, 1_000, 10_000)

RUNS = 60
"""Runs at each length: first without a measurement, then for the CPU time, then for the rest."""


CODE = """
import asyncio
from pathlib import Path


async def quick(message):
    return message


async def barrier(message):
    while not Path(message).exists():
        await asyncio.sleep(0.01)
"""

EXTRA = """
[limits]
concurrent_runs = 1

[[agents]]
id = "quick"
object = "queue_cost_agents:quick"
on_busy = "enqueue"
history_runs = 0

[[agents]]
id = "barrier"
object = "queue_cost_agents:barrier"
on_busy = "enqueue"
"""

_LAST = "(SELECT max(seq) FROM runs)"

# The queue after the measured runs: rows as those of runs that wait, of which none is claimed.
_SESSIONS = """
INSERT INTO sessions (session_id, session_type, session_name, total_tokens, run_count,
                      history_bytes, created_at, updated_at, metrics)
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count})
SELECT 'later-' || n, 'agent', '', 0, 0, 0, n, n, '{{}}' FROM numbers
"""
_RUNS = """
INSERT INTO runs (run_id, session_id, seq, component_type, component_id, status, background,
                  attempt, created_at, late_result, input, queued_at, queue_turn)
WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {count}),
     waiting (last_seq, at) AS (SELECT max(seq), max(created_at) FROM runs)
SELECT 'later-' || n, {session}, last_seq + n, 'agent', 'quick', 'PENDING', 1, 1, at + n, 0,
       'hello', at + n, {turn} FROM numbers, waiting
"""


class Queue:
    """A queue whose runs begin when a barrier is opened.

    Args:
        in_one: True if all runs are of one session.
    """

    def __init__(self, service: Service, *, in_one: bool) -> None:
        self._operations = service.operations_for(local_principal("ann"))
        self._database = service.hosting.databases.system
        self._in_one = in_one
        self._count = 0

    async def add(self, agent: str, message: str = "") -> str:
        """Start a run that waits, or begins if it is the first one; return its id."""
        self._count += 1
        session = "one" if self._in_one else f"session-{self._count}"
        request = RunRequest(message or "hello", session, background=True)
        record = (await self._operations.runs.create("agent", agent, request)).value
        return str(record["run_id"])

    async def pass_barrier(self, barrier: Path, last_run: str) -> None:
        """Let the runs after a barrier begin, and wait until the last of them works."""
        barrier.touch()
        state = Sql("SELECT status FROM runs WHERE run_id = :run_id")

        async def is_at_work() -> bool:
            return bool(await self._database.read(state.value(run_id=last_run)) == "RUNNING")

        await wait_until(is_at_work)


async def measure(engine: Engine, length: int, *, in_one: bool, runs: int = RUNS) -> Costs:
    """Return the costs of one run, with `length` runs after it in the queue."""
    bounds = dict.fromkeys(("MAXIMUM_IN_SESSION", "MAXIMUM_QUEUED"), 20_000)
    with (
        tempfile.TemporaryDirectory(prefix="agentctl-queue-") as name,
        patch.multiple(turns, **bounds),
    ):
        folder = Path(name)
        async with open_measured(engine, folder) as measured:
            return await _measure(measured, folder, length, in_one=in_one, runs=runs)


async def _measure(
    measured: Measured, folder: Path, length: int, *, in_one: bool, runs: int
) -> Costs:
    (folder / "queue_cost_agents.py").write_text(CODE)
    deployment = create_deployment(
        folder,
        "http://127.0.0.1:9",
        extra=EXTRA,
        databases={**SQLITE_DATABASES, "main": measured.entry},
    )
    async with Service.open(deployment.settings, create=True) as service:
        service.hosting.engine.claims.is_serving = True
        queue = Queue(service, in_one=in_one)
        barriers = [await queue.add("barrier", str(folder / "barrier-0"))]
        for number in (1, 2, 3):
            for _ in range(runs):
                await queue.add("quick")
            barriers.append(await queue.add("barrier", str(folder / f"barrier-{number}")))
        await _fill(measured, length, in_one=in_one)
        found = []
        rows = [await measured.count_rows()]
        for number, last in enumerate(barriers[1:]):
            await measured.count_statements(number == 2)
            before = await measured.read()
            await queue.pass_barrier(folder / f"barrier-{number}", last)
            found.append((await measured.read()).since(before, runs))
        rows.append(await measured.count_rows())
        await measured.count_statements(False)
    _, plain, counted = found
    read = (rows[1] - rows[0]) / (3 * runs)
    return plain._replace(statements=counted.statements, rows=read)


async def _fill(measured: Measured, length: int, *, in_one: bool) -> None:
    session, turn = ("'one'", "0") if in_one else ("'later-' || n", "at + n")
    await measured.execute(
        _SESSIONS.format(count=length),
        _RUNS.format(count=length, session=session, turn=turn),
        "ANALYZE",
    )


def format_row(shape: str, length: int, costs: Costs, base: Costs) -> str:
    """Return a line of the table; the last column compares with the shortest queue."""
    return (
        f"| {shape} | {length:,} | {costs.all_cpu * 1e6:,.0f} | {costs.database_cpu * 1e6:,.0f} |"
        f" {costs.statements:.1f} | {costs.commits:.1f} | {costs.rows:.0f} |"
        f" {costs.all_cpu / base.all_cpu:.2f} |"
    )


def main(engine: Engine, lengths: Sequence[int]) -> None:
    """Print a table of the costs of one run."""
    print("| in | runs after it | CPU µs | of the database | statements | commits | rows | ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for in_one, shape in ((True, "one session"), (False, "a session each")):
        base: Costs | None = None
        for length in lengths:
            costs = asyncio.run(measure(engine, length, in_one=in_one))
            base = base or costs
            print(format_row(shape, length, costs, base), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--engine", choices=get_args(Engine), default="sqlite")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    options = parser.parse_args()
    main(options.engine, options.lengths)
