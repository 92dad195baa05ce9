"""Commands of this project on real AgentOS servers (docs/agentos.md, "Commands on AgentOS")."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agentctl.cli import lists
from compat.fixtures import Agentctl
from compat.servers import PEERS, Peer
from tests.cli.conftest import Terminal
from tests.process import base_environment


def test_commands_name_the_server(agentctl: Agentctl, served: Peer) -> None:
    listed = agentctl("agents", "list", "-o", "name")
    assert listed.stderr == f"note: {served.url} is AgentOS {served.release}\n"
    version = agentctl.record("version")
    assert (version["server_version"], version["interface_version"]) == (served.release, None)
    assert json.loads(agentctl("api", "GET", "/info").stdout)["agno_version"] == served.release
    missing = agentctl("agents", "get", "nobody")
    assert missing.code == 5
    assert f"cause: {served.url} is AgentOS {served.release}" in missing.stderr


def test_components_are_listed_and_shown(agentctl: Agentctl) -> None:
    assert "tool-add" in agentctl("agents", "list", "-o", "name").lines
    agent = agentctl.record("agents", "get", "tool-add")
    assert (agent["agent_id"], agent["model"]["name"]) == ("tool-add", "tool:add")
    assert [tool["name"] for tool in agent["tools"]] == ["add"]
    shown = agentctl("teams", "list", "-o", "tsv").lines[1].split("\t")
    assert shown[:5] == ["crew", "Crew", "coordinate", "delegate", "echo, hang"]
    assert agentctl.record("teams", "get", "crew")["members"][0]["agent_id"] == "echo"
    rows = [line.split("\t")[:3] for line in agentctl("workflows", "list").lines[1:]]
    assert rows == [
        ["line", "Line", "first > second"],
        ["stuck", "Stuck", "first"],
        ["form", "Form", "sum > say"],
    ]
    steps = agentctl.record("workflows", "get", "line")["steps"]
    assert (steps[0]["agent_id"], steps[1]["team_id"]) == ("echo", "crew")


def test_runs_start_in_every_way(agentctl: Agentctl) -> None:
    streamed = agentctl("runs", "start", "--agent", "echo", "-m", "hello", "--session", "ways")
    assert (streamed.code, streamed.stdout) == (0, "hello\n")
    assert "of session ways on http" in streamed.stderr
    start = ("runs", "start", "--session", "ways", "-m")
    plain = agentctl.record(*start, '{"a": 2, "b": 3}', "--agent", "tool-add", "--no-stream")
    assert (plain["status"], plain["content"], plain["input"]) == (
        "COMPLETED", "5", '{"a": 2, "b": 3}',
    )  # fmt: skip
    assert plain["tools"][0]["tool_args"] == {"a": 2, "b": 3}
    team = agentctl("runs", "start", "--team", "crew", "-m", "echo this", "--session", "ways-t")
    assert (team.code, team.stdout) == (0, "echo this\n"), team.stderr
    line = ("runs", "start", "--workflow", "line", "-m", "echo it", "--session", "ways-w")
    assert agentctl(*line).stdout == agentctl(*line, "--no-stream").stdout == "echo it\n"
    failed = agentctl(*start, "x", "--agent", "http-500")
    assert failed.code == 1
    assert ": secret of the provider" in failed.stderr
    assert "None" not in failed.stderr
    keyed = agentctl(*start, "x", "--agent", "echo", "--idempotency-key", "k")
    assert (keyed.code, keyed.stdout) == (2, "")
    assert "does not have idempotency keys" in keyed.stderr
    given = agentctl(*start, "x", "--agent", "echo", "--input", "{}")
    assert (given.code, given.stdout) == (2, "")
    assert "does not have an object as input of a run" in given.stderr


def test_background_run_is_watched_to_its_end(agentctl: Agentctl) -> None:
    start = ("runs", "start", "--agent", "tool-wait", "-m", '{"seconds": 0.5}', "--session", "b")
    (run_id,) = agentctl(*start, "--background", "-o", "name").lines
    where = ("--agent", "tool-wait", "--session", "b")
    watched = agentctl("runs", "watch", run_id, *where)
    assert (watched.code, watched.stdout) == (0, "waited\n"), watched.stderr
    assert agentctl.record("runs", "watch", run_id, *where)["status"] == "COMPLETED"
    events = agentctl(*start, "--background", "--stream", "-o", "jsonl").lines
    run_id = json.loads(events[0])["run_id"]
    replayed = agentctl("runs", "watch", run_id, *where, "-o", "jsonl").lines
    assert [json.loads(line)["event"] for line in replayed] == [
        json.loads(line)["event"] for line in events
    ]
    missing = agentctl("runs", "watch", "nowhere", *where)
    assert (missing.code, "run not found" in missing.stderr) == (5, True)


@contextmanager
def _streaming(agentctl: Agentctl, *words: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "agentctl", *words, "--url", agentctl.url]
    environment = base_environment() | {"HOME": str(agentctl.folder)}
    process = subprocess.Popen(
        command,
        env=environment | {"AGENTCTL_TOKEN": agentctl.token},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def test_cancel_is_followed_until_the_run_has_stopped(agentctl: Agentctl) -> None:
    start = ("runs", "start", "--agent", "trickle", "-m", "x", "--session", "c", "-o", "jsonl")
    with _streaming(agentctl, *start) as process:
        assert process.stdout is not None
        run_id = json.loads(process.stdout.readline())["run_id"]
        where = ("--agent", "trickle", "--session", "c")
        cancelled = agentctl.record(
            "runs", "cancel", run_id, *where, "--reason", "why", "--wait=30"
        )
        out, err = process.communicate(timeout=30)
    assert (cancelled["cancel"], cancelled["status"]) == ("stopped", "CANCELLED")
    assert process.returncode == 1
    assert f"error: run {run_id} was cancelled" in err
    names = [json.loads(line)["event"] for line in out.splitlines()]
    assert names[-1] == "RunCancelled"
    again = agentctl.record("runs", "cancel", run_id, *where)
    assert (again["cancel"], again["status"]) == ("already_final", "CANCELLED")


def test_cancel_of_an_unknown_run_is_no_cancel(agentctl: Agentctl) -> None:
    agentctl("runs", "start", "--agent", "echo", "-m", "hello", "--session", "u")
    where = ("--agent", "echo", "--session", "u", "--wait", "0.2")
    ended = agentctl("runs", "cancel", "nothing", *where)
    assert (ended.code, ended.stdout) == (5, "")
    assert "accepted the cancel, as it does for every id" in ended.stderr


def start_paused(agentctl: Agentctl, agent: str, session: str, *options: str) -> str:
    """Start a run that pauses; return its id."""
    start = ("runs", "start", "--agent", agent, "-m", '{"a": 2, "b": 3}', "--session", session)
    ended = agentctl(*start, *options)
    assert ended.code == 9, ended.stderr
    (run,) = agentctl.record("sessions", "runs", session)
    run_id: str = run["run_id"]
    assert f"error: run {run_id} waits for a decision about add\n" in ended.stderr
    return run_id


@pytest.mark.parametrize("option", ["--stream", "--no-stream"] if PEERS else ["--stream"])
def test_paused_run_names_what_it_waits_for(agentctl: Agentctl, option: str) -> None:
    session = f"paused{option}"
    run_id = start_paused(agentctl, "clerk", session, option)
    (line,) = agentctl("sessions", "runs", session, "-o", "table").lines[1:]
    assert line.split()[1:3] == ["‖", "paused"]
    assert "a decision about add" in line
    where = ("--agent", "clerk", "--session", session)
    waited = agentctl("runs", "wait", run_id, *where)
    assert waited.code == 9, waited.stderr
    # AgentOS accepts the cancel, and does not end a paused run.
    cancelled = agentctl("runs", "cancel", run_id, *where, "--wait", "0.2")
    assert (cancelled.code, "cancel requested, still PAUSED" in cancelled.stderr) == (8, True)


def test_paused_run_is_continued_at_a_terminal(agentctl: Agentctl, terminal: Terminal) -> None:
    message = ("-m", '{"a": 2, "b": 3}', "--url", agentctl.url)
    env = {"AGENTCTL_TOKEN": agentctl.token}
    when = "[l]ater: "
    components = (("agent", "clerk"), ("team", "office"), ("workflow", "form"))
    for kind, component in components if PEERS else components[:1]:
        start = ("runs", "start", f"--{kind}", component, *message)
        for option in ("--stream", "--no-stream"):
            ended = terminal(*start, option, env=env, types="y\n", when=when)
            assert ended.code == 0, ended.screen
            assert "argument a  2" in ended.screen
            lines = ended.screen.partition("[l]ater: y")[2].splitlines()
            assert [line for line in lines if re.search(r"(^|\D)5$", line)], ended.screen
    start = ("runs", "start", "--agent", "clerk", *message)
    later = terminal(*start, env=env, types="l\n", when=when)
    assert (later.code, "runs start asks at a terminal" in later.screen) == (9, True), later.screen


def test_approvals_are_listed_and_decided(agentctl: Agentctl) -> None:
    decisions = (("ap1", "approve", "5"), ("ap2", "reject", ""))
    for session, decision, content in decisions if PEERS else decisions[:1]:
        run_id = start_paused(agentctl, "bank", session)
        listed = agentctl.record("approvals", "list", "--run", run_id, "--status", "pending")
        (approval,) = listed["data"]
        assert (approval["tool_name"], approval["arguments"]) == ("add", {"a": 2, "b": 3})
        assert (approval["policy"], approval["component_id"]) == ("other", "bank")
        approval_id = approval["approval_id"]
        assert agentctl.record("approvals", "get", approval_id) == approval
        yes = ("--hash", approval["arguments_hash"][7:15]) if decision == "approve" else ()
        if yes:
            edited = agentctl("approvals", "approve", approval_id, *yes, "--arguments", "{}")
            assert (edited.code, "does not have" in edited.stderr) == (2, True)
        decided = agentctl("approvals", decision, approval_id, *yes)
        assert decided.code == 0, decided.stderr
        waited = agentctl("runs", "wait", run_id, "--agent", "bank", "--session", session)
        assert waited.code == 0, waited.stderr
        (run,) = agentctl.record("sessions", "runs", session)
        assert content in run["content"]
        assert agentctl("approvals", decision, approval_id, *yes).code == 6
    refused = agentctl("approvals", "list", "--tool", "add")
    assert (refused.code, "does not have approvals by tool" in refused.stderr) == (2, True)


def test_sessions_are_read_renamed_and_deleted(agentctl: Agentctl) -> None:
    for name, kind, component in (("s1", "agent", "echo"), ("s2", "workflow", "line")):
        message = ("-m", "echo one", "--session", name)
        assert agentctl("runs", "start", f"--{kind}", component, *message).code == 0
    page = agentctl.record("sessions", "list", "--limit", "1", "--sort-order", "asc")
    following = page["meta"]["next_cursor"]
    assert following == "2"
    second = agentctl.record(
        "sessions", "list", "--limit", "1", "--sort-order", "asc", "--cursor", following
    )
    assert page["data"][0]["session_id"] != second["data"][0]["session_id"]
    session = agentctl.record("sessions", "get", "s1")
    assert [line["content"] for line in session["chat_history"]][-2:] == ["echo one", "echo one"]
    (run,) = agentctl.record("sessions", "runs", "s1")
    assert (run["input"], run["status"], run["agent_id"]) == ("echo one", "COMPLETED", "echo")
    assert agentctl.record("runs", "get", run["run_id"], "--session", "s1") == run
    assert len(agentctl.record("runs", "list", "--session", "s1", "--status", "ERROR")["data"]) == 0
    assert agentctl("sessions", "rename", "s2", "Later").code == 0
    assert agentctl.record("sessions", "get", "s2")["session_name"] == "Later"
    assert len(agentctl.record("sessions", "runs", "s2")) == 1
    unknown = agentctl("sessions", "delete", "s1", "nowhere", "--yes")
    assert (unknown.code, agentctl("sessions", "get", "s1").code) == (5, 0)
    assert agentctl("sessions", "delete", "nowhere", "--yes").code == 5
    assert agentctl("sessions", "delete", "s1", "s2", "--yes").code == 0
    assert agentctl("sessions", "get", "s1").code == 5


def test_finished_run_has_no_warning_about_its_work(agentctl: Agentctl) -> None:
    start = ("runs", "start", "--agent", "echo", "-m", "hello", "--session", "ended")
    assert agentctl(*start).code == 0
    for words in (("sessions", "runs", "ended"), ("sessions", "get", "ended")):
        shown = agentctl(*words, "-o", "table")
        assert shown.code == 0, shown.stderr
        assert "work" not in shown.stdout + shown.stderr
    (line,) = agentctl("sessions", "runs", "ended", "-o", "table").lines[1:]
    assert "completed" in line


def test_start_and_end_of_a_member_are_shown_once(agentctl: Agentctl) -> None:
    member = ["Echo: started", "Echo: completed"]
    steps = [*member, "Crew: started", *member, "Crew: completed"]
    for words, expected in ((("--team", "crew"), member), (("--workflow", "line"), steps)):
        ended = agentctl("runs", "start", *words, "-m", "echo it")
        assert (ended.code, ended.stdout) == (0, "echo it\n"), ended.stderr
        lines = [line.strip() for line in ended.stderr.splitlines()]
        shown = [line for line in lines if line.endswith((": started", ": completed"))]
        assert shown == expected, ended.stderr


def test_sessions_are_found_by_the_name_that_is_shown(
    agentctl: Agentctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    for session, message in (("n1", "Where is the tea"), ("n2", "tea is here")):
        start = ("runs", "start", "--agent", "echo", "-m", message, "--session", session)
        assert agentctl(*start).code == 0
    assert agentctl("sessions", "list", "--name", "where IS", "-o", "name").lines == ["n1"]
    assert agentctl("sessions", "list", "--name", "tea", "-o", "name").lines == ["n2"]
    agentctl("sessions", "rename", "n2", "Wherever")
    found = agentctl("sessions", "list", "--name", "Where", "-o", "name").lines
    assert sorted(found) == ["n1", "n2"]
    for number in range(3):
        start = ("runs", "start", "--agent", "echo", "-m", "other", "--session", f"o{number}")
        assert agentctl(*start).code == 0
    first = agentctl("sessions", "list", "--name", "Where", "--limit", "2", "-o", "table")
    assert "only page 1 of" in first.stderr
    monkeypatch.setattr(lists, "MAXIMUM_LIMIT", 2)  # the first page has no session of the name
    assert agentctl("sessions", "list", "--all", "--name", "Where", "-o", "name").lines == [
        "n2",
        "n1",
    ]
    everything = agentctl("sessions", "list", "--all", "-o", "name").lines
    assert len(everything) == len(set(everything)) >= 5
    runs = ("runs", "list", "--session", "n1", "--all", "-o", "name")
    assert len(agentctl(*runs).lines) == 1
    assert agentctl(*runs, "--error", "x").lines == []


def test_accounts_are_created_listed_and_revoked(agentctl: Agentctl) -> None:
    create = ("accounts", "create", "--scope", "agents:run", "--expires-in", "2d")
    created = agentctl(*create, "ci")
    assert (created.code, created.stdout.startswith("agno_pat_")) == (0, True), created.stderr
    (account,) = agentctl.record("accounts", "list", "--name", "ci")["data"]
    assert (account["state"], account["scopes"]) == (
        "active", [{"scope": "agents:run", "effect": "allow"}],
    )  # fmt: skip
    assert account["expires_at"].endswith("Z")
    other = agentctl.record(*create, "second")
    assert agentctl("accounts", "revoke", "ci", "--yes").code == 0
    assert agentctl("accounts", "revoke", other["id"], "--yes").code == 0
    states = {row["state"] for row in agentctl.record("accounts", "list")["data"]}
    assert states == {"revoked"}
    refused = agentctl("accounts", "create", "Not Allowed", "--scope", "agents:run")
    assert refused.code in (1, 2)  # AgentOS 2 fails with an internal error here
    assert "AgentOS" in refused.stderr


def test_memories_are_added_listed_changed_and_deleted(agentctl: Agentctl) -> None:
    added = agentctl.record("memories", "add", "Likes tea", "--topic", "drinks", "--user", "root")
    (listed,) = agentctl.record("memories", "list")["data"]
    assert (listed["memory"], listed["topics"]) == ("Likes tea", ["drinks"])
    changed = agentctl.record("memories", "edit", added["memory_id"], "--text", "Likes coffee")
    assert (changed["memory"], changed["topics"]) == ("Likes coffee", ["drinks"])
    assert agentctl("memories", "topics").lines == ["drinks"]
    assert agentctl("memories", "delete", added["memory_id"], "--yes").code == 0
    assert agentctl("memories", "get", added["memory_id"]).code == 5


def test_memory_without_a_user_names_the_option(open_peer: Peer, tmp_path: Path) -> None:
    missing = Agentctl(open_peer.url, "", tmp_path)("memories", "add", "Likes tea")
    assert (missing.code, "hint: pass --user ID" in missing.stderr) == (2, True), missing.stderr


def test_sessions_and_memories_are_exported(agentctl: Agentctl, tmp_path: Path) -> None:
    agentctl("runs", "start", "--agent", "echo", "-m", "hello", "--session", "exported")
    (line,) = agentctl("sessions", "export", "exported").lines
    assert [run["content"] for run in json.loads(line)["runs"]] == ["hello"]
    memory = agentctl.record("memories", "add", "Has a cat", "--user", "root")
    lines = agentctl("memories", "export", "--user", "root").lines
    assert "Has a cat" in [json.loads(each)["memory"] for each in lines]
    assert agentctl("memories", "delete", memory["memory_id"], "--yes").code == 0
    file = tmp_path / "memories.jsonl"
    file.write_text("\n".join(lines) + "\n")
    ended = agentctl("memories", "import", str(file))
    assert ended.code == 0, ended.stderr
    listed = agentctl.record("memories", "list")["data"]
    assert "Has a cat" in [each["memory"] for each in listed]
    for each in listed:
        agentctl("memories", "delete", each["memory_id"], "--yes")


@pytest.mark.parametrize(
    "command",
    [
        "runs list",
        "runs get r",
        "runs cancel r",
        "runs cancel --all --yes",
        "runs watch r",
        "auth whoami",
        "auth can-i agents:run",
        "auth explain GET /agents",
        "audit list",
        "sessions summarize s",
        "sessions delete s --yes --cancel",
        "memories forget u --yes",
        "runs wait r",
        "audit tail",
        "audit export",
        "webhooks list",
        "webhooks test w",
        "webhooks deliveries",
        "webhooks redeliver d",
        "webhooks enable w",
        "runs retry r",
        "runs fork r --at 1",
        "usage --by day",
        "usage --plot",
        "budgets list",
        "workers list",
        "sessions list --status error",
        "sessions list --tag a --all",
        "runs list --session s --search cake",
        "sessions list --idle 1d",
        "sessions list --metadata a=b",
        "sessions list --error x",
        "sessions hold s --reason x",
        "sessions release s",
        "sessions prune --idle 90d --yes",
        "users export u --out u.zip",
        "users erase u --dry-run",
        "agents versions a",
        "agents diff a",
        "files list",
        "files download f",
        "files delete f --yes",
    ],
)
def test_commands_without_counterpart_say_so(
    agentctl: Agentctl, served: Peer, command: str
) -> None:
    ended = agentctl(*command.split())
    assert (ended.code, ended.stdout) == (2, ""), ended.stderr
    assert f"AgentOS {served.release} does not have" in ended.stderr
    if command.split()[1] in ("get", "watch", "wait") or command == "runs cancel r":
        assert "hint: pass --session ID, and --agent, --team or --workflow ID" in ended.stderr


def test_doctor_names_the_server(agentctl: Agentctl, served: Peer) -> None:
    ended = agentctl("doctor", "-o", "json")
    found = json.loads(ended.stdout)
    assert [finding["check"] for finding in found] == ["server", "token"]
    assert found[0]["what"].endswith(f"is AgentOS {served.release}")
    assert ended.code == 0
    assert Agentctl(served.url, "wrong", agentctl.folder)("doctor").code == 1


def test_invalid_fields_are_explained(agentctl: Agentctl) -> None:
    empty = agentctl("runs", "start", "--agent", "echo", "-m", "")
    assert (empty.code, "message: Field required" in empty.stderr) == (2, True)


def test_token_errors_name_the_server(agentctl: Agentctl, served: Peer, tmp_path: Path) -> None:
    ended = Agentctl(served.url, "wrong", tmp_path)("agents", "list")
    assert ended.code == 4
    assert f"AgentOS {served.release}" in ended.stderr
