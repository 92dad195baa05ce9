"""`agentctl approvals`, and the commands on runs that wait for people."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jwt
import pytest

from tests.cli.conftest import Agentctl, Terminal
from tests.cli.local_project import running_command, serve_paying_agent, wait_for_line
from tests.kit.command import Result
from tests.kit.conditions import PATIENCE, wait_for

CONFIG = """
[authorization]
enabled = false
[audit]
key_file = "audit.pem"
"""


@dataclass(frozen=True)
class Payers:
    """A server whose agent waits for people, and its configuration."""

    url: str
    config: Path

    def door(self, place: str) -> tuple[str, ...]:
        return ("--url", self.url) if place == "remote" else ("--config", str(self.config))


@pytest.fixture(scope="module")
def payers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Payers]:
    """Serve a project without authorization."""
    folder = tmp_path_factory.mktemp("payers")
    with serve_paying_agent(folder, CONFIG, "audit.pem", "EdDSA") as server:
        yield Payers(server.url, folder / "agentctl.toml")


@pytest.fixture
def local(payers: Payers) -> tuple[str, ...]:
    """Options for the configuration of the server."""
    return payers.door("local")


@pytest.fixture
def remote(payers: Payers) -> tuple[str, ...]:
    """Options for the server."""
    return payers.door("remote")


Start = Callable[[str], str]


@pytest.fixture
def start(agentctl: Agentctl, payers: Payers) -> Start:
    """Start a run as ann that pauses, on the server's database; return its id."""

    def run(words: str) -> str:
        place = (*payers.door("local"), "--as-user", "ann")
        ended = agentctl("runs", "start", "--agent", "payer", "-m", words, *place, "-o", "json")
        assert ended.code == 9, ended.stderr
        record = json.loads(ended.stdout)
        assert record["status"] == "PAUSED"
        return str(record["run_id"])

    return run


def read_approval(agentctl: Agentctl, payers: Payers, run_id: str) -> dict[str, object]:
    listed = agentctl("approvals", "list", "--run", run_id, "-o", "jsonl", *payers.door("local"))
    assert listed.code == 0, listed.stderr
    approval: dict[str, object] = json.loads(listed.lines[0])
    return approval


def wait_for_status(agentctl: Agentctl, payers: Payers, run_id: str, status: str) -> None:
    get = partial(agentctl, "runs", "get", run_id, "-o", "json", *payers.door("local"))
    wait_for(lambda: json.loads(get().stdout)["status"] == status, problem=lambda: get().stdout)


def test_approved_call_is_made_by_a_server(
    agentctl: Agentctl, payers: Payers, start: Start, local: tuple[str, ...]
) -> None:
    run_id = start("other")
    approval = read_approval(agentctl, payers, run_id)
    approval_id = str(approval["approval_id"])
    seen = str(approval["arguments_hash"])

    pending = agentctl("approvals", "list", "--status", "pending", "-o", "table", *local)
    row = next(line for line in pending.lines if approval_id in line)
    assert row.split()[1:7] == ["approval", "pending", "pay", "payer", "ann", row.split()[6]]
    shown = agentctl("approvals", "get", approval_id[:18], "-o", "table", *local)
    assert "arguments.amount  10" in shown.stdout
    assert seen in shown.stdout

    refused = agentctl("approvals", "approve", approval_id, *local)
    assert refused.code == 2
    assert "pass --hash HASH" in refused.stderr
    other = agentctl("approvals", "approve", approval_id, "--hash", "00000000", *local)
    assert (other.code, "a different call" in other.stderr) == (6, True)
    short = agentctl("approvals", "approve", approval_id, "--hash", seen[7:12], *local)
    assert short.code == 2

    approved = agentctl("approvals", "approve", approval_id, "--hash", seen[7:15], *local)
    assert approved.code == 0, approved.stderr
    assert "a server continues run" in approved.stderr
    wait_for_status(agentctl, payers, run_id, "COMPLETED")
    again = agentctl("approvals", "approve", approval_id, "--yes", *local)
    assert (again.code, "is approved by" in again.stderr) == (6, True)
    drawn = agentctl("runs", "get", run_id, "-o", "text", *local)
    assert "approved by" in drawn.stdout


def test_edited_call_shows_the_difference(
    agentctl: Agentctl, payers: Payers, start: Start, local: tuple[str, ...], tmp_path: Path
) -> None:
    run_id = start("other")
    approval_id = str(read_approval(agentctl, payers, run_id)["approval_id"])
    file = tmp_path / "new.json"
    file.write_text('{"amount": 3, "to": "bob"}\n')
    approve = ("approvals", "approve", approval_id, "--yes", "--arguments")
    wrong = agentctl(*approve, '{"amount": "much", "to": "bob"}', *local)
    assert (wrong.code, "does not match its schema" in wrong.stderr) == (2, True)
    edited = agentctl(*approve, f"@{file}", *local)
    assert edited.code == 0, edited.stderr
    assert "argument amount  10 -> 3" in edited.stderr
    wait_for_status(agentctl, payers, run_id, "COMPLETED")
    ledger = (payers.config.parent / "ledger.jsonl").read_text()
    assert '{"amount": 3, "to": "bob"}' in ledger


@pytest.mark.parametrize(
    ("words", "command", "status"),
    [
        ("other", ("reject", "--note", "too much"), "rejected"),
        ("ask", ("answer", "--answer", "left"), "answered"),
        ("open", ("complete", "--result", '{"text": "hi"}'), "answered"),
        ("open", ("complete", "--fail", "--note", "no such file"), "answered"),
    ],
)
def test_each_kind_has_its_command(
    agentctl: Agentctl,
    payers: Payers,
    start: Start,
    words: str,
    command: tuple[str, ...],
    status: str,
) -> None:
    approval_id = str(read_approval(agentctl, payers, start(words))["approval_id"])
    verb, *options = command
    place = payers.door("remote")
    wrong = "approve" if words != "other" else "answer"
    extra = ("--yes",) if wrong == "approve" else ("--answer", "x")
    refused = agentctl("approvals", wrong, approval_id, *extra, *place)
    assert refused.code == 2
    assert f"use: agentctl approvals {'approve' if words == 'other' else verb}" in refused.stderr
    decided = agentctl("approvals", verb, approval_id, *options, "-o", "json", *place)
    assert decided.code == 0, decided.stderr
    assert json.loads(decided.stdout)["status"] == status


def test_approve_at_a_terminal_asks(
    terminal: Terminal, agentctl: Agentctl, payers: Payers, start: Start
) -> None:
    approval_id = str(read_approval(agentctl, payers, start("other"))["approval_id"])
    place = payers.door("remote")
    no = terminal("approvals", "approve", approval_id, *place, types="n\n")
    assert (no.code, "argument amount  10" in no.screen) == (2, True)
    assert "hash" in no.screen
    yes = terminal("approvals", "approve", approval_id, *place, types="y\n")
    assert (yes.code, "approved: approval of pay" in yes.screen) == (0, True)


def test_start_at_a_terminal_asks_in_place(
    terminal: Terminal, payers: Payers, local: tuple[str, ...]
) -> None:
    begin = ("runs", "start", "--agent", "payer", *local, "-m")
    paid = terminal(*begin, "user", types="y\n", when="[l]ater: ")
    assert (paid.code, "Results: paid" in paid.screen) == (0, True), paid.screen
    answered = terminal(*begin, "ask", types="left\n", when="(left or right): ")
    assert (answered.code, "Results: left" in answered.screen) == (0, True), answered.screen
    later = terminal(*begin, "user", types="l\n", when="[l]ater: ")
    assert (later.code, "decide with: agentctl approvals approve" in later.screen) == (9, True)
    stopped = terminal(*begin, "user", types="\x03", when="[l]ater: ")
    assert stopped.code == 130
    assert "is CANCELLED" in stopped.screen


def test_start_off_a_terminal_says_how_to_decide(
    agentctl: Agentctl, local: tuple[str, ...]
) -> None:
    ended = agentctl("runs", "start", "--agent", "payer", "-m", "user", *local)
    assert ended.code == 9
    assert "waits for approval of pay" in ended.stderr
    assert "decide with: agentctl approvals approve" in ended.stderr


def test_paused_run_is_listed_and_cancelled(
    agentctl: Agentctl, start: Start, local: tuple[str, ...]
) -> None:
    run_id = start("other")
    waited = agentctl("runs", "wait", run_id, "-o", "tsv", *local)
    assert (waited.code, "waits for approval of pay" in waited.stderr) == (9, True)
    listed = agentctl("runs", "list", "-o", "table", *local)
    row = next(line for line in listed.lines if run_id in line)
    assert "‖ paused" in row
    assert "approval of pay" in row
    for form in ("text", "markdown"):
        drawn = agentctl("runs", "get", run_id, "-o", form, *local)
        assert "‖ paused" in drawn.stdout
        assert "waits for a decision" in drawn.stdout
    stopped = agentctl("runs", "cancel", run_id, *local)
    assert (stopped.code, "stopped run" in stopped.stderr) == (0, True)


def test_watch_waits_through_a_pause(
    agentctl: Agentctl,
    payers: Payers,
    start: Start,
    local: tuple[str, ...],
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    run_id = start("other")
    log = tmp_path / "log"
    with running_command(
        "runs", "watch", run_id, *local, environment=environment, log=log
    ) as watch:
        wait_for_line(log, "waits for approval of pay; decide with")
        approval_id = str(read_approval(agentctl, payers, run_id)["approval_id"])
        decided = agentctl("approvals", "approve", approval_id, "--yes", *payers.door("local"))
        assert decided.code == 0, decided.stderr
        assert watch.wait(PATIENCE) == 0
        assert b"Results: paid" in watch.stdout.read()


def test_watch_of_approvals_prints_each_new_one(
    start: Start, payers: Payers, environment: dict[str, str], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    place = payers.door("remote")
    words = ("approvals", "watch", "--kind", "external", "--every", "0.2", "-o", "jsonl")
    with running_command(*words, *place, environment=environment, log=log) as watch:
        run_id = start("open")
        while json.loads(watch.stdout.readline())["run_id"] != run_id:
            pass


def test_approval_ids_are_completed(agentctl: Agentctl, payers: Payers, start: Start) -> None:
    approval_id = str(read_approval(agentctl, payers, start("other"))["approval_id"])
    config = payers.config
    line = f"agentctl approvals get --config {config} {approval_id[:12]}"
    env = {"_AGENTCTL_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": line}
    completed: Result = agentctl(env=env)
    assert approval_id in completed.stdout


def test_receipt_states_a_decision_to_others(
    agentctl: Agentctl, payers: Payers, start: Start, local: tuple[str, ...], tmp_path: Path
) -> None:
    approval = read_approval(agentctl, payers, start("user"))
    one = str(approval["approval_id"])

    refused = agentctl("approvals", "receipt", one, *local)
    assert (refused.code, "is not decided yet" in refused.stderr) == (6, True)

    rejected = agentctl("approvals", "reject", one, *local)
    assert rejected.code == 0, rejected.stderr

    file = tmp_path / "receipt.jwt"
    key = payers.config.with_name("audit.pub.pem")
    written = agentctl("approvals", "receipt", one, "--to-file", str(file), *local)
    assert written.code == 0, written.stderr

    shown = agentctl("approvals", "verify-receipt", str(file), "--key", str(key), "-o", "json")
    assert shown.code == 0, shown.stderr

    content = json.loads(shown.stdout)
    assert (content["status"], content["arguments_hash"]) == (
        "rejected",
        approval["arguments_hash"],
    )

    decoded = jwt.decode(
        file.read_text().strip(), key.read_bytes(), algorithms=["EdDSA"], options={"require": []}
    )
    assert decoded == content

    token = file.read_text().replace(".", ".e30", 1)
    forged = agentctl("approvals", "verify-receipt", "-", "--key", str(key), input=token)
    assert (forged.code, "signed statement is not valid" in forged.stderr) == (1, True)

    missing = agentctl("approvals", "verify-receipt", "none.jwt", "--key", str(key))
    assert (missing.code, "none.jwt cannot be read" in missing.stderr) == (2, True)


def test_chat_asks_in_place_and_goes_on(terminal: Terminal, remote: tuple[str, ...]) -> None:
    begin = ("chat", "payer", *remote)
    replies = [("[l]ater: ", "y\n"), ("\r\n> ", "\x04")]
    paid = terminal(*begin, types="user\n", when="conversation\r\n> ", then=replies)
    assert (paid.code, "argument amount  10" in paid.screen) == (0, True), paid.screen
    assert "Results: paid" in paid.screen
