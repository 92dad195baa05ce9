"""The statements and commits of single requests on PostgreSQL."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agentctl.interface.requests import (
    DEFAULT_LOCATOR,
    CancelRequest,
    Page,
    RunRequest,
    SessionFilter,
    SessionLocator,
    SessionRunsQuery,
)
from agentctl.service.service import ServiceOperations
from agentctl.store.postgres import pool
from tests.kit.deployment import create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.postgres import postgres_schemas
from tests.kit.service import collect_run_events, open_service, user

REPEATS = 5
"""Number of times that each request is counted."""


class Statements:
    """The statements of the connections of a pool, in the order of their ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = set[int]()
        self.texts: list[str] = []
        self.commits = 0
        original = pool.connect

        async def connect(*args: Any, **options: Any) -> Any:
            connection = await original(*args, **options)
            connection.add_query_logger(lambda record: self._note(id(connection), record.query))
            return connection

        monkeypatch.setattr(pool, "connect", connect)

    def _note(self, connection: int, text: str) -> None:
        self.texts.append(text)
        if text.startswith("BEGIN"):
            self._open.add(connection)
        elif text in ("COMMIT", "ROLLBACK"):
            self._open.discard(connection)
        self.commits += connection not in self._open

    async def count(self, act: Callable[[], Awaitable[object]]) -> tuple[int, int]:
        """Return the statements and commits of an act: the fewest of several.

        The server sends other statements meanwhile, such as those of its sweeps.
        """
        # The first request prepares statements and opens connections.
        await act()

        counts = []
        for _ in range(REPEATS):
            self.texts.clear()
            self.commits = 0
            await act()
            counts.append((len(self.texts), self.commits))
        return min(counts)


@pytest.fixture
def databases(postgres_url: str) -> Iterator[dict[str, str]]:
    with postgres_schemas(postgres_url) as schemas:
        yield schemas


async def execute_run(operations: ServiceOperations, session_id: str | None) -> None:
    request = RunRequest("hello", session_id=session_id)
    document = await operations.runs.create("agent", "echo", request)
    assert document.value["status"] == "COMPLETED"


async def cancel_ended_run(operations: ServiceOperations, run_id: str) -> None:
    request = CancelRequest(session_id="s2")
    document = await operations.runs.cancel("agent", "echo", run_id, request)
    assert document.value["cancel"] == "already_final"


async def list_one_session(operations: ServiceOperations, where: SessionLocator) -> None:
    page = (await operations.sessions.list(SessionFilter(where, page=Page(limit=1)))).value
    assert page["meta"]["total_count"] > len(page["data"]) == 1


async def test_single_requests_take_few_statements(
    tmp_path: Path,
    model_endpoint: ModelEndpoint,
    databases: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = Statements(monkeypatch)
    deployment = create_deployment(tmp_path, model_endpoint.base_url, databases=databases)
    async with open_service(deployment) as service:
        operations = user(service)
        sessions = operations.sessions

        # The start with its session and its audit entry, the end, and the read of the response.
        assert await sent.count(lambda: execute_run(operations, None)) == (13, 3), sent.texts

        # A run in a session that exists also reads the last runs.
        assert await sent.count(lambda: execute_run(operations, "s1")) == (17, 4), sent.texts

        # The events of a run that ends within a tick are stored with its end.
        request = {"message": "hello", "session_id": "s2"}
        _, commits = await sent.count(
            lambda: collect_run_events(operations, "agent", "echo", **request)
        )
        assert commits <= 4, sent.texts

        assert await sent.count(lambda: sessions.get("s1")) == (1, 1), sent.texts

        # The state, BEGIN, the audit entry with the id of its transaction, and COMMIT.
        (ended,) = (await sessions.list_runs("s2", SessionRunsQuery(limit=1))).value
        run_id = ended["run_id"]
        assert await sent.count(lambda: cancel_ended_run(operations, run_id)) == (4, 2), sent.texts

        # The page, its total and the newest runs of its sessions.
        for where in (DEFAULT_LOCATOR, SessionLocator(type="agent")):
            count = await sent.count(lambda where=where: list_one_session(operations, where))
            assert count == (1, 1), sent.texts
