"""The report about a deployment of two servers, one of which is killed."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from tests.kit.command import run_command
from tests.kit.conditions import wait_for
from tests.kit.deployment import ADMIN, Deploy, Deployment
from tests.kit.postgres import postgres_schemas
from tests.kit.process import serve_config
from tests.kit.threaded_server import serve_in_thread

ATTEMPTS = 5
"""Kills until one is seen before the other server has removed the dead worker."""


@pytest.fixture(params=["sqlite", "postgres"])
def placed(request: pytest.FixtureRequest, deploy: Deploy) -> Iterator[Deployment]:
    """A deployment on each engine."""
    if request.param == "sqlite":
        yield deploy()
        return
    with postgres_schemas(request.getfixturevalue("postgres_url")) as databases:
        yield deploy(databases=databases)


@dataclass(frozen=True)
class Reader:
    """The reports of one server."""

    client: httpx2.Client

    def read(self) -> dict[str, Any]:
        answer = self.client.get("/deployment")
        assert answer.status_code == 200, answer.text
        report: dict[str, Any] = answer.json()
        return report

    def find(self, pid: int) -> dict[str, Any] | None:
        return next((each for each in self.read()["workers"] if each["pid"] == pid), None)

    def find_dead(self, pid: int) -> dict[str, Any] | None:
        """Return the report in which the worker is dead; None if it was removed before."""
        while True:
            report = self.read()
            found = [each for each in report["workers"] if each["pid"] == pid]
            if not found or found[0]["state"] == "dead":
                return report if found else None


def test_report_shows_all_servers_and_the_killed_one(placed: Deployment) -> None:
    with serve_in_thread(placed) as server, placed.client(server.url, "boss", ADMIN) as client:
        reader = Reader(client)
        (own,) = reader.read()["workers"]
        assert (own["pid"], own["state"], own["reason"]) == (os.getpid(), "idle", None)
        for attempt in range(ATTEMPTS):
            report, killed = kill_another(placed, reader, f"other-{attempt}.log")
            if report is not None:
                break
        assert report is not None
        (finding,) = [each for each in report["findings"] if "dead" in each["what"]]
        assert finding["verdict"] == "note"
        assert f"its process has ended: process {killed} on " in finding["what"]
        wait_for(lambda: reader.find(killed) is None)
        check_doctor(placed, server.url)


def kill_another(placed: Deployment, reader: Reader, log: str) -> tuple[dict[str, Any] | None, int]:
    """Kill another server that executes a run; return the report with its death, and its pid."""
    with serve_config(placed.path, log=log) as other:
        pid = other.process.pid
        body = {"message": "hi", "background": True, "stream": False}
        with placed.client(other.url, "ann", "agents:run") as caller:
            run = caller.post("/agents/trickle/runs", json=body)
        assert run.status_code == 202, run.text
        seen = reader.find(pid)
        assert seen is not None
        assert (seen["state"], seen["live_runs"]) == ("working", 1)
        other.stop(signal.SIGKILL)
        return reader.find_dead(pid), pid


def check_doctor(placed: Deployment, url: str) -> None:
    """Check that the doctor uses the same words on the machine and for the server."""
    boss = placed.token("boss", ADMIN)
    ann = placed.token("ann", "agents:read")
    here = examine(placed, "--config", str(placed.path), token=boss)
    there = examine(placed, "--url", url, token=boss)
    assert find_words(here) == find_words(there)

    checks = [each["check"] for each in examine(placed, "--url", url, token=ann)]
    assert not [check for check in checks if check.startswith("worker")]


def examine(placed: Deployment, *place: str, token: str) -> list[dict[str, str]]:
    """Return the findings of the doctor."""
    environment = {**os.environ, "AGENTCTL_TOKEN": token}
    words = ("doctor", *place, "-o", "json")
    done = run_command(*words, environment=environment, folder=placed.folder)
    findings: list[dict[str, str]] = json.loads(done.stdout)
    return findings


def find_words(findings: list[dict[str, str]]) -> set[str]:
    """Return the texts about schemas and backups, without ages."""
    return {
        re.sub(r"\w+ s old", "old", each["what"])
        for each in findings
        if {"schema", "backup"} & {*each["what"].split()}
    }
