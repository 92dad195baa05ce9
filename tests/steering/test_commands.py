"""`agentctl runs send`, `runs messages` and the client, on a server and locally."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentctl.client import Client
from tests.commands import Result, run_command
from tests.conditions import wait_for
from tests.deployment import ADMIN, Deployment
from tests.server.threaded_server import ThreadedServer, serve_in_thread
from tests.steering.stepping_models import SteppingModels


@pytest.fixture
def server(site: Deployment) -> Iterator[ThreadedServer]:
    with serve_in_thread(site) as served:
        yield served


@pytest.mark.parametrize("place", ["local", "remote"])
def test_command_sends_a_message_that_the_run_answers(
    site: Deployment, server: ThreadedServer, models: SteppingModels, place: str, tmp_path: Path
) -> None:
    token = site.token("me", ADMIN)
    (tmp_path / "token").write_text(token)
    door = ("--config", str(site.path))
    if place == "remote":
        door = ("--url", server.url, "--token-file", str(tmp_path / "token"))

    def agentctl(*arguments: str) -> Result:
        return run_command(*arguments, *door, environment={"HOME": str(tmp_path)}, folder=tmp_path)

    models.hold()
    with Client(server.url, token) as client:
        run = client.runs.start(agent="worker", message="work 3 a", background=True)
        wait_for(lambda: bool(models.requests))
        sent = agentctl("runs", "send", run["run_id"], "only primes", "-o", "json")
        assert sent.code == 0, sent.stderr
        record = json.loads(sent.stdout)
        assert (record["status"], record["content"]) == ("waiting", "only primes")
        assert f"sent to run {run['run_id']}" in sent.stderr

        models.let_go()
        wait_for(lambda: client.runs.get(run["run_id"])["status"] == "COMPLETED")
        assert "only primes" in client.runs.get(run["run_id"])["content"]

        listed = agentctl("runs", "messages", run["run_id"], "-o", "json")
        assert json.loads(listed.stdout) == client.runs.messages(run["run_id"])["messages"]
        table = agentctl("runs", "messages", run["run_id"], "-o", "table").stdout
        assert table.split()[:3] == ["ID", "STATUS", "CONTENT"]
        assert "delivered  only primes" in table
        assert agentctl("runs", "messages", "nothing").code != 0

        late = agentctl("runs", "send", run["run_id"], "x", "--late", "refuse")
        assert late.code != 0
        assert "the run had ended as COMPLETED" in late.stderr


def test_client_sends_a_message_to_a_run(
    site: Deployment, server: ThreadedServer, models: SteppingModels
) -> None:
    models.hold()
    with Client(server.url, site.token("me", ADMIN)) as client:
        run = client.runs.start(agent="worker", message="work 1 a", background=True)
        wait_for(lambda: bool(models.requests))
        sent = client.runs.send(run, "only primes")
        models.let_go()
        wait_for(lambda: client.runs.get(run["run_id"])["status"] == "COMPLETED")
        (listed,) = client.runs.messages(run["run_id"])["messages"]
        assert (listed["message_id"], listed["status"]) == (sent["message_id"], "delivered")
