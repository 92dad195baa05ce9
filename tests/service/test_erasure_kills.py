"""An erasure is killed at any moment: the next one erases the rest, and nothing of others."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit import clock
from tests.kit.command import run_command
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.engines import Engine
from tests.kit.model import ModelEndpoint
from tests.kit.process import base_environment, start_agentctl
from tests.kit.service import open_service
from tests.service.personal_rows import MARKER, SEARCH, Raw, Rows, fill, find_tables

LONG = os.environ.get("AGENTCTL_TEST_LONG") == "1"

COPIES = 300
"""Copies of the session of the person: an erasure removes 100 in a transaction."""

SHARES = [0.0, 0.99, 0.5]
"""The rest of the rows at which an erasure is killed; 0.0 is before the rewrite of the file."""

_NUMBERS = (
    "WITH RECURSIVE numbers (n) AS"
    f" (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {COPIES})"
)
_COUNT = "SELECT (SELECT count(*) FROM sessions WHERE user_id = 'vera')" + "".join(
    f" + (SELECT count(*) FROM {table} WHERE {condition})"
    for table, condition in (
        ("runs", "user_id = 'vera'"),
        ("idempotency", "principal = 'vera'"),
        ("memories", "user_id = 'vera'"),
    )
)


class Person:
    """The data of vera, next to that of bob, and erasures of it."""

    def __init__(self, place: Deployment) -> None:
        self._place = place
        self.raw = Raw(place.settings.databases[0])
        self._words = ("users", "erase", "vera", "--config", str(place.path))
        self._environment = base_environment() | {"HOME": str(place.folder)}

    async def create(self, *users: tuple[str, str]) -> None:
        """Write rows of users into every table, and many sessions of vera."""
        async with open_service(self._place) as service:
            await service.hosting.databases.open_all()
            for user_id, text in users:
                await fill(service, self.raw, user_id, text)
        tables = await self.raw.list_columns()
        for table, ids in (("sessions", ["session_id"]), ("runs", ["session_id", "run_id"])):
            names = [name for name, _ in tables[table]]
            values = [f"{name} || '.' || n" if name in ids else name for name in names]
            await self.raw.query(
                f"INSERT INTO {table} ({', '.join(names)}) {_NUMBERS}"
                f" SELECT {', '.join(values)} FROM {table}, numbers WHERE user_id = 'vera'"
            )

    def count(self) -> int:
        return int(asyncio.run(self.raw.query(_COUNT))[0][0])

    def kill_erasure(self, share: float) -> None:
        """Start an erasure, and kill it when no more than a share of the rows is left."""
        rest = share * self.count()
        deadline = time.monotonic() + PATIENCE
        streams: dict[str, Any] = dict.fromkeys(("stdout", "stderr"), subprocess.DEVNULL)
        with start_agentctl(*self._words, "--yes", env=self._environment, **streams) as process:
            while process.poll() is None and self.count() > rest:
                assert time.monotonic() < deadline
            process.kill()

    def report(self, option: str) -> dict[str, Any]:
        """Run the command to its end and return its report."""
        ended = run_command(
            *self._words,
            option,
            "-o",
            "json",
            environment=self._environment,
            folder=self._place.folder,
        )
        assert ended.code == 0, ended.stderr
        return dict(json.loads(ended.stdout))

    def read_others(self) -> Rows:
        rows = asyncio.run(self.raw.read_all())
        return {
            table: [row for row in found if "bob" in repr(row) or "granite" in repr(row)]
            for table, found in rows.items()
        }

    def finish(self) -> None:
        """Erase the rest, and search for rows of the person in every table, and in the files."""
        planned = self.report("--dry-run")["erased"]
        done = self.report("--yes")
        assert sorted(map(repr, done["erased"])) == sorted(map(repr, planned))
        assert all(file["vacuumed"] for file in done["files"] if file["engine"] == "sqlite")
        rows = asyncio.run(self.raw.read_all())
        assert find_tables(rows, MARKER) == set()
        assert find_tables(rows, "vera") == {"audit_log"}
        for file in self._place.folder.glob("main.db*"):
            assert not file.is_file() or MARKER.encode() not in file.read_bytes(), file
        assert self.report("--dry-run")["erased"] == []


@pytest.fixture(params=["sqlite", "postgres"] if LONG else ["sqlite"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, model_endpoint: ModelEndpoint
) -> Iterator[Deployment]:
    is_sqlite = request.param == "sqlite"
    engine = Engine(None if is_sqlite else request.getfixturevalue("postgres_url"))
    with engine.databases() as databases:
        yield create_deployment(
            tmp_path, model_endpoint.base_url, databases=databases, extra=SEARCH
        )


def test_killed_erasure_is_finished_by_the_next_one(place: Deployment) -> None:
    person = Person(place)
    clock.run(person.create(("bob", "granite"), ("vera", MARKER)))
    others = person.read_others()
    kills = [*SHARES, *(random.choice([0.0, random.random()]) for _ in range(47 if LONG else 0))]
    for number, share in enumerate(kills):
        person.kill_erasure(share)
        assert person.read_others() == others, (number, share)
        if not person.count():
            person.finish()
            clock.run(person.create(("vera", MARKER)))
    person.finish()
    assert person.read_others() == others
