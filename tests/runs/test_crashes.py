"""SIGKILL of a server: no run stays RUNNING, and reported facts stay true."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import httpx2
import orjson
import pytest

from agentctl.interface.requests import CancelRequest
from agentctl.runs.log.event_rows import LOST_SEQ_STEP
from tests.kit.conditions import wait_for
from tests.kit.deployment import Deployment
from tests.kit.model import ModelEndpoint
from tests.kit.process import ServerProcess, serve_config
from tests.kit.service import admin, open_service
from tests.runs.shared_databases import SharedDatabases

DELTAS = 25
"""Events of the trickling model in half a second, so that several batches are stored."""

Event = tuple[int, str, dict[str, Any]]


@pytest.fixture
def model_endpoint(process_endpoint: ModelEndpoint) -> ModelEndpoint:
    """The endpoint for servers that are processes."""
    return process_endpoint


def server(deployment: Deployment, name: str) -> AbstractContextManager[ServerProcess]:
    """Start one of several servers on the same databases."""
    return serve_config(deployment.path, log=f"{name}.log")


def events(lines: Iterator[str]) -> Iterator[Event]:
    """Yield the events of a stream until it ends or breaks."""
    fields: dict[str, str] = {}
    with contextlib.suppress(httpx2.HTTPError):
        for line in lines:
            if line.startswith(":"):
                continue
            if line:
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                yield int(fields["id"]), fields["event"], orjson.loads(fields["data"])
                fields = {}


def in_background(client: httpx2.Client, path: str) -> str:
    answer = client.post(
        path,
        json={
            "message": "hello",
            "session_id": f"of-{path.split('/')[2]}",
            "stream": False,
            "background": True,
        },
    )
    assert answer.status_code == 202
    run_id: str = answer.json()["run_id"]
    return run_id


def until_final(client: httpx2.Client, run_id: str) -> dict[str, Any]:
    def get() -> Any:
        return client.get(f"/runs/{run_id}").json()

    return dict(wait_for(lambda: (run := get())["finished_at"] and run, problem=get))


def live(client: httpx2.Client) -> list[str]:
    found = client.get("/runs", params={"live": "true", "limit": 100}).json()
    return [run["run_id"] for run in found["data"]]


def test_restarted_server_ends_its_own_orphaned_runs(
    deployment: Deployment, model_endpoint: ModelEndpoint
) -> None:
    with server(deployment, "first") as first, deployment.client(first.url) as client:
        crew = in_background(client, "/teams/jam/runs")
        stuck = in_background(client, "/workflows/stuck/runs")
        body = {"message": "hello", "session_id": "s1"}
        with client.stream("POST", "/agents/trickle/runs", json=body) as answer:
            delivered: list[Event] = []
            following = events(answer.iter_lines())
            while sum(name == "RunContent" for _, name, _ in delivered) < DELTAS:
                delivered.append(next(following))
            while len(live(client)) < 6:
                time.sleep(0.01)
            first.process.kill()
            first.process.wait()
            delivered += following
    run_id = delivered[0][2]["run_id"]
    with server(deployment, "second") as second, deployment.client(second.url) as client:
        assert live(client) == []
        for lost in (crew, stuck, run_id):
            run = client.get(f"/runs/{lost}").json()
            assert (run["status"], run["error"]["code"]) == ("ERROR", "WORKER_LOST")
            assert run["stopped_at"] == run["finished_at"]
        told = "".join(data["content"] for _, name, data in delivered if name == "RunContent")
        # Events that were delivered just before the kill may not have been stored.
        assert run["content"]
        assert told.startswith(run["content"])
        check_resume(client, run_id, delivered)
        session = client.get("/sessions/s1").json()
        said = [(entry["role"], entry["content"]) for entry in session["chat_history"]]
        assert said == [("user", "hello"), ("assistant", run["content"])]
        again = {"message": "again", "session_id": "s1", "stream": False}
        assert client.post("/agents/echo/runs", json=again).json()["status"] == "COMPLETED"


def check_resume(client: httpx2.Client, run_id: str, delivered: list[Event]) -> None:
    """Check that a follower that resumes gets the last event and no event twice."""
    last = delivered[-1][0]
    url = f"/agents/trickle/runs/{run_id}/resume"
    with client.stream("POST", url, headers={"Last-Event-ID": str(last)}) as answer:
        assert answer.status_code == 200
        rest = list(events(answer.iter_lines()))
    assert [name for _, name, _ in rest][-1] == "RunError"
    assert rest[-1][0] >= LOST_SEQ_STEP
    assert min(seq for seq, _, _ in rest) > last


def test_another_server_ends_the_runs_of_a_killed_server(
    deployment: Deployment, model_endpoint: ModelEndpoint
) -> None:
    with server(deployment, "first") as first, server(deployment, "second") as second:
        with deployment.client(first.url) as client:
            ours = in_background(client, "/agents/hang/runs")
        with deployment.client(second.url) as client:
            theirs = in_background(client, "/agents/trickle/runs")
            first.process.kill()
            first.process.wait()
            run = until_final(client, ours)
            assert (run["status"], run["error"]["code"]) == ("ERROR", "WORKER_LOST")
            assert live(client) == [theirs]
            assert "; 1 of its runs were ended" in second.wait_for("of its runs were ended")


@pytest.mark.parametrize("reason", ["no need", None])
async def test_cancel_ends_a_run_whose_worker_is_dead(
    deployment: Deployment, reason: str | None
) -> None:
    shared = SharedDatabases(deployment.folder)
    async with open_service(deployment) as service:
        await service.hosting.databases.open_all()
        other = shared.start_worker()
        try:
            other.send("run r1 main")
            assert other.read_line() == "begun"
            other.kill()
            request = CancelRequest(wait=30, reason=reason)
            answer = (await admin(service).runs.cancel("agent", "echo", "r1", request)).value
        finally:
            shared.end_processes()
        assert (answer["cancel"], answer["status"]) == ("stopped", "CANCELLED")
        assert answer["reason"] == (
            f"{reason}; the worker was lost" if reason else "The worker was lost"
        )
        stored = (await admin(service).runs.get("r1")).value
        assert stored["cancel_reason"] == answer["reason"]
        assert stored["cancel_requested_by"] == "local:boss"
