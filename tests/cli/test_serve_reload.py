"""`agentctl serve --reload`: a new process after each change, and no run ended without a word."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx2
import pytest

from agentctl.config.extras import build_extra_command
from agentctl.interface.requests import RunRequest
from agentctl.remote import RemoteOperations
from tests.cli.conftest import Agentctl
from tests.cli.local_project import wait_for_line
from tests.kit.conditions import PATIENCE
from tests.kit.process import ServerProcess, serve_config, start_server

CONFIG = """
[server]
drain_seconds = {drain}
[authorization]
enabled = false
[[models]]
id = "slow"
provider = "demo"
model = "slow"
[[agents]]
id = "slow"
model = "slow"
description = "{description}"
tools = ["shop:price"]
"""
TOOL = '''
def price(article: str) -> float:
    """{text}"""
    return 4.2
'''


def _write(folder: Path, *, description: str = "first", text: str = "One", drain: int = 30) -> Path:
    (folder / "shop.py").write_text(TOOL.format(text=text))
    config = folder / "agentctl.toml"
    config.write_text(CONFIG.format(description=description, drain=drain))
    return config


BROKEN = [
    ("shop.py", "import os\nos._exit(3)\n", "the process ended with exit code 3"),
    ("agentctl.toml", "[server\n", "is not valid TOML at line 1"),
]
"""A file, its text, and the fault that is reported after this change."""


def _agent(server: ServerProcess) -> tuple[str, str]:
    """The description of the agent, and that of its tool."""

    async def get() -> tuple[str, str]:
        async with RemoteOperations(server.url, None) as operations:
            record = (await operations.components.get("agent", "slow")).value
            return record["description"], record["tools"][0]["description"]

    return asyncio.run(get())


def _start(server: ServerProcess) -> str:
    async def create() -> str:
        async with RemoteOperations(server.url, None) as operations:
            request = RunRequest("hello", "s", background=True)
            return (await operations.runs.create("agent", "slow", request)).value["run_id"]

    return asyncio.run(create())


def _wait_for_reloads(server: ServerProcess, count: int) -> str:
    return wait_for_line(server.log, "new requests are served by the new process", count)


def _status(server: ServerProcess, run_id: str) -> str:
    async def get() -> str:
        async with RemoteOperations(server.url, None) as operations:
            return (await operations.runs.get(run_id)).value["status"]

    return asyncio.run(get())


def test_changes_reload_and_broken_ones_keep_the_server(tmp_path: Path) -> None:
    with serve_config(_write(tmp_path), "--reload") as server:
        server.wait_for("reload: for development")
        assert _agent(server) == ("first", "One")

        (tmp_path / "shop.py").write_text(TOOL.format(text="Another"))
        assert "reload: shop.py changed" in _wait_for_reloads(server, 1)
        assert _agent(server) == ("first", "Another")

        for number, (file, broken, fault) in enumerate(BROKEN):
            (tmp_path / file).write_text(broken)
            said = server.wait_for(fault)
            assert said.count("reload failed, the previous process continues: ") == number + 1
            assert _agent(server) == ("first", "Another")

        _write(tmp_path, description="second", text="Repaired")
        _wait_for_reloads(server, 2)
        assert _agent(server) == ("second", "Repaired")
        assert "Traceback" not in server.log_text


APPLICATION = """
import agentctl

app = agentctl.create_app("project/agentctl.toml")


@app.get("/word")
def get_word() -> str:
    return {text!r}
"""


def test_changes_of_an_application_reload(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    _write(tmp_path / "project")
    module = tmp_path / "front.py"
    module.write_text(APPLICATION.format(text="first"))
    options = ("--app", "front:app", "--port", "0", "--reload")
    with start_server(*options, log=tmp_path / "server.log") as server:
        assert httpx2.get(f"{server.url}/word").json() == "first"
        module.write_text(APPLICATION.format(text="another"))
        assert "reload: front.py changed" in _wait_for_reloads(server, 1)
        assert httpx2.get(f"{server.url}/word").json() == "another"
        module.write_text("import agentctl\nraise KeyError\n")
        server.wait_for("reload failed, the previous process continues: --app front:app")
        assert httpx2.get(f"{server.url}/word").json() == "another"
        module.write_text(APPLICATION.format(text="repaired"))
        _wait_for_reloads(server, 2)
        _write(tmp_path / "project", description="second")
        _wait_for_reloads(server, 3)
        assert _agent(server) == ("second", "One")
        assert httpx2.get(f"{server.url}/word").json() == "repaired"


def test_live_runs_end_in_the_previous_process(tmp_path: Path) -> None:
    with serve_config(_write(tmp_path), "--reload") as server:
        run_id = _start(server)
        _write(tmp_path, text="Other")
        server.wait_for("for 1 live run, then cancels")
        assert _status(server, run_id) == "RUNNING"
        for _ in range(2):  # the second signal cancels the run
            server.process.terminate()
            server.wait_for("stopping")
        assert server.process.wait(PATIENCE) == 0


def test_a_reload_cancels_and_names_runs_after_the_drain_of_their_own_process(
    tmp_path: Path,
) -> None:
    with serve_config(_write(tmp_path, drain=30), "--reload") as server:
        _write(tmp_path, drain=1)
        _wait_for_reloads(server, 1)

        run_id = _start(server)
        _write(tmp_path, drain=1, text="Other")
        said = server.wait_for(f"drain_seconds have passed: 1 runs are cancelled: {run_id}")
        assert "waits 1 s for 1 live run, then cancels" in said


def test_reload_needs_one_worker(agentctl: Agentctl, home: Path) -> None:
    config = str(_write(home))
    ended = agentctl("serve", "--config", config, "--reload", "--workers", "2")
    assert (ended.code, ended.stdout) == (2, "")
    assert "error: --reload has one worker process, not 2" in ended.stderr


def test_a_missing_package_is_named(
    agentctl: Agentctl, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agentctl.server.processes.reload.find_spec", lambda _: None)
    ended = agentctl("serve", "--config", str(_write(home)), "--reload")
    assert ended.code == 2
    assert f"hint: {build_extra_command('reload')}" in ended.stderr
