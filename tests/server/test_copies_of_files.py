"""Copies of files that a fork into another database makes, when the fork or the file is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import apsw
import pytest

from agentctl.service.runs import repeats
from agentctl.store.database import Work
from agentctl.store.repositories.files import FileRow
from tests.kit.deployment import ADMIN, Deploy
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.server.files_of_runs import build_png

EXTRA = """
[rate_limits]
runs_per_minute = 2

[openai]
enabled = true

[[agents]]
id = "counter"
object = "counting:count"

[[agents]]
id = "counter-apart"
object = "counting:count"
database = "second"
"""

COUNTING = """
async def count(message, context):
    return f"{len(context.files)} files"
"""

SCOPES = ("agents:run", "agents:read", "sessions:read", "sessions:write", "sessions:delete")


@pytest.fixture(scope="module")
def served(deploy: Deploy) -> Iterator[ThreadedServer]:
    deployment = deploy(EXTRA, files={"counting.py": COUNTING})
    with serve_in_thread(deployment) as host:
        yield host


def run_with_file(served: ThreadedServer, user: str, shade: int) -> Any:
    """Run the agent of the default database with a file; return the record."""
    headers = served.bearer(user, *SCOPES)
    answer = served.client.post(
        "/files", params={"name": "a.png"}, content=build_png(shade), headers=headers
    )
    body = {"message": "go", "stream": False, "files": [answer.json()["file_id"]]}
    run = served.client.post("/agents/counter/runs", json=body, headers=headers).json()
    assert run["content"] == "1 files"
    return run


def fork_apart(served: ThreadedServer, user: str, run: Any) -> Any:
    """Fork a run into the other database, with its message and its file."""
    body = {"at": 0, "agent_id": "counter-apart", "stream": False}
    path = f"/agents/counter/runs/{run['run_id']}/fork"
    headers = served.bearer(user, *SCOPES)
    answer = served.client.post(path, json=body, headers=headers)
    if answer.status_code == 409 and answer.json()["error_code"] == "NEEDS_CONFIRMATION":
        body["confirm"] = answer.json()["plan"]["confirm"]
        answer = served.client.post(path, json=body, headers=headers)
    return answer


def list_files(served: ThreadedServer, user: str, database: str) -> list[Any]:
    headers = served.bearer("root", ADMIN)
    query = {"user_id": user, "db_id": database}
    files: list[Any] = served.client.get("/files", params=query, headers=headers).json()["data"]
    return files


def test_fork_beyond_a_rate_limit_leaves_no_copies(served: ThreadedServer) -> None:
    run = run_with_file(served, "ann", 31)
    forked = fork_apart(served, "ann", run)
    assert forked.json()["content"] == "1 files", forked.text
    assert len(list_files(served, "ann", "second")) == 1
    refused = fork_apart(served, "ann", run)
    assert (refused.status_code, refused.json()["error_code"]) == (429, "RATE_LIMITED")
    assert len(list_files(served, "ann", "second")) == 1


def test_file_that_is_deleted_during_its_copy_has_none(
    served: ThreadedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_with_file(served, "ben", 32)
    create: Callable[..., Work[None]] = repeats._create_files

    def create_late(rows: list[FileRow], *others: Any) -> Work[None]:
        with apsw.Connection(str(served.deployment.folder / "main.db")) as connection:
            connection.execute("DELETE FROM files WHERE file_id = ?", (run["files"][0]["file_id"],))
        return create(rows, *others)

    monkeypatch.setattr(repeats, "_create_files", create_late)
    forked = fork_apart(served, "ben", run)
    assert forked.json()["status"] in ("COMPLETED", "ERROR"), forked.text
    assert list_files(served, "ben", "main") == []
    assert list_files(served, "ben", "second") == []
