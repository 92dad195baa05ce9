"""A SQLite file that is deleted, moved away or replaced under a server (R50)."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest

from agentctl.errors import Unavailable
from agentctl.runs.life import supervision
from agentctl.server import create_app, running
from agentctl.work.event_loop import RETRY_LIMIT_SECONDS
from tests.kit.command import run_command
from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import ADMIN, Deploy, Deployment
from tests.kit.model import ModelEndpoint
from tests.kit.process import run_agentctl
from tests.kit.threaded_server import ThreadedServer, serve_in_thread


def delete(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def replace(path: Path) -> None:
    shutil.copy(path, path.with_name("copy.db"))
    path.with_name("copy.db").replace(path)


def open_client(deployment: Deployment, server: ThreadedServer) -> httpx2.Client:
    bearer = {"Authorization": f"Bearer {deployment.token('me', ADMIN)}", "Connection": "close"}
    return httpx2.Client(base_url=server.url, headers=bearer, timeout=PATIENCE)


def start_run(client: httpx2.Client, agent: str = "echo") -> httpx2.Response:
    body = {"message": "x", "stream": False, "session_id": "s1"}
    return client.post(f"/agents/{agent}/runs", json=body)


def wait_for_status(ask: Callable[[], httpx2.Response], status: int) -> None:
    wait_for(lambda: ask().status_code == status, problem=lambda: ask().status_code)


def check_start_is_refused(deployment: Deployment, name: str) -> None:
    place = ("--config", str(deployment.path), "--port", "0")
    ended = run_command("serve", *place, environment=os.environ, folder=deployment.folder)
    check_refusal(deployment, name, ended.code, ended.stderr)


def check_start_of_workers_is_refused(deployment: Deployment, name: str) -> None:
    place = ("--config", str(deployment.path), "--port", "0")
    ended = run_agentctl("serve", *place, "--workers", "2", cwd=deployment.folder)
    check_refusal(deployment, name, ended.returncode, ended.stderr.decode())


def check_refusal(deployment: Deployment, name: str, code: int, error: str) -> None:
    assert (code, "the database file is missing" in error) == (7, True), error
    assert f"rm -r {deployment.folder / name}.workers" in error
    assert not (deployment.folder / name).exists()


def test_deleted_file_acknowledges_no_run(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    with serve_in_thread(deployment) as server, open_client(deployment, server) as client:
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
        wait_for(lambda: "The database file was deleted or moved away: " in caplog.text)
        assert not (deployment.folder / "main.db").exists()
    check_start_is_refused(deployment, "main.db")
    check_start_of_workers_is_refused(deployment, "main.db")
    shutil.rmtree(deployment.folder / "main.db.workers")
    with serve_in_thread(deployment) as server, open_client(deployment, server) as client:
        assert client.get("/sessions").json()["data"] == []


def test_file_that_is_moved_back_is_used_again(deployment: Deployment) -> None:
    path = deployment.folder / "main.db"
    with serve_in_thread(deployment) as server, open_client(deployment, server) as client:
        assert start_run(client).status_code == 200
        path.rename(path.with_name("away.db"))
        assert start_run(client).status_code == 503
        path.with_name("away.db").rename(path)
        wait_for_status(lambda: start_run(client), 200)
        assert len(client.get("/sessions/s1/runs").json()) == 2


def test_replaced_file_is_not_mixed_with_the_open_one(deployment: Deployment) -> None:
    path = deployment.folder / "main.db"
    with serve_in_thread(deployment) as server, open_client(deployment, server) as client:
        assert start_run(client).status_code == 200
        replace(path)
        refused = start_run(client)
        assert refused.status_code == 503
        assert refused.json()["detail"] == "The database file was replaced"
        wait_for_status(lambda: client.get("/sessions"), 503)
        wait_for_status(lambda: client.get("/ready"), 503)


def test_overwritten_file_is_reported_as_damaged(deployment: Deployment) -> None:
    path = deployment.folder / "main.db"
    with serve_in_thread(deployment) as server, open_client(deployment, server) as client:
        assert start_run(client).status_code == 200
        path.write_bytes(bytes(path.stat().st_size))
        refused = client.get("/sessions")
        assert refused.status_code == 503
        assert refused.json()["detail"] == "The database is damaged"
        assert client.get("/ready").status_code == 503


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"garbage" * 2_000)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def cut(path: Path) -> None:
    os.truncate(path, 8 * 4_096)


@pytest.mark.parametrize("harm", [overwrite, empty, cut])
def test_damaged_file_starts_no_run(
    deployment: Deployment, model_endpoint: ModelEndpoint, harm: Callable[[Path], None]
) -> None:
    path = deployment.folder / "main.db"
    with serve_in_thread(deployment) as server, open_client(deployment, server) as client:
        assert start_run(client).status_code == 200
        before = len(model_endpoint.requests("echo"))
        harm(path)
        for body in ({"stream": False}, {"stream": True}, {"background": True, "stream": False}):
            body = {"message": "x", "session_id": "s1", **body}
            refused = client.post("/agents/echo/runs", json=body)
            assert (refused.status_code, refused.json()["error_code"]) == (503, "UNAVAILABLE")
            assert refused.json()["detail"] == "The database is damaged"
            assert "retry-after" not in refused.headers
            # A busy database is asked again for half a minute; a damaged one is refused at once.
            assert refused.elapsed.total_seconds() < RETRY_LIMIT_SECONDS
        assert len(model_endpoint.requests("echo")) == before
        wait_for_status(lambda: client.get("/ready"), 503)


WAITING = """
import asyncio
from pathlib import Path

FOLDER = Path(__file__).parent


async def wait(message, context):
    (FOLDER / "begun").touch()
    while not (FOLDER / "go").exists():
        await asyncio.sleep(0.02)
    return "done"
"""


def test_run_whose_file_is_damaged_meanwhile_is_not_shown_as_live(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A caller waits for 8 s until the end of a run is stored.
    monkeypatch.setattr(supervision, "STORE_WAIT_SECONDS", 0.5)
    extra = '[[agents]]\nid = "waiting"\nobject = "waiting:wait"\n'
    deployment = deploy(extra, files={"waiting.py": WAITING})
    path = deployment.folder / "main.db"
    with (
        serve_in_thread(deployment) as server,
        open_client(deployment, server) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        started = pool.submit(start_run, client, "waiting")
        wait_for((deployment.folder / "begun").exists)
        content = path.read_bytes()
        overwrite(path)
        harmed = time.monotonic()
        (deployment.folder / "go").touch()
        answer = started.result(PATIENCE)
        assert (answer.status_code, answer.json()["error_code"]) == (503, "OUTCOME_UNKNOWN")
        assert answer.json()["run_id"]
        # A busy database is asked again for half a minute.
        assert time.monotonic() - harmed < RETRY_LIMIT_SECONDS
        # A stop would wait for the file, in which the end of the run cannot be stored.
        path.write_bytes(content)


@pytest.mark.parametrize("suffix", ["-wal", "-shm"])
def test_log_that_is_removed_acknowledges_no_run(deployment: Deployment, suffix: str) -> None:
    path = deployment.folder / "main.db"
    log = path.with_name(path.name + suffix)
    away = path.with_name("away")
    with serve_in_thread(deployment) as server, open_client(deployment, server) as client:
        assert start_run(client).status_code == 200
        log.rename(away)
        refused = start_run(client)
        assert refused.status_code == 503
        assert refused.json()["detail"] == "The database has lost its log"
        assert str(deployment.folder) not in refused.text
        wait_for_status(lambda: client.get("/sessions/s1"), 503)
        wait_for_status(lambda: client.get("/ready"), 503)
        assert not log.exists()
        # Put back, it is used again.
        away.rename(log)
        wait_for_status(lambda: start_run(client), 200)
        log.unlink()
        assert start_run(client).status_code == 503
    # The stop of the server has written what the log had.
    with serve_in_thread(deployment) as server, open_client(deployment, server) as client:
        assert len(client.get("/sessions/s1/runs").json()) == 2
        assert start_run(client).status_code == 200


def test_deleted_file_of_another_database_is_noticed(deployment: Deployment) -> None:
    with serve_in_thread(deployment) as server, open_client(deployment, server) as client:
        assert start_run(client, "apart").status_code == 200
        delete(deployment.folder / "second.db")
        assert start_run(client, "apart").status_code == 503
        wait_for_status(lambda: client.get("/ready"), 503)
        assert start_run(client, "echo").status_code == 200
    check_start_is_refused(deployment, "second.db")


async def test_replaced_worker_creates_no_empty_database(deployment: Deployment) -> None:
    """A worker that starts later opens the databases as an application does."""
    app = create_app(deployment.settings)
    async with running(app):
        delete(deployment.folder / "main.db")

        with pytest.raises(Unavailable) as refused:
            async with running(create_app(deployment.settings)):
                pass

    assert refused.value.detail == "The database file is missing"
    assert not (deployment.folder / "main.db").exists()
