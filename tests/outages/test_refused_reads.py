"""A busy database refuses reads after starts that it has committed: no start that was executed is
reported as refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import asyncpg
import httpx2

from tests.kit.conditions import PATIENCE
from tests.kit.deployment import ADMIN, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.postgres_server import PostgresServer
from tests.kit.process import ServerProcess, serve_config

ROUNDS = 40 if os.environ.get("AGENTCTL_TEST_LONG") else 4

SLOW_COMMITS = """
CREATE FUNCTION {schema}.slow() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_sleep(0.04); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER slow AFTER INSERT OR UPDATE ON {schema}.runs
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION {schema}.slow();
"""

FACES = """
[openai]
enabled = true

[agui]
enabled = true

[ai_sdk]
enabled = true

[limits]
concurrent_runs = 1000
"""

AGENTOS = 'compatibility = "agentos"'

DOORS = ("plain", "background", "stream", "retry", "fork", "chat", "chat stream", "agui", "ai",
         "agentos")  # fmt: skip


def _build_request(door: str, text: str, origin: str) -> tuple[str, dict[str, Any]]:
    """Return the path and the arguments of a request that starts a run with a text."""
    streams = "true" if door == "stream" else "false"
    run = {"message": text, "stream": streams, "background": str(door == "background").lower()}
    chat = {"model": "echo", "messages": [{"role": "user", "content": text}]}
    match door:
        case "retry":
            return f"/agents/echo/runs/{origin}/retry", {"json": {"stream": False}}
        case "fork":
            body = {"stream": False, "at": 0, "message": text}
            return f"/agents/echo/runs/{origin}/fork", {"json": body}
        case "chat" | "chat stream":
            return "/v1/chat/completions", {"json": {**chat, "stream": door == "chat stream"}}
        case "agui":
            message = {"id": text, "role": "user", "content": text}
            body = {"threadId": text, "runId": text, "messages": [message]}
            empty = {"state": {}, "tools": [], "context": [], "forwardedProps": {}}
            return "/agui/agents/echo", {"json": {**body, **empty}}
        case "ai":
            part = {"type": "text", "text": text}
            body = {"id": text, "messages": [{"id": text, "role": "user", "parts": [part]}]}
            return "/ai/agents/echo", {"json": body}
        case _:
            return "/agents/echo/runs", {"data": run}


def _start_server(stack: contextlib.ExitStack, config: Path) -> ServerProcess:
    """Start a server until it stays up, as a supervisor does.

    A busy machine does not connect it to its databases within their `wait_seconds`.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return stack.enter_context(serve_config(config))
        except AssertionError:
            if time.monotonic() > deadline:
                raise


async def _start_first(client: httpx2.AsyncClient) -> str:
    """Start a run, which a server that still starts may refuse; return its id."""
    async with asyncio.timeout(PATIENCE):
        while True:
            data = {"message": "origin", "stream": "false"}
            started = await client.post("/agents/echo/runs", data=data)
            if started.status_code == 200:
                return str(started.json()["run_id"])
            assert "Retry-After" in started.headers, started.text
            await asyncio.sleep(0.05)


class Answer(NamedTuple):
    """The response to a start, whose run has the text as its input."""

    door: str
    text: str
    response: httpx2.Response

    @property
    def is_refused(self) -> bool:
        """True if the response says that the request may be repeated."""
        return "Retry-After" in self.response.headers

    @property
    def named_run(self) -> str | None:
        """The run that an error names."""
        run_id = self.response.headers.get("X-Run-ID") or self.response.json().get("run_id")
        return None if run_id is None else str(run_id)


async def _start_through_all_doors(client: httpx2.AsyncClient, origin: str) -> list[Answer]:
    """Start runs through each interface at the same time."""

    async def start(door: str, number: int) -> Answer:
        text = f"{door} {number}".replace(" ", "-")
        url, arguments = _build_request(door, text, origin)
        shape = {"Agentctl-Interface": "agentos" if door == "agentos" else "contract"}
        return Answer(door, text, await client.post(url, headers=shape, **arguments))

    return await asyncio.gather(
        *(start(door, number) for door in DOORS for number in range(ROUNDS))
    )


def _build_databases(url: str, schema: str) -> dict[str, str]:
    """Return two databases with one connection each, for which nothing waits long."""
    lines = f'url = "{url}"\npool_size = 1\nwait_seconds = 0.1'
    return {
        "main": f'{lines}\nsearch_path = "{schema}"',
        "second": f'{lines}\nsearch_path = "second_{schema}"',
    }


async def test_no_start_is_refused_after_its_commit(
    tmp_path: Path, model_endpoint: ModelEndpoint, server: PostgresServer
) -> None:
    schema = f"busy_{uuid4().hex}"
    databases = _build_databases(server.url, schema)
    deployment = create_deployment(
        tmp_path, model_endpoint.base_url, databases=databases, extra=FACES, server=AGENTOS
    )
    options: Any = {
        "headers": deployment.bearer("me", ADMIN),
        "timeout": PATIENCE,
        "limits": httpx2.Limits(max_connections=None),
    }
    with contextlib.ExitStack() as stack:
        process = _start_server(stack, deployment.path)
        async with httpx2.AsyncClient(base_url=process.url, **options) as client:
            origin = await _start_first(client)
            connection = await asyncpg.connect(server.url)
            await connection.execute(SLOW_COMMITS.format(schema=schema))
            answers = await _start_through_all_doors(client, origin)
    stored = await connection.fetch(f"SELECT run_id, input FROM {schema}.runs")
    await connection.close()

    statuses = Counter((answer.door, answer.response.status_code) for answer in answers)
    assert {status for _, status in statuses} <= {200, 202, 503}, statuses
    stored_texts = {row["input"] for row in stored}
    refused = [answer for answer in answers if answer.is_refused]
    assert [answer.text for answer in refused if answer.text in stored_texts] == []

    # An error after the commit names the run.
    stored_ids = {row["run_id"] for row in stored}
    for answer in answers:
        if answer.response.status_code == 503 and not answer.is_refused:
            assert answer.named_run in stored_ids, answer
    assert len(stored) == 1 + len(answers) - len(refused), statuses
