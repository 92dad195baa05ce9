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
from agentctl.store.postgres import pool
from tests.kit.deployment import create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.postgres import postgres_schemas
from tests.service.callers import collect_run_events, open_service, user

REPEATS = 5


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
        await act()
        found = []
        for _ in range(REPEATS):
            self.texts.clear()
            self.commits = 0
            await act()
            found.append((len(self.texts), self.commits))
        return min(found)


@pytest.fixture
def databases(postgres_url: str) -> Iterator[dict[str, str]]:
    with postgres_schemas(postgres_url) as databases:
        yield databases


async def test_a_plain_run_takes_three_commits(
    tmp_path: Path,
    model_endpoint: ModelEndpoint,
    databases: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = Statements(monkeypatch)
    deployment = create_deployment(tmp_path, model_endpoint.base_url, databases=databases)
    async with open_service(deployment) as service:
        operations = user(service)

        async def run(session_id: str | None) -> None:
            document = await operations.runs.create(
                "agent", "echo", RunRequest("hello", session_id=session_id)
            )
            assert document.value["status"] == "COMPLETED"

        # The start with its session and its audit entry, the end, and the read of the response.
        assert await found.count(lambda: run(None)) == (13, 3), found.texts
        # A run in a session that exists also reads the last runs.
        assert await found.count(lambda: run("s1")) == (17, 4), found.texts

        async def stream() -> None:
            await collect_run_events(operations, "agent", "echo", message="hello", session_id="s2")

        # The events of a run that ends within a tick are stored with its end.
        assert (await found.count(stream))[1] <= 4, found.texts

        async def read() -> None:
            await operations.sessions.get("s1")

        assert await found.count(read) == (1, 1), found.texts

        (ended,) = (await operations.sessions.list_runs("s2", SessionRunsQuery(limit=1))).value

        async def cancel() -> None:
            request = CancelRequest(session_id="s2")
            result = await operations.runs.cancel("agent", "echo", ended["run_id"], request)
            assert result.value["cancel"] == "already_final"

        # The state, BEGIN, the audit entry with the id of its transaction, and COMMIT.
        assert await found.count(cancel) == (4, 2), found.texts

        async def list_sessions(where: SessionLocator = DEFAULT_LOCATOR) -> None:
            page = (await operations.sessions.list(SessionFilter(where, page=Page(limit=1)))).value
            assert page["meta"]["total_count"] > len(page["data"]) == 1

        # The page, its total and the newest runs of its sessions.
        assert await found.count(list_sessions) == (1, 1), found.texts

        async def list_agents_sessions() -> None:
            await list_sessions(SessionLocator(type="agent"))

        assert await found.count(list_agents_sessions) == (1, 1), found.texts
