"""The wall of live streams: simulated servers append the events of their streams to PostgreSQL.

`python -m bench.scale_streams` starts a PostgreSQL that flushes every commit, and
processes that each store one batch of events of all their streams ten times a second, with the
driver and the statement of a server. It prints the CPU time of PostgreSQL, its transactions and
its log, and computes the number of live streams that a core carries. `--followed` also sends the
notification of a process whose streams have followers in other servers, `--listeners` opens the
connections of other servers. With `--compare ROUNDS` it measures without and with the listeners in
turns, and prints the ratio of the batches that PostgreSQL stores in the same CPU time.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import asyncpg

from agentctl.config import settings
from agentctl.store.database import Steps, unit
from agentctl.store.postgres.database import PostgresDatabase
from agentctl.store.repositories import events, runs, sessions
from bench.postgres_meter import Meter
from tests.kit.postgres_server import run_postgres_server
from tests.kit.rows import a_run, a_session

SCHEMA = "streams"

TICK_SECONDS = 0.1
"""The interval of `agentctl.runs.log.stream`."""

WARM_SECONDS = 3.0

CREATED_AT_ONCE = 100

NOTIFY = "SELECT set_config('synchronous_commit', 'off', true), pg_notify('agentctl', $1)"


class Load(NamedTuple):
    """The work of one process.

    Attributes:
        number: its number.
        streams: number of its live streams.
        text: the events of one batch.
        followed: True if it sends a notification with each tick.
    """

    url: str
    number: int
    streams: int
    text: str
    seconds: float
    followed: bool

    @property
    def run_ids(self) -> list[str]:
        """The ids of its runs."""
        return [f"r{self.number}-{index}" for index in range(self.streams)]


@unit
def _create(run_ids: Sequence[str], owner: str) -> Steps[None]:
    for run_id in run_ids:
        yield from sessions.create(a_session(f"s-{run_id}"))
        yield from runs.create(a_run(run_id, f"s-{run_id}"))
        yield from runs.claim(run_id, 1, owner, 1)


def _append_all(load: Load, results: Any, go: Any) -> None:
    asyncio.run(_append(load, results, go))


async def _append(load: Load, results: Any, go: Any) -> None:
    """Append until the time has passed; report the number of ticks and of those that began late."""
    entry = settings.Database("main", load.url, search_path=SCHEMA, statement_seconds=60)
    database = PostgresDatabase(entry, create=False)
    notifier = await asyncpg.connect(load.url)
    run_ids = load.run_ids
    for first in range(0, len(run_ids), CREATED_AT_ONCE):
        chunk = run_ids[first : first + CREATED_AT_ONCE]
        await database.write(_create(chunk, f"w{load.number}"))
    results.put("ready")
    await asyncio.to_thread(go.wait)
    began = time.monotonic()
    ticks = 0
    late = 0
    while (now := time.monotonic()) < began + load.seconds:
        due = began + ticks * TICK_SECONDS
        if now < due:
            await asyncio.sleep(due - now)
        late += now > due + TICK_SECONDS
        batches = [
            events.Batch(run_id, 1, 5 * ticks, 5 * ticks + 4, load.text) for run_id in run_ids
        ]
        for first in range(0, len(batches), events.MAXIMUM_BATCHES):
            group = batches[first : first + events.MAXIMUM_BATCHES]
            assert len(await database.write(events.append_batches(group))) == len(group)
        if load.followed:
            await notifier.fetchval(NOTIFY, f"{SCHEMA} runs {' '.join(run_ids[:100])}")
        ticks += 1
    results.put((ticks, late))
    await notifier.close()
    await database.close()


class Result(NamedTuple):
    """A row of the table, and the streams that a core of PostgreSQL carries."""

    row: str
    streams_of_core: float


async def measure(options: argparse.Namespace, listeners: int) -> Result:
    """Run the processes, with this number of connections that listen."""
    limit = f"max_connections={listeners + 100}"
    with run_postgres_server(durable=True, settings=[limit]) as server:
        meter = Meter(server, SCHEMA)
        await meter.open()
        entry = settings.Database("main", server.url, search_path=SCHEMA, statement_seconds=60)
        database = PostgresDatabase(entry, create=True)
        await database.check()
        await database.close()
        # Stored events notify only through `--followed`, once for all runs of a process.
        await meter.execute("DROP TRIGGER IF EXISTS run_events_announce ON streams.run_events")
        listening = [await asyncpg.connect(server.url) for _ in range(listeners)]
        for listener in listening:
            await listener.add_listener("agentctl", lambda *_: None)
        context = multiprocessing.get_context("spawn")
        results = context.Queue()
        go = context.Event()
        text = '"' + "e" * (options.bytes - 2) + '"'
        loads = [
            Load(
                server.url,
                number,
                options.streams,
                text,
                WARM_SECONDS + options.seconds,
                options.followed,
            )
            for number in range(options.processes)
        ]
        processes = [
            context.Process(target=_append_all, args=(load, results, go)) for load in loads
        ]
        for process in processes:
            process.start()
        for _ in processes:
            assert await asyncio.to_thread(results.get, True, 300) == "ready"
        go.set()
        await asyncio.sleep(WARM_SECONDS)
        before = await meter.read()
        await asyncio.sleep(options.seconds - 1)
        used = (await meter.read()).since(before)
        found = [await asyncio.to_thread(results.get, True, 60) for _ in processes]
        for process in processes:
            process.join()
        for listener in listening:
            await listener.close()
        await meter.close()
    wanted = options.processes * loads[0].seconds / TICK_SECONDS
    kept = sum(ticks for ticks, _ in found) / wanted
    live = options.processes * options.streams
    cores = used.cpu / used.seconds
    per_thousand = cores / (live * kept) * 1_000
    row = (
        f"| {options.processes} x {options.streams} | {options.bytes}"
        f" | {listeners if options.followed else 'none'} | {kept:.0%}"
        f" | {used.writes / used.seconds:.0f} | {cores:.2f} | {per_thousand:.2f}"
        f" | {used.wal / used.seconds / 1e6:.1f} | {1_000 / per_thousand:,.0f} |"
    )
    return Result(row, 1_000 / per_thousand)


def compare(options: argparse.Namespace) -> None:
    """Measure without and with listeners in turns; print the rows and the median ratio."""
    ratios = []
    for _ in range(options.compare):
        without, with_all = (
            asyncio.run(measure(options, count)) for count in (0, options.listeners)
        )
        print(without.row, with_all.row, sep="\n", flush=True)
        ratios.append(with_all.streams_of_core / without.streams_of_core)
    shown = ", ".join(f"{ratio:.2f}" for ratio in sorted(ratios))
    print(f"\n{options.listeners} listeners to none: {statistics.median(ratios):.2f} ({shown})")


HEAD = (
    "| servers x streams | bytes of a batch | listeners | batches in time | commits/s | cores "
    "| cores per 1,000 streams | log MB/s | streams of a core |\n"
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--streams", type=int, default=100)
    parser.add_argument("--bytes", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--followed", action="store_true")
    parser.add_argument("--listeners", type=int, default=0)
    parser.add_argument("--compare", type=int, default=0, metavar="ROUNDS")
    options = parser.parse_args()
    print(HEAD)
    if options.compare:
        compare(options)
    else:
        print(asyncio.run(measure(options, options.listeners)).row)


if __name__ == "__main__":
    main()
