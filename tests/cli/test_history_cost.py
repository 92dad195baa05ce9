"""Commands on a session cost the same however many runs it has, in requests and bytes.

Sessions of 10 and 200 runs, and of 1,000 and 10,000 with AGENTCTL_TEST_LONG=1.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from agentctl.server import create_app
from agentctl.store.database import Steps, unit
from agentctl.store.repositories import sessions
from tests.kit.command import run_command
from tests.kit.deployment import ADMIN, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.rows import START, a_run, a_session, a_whole_run, an_end
from tests.kit.service import open_service
from tests.kit.threaded_server import ThreadedServer, serve_in_thread

SIZES = (10, 200, *((1_000, 10_000) if os.environ.get("AGENTCTL_TEST_LONG") == "1" else ()))

BATCH = 250
"""Runs of one transaction."""

SIZE_OF_A_RUN = 2_000
"""Characters of the text of a run."""


@dataclass
class Traffic:
    """The requests to an application and the bytes of its responses."""

    app: ASGIApp
    requests: int = 0
    bytes: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def count(message: Message) -> None:
            self.bytes += len(message.get("body", b""))
            await send(message)

        self.requests += scope["type"] == "http"
        await self.app(scope, receive, count)

    def take(self) -> tuple[int, int]:
        """Return both numbers since the last call."""
        taken = (self.requests, self.bytes)
        self.requests = 0
        self.bytes = 0
        return taken


@dataclass
class Counted:
    """A server whose traffic is counted."""

    host: ThreadedServer
    traffic: Traffic
    folder: Path

    def run(self, *arguments: str) -> str:
        """Run a command on the server and return its output."""
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "AGENTCTL_TOKEN": self.host.deployment.token("boss", ADMIN),
        }
        at = ("--url", self.host.url)
        result = run_command(*arguments, *at, environment=environment, folder=self.folder)
        assert result.code == 0, result.stderr
        return result.stdout


@unit
def _add_runs(session_id: str, first: int, end: int) -> Steps[None]:
    text = "word " * (SIZE_OF_A_RUN // 5)
    for number in range(first, end):
        run_id = f"{session_id}-{number:05}"
        at = START + number * 1_000_000
        run = a_run(run_id, session_id, owner="w1", created_at=at, component_id="echo")
        message = f'[{{"role":"user","content":"{text}","created_at":1}}]'
        end = an_end(
            run_id,
            content=text,
            history=message,
            messages=message,
            finished_at=at + 9,
            stopped_at=at + 9,
        )
        yield from a_whole_run(run, end)


@pytest.fixture(scope="module")
def counted(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[Counted]:
    folder = tmp_path_factory.mktemp("history")
    deployment = create_deployment(folder, model_endpoint.base_url)

    async def fill() -> None:
        async with open_service(deployment) as service:
            database = service.hosting.databases["main"]
            for size in SIZES:
                name = f"s{size:05}"
                row = a_session(name, component_id="echo", component_data='{"name":"Echo"}')
                await database.write(sessions.create(row))
                for first in range(0, size, BATCH):
                    end = min(first + BATCH, size)
                    await database.write(_add_runs(name, first, end))

    asyncio.run(fill())
    traffic = Traffic(create_app(deployment.settings))
    with serve_in_thread(deployment, traffic) as host:
        yield Counted(host, traffic, folder)


COMMANDS: dict[str, tuple[str, ...]] = {
    "sessions get": ("sessions", "get", "ID", "--last", "3", "-o", "text"),
    "sessions get as Markdown": ("sessions", "get", "ID", "--last", "5", "-o", "markdown"),
    "sessions list": ("sessions", "list"),
    "sessions delete": ("sessions", "delete", "ID", "--dry-run"),
    "sessions rename": ("sessions", "rename", "ID", "a name"),
    "sessions rename as JSON": ("sessions", "rename", "ID", "a name", "-o", "json"),
    "sessions runs": ("sessions", "runs", "ID", "--limit", "3"),
    "runs list": ("runs", "list", "--session", "ID", "--limit", "3"),
    "runs get": ("runs", "get", "ID-00005", "-o", "text"),
    "one message": ("runs", "start", "--agent", "echo", "--session", "ID", "-m", "hello"),
    "one message without a stream": (
        "runs", "start", "--agent", "echo", "--session", "ID", "-m", "hello", "--no-stream",
    ),
}  # fmt: skip


def check_equal(costs: dict[int, tuple[int, int]]) -> None:
    """Check that each session costs the same requests as the smallest, and bytes within 10%."""
    requests, size = costs[min(costs)]
    for found, read in costs.values():
        assert found == requests, costs
        assert abs(read - size) <= 0.1 * size, costs


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_cost_the_same_for_any_number_of_runs(counted: Counted, name: str) -> None:
    costs: dict[int, tuple[int, int]] = {}
    for size in SIZES:
        arguments = [part.replace("ID", f"s{size:05}") for part in COMMANDS[name]]
        counted.traffic.take()
        counted.run(*arguments)
        costs[size] = counted.traffic.take()
    check_equal(costs)


def test_runs_of_a_transcript_have_their_numbers_in_the_session(counted: Counted) -> None:
    counted.run("runs", "start", "--agent", "echo", "--session", "s00200", "-m", "the newest")
    shown = counted.run("sessions", "get", "s00200", "--last", "2", "-o", "markdown")
    heads: list[Any] = [line for line in shown.splitlines() if line.startswith("## ")]
    numbers = [int(line[3:].partition(".")[0]) for line in heads]
    assert numbers[1] == numbers[0] + 1 >= 201
    assert f"{numbers[1]:,} runs, the last 2 shown" in shown


@pytest.mark.parametrize(
    "command",
    [
        ("runs", "list", "--session", "s00010"),
        ("sessions", "runs", "s00010"),
        ("runs", "wait", *(f"s00010-0000{number}" for number in range(9))),
    ],
)
def test_tables_of_runs_read_none_of_their_texts(
    counted: Counted, command: tuple[str, ...]
) -> None:
    counted.traffic.take()
    counted.run(*command)
    _, size = counted.traffic.take()
    assert size < 10 * SIZE_OF_A_RUN, "a summary has neither content nor messages"
