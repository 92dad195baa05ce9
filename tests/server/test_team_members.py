"""Teams of teams whose leaders call many members at once."""

from __future__ import annotations

import json
import urllib.request
from collections import Counter
from typing import Any

import httpx2
import pytest

from tests.deployment import Deployment
from tests.endpoint import ModelEndpoint
from tests.loops import wait_until
from tests.process import serve_config
from tests.server.concurrent_callers import SECONDS, open_client
from tests.server.database_checks import open_read_only

pytestmark = pytest.mark.slow

WIDTH = 6
"""Members that each leader calls at once."""

PER_RUN, PER_PROCESS = 4, 6

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
[metrics]
listen = "127.0.0.1:0"
[limits]
members_per_run = {per_run}
concurrent_members = {per_process}
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


def tree(deployment: Deployment, model_endpoint: ModelEndpoint, limits: tuple[int, int]) -> None:
    per_run, per_process = limits
    more = TREE.format(url=model_endpoint.base_url, per_run=per_run, per_process=per_process)
    deployment.path.write_text(deployment.path.read_text() + more)


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
    deployment: Deployment, model_endpoint: ModelEndpoint
) -> None:
    tree(deployment, model_endpoint, (PER_RUN, PER_PROCESS))
    with serve_config(deployment.path) as served:
        metrics = served.log_text.partition("metrics: ")[2].split()[0]
        async with open_client(deployment, served.url) as client:
            # A run executes one member more than it has slots: each run may use its own turn.
            first = await start(client, "s1", "hang", "wait")
            expected = {("top", "RUNNING"): 1, ("below", "RUNNING"): 5, ("hang", "RUNNING"): 5}
            await wait_until(lambda: count_statuses(deployment, "s1") == expected, SECONDS)
            await start(client, "s2", "hang", "wait")
            rest = {("top", "RUNNING"): 1, ("below", "RUNNING"): 3, ("hang", "RUNNING"): 3}
            await wait_until(lambda: count_statuses(deployment, "s2") == rest, SECONDS)
            waiting = (WIDTH - 5) + 5 * (WIDTH - 1) + (WIDTH - 3) + 3 * (WIDTH - 1)
            await wait_until(lambda: read_gauge(metrics, "members_waiting") == waiting, SECONDS)
            assert read_gauge(metrics, "members_live") == 16
            url = f"/teams/top/runs/{first}/cancel?wait=30"
            assert (await client.post(url)).json()["cancel"] == "stopped"
            # The members of the cancelled run have ended, and those that waited never started.
            assert count_statuses(deployment, "s1") == {
                (name, "CANCELLED"): count for (name, _), count in expected.items()
            }
            # The other run of the process gets the slots, on either level.
            await wait_until(
                lambda: count_statuses(deployment, "s2")["hang", "RUNNING"] == PER_RUN + 1, SECONDS
            )


async def test_tree_of_teams_completes_with_one_slot(
    deployment: Deployment, model_endpoint: ModelEndpoint
) -> None:
    tree(deployment, model_endpoint, (1, 1))
    with serve_config(deployment.path) as served:
        async with open_client(deployment, served.url) as client:
            await start(client, "s1", "echo", "hello")
            done = {
                ("top", "COMPLETED"): 1,
                ("below", "COMPLETED"): WIDTH,
                ("echo", "COMPLETED"): WIDTH * WIDTH,
            }
            await wait_until(lambda: count_statuses(deployment, "s1") == done, SECONDS)


def read_gauge(url: str, name: str) -> float:
    """Return the value of a gauge that has no separate labels."""
    with urllib.request.urlopen(url, timeout=SECONDS) as answer:
        text: Any = answer.read().decode()
    for line in text.splitlines():
        if line.startswith(f"agentctl_{name}{{"):
            return float(line.rpartition(" ")[2])
    raise AssertionError(name)
