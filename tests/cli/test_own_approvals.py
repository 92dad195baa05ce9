"""The owner of a run decides at the terminal with a token of `--scope user`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Agentctl, Terminal
from tests.cli.local_project import serve_paying_agent
from tests.kit.conditions import wait_for

CONFIG = """
[authorization]
algorithm = "RS256"
verification_key_files = ["signing.pub.pem"]
[signing]
key_file = "signing.pem"
"""


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """Serve a project with authorization; return its configuration and URL."""
    folder = tmp_path_factory.mktemp("office")
    with serve_paying_agent(folder, CONFIG, "signing.pem", "RS256") as server:
        yield folder / "agentctl.toml", server.url


@pytest.fixture
def ann(agentctl: Agentctl, office: tuple[Path, str]) -> dict[str, str]:
    """The environment of a user."""
    config = str(office[0])
    minted = agentctl("token", "mint", "--sub", "ann", "--scope", "user", "--config", config)
    assert minted.code == 0, minted.stderr
    return {"AGENTCTL_TOKEN": minted.stdout.strip()}


def count_denials(agentctl: Agentctl, office: tuple[Path, str]) -> int:
    config = str(office[0])
    denied = agentctl("audit", "list", "--outcome", "denied", "-o", "name", "--config", config)
    assert denied.code == 0, denied.stderr
    return len(denied.lines)


def test_owner_decides_by_id_without_a_scope_for_approvals(
    agentctl: Agentctl, terminal: Terminal, office: tuple[Path, str], ann: dict[str, str]
) -> None:
    place = ("--url", office[1])
    begin = ("runs", "start", "--agent", "payer", *place, "-m")
    asked = agentctl(*begin, "ask user|open", env=ann)
    assert asked.code == 9, asked.stderr
    listed = agentctl("approvals", "list", *place, "-o", "json", env=ann)
    question, call = sorted(json.loads(listed.stdout)["data"], key=lambda row: row["kind"])[::-1]
    assert (question["question"], question["component_id"]) == ("Which way?", "payer")
    assert (call["arguments"], call["user_id"]) == ({"amount": 10, "to": "bob"}, "ann")
    first = agentctl("approvals", "list", *place, "--limit", "1", "-o", "json", env=ann)
    cursor = json.loads(first.stdout)["meta"]["next_cursor"]
    rest = agentctl("approvals", "list", *place, "--cursor", cursor, "-o", "name", env=ann)
    assert {*rest.lines, json.loads(first.stdout)["data"][0]["approval_id"]} == {
        question["approval_id"],
        call["approval_id"],
    }

    shown = agentctl("approvals", "get", call["approval_id"][:18], "-o", "table", *place, env=ann)
    assert "arguments.amount  10" in shown.stdout
    answer = ("approvals", "answer", question["approval_id"], "--answer", "left")
    answered = agentctl(*answer, "-o", "json", *place, env=ann)
    assert (answered.code, json.loads(answered.stdout)["status"]) == (0, "answered")
    yes = terminal("approvals", "approve", call["approval_id"], *place, types="y\n", env=ann)
    assert (yes.code, "approved: approval of pay" in yes.screen) == (0, True), yes.screen

    of_run = ("approvals", "list", "--run", call["run_id"], "-o", "json", *place)
    wait_for(lambda: agentctl(*of_run, "--status", "pending", env=ann).stdout.count("open_file"))
    assert len(json.loads(agentctl(*of_run, env=ann).stdout)["data"]) == 3
    assert count_denials(agentctl, office) == 0


def test_hint_of_a_paused_run_works_for_its_owner(
    agentctl: Agentctl, terminal: Terminal, office: tuple[Path, str], ann: dict[str, str]
) -> None:
    begin = ("runs", "start", "--agent", "payer", "--url", office[1], "-m")
    later = terminal(*begin, "user", types="l\n", when="[l]ater: ", env=ann)
    hint = later.screen.split("decide with: agentctl ")[1].split()
    assert later.code == 9
    decided = agentctl(*shlex.split(" ".join(hint)), "--yes", env=ann)
    assert (decided.code, "approved: approval of pay" in decided.stderr) == (0, True)


def test_start_says_that_another_person_has_to_decide(
    agentctl: Agentctl, office: tuple[Path, str], ann: dict[str, str]
) -> None:
    place = ("--url", office[1])
    asked = agentctl("runs", "start", "--agent", "payer", *place, "-m", "other", env=ann)
    assert (asked.code, "another person has to decide" in asked.stderr) == (9, True)
    one = agentctl("approvals", "list", "--policy", "other", "-o", "name", *place, env=ann)
    refused = agentctl("approvals", "approve", one.lines[0], "--yes", *place, env=ann)
    assert (refused.code, "decision of an approver" in refused.stderr) == (4, True), refused.stderr
