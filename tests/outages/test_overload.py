"""Starts at a database whose table is locked are refused before other work."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import count
from typing import Any

import httpx2
import pytest

from tests.kit.conditions import PATIENCE
from tests.kit.postgres_server import PostgresServer, run_postgres_server
from tests.lab.starts import CASES, SLOW_COMMITS, open_case
from tests.lab.world import World


@pytest.fixture(scope="module")
def slow_postgres() -> Iterator[PostgresServer]:
    with run_postgres_server(durable=True, settings=SLOW_COMMITS) as server:
        yield server


LOCKED = CASES["`sessions` locked, a pool of 4"]

PICTURE = "data:image/png;base64,?"
"""A file that is refused when it is stored."""

SOON = 0.2
"""Seconds, below those after which a pool is late."""

FACES: dict[str, tuple[str, dict[str, Any]]] = {
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


@pytest.mark.parametrize("compatibility", ["none", "agentos"])
async def test_start_is_refused_before_its_body_is_read(
    slow_postgres: PostgresServer, compatibility: str
) -> None:
    server = f'compatibility = "{compatibility}"'
    async with open_case(LOCKED, postgres=slow_postgres, server=server) as world:
        head = await _refuse_without_body(world, "/agents/echo/runs")
    assert b"\r\nretry-after: " in head.lower()


@pytest.mark.parametrize("face", FACES)
async def test_face_refuses_a_start_before_other_work(
    slow_postgres: PostgresServer, face: str
) -> None:
    config = f"[{face}]\nenabled = true"
    async with open_case(LOCKED, postgres=slow_postgres, config=config) as world:
        text, answer = await _refuse_by_face(world, *FACES[face])
        inputs = [row[0] for row in await world.rows("SELECT input FROM runs")]
        requests = world.endpoint.requests()
    body = answer.json()
    error = body["error"]["message"] if face == "openai" else body["detail"]
    assert (answer.status_code, error) == (503, "The database is busy")
    assert "Retry-After" in answer.headers
    assert text not in inputs
    assert text not in json.dumps(requests)


def open_client(world: World) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=None)
    url = world.servers[0].url
    return httpx2.AsyncClient(base_url=url, headers=world.headers, timeout=PATIENCE, limits=limits)


@contextlib.asynccontextmanager
async def _locked(world: World) -> AsyncIterator[Callable[[], None]]:
    """Lock the table, and yield a function that adds a whole start."""
    form = {"message": "whole", "stream": "false"}
    async with (
        open_client(world) as client,
        LOCKED.apply(world, 0.0),
        asyncio.timeout(PATIENCE),
        asyncio.TaskGroup() as starting,
    ):

        def add_start() -> None:
            starting.create_task(client.post("/agents/echo/runs", data=form))

        yield add_start


async def _refuse_without_body(world: World, path: str) -> bytes:
    """Send heads of starts alone, next to whole starts, until one is refused; return the answer."""
    async with _locked(world) as add_start:
        while True:
            add_start()
            if (head := await _send_head(world, path)).startswith(b"HTTP/1.1 503 "):
                return head


async def _refuse_by_face(
    world: World, path: str, body: dict[str, Any]
) -> tuple[str, httpx2.Response]:
    """Return the message and the answer of a refused start, which came before a connection could.

    The pool is late: work on the database waits for longer than `SOON`.
    """
    async with _locked(world) as add_start, open_client(world) as client:
        for number in count():
            add_start()
            if not (await _send_head(world, "/agents/echo/runs")).startswith(b"HTTP/1.1 503 "):
                continue
            text = f"by-a-face-{number}"
            sent = json.loads(json.dumps(body).replace("{text}", text))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SOON):
                    answer = await client.post(path, json=sent)
                if answer.status_code == 503:
                    return text, answer
    raise AssertionError


async def _send_head(world: World, path: str) -> bytes:
    """Return the head of the answer to a request without its body; empty if none comes soon."""
    url = httpx2.URL(world.servers[0].url)
    reader, writer = await asyncio.open_connection(url.host, url.port)
    fields = {
        "Host": "here",
        "Authorization": world.headers["Authorization"],
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
