"""Numbers and states that several views show are the same in each of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.cli.held_tool import HOLD, NAPPER
from tests.kit.command import Result, run_command
from tests.kit.conditions import wait_for
from tests.kit.deployment import ADMIN, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import ThreadedServer, serve_in_thread


@dataclass
class Commands:
    """Commands on a server."""

    host: ThreadedServer
    folder: Path

    def run(self, *arguments: str, screen: bool = False) -> Result:
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "COLUMNS": "100",
            "NO_COLOR": "1",
            "AGENTCTL_TOKEN": self.host.deployment.token("boss", ADMIN),
        }
        at = ("--url", self.host.url)
        return run_command(
            *arguments, *at, environment=environment, folder=self.folder, screen=screen
        )

    def read(self, *arguments: str) -> Any:
        """Return the JSON that a command prints."""
        result = self.run(*arguments, "-o", "json")
        assert result.code == 0, result.stderr
        return json.loads(result.raw)

    def start(self, *arguments: str) -> str:
        """Start a run and return its id."""
        result = self.run("runs", "start", *arguments, "-o", "name")
        assert result.code == 0, result.stderr
        return result.stdout.strip()


@pytest.fixture(scope="module")
def commands(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[Commands]:
    folder = tmp_path_factory.mktemp("numbers")
    (folder / "holding_tools.py").write_text(HOLD)
    extra = NAPPER.format(url=model_endpoint.base_url, module="holding_tools")
    deployment = create_deployment(folder, model_endpoint.base_url, extra=extra)
    with serve_in_thread(deployment) as host:
        yield Commands(host, folder)


@pytest.mark.parametrize("way", [(), ("--no-stream",)])
def test_failure_on_a_server_names_its_request(commands: Commands, way: tuple[str, ...]) -> None:
    ended = commands.run("runs", "start", "--agent", "http-500", "-m", "x", *way)
    assert ended.code == 1
    run_id = ended.stderr.partition("error: run ")[2].partition(" failed")[0]
    run = commands.read("runs", "get", run_id)
    hint = f"the server log has the details of run {run_id}, request {run['request_id']}"
    assert hint in ended.stderr


def test_every_list_shows_that_work_goes_on(commands: Commands) -> None:
    run_id = commands.start(
        "--agent", "napper", "-m", '{"name": "held"}', "--session", "h1", "--background"
    )
    wait_for(lambda: any(commands.folder.glob("*.began")))
    (began,) = commands.folder.glob("*.began")
    live = commands.read("runs", "get", run_id)
    assert live["total_tokens"] == live["metrics"]["total_tokens"] > 0, "the first model call"
    listed = commands.run("runs", "list", "--live", "-o", "tsv", "--fields", "run_id,total_tokens")
    assert f"{run_id}\t{live['total_tokens']}" in listed.lines

    cancelled = commands.run("runs", "cancel", run_id)
    assert (cancelled.code, "1 run ended, but work continues" in cancelled.stderr) == (8, True)
    for place in (("sessions", "list"), ("runs", "list"), ("sessions", "runs", "h1")):
        shown = commands.run(*place, screen=True).stdout
        assert "stopped ! work goes on" in shown, place
    (row,) = (row for row in commands.read("sessions", "list")["data"] if row["session_id"] == "h1")
    assert row["last_run"]["holding"] == ["hold"]
    assert [row["run_id"] for row in commands.read("runs", "list", "--at-work")["data"]] == [run_id]

    began.with_suffix("").touch()
    wait_for(lambda: commands.run("runs", "cancel", run_id).code == 0)
    assert "work goes on" not in commands.run("sessions", "list", screen=True).stdout


@pytest.mark.parametrize("component", [("--team", "crew"), ("--workflow", "line")])
def test_a_run_has_one_number_of_tokens(commands: Commands, component: tuple[str, str]) -> None:
    session = component[1]
    before = commands.read("usage")["total"]["total_tokens"]
    started = commands.run(
        "runs", "start", *component, "-m", "ask echo", "--session", session, "--stream"
    )
    (line,) = (line for line in started.stderr.splitlines() if " completed in " in line)
    said = int(line.rpartition(", ")[2].split()[0])
    assert commands.read("usage")["total"]["total_tokens"] == before + said
    waited = commands.run("runs", "start", *component, "-m", "ask echo", "--no-stream")
    assert f"completed, {said} tokens" in waited.stderr
    (top, *_) = commands.read("sessions", "runs", session)
    members = commands.read("runs", "list", "--session", session)["data"]
    assert len(members) > 1
    assert said == sum(run["metrics"]["total_tokens"] for run in members) == top["total_tokens"]
    for place in (("runs", "list", "--session", session), ("sessions", "runs", session)):
        rows = commands.run(*place, "-o", "tsv").lines
        (row,) = (row for row in rows if row.startswith(top["run_id"]))
        assert str(said) == row.split("\t")[rows[0].split("\t").index("total_tokens")]
    fields = commands.run("runs", "get", top["run_id"], "-o", "tsv").lines
    assert dict(zip(*(row.split("\t") for row in fields), strict=True))["total_tokens"] == str(said)
    for shown in (("runs", "get", top["run_id"]), ("sessions", "get", session)):
        assert f"{said} tokens" in commands.run(*shown, "-o", "text").stdout


def test_a_session_of_another_kind_is_named(commands: Commands) -> None:
    commands.start("--agent", "echo", "-m", "hello", "--session", "taken")
    refused = commands.run("runs", "start", "--team", "crew", "-m", "hello", "--session", "taken")
    assert refused.code == 6
    assert "error: the session taken is for runs of agents, not of teams" in refused.stderr
    assert "hint: choose another session with --session NEW" in refused.stderr
    other = commands.start("--team", "crew", "-m", "hello", "--session", "free")
    assert other


def test_options_of_a_transcript_select_it(commands: Commands) -> None:
    run_id = commands.start("--agent", "echo", "-m", "hello", "--session", "shown")
    plain = commands.run("runs", "get", run_id)
    assert plain.lines[0].startswith("run_id\t")
    for shown in (("runs", "get", run_id, "--timeline"), ("sessions", "get", "shown", "--members")):
        result = commands.run(*shown)
        assert (result.code, "✓ completed" in result.stdout) == (0, True), result.stdout
        refused = commands.run(*shown, "-o", "tsv")
        assert (refused.code, refused.stdout) == (2, "")
        assert f"{shown[-1]} has no effect with -o tsv" in refused.stderr
    assert (
        "--last is for a transcript"
        in commands.run("sessions", "get", "shown", "--last", "1", "--fields", "session_id").stderr
    )


def test_workers_of_a_server_are_listed_in_the_words_of_doctor(commands: Commands) -> None:
    (worker,) = commands.read("doctor", "--workers")
    assert (worker["state"], worker["live_runs"]) == ("idle", 0)
    shown = commands.run("doctor", "--workers", screen=True).stdout
    assert "WORKER" in shown
    assert f"idle      0  {worker['host']}" in shown
    found = {each["check"]: each["what"] for each in commands.read("doctor")}
    words = f"idle: process {worker['pid']} on {worker['host']}, with 0 live runs"
    assert found[f"worker {worker['worker_id'][:13]}"].startswith(words)
