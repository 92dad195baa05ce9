"""A database that moves from one server to another one."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from uuid import uuid4

import httpx2

from agentctl.config.settings import Database
from tests.kit.command import Result, run_command
from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import Deployment
from tests.kit.postgres import drop_schema
from tests.kit.process import base_environment, serve_config
from tests.kit.threaded_server import serve_in_thread

CONFIG = """
[authorization]
enabled = false

[search]
enabled = true

[[models]]
id = "echo"
provider = "demo"
model = "echo"

[[agents]]
id = "echo"
model = "echo"

[[agents]]
id = "slow"
object = "slow:work"
"""

CODE = """
import asyncio
import signal


async def work(message, context):
    await asyncio.sleep(3_600)
"""


def write_config(folder: Path, name: str, *entries: Database) -> Path:
    folder = folder / name
    folder.mkdir()
    text = "".join(
        f'[[databases]]\nid = "{entry.id}"\nurl = "{entry.url}"\n'
        + (f'search_path = "{entry.search_path}"\n' if entry.search_path else "")
        for entry in entries
    )
    (folder / "agentctl.toml").write_text(CONFIG + text)
    (folder / "slow.py").write_text(CODE)
    return folder / "agentctl.toml"


def test_new_server_has_what_the_stopped_one_acknowledged(
    tmp_path: Path, postgres_url: str
) -> None:
    source = Database("main", f"sqlite:///{tmp_path / 'main.db'}")
    target = Database("new", postgres_url, search_path=f"moved_{uuid4().hex}")
    config = write_config(tmp_path, "move", source, target)

    def copy() -> Result:
        line = ("db", "copy", "--to", "new", "--config", str(config), "--yes")
        return run_command(*line, environment=base_environment(), folder=tmp_path)

    try:
        with (
            serve_config(write_config(tmp_path, "old", source)) as server,
            httpx2.Client(base_url=server.url, timeout=PATIENCE) as http,
        ):
            refused = copy()
            assert (refused.code, "a process works" in refused.stderr) == (6, True), refused.stderr
            form = {"message": "say marmalade", "session_id": "kept", "stream": "false"}
            assert http.post("/agents/echo/runs", data=form).status_code == 200
            form = {"message": "wait", "session_id": "slow", "stream": "false"}
            started = http.post("/agents/slow/runs", data=form | {"background": "true"}).json()
            slow = f"/agents/slow/runs/{started['run_id']}?session_id=slow"
            wait_for(lambda: http.get(slow).json()["status"] == "RUNNING", problem="no run begins")
            # A live run moves as it is after a crash.
            server.stop(signal.SIGKILL)

        copied = copy()

        assert copied.code == 0, copied.stderr
        new = Deployment(write_config(tmp_path, "new", target).parent)
        with serve_in_thread(new) as server:
            http = server.client
            found = http.get("/sessions", params={"search": "marmalade"}).json()["data"]
            assert [row["session_id"] for row in found] == ["kept"]
            wait_for(
                lambda: http.get(slow).json()["status"] == "ERROR", problem="the run does not end"
            )
            assert http.get(slow).json()["error"]["code"] == "WORKER_LOST"
            form = {"message": "again", "session_id": "kept", "stream": "false"}
            assert http.post("/agents/echo/runs", data=form).status_code == 200
    finally:
        asyncio.run(drop_schema(target))
