"""Databases that move while clients use them through a server."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from uuid import uuid4

import httpx2

from agentctl.config.settings import Database
from tests.commands import Result, run_command
from tests.conditions import PATIENCE, wait_for
from tests.postgres import drop_schema
from tests.process import base_environment, serve_config
from tests.runs.components import LONG
from tests.store.sums import add_up

CLIENTS, REQUESTS = (8, 2_000) if LONG else (2, 8)
"""Clients, and acknowledged writes in each phase of the move."""

CONFIG = """
[authorization]
enabled = false

[server]
drain_seconds = 1

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
from pathlib import Path


async def work(message, context):
    try:
        await asyncio.sleep(3_600)
    finally:
        Path(__file__).with_name("stopped").touch()


async def work_elsewhere(message, context):
    try:
        await asyncio.sleep(3_600)
    finally:
        Path(__file__).with_name("stopped-elsewhere").touch()
"""

ELSEWHERE = """
[[agents]]
id = "elsewhere"
object = "slow:work_elsewhere"
database = "second"
"""


@dataclass
class Clients:
    """Threads that create, use and delete sessions until the end of the block.

    Attributes:
        kept, deleted: ids of sessions with a run, whose last write was acknowledged.
        refused: the status and the code of each other response.
    """

    url: str
    kept: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    refused: list[tuple[int, str]] = field(default_factory=list)

    def __enter__(self) -> Clients:
        self._stopped = threading.Event()
        self._threads = [threading.Thread(target=self._work) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        with httpx2.Client(base_url=self.url, timeout=PATIENCE) as http:
            number = 0
            while not self._stopped.wait(0.02):
                name = f"w{uuid4().hex}"
                number = number + 1
                form = {"message": f"say {name}", "session_id": name, "stream": "false"}
                if not self._is_done(http.post("/agents/echo/runs", data=form)):
                    continue
                if number % 3:
                    self.kept.add(name)
                elif self._is_done(http.delete(f"/sessions/{name}")):
                    self.deleted.add(name)

    def _is_done(self, response: httpx2.Response) -> bool:
        if response.status_code not in (200, 201, 204):
            self.refused.append((response.status_code, response.json()["error_code"]))
            return False
        return True

    def wait_for_writes(self) -> None:
        """Wait until some more writes were acknowledged."""
        goal = len(self.kept) + REQUESTS
        wait_for(lambda: len(self.kept) >= goal, problem=f"no writes: {self.refused[-3:]}")


def write_config(folder: Path, name: str, *entries: Database, more: str = "") -> Path:
    folder = folder / name
    folder.mkdir()
    text = "".join(
        f'[[databases]]\nid = "{entry.id}"\nurl = "{entry.url}"\n'
        + (f'search_path = "{entry.search_path}"\n' if entry.search_path else "")
        for entry in entries
    )
    (folder / "agentctl.toml").write_text(CONFIG + more + text)
    (folder / "slow.py").write_text(CODE)
    return folder / "agentctl.toml"


def test_acknowledged_writes_are_in_the_new_database(tmp_path: Path, postgres_url: str) -> None:
    source = Database("main", f"sqlite:///{tmp_path / 'main.db'}")
    target = Database("new", postgres_url, search_path=f"moved_{uuid4().hex}")
    config = write_config(tmp_path, "move", source, target)

    def copy(*options: str) -> Result:
        line = ("db", "copy", "--to", "new", "--config", str(config), "-o", "json", *options)
        return run_command(*line, environment=base_environment(), folder=tmp_path)

    try:
        with (
            serve_config(write_config(tmp_path, "old", source)) as server,
            httpx2.Client(base_url=server.url, timeout=PATIENCE) as http,
        ):
            with Clients(server.url) as clients:
                clients.wait_for_writes()
                form = {"message": "wait", "session_id": "slow"}
                form |= {"background": "true", "stream": "false"}
                slow = http.post("/agents/slow/runs", data=form).json()["run_id"]
                assert copy().code == 0
                clients.wait_for_writes()
                refused = copy("--finish", "--wait", "0")
                assert (refused.code, "runs are live" in refused.stderr) == (6, True)
                clients.wait_for_writes()
                finished = copy("--finish", "--wait", "0", "--interrupt")
                assert finished.code == 0, finished.stderr
                count = len(clients.refused)
                wait_for(lambda: len(clients.refused) > count, problem="writes go on")
            assert set(clients.refused) == {(503, "DATABASE_MOVED")}
            wait_for((tmp_path / "old" / "stopped").exists, problem="the live run goes on")
            assert asyncio.run(add_up(source)) == asyncio.run(add_up(target))
            kept = min(clients.kept)
            assert http.get(f"/sessions/{kept}").status_code == 200
            assert http.get("/ready").status_code == 503
        with (
            serve_config(write_config(tmp_path, "new", target)) as server,
            httpx2.Client(base_url=server.url, timeout=PATIENCE) as http,
        ):
            runs = f"/agents/slow/runs/{slow}?session_id=slow"
            wait_for(
                lambda: http.get(runs).json()["status"] == "ERROR", problem="the run does not end"
            )
            assert http.get(runs).json()["error"]["code"] == "WORKER_LOST"
            found = http.get("/sessions", params={"search": max(clients.kept)}).json()["data"]
            assert [row["session_id"] for row in found] == [max(clients.kept)]
            statuses = {name: http.get(f"/sessions/{name}").status_code for name in clients.kept}
            assert set(statuses.values()) == {200}, statuses
            statuses = {name: http.get(f"/sessions/{name}").status_code for name in clients.deleted}
            assert set(statuses.values()) == {404}, statuses
            form |= {"message": "again", "background": "false"}
            assert http.post("/agents/echo/runs", data=form).status_code == 200
    finally:
        asyncio.run(drop_schema(target))


def test_live_run_of_another_database_stops_when_that_moves(
    tmp_path: Path, postgres_url: str
) -> None:
    first = Database("main", f"sqlite:///{tmp_path / 'main.db'}")
    source = Database("second", f"sqlite:///{tmp_path / 'second.db'}")
    moved = Database("second", postgres_url, search_path=f"moved_{uuid4().hex}")
    config = write_config(tmp_path, "old", first, source, more=ELSEWHERE)
    move = write_config(tmp_path, "move", source, replace(moved, id="new"))

    def start(http: httpx2.Client, agent: str) -> str:
        form = {"message": "wait", "session_id": agent, "background": "true", "stream": "false"}
        return str(http.post(f"/agents/{agent}/runs", data=form).json()["run_id"])

    try:
        with (
            serve_config(config) as server,
            httpx2.Client(base_url=server.url, timeout=PATIENCE) as http,
        ):
            stays = start(http, "slow")
            moves = start(http, "elsewhere")
            wait_for(lambda: read_status(http, "slow", stays) == "RUNNING", problem="no run begins")
            wait_for(
                lambda: read_status(http, "elsewhere", moves) == "RUNNING", problem="no run begins"
            )
            line = ("db", "copy", "--from", "second", "--to", "new", "--config", str(move))
            copied = run_command(
                *line,
                "--finish",
                "--wait",
                "0",
                "--interrupt",
                environment=base_environment(),
                folder=tmp_path,
            )
            assert copied.code == 0, copied.stderr
            wait_for((tmp_path / "old" / "stopped-elsewhere").exists, problem="the run goes on")
            assert read_status(http, "slow", stays) == "RUNNING"
            assert not (tmp_path / "old" / "stopped").exists()
        with (
            serve_config(write_config(tmp_path, "new", first, moved, more=ELSEWHERE)) as server,
            httpx2.Client(base_url=server.url, timeout=PATIENCE) as http,
        ):
            lost = lambda: read_status(http, "elsewhere", moves) == "ERROR"  # noqa: E731
            wait_for(lost, problem="the run does not end")
            assert read_status(http, "slow", stays) == "CANCELLED"
    finally:
        asyncio.run(drop_schema(moved))


def read_status(http: httpx2.Client, agent: str, run_id: str) -> str:
    run = http.get(f"/agents/{agent}/runs/{run_id}?session_id={agent}").json()
    return str(run["status"])
