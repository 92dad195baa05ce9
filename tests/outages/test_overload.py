"""Starts at a database that is too slow, too small or locked: each answer is true."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.endpoint import ModelEndpoint
from tests.outages.overload import CASES, SLOW_COMMITS, overload, serving
from tests.postgres_server import PostgresServer, run_postgres_server

pytestmark = pytest.mark.slow

STARTS = 60


@pytest.fixture(scope="module")
def slow_postgres() -> Iterator[PostgresServer]:
    with run_postgres_server(durable=True, settings=SLOW_COMMITS) as server:
        yield server


@pytest.mark.parametrize("name", CASES)
def test_refused_starts_do_nothing_and_acknowledged_ones_run_once(
    slow_postgres: PostgresServer, tmp_path: Path, model_endpoint: ModelEndpoint, name: str
) -> None:
    case = CASES[name]
    schema = f"overload_{uuid4().hex}"
    with serving(case, model_endpoint, tmp_path, slow_postgres, schema) as place:
        seconds = case.seconds + 1 if case.seconds else 1
        found = asyncio.run(overload(place, case, STARTS, STARTS / seconds))
    found.check()
    assert found.refused
    assert found.acknowledged
    if case.wait:
        assert found.quickest < case.wait
    if case.is_unready:
        assert found.readiness == 503
