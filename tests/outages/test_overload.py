"""Starts at a database that is too slow, too small or locked: each answer is true."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
import pytest

from tests.conditions import PATIENCE
from tests.endpoint import ModelEndpoint
from tests.outages.overload import CASES, SLOW_COMMITS, Place, overload, serving
from tests.postgres_server import PostgresServer, run_postgres_server

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


LOCKED = CASES["sessions locked by another session"]

PICTURE = "data:image/png;base64,?"
"""A file that is refused when it is stored."""

SOON = 0.2
"""Seconds, below those after which a pool is late."""

FACES = {
    "openai": (
        "/v1/chat/completions",
        {
            "model": "echo",
            "messages": [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "{text}"},
                        {"type": "image_url", "image_url": {"url": PICTURE}},
                    ],
                }
            ],
        },
    ),
    "agui": (
        "/agui/agents/echo",
        {
            "threadId": "{text}",
            "runId": "{text}",
            "state": {},
            "tools": [],
            "context": [],
            "messages": [{"id": "1", "role": "user", "content": "{text}"}],
        },
    ),
    "ai_sdk": (
        "/ai/agents/echo",
        {
            "id": "{text}",
            "trigger": "submit-message",
            "messages": [
                {"id": "1", "role": "user", "parts": [{"type": "text", "text": "{text}"}]}
            ],
        },
    ),
}
"""Path and body of a start, by the table of the face."""


@pytest.mark.parametrize(
    ("compatibility", "path"), [("none", "/agents/echo/runs"), ("agentos", "/agents/echo/runs")]
)
def test_start_is_refused_before_its_body_is_read(
    slow_postgres: PostgresServer,
    tmp_path: Path,
    model_endpoint: ModelEndpoint,
    compatibility: str,
    path: str,
) -> None:
    schema = f"overload_{uuid4().hex}"
    server = f'compatibility = "{compatibility}"'
    with serving(LOCKED, model_endpoint, tmp_path, slow_postgres, schema, server=server) as place:
        head = asyncio.run(_refuse_without_body(place, path))
    assert b"\r\nretry-after: " in head.lower()


@pytest.mark.parametrize("face", FACES)
def test_face_refuses_a_start_before_other_work(
    slow_postgres: PostgresServer, tmp_path: Path, model_endpoint: ModelEndpoint, face: str
) -> None:
    schema = f"overload_{uuid4().hex}"
    extra = f"[{face}]\nenabled = true"
    with serving(LOCKED, model_endpoint, tmp_path, slow_postgres, schema, extra=extra) as place:
        text, answer = asyncio.run(_refuse_by_face(place, *FACES[face]))
        rows = asyncio.run(place.rows("SELECT input FROM runs"))
    body = answer.json()
    error = body["error"]["message"] if face == "openai" else body["detail"]
    assert (answer.status_code, error) == (503, "The database is busy")
    assert "Retry-After" in answer.headers
    assert (text,) not in rows
    assert text not in json.dumps(model_endpoint.requests())


@contextlib.asynccontextmanager
async def _locked(place: Place) -> AsyncIterator[Callable[[], None]]:
    """Lock the table, and yield a function that adds a whole start."""
    form = {"message": "whole", "stream": "false"}
    async with (
        place.client() as client,
        LOCKED.fault(place),
        asyncio.timeout(PATIENCE),
        asyncio.TaskGroup() as starting,
    ):

        def add_start() -> None:
            starting.create_task(client.post("/agents/echo/runs", data=form))

        yield add_start


async def _refuse_without_body(place: Place, path: str) -> bytes:
    """Send heads of starts alone, next to whole starts, until one is refused; return the answer."""
    async with _locked(place) as add_start:
        while True:
            add_start()
            if (head := await _send_head(place, path)).startswith(b"HTTP/1.1 503 "):
                return head


async def _refuse_by_face(
    place: Place, path: str, body: dict[str, Any]
) -> tuple[str, httpx2.Response]:
    """Return the message and the answer of a refused start, which came before a connection could.

    The pool is late: work on the database waits for longer than `SOON`.
    """
    async with _locked(place) as add_start, place.client() as client:
        for number in count():
            add_start()
            if not (await _send_head(place, "/agents/echo/runs")).startswith(b"HTTP/1.1 503 "):
                continue
            text = f"by-a-face-{number}"
            sent = json.loads(json.dumps(body).replace("{text}", text))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SOON):
                    answer = await client.post(path, json=sent)
                if answer.status_code == 503:
                    return text, answer
    raise AssertionError


async def _send_head(place: Place, path: str) -> bytes:
    """Return the head of the answer to a request without its body; empty if none comes soon."""
    url = httpx2.URL(place.server.url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    fields = {
        "Host": "here",
        "Authorization": place.headers["Authorization"],
        "Content-Type": "application/x-www-form-urlencoded",
        "Content-Length": "9",
    }
    lines = (f"POST {path} HTTP/1.1", *map(": ".join, fields.items()), "", "")
    writer.write("\r\n".join(lines).encode())
    try:
        async with asyncio.timeout(0.05):
            return await reader.readuntil(b"\r\n\r\n")
    except TimeoutError:
        return b""
    finally:
        writer.close()
