"""Teams of teams whose leaders call many members at once."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import httpx2
import pytest

from agentctl.runs.engine.engine import Engine
from agentctl.runs.life import members
from agentctl.server.app import create_app, get_app_state
from tests.kit.concurrent_callers import open_client
from tests.kit.conditions import wait_until
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.server.database_checks import open_read_only

WIDTH = 6
"""Members that each leader calls at once."""

PER_RUN = 4
PER_PROCESS = 6

ServeTree = Callable[[int, int], AbstractContextManager[tuple[ThreadedServer, Engine]]]

TREE = """
[[models]]
id = "exact"
provider = "openai"
model = "exact"
base_url = "{url}"
[[teams]]
id = "top"
mode = "coordinate"
model = "exact"
members = ["below"]
[[teams]]
id = "below"
mode = "coordinate"
model = "exact"
members = ["hang", "echo"]
"""


def calls(member: str, task: str) -> str:
    """Return the message with which a leader calls a member `WIDTH` times at once."""
    arguments = json.dumps({"member_id": member, "task": task})
    function = {"name": "delegate_task_to_member", "arguments": arguments}
    return json.dumps(
        {
            "tool_calls": [
                {"id": f"c{number}", "type": "function", "function": function}
                for number in range(WIDTH)
            ]
        }
    )


@pytest.fixture
def serve_tree(
    tmp_path: Path, model_endpoint: ModelEndpoint, monkeypatch: pytest.MonkeyPatch
) -> ServeTree:
    """Serves the teams with these slots of a run and of the process."""

    @contextlib.contextmanager
    def serve(per_run: int, per_process: int) -> Iterator[tuple[ThreadedServer, Engine]]:
        monkeypatch.setattr(members, "MEMBERS_PER_RUN", per_run)
        monkeypatch.setattr(members, "CONCURRENT_MEMBERS", per_process)
        url = model_endpoint.base_url
        deployment = create_deployment(tmp_path, url, extra=TREE.format(url=url))
        app = create_app(deployment.settings)
        with serve_in_thread(deployment, app) as host:
            yield host, get_app_state(app).running_service.hosting.engine

    return serve


def count_members(engine: Engine) -> int:
    return sum(run.parent is not None for run in engine.live_runs())


async def start(client: httpx2.AsyncClient, session: str, leaf: str, task: str) -> str:
    message = calls("below", calls(leaf, task))
    body = {"message": message, "session_id": session, "background": True, "stream": False}
    answer = await client.post("/teams/top/runs", json=body)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["run_id"])


def count_statuses(deployment: Deployment, session: str) -> Counter[tuple[str, str]]:
    with open_read_only(deployment.folder / "main.db") as connection:
        sql = "SELECT component_id, status FROM runs WHERE session_id = ?"
        return Counter(connection.execute(sql, (session,)).fetchall())


async def test_members_wait_for_slots_of_their_run_and_of_the_process(
    serve_tree: ServeTree,
) -> None:
    with serve_tree(PER_RUN, PER_PROCESS) as (served, engine):
        deployment = served.deployment
        async with open_client(deployment, served.url) as client:
            # A run executes one member more than it has slots: each run may use its own turn.
            first = await start(client, "s1", "hang", "wait")
            expected = {("top", "RUNNING"): 1, ("below", "RUNNING"): 5, ("hang", "RUNNING"): 5}
            await wait_until(lambda: count_statuses(deployment, "s1") == expected)
            await start(client, "s2", "hang", "wait")
            rest = {("top", "RUNNING"): 1, ("below", "RUNNING"): 3, ("hang", "RUNNING"): 3}
            await wait_until(lambda: count_statuses(deployment, "s2") == rest)
            waiting = (WIDTH - 5) + 5 * (WIDTH - 1) + (WIDTH - 3) + 3 * (WIDTH - 1)
            await wait_until(lambda: engine.waiting_members == waiting)
            await wait_until(lambda: count_members(engine) == 16)
            url = f"/teams/top/runs/{first}/cancel?wait=30"
            assert (await client.post(url)).json()["cancel"] == "stopped"
            # The members of the cancelled run have ended, and those that waited never started.
            assert count_statuses(deployment, "s1") == {
                (name, "CANCELLED"): count for (name, _), count in expected.items()
            }
            # The other run of the process gets the slots, on either level.
            await wait_until(
                lambda: count_statuses(deployment, "s2")["hang", "RUNNING"] == PER_RUN + 1
            )


async def test_tree_of_teams_completes_with_one_slot(serve_tree: ServeTree) -> None:
    with serve_tree(1, 1) as (served, _):
        deployment = served.deployment
        async with open_client(deployment, served.url) as client:
            await start(client, "s1", "echo", "hello")
            done = {
                ("top", "COMPLETED"): 1,
                ("below", "COMPLETED"): WIDTH,
                ("echo", "COMPLETED"): WIDTH * WIDTH,
            }
            await wait_until(lambda: count_statuses(deployment, "s1") == done)
