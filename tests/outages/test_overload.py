"""Starts at a database that is too slow, too small or locked: each answer is true."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import httpx2
import pytest

from tests.endpoint import ModelEndpoint
from tests.outages.overload import CASES, SLOW_COMMITS, Case, Place, overload, serving
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


def test_start_is_refused_before_its_body_is_read(
    slow_postgres: PostgresServer, tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    case = CASES["sessions locked by another session"]
    schema = f"overload_{uuid4().hex}"
    with serving(case, model_endpoint, tmp_path, slow_postgres, schema) as place:
        head = asyncio.run(_refuse_without_body(place, case))
    assert b"\r\nretry-after: " in head.lower()


async def _refuse_without_body(place: Place, case: Case) -> bytes:
    """Send heads of starts alone, next to whole starts, until one is refused; return the answer."""
    form = {"message": "whole", "stream": "false"}
    async with (
        place.client() as client,
        case.fault(place),
        asyncio.timeout(120),
        asyncio.TaskGroup() as starting,
    ):
        while True:
            starting.create_task(client.post("/agents/echo/runs", data=form))
            if (head := await _send_head(place)).startswith(b"HTTP/1.1 503 "):
                return head


async def _send_head(place: Place) -> bytes:
    """Return the head of the answer to a request without its body; empty if none comes soon."""
    url = httpx2.URL(place.server.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    fields = {
        "Host": "here",
        "Authorization": place.headers["Authorization"],
        "Content-Type": "application/x-www-form-urlencoded",
        "Content-Length": "9",
    }
    lines = ("POST /agents/echo/runs HTTP/1.1", *map(": ".join, fields.items()), "", "")
    writer.write("\r\n".join(lines).encode())
    try:
        async with asyncio.timeout(0.05):
            return await reader.readuntil(b"\r\n\r\n")
    except TimeoutError:
        return b""
    finally:
        writer.close()
