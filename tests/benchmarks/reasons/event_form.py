"""The cost of stored events as JSON, and as pieces of text, through real servers.

    python -m tests.benchmarks.reasons.event_form

On each engine two servers stream the same answers in turns, 40 streams of 400 tokens at 50 tokens a
second. One has a database whose upgrade is not finished, so that it stores JSON. The table has what
each token cost, with the beginnings and ends of the runs: medians of rounds in turns. The last rows
are the encoder and the decoder alone, for rows of five tokens.
"""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple

import uvloop

from agentctl.interface.requests import StreamEvent
from agentctl.records.text import new_id
from agentctl.runs.log.event_rows import Piece, RunIdentity, decode_events, encode_events
from agentctl.store.repositories.events import EventRow
from tests.benchmarks.load import cpu_seconds
from tests.benchmarks.postgres_meter import Meter
from tests.benchmarks.servers import serve_endpoint
from tests.benchmarks.streams import AGENT, Reply, Setup
from tests.deployment import SQLITE_DATABASES, Deployment, create_deployment
from tests.postgres_server import run_postgres_server
from tests.process import base_environment, serve_config
from tests.releases import NEW

STREAMS = 40
ROUNDS = 5

REPLY = Reply(words=400, size=6, seconds=0.02, hold=False)

TOKENS = STREAMS * REPLY.words

SETTLE_SECONDS = 2.0

CALLS = 20_000
"""Calls of the encoder and the decoder in a round."""

ALLOW_EARLIER = "UPDATE schema_version SET compatible_from = 15"

FORMS = ("json", "text")

Cost = Callable[[], Awaitable[list[float]]]
"""Returns totals, in bytes and in microseconds."""


class Place(NamedTuple):
    """A server that stores one form, and the totals of its database."""

    setup: Setup
    cost: Cost


async def measure(place: Place) -> list[float]:
    """Return what a token of a round costs."""
    await asyncio.sleep(SETTLE_SECONDS)
    pid = place.setup.server.process.pid
    before = [cpu_seconds(pid) * 1e6, *await place.cost()]
    streams = place.setup.streams(STREAMS, REPLY)
    await asyncio.gather(*(stream.open() for stream in streams))
    await asyncio.gather(*(stream.read() for stream in streams))
    await place.setup.all_ended()
    after = [cpu_seconds(pid) * 1e6, *await place.cost()]
    return [(b - a) / TOKENS for a, b in zip(before, after, strict=True)]


async def compare(engine: str, places: dict[str, Place], units: list[str]) -> None:
    """Print the medians of both forms, and the median of the ratios of their rounds."""
    for place in places.values():
        await measure(place)
    found: dict[str, list[list[float]]] = {form: [] for form in FORMS}
    for number in range(ROUNDS):
        for form in FORMS if number % 2 else reversed(FORMS):
            found[form].append(await measure(places[form]))
    for index, unit in enumerate(["CPU of the server, us", *units]):
        json, text = ([costs[index] for costs in found[form]] for form in FORMS)
        ratio = statistics.median(one / other for one, other in zip(json, text, strict=True))
        print_row(f"{engine}, {unit}", statistics.median(json), statistics.median(text), ratio)


def print_row(name: str, json: float, text: float, ratio: float) -> None:
    """Print a row of the table."""
    print(f"| {name} | {json:.1f} | {text:.1f} | {ratio:.1f} |")


def create(folder: Path, endpoint: str, database: str) -> Deployment:
    """Create a deployment and its databases."""
    folder.mkdir()
    extra = AGENT.format(url=f"{endpoint}/v1")
    databases = {"main": database, "second": SQLITE_DATABASES["second"]}
    deployment = create_deployment(folder, f"{endpoint}/v1", extra=extra, databases=databases)
    done = NEW.run(deployment, "db", "migrate")
    assert done.returncode == 0, done.stderr
    return deployment


def serve(stack: ExitStack, deployment: Deployment, endpoint: str) -> Setup:
    """Start a server."""
    environment = base_environment()
    server = stack.enter_context(serve_config(deployment.path, environment=environment))
    return Setup(server, endpoint, deployment)


async def measure_postgres(folder: Path, endpoint: str) -> None:
    """Compare on PostgreSQL, which flushes each commit."""
    with run_postgres_server(durable=True) as postgres, ExitStack() as stack:
        places = {}
        for form in FORMS:
            meter = Meter(postgres, form)
            await meter.open()
            database = f'url = "{postgres.url}"\nsearch_path = "{form}"'
            deployment = create(folder / f"postgres-{form}", endpoint, database)
            if form == "json":
                await meter.execute(ALLOW_EARLIER.replace("schema_version", "json.schema_version"))

            async def read(meter: Meter = meter) -> list[float]:
                now = await meter.read()
                return [now.cpu * 1e6, now.wal, now.stored]

            places[form] = Place(serve(stack, deployment, endpoint), read)
        units = ["CPU of PostgreSQL, us", "write-ahead log, bytes", "storage, bytes"]
        await compare("PostgreSQL", places, units)


async def measure_sqlite(folder: Path, endpoint: str) -> None:
    """Compare on SQLite."""
    with ExitStack() as stack:
        places = {}
        for form in FORMS:
            deployment = create(folder / f"sqlite-{form}", endpoint, SQLITE_DATABASES["main"])
            file = deployment.folder / "main.db"
            if form == "json":
                with closing(sqlite3.connect(file)) as connection:
                    connection.execute(ALLOW_EARLIER)
                    connection.commit()
            setup = serve(stack, deployment, endpoint)

            async def read(file: Path = file, pid: int = setup.server.process.pid) -> list[float]:
                with closing(sqlite3.connect(file)) as connection:
                    ((pages,),) = connection.execute("PRAGMA page_count")
                    ((size,),) = connection.execute("PRAGMA page_size")
                counts = Path(f"/proc/{pid}/io").read_text().split()
                return [float(counts[counts.index("write_bytes:") + 1]), pages * size]

            places[form] = Place(setup, read)
        await compare("SQLite", places, ["written to the disk, bytes", "storage, bytes"])


def measure_forms() -> None:
    """Compare the encoder and the decoder alone."""
    frame = RunIdentity(new_id(), new_id(), None, "agent", "paced", "Paced").content_frame
    said = [Piece(frame, time.time_ns() // 1_000, " token") for _ in range(5)]
    portion = [
        StreamEvent(seq, frame.name, frame.format(piece.text, piece.at))
        for seq, piece in enumerate(said)
    ]
    forms: dict[str, list[Piece | None]] = {"json": [None] * len(said), "text": [*said]}
    rows = {
        form: EventRow("r", 0, 4, encode_events("r", portion, pieces), "s")
        for form, pieces in forms.items()
    }
    for name, work in (
        ("encoder", lambda form: encode_events("r", portion, forms[form])),
        ("decoder", lambda form: list(decode_events(rows[form]))),
    ):
        costs: dict[str, list[float]] = {form: [] for form in FORMS}
        for _ in range(ROUNDS):
            for form in FORMS:
                start = time.process_time()
                for _ in range(CALLS):
                    work(form)
                costs[form].append((time.process_time() - start) * 1e6 / CALLS / len(said))
        json, text = (statistics.median(costs[form]) for form in FORMS)
        print_row(f"{name}, us", json, text, json / text)


def main() -> None:
    """Print the table."""
    print("| of a token | JSON | text | ratio |\n| --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as name, serve_endpoint() as endpoint:
        for measure_engine in (measure_sqlite, measure_postgres):
            uvloop.run(measure_engine(Path(name), endpoint))
    measure_forms()


if __name__ == "__main__":
    main()
