"""A SQLite file that is deleted, moved away or replaced under a server (R50)."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx2

from tests.conditions import PATIENCE, wait_for
from tests.deployment import ADMIN, Deployment
from tests.process import ServerProcess, run_agentctl, serve_config


def delete(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def replace(path: Path) -> None:
    shutil.copy(path, path.with_name("copy.db"))
    path.with_name("copy.db").replace(path)


def open_client(deployment: Deployment, server: ServerProcess) -> httpx2.Client:
    bearer = {"Authorization": f"Bearer {deployment.token('me', ADMIN)}", "Connection": "close"}
    return httpx2.Client(base_url=server.url, headers=bearer, timeout=PATIENCE)


def start_run(client: httpx2.Client, agent: str = "echo") -> httpx2.Response:
    body = {"message": "x", "stream": False, "session_id": "s1"}
    return client.post(f"/agents/{agent}/runs", json=body)


def wait_for_status(ask: Callable[[], httpx2.Response], status: int) -> None:
    wait_for(lambda: ask().status_code == status, problem=lambda: ask().status_code)


def check_start_is_refused(deployment: Deployment, name: str, *options: str) -> None:
    place = ("--config", str(deployment.path), "--port", "0")
    ended = run_agentctl("serve", *place, *options, env=dict(os.environ))
    said = ended.stderr.decode()
    assert (ended.returncode, "the database file is missing" in said) == (7, True), said
    assert f"rm -r {deployment.folder / name}.workers" in said
    assert not (deployment.folder / name).exists()


def test_deleted_file_acknowledges_no_run(deployment: Deployment) -> None:
    with serve_config(deployment.path) as server, open_client(deployment, server) as client:
        assert start_run(client).status_code == 200
        delete(deployment.folder / "main.db")
        refused = start_run(client)
        assert refused.status_code == 503
        assert refused.json()["detail"] == "The database file was deleted or moved away"
        assert str(deployment.folder) not in refused.text
        wait_for_status(lambda: client.get("/sessions/s1"), 503)
        wait_for_status(lambda: client.get("/ready"), 503)
        assert client.get("/ready").json()["checks"]["database"] == "failed"
        assert client.get("/health").status_code == 200
        server.wait_for("The database file was deleted or moved away: ")
        assert not (deployment.folder / "main.db").exists()
    check_start_is_refused(deployment, "main.db")
    check_start_is_refused(deployment, "main.db", "--workers", "2")
    shutil.rmtree(deployment.folder / "main.db.workers")
    with serve_config(deployment.path) as server, open_client(deployment, server) as client:
        assert client.get("/sessions").json()["data"] == []


def test_file_that_is_moved_back_is_used_again(deployment: Deployment) -> None:
    path = deployment.folder / "main.db"
    with serve_config(deployment.path) as server, open_client(deployment, server) as client:
        assert start_run(client).status_code == 200
        path.rename(path.with_name("away.db"))
        assert start_run(client).status_code == 503
        path.with_name("away.db").rename(path)
        wait_for_status(lambda: client.get("/ready"), 200)
        assert start_run(client).status_code == 200
        assert len(client.get("/sessions/s1/runs").json()) == 2


def test_replaced_file_is_not_mixed_with_the_open_one(deployment: Deployment) -> None:
    path = deployment.folder / "main.db"
    with serve_config(deployment.path) as server, open_client(deployment, server) as client:
        assert start_run(client).status_code == 200
        replace(path)
        refused = start_run(client)
        assert refused.status_code == 503
        assert refused.json()["detail"] == "The database file was replaced"
        wait_for_status(lambda: client.get("/sessions"), 503)
        wait_for_status(lambda: client.get("/ready"), 503)


def test_overwritten_file_is_reported_as_damaged(deployment: Deployment) -> None:
    path = deployment.folder / "main.db"
    with serve_config(deployment.path) as server, open_client(deployment, server) as client:
        assert start_run(client).status_code == 200
        path.write_bytes(bytes(path.stat().st_size))
        refused = client.get("/sessions")
        assert refused.status_code == 503
        assert refused.json()["detail"] == "The database is damaged"
        assert client.get("/ready").status_code == 503


def test_deleted_file_of_another_database_is_noticed(deployment: Deployment) -> None:
    with serve_config(deployment.path) as server, open_client(deployment, server) as client:
        assert start_run(client, "apart").status_code == 200
        delete(deployment.folder / "second.db")
        assert start_run(client, "apart").status_code == 503
        wait_for_status(lambda: client.get("/ready"), 503)
        assert start_run(client, "echo").status_code == 200
    check_start_is_refused(deployment, "second.db")


def test_replaced_worker_creates_no_empty_database(deployment: Deployment) -> None:
    with (
        serve_config(deployment.path, "--workers", "2") as server,
        open_client(deployment, server) as client,
    ):
        assert start_run(client).status_code == 200
        delete(deployment.folder / "main.db")
        children = Path(f"/proc/{server.process.pid}/task/{server.process.pid}/children")
        os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
        deadline = time.monotonic() + PATIENCE
        statuses: list[int] = []
        while statuses.count(503) < 50:
            assert time.monotonic() < deadline, statuses
            try:
                statuses.append(client.get("/sessions/s1").status_code)
            except httpx2.TransportError:
                time.sleep(0.05)
        assert set(statuses) <= {200, 503}
        assert not (deployment.folder / "main.db").exists()
        server.process.kill()
        server.process.wait()
