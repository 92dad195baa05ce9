"""`agentctl runs retry` and `runs fork`, and the numbers of `runs get --messages`."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.cli.conftest import Agentctl, Terminal
from tests.kit.model import ModelEndpoint
from tests.server.repeating import PLAN, SCOPES, Place, Run, call, open_place, say


@pytest.fixture(scope="module")
def opened(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[Place]:
    with open_place(tmp_path_factory.mktemp("repeats"), model_endpoint) as place:
        yield place


@pytest.fixture
def local(opened: Place) -> Iterator[tuple[str, ...]]:
    """Options for the configuration of the server."""
    yield "--config", str(opened.server.deployment.path), "--as-user", "ann"
    opened.clear()


@pytest.fixture
def remote(opened: Place) -> Iterator[tuple[str, ...]]:
    """Options for the server, with the token of ann."""
    token = opened.server.deployment.token("ann", *SCOPES)
    (opened.folder / "token").write_text(token)
    yield "--url", opened.server.url, "--token-file", str(opened.folder / "token")
    opened.clear()


def get(agentctl: Agentctl, run_id: str, door: tuple[str, ...]) -> Run:
    record: Run = json.loads(agentctl("runs", "get", run_id, "-o", "json", *door).stdout)
    return record


def test_a_retry_asks_before_it_repeats_a_call(
    opened: Place, agentctl: Agentctl, terminal: Terminal, local: tuple[str, ...]
) -> None:
    run = opened.interrupt("agents/planner", PLAN, "two")

    refused = agentctl("runs", "retry", run["run_id"], *local)
    assert (refused.code, refused.stdout) == (2, "")
    assert "begins after message 4" in refused.stderr
    assert 'hold {"entry":"two"} (outcome not known)' in refused.stderr
    assert "pass --yes" in refused.stderr

    seen = terminal("runs", "retry", run["run_id"], *local, types="n\n")
    assert (seen.code, opened.ledger()) == (2, ["one", "two"])

    seen = terminal("runs", "retry", run["run_id"][:18], *local, types="y\n")
    assert seen.code == 0, seen.screen
    assert "finished" in seen.screen
    assert opened.ledger() == ["one", "two", "two", "three"]


def test_a_second_retry_is_mentioned_and_names_its_origin(
    opened: Place, agentctl: Agentctl, local: tuple[str, ...]
) -> None:
    run = opened.interrupt("agents/planner", PLAN, "two")
    first = agentctl("runs", "retry", run["run_id"], "--yes", *local)
    assert "the run was retried already" not in first.stderr

    again = agentctl("runs", "retry", run["run_id"], "--yes", "-o", "json", *local)

    record = json.loads(again.stdout)
    assert (again.code, record["origin_run_id"], record["origin_at"]) == (0, run["run_id"], 4)
    assert "the run was retried already" in again.stderr
    shown = agentctl("runs", "get", record["run_id"], "-o", "text", *local)
    assert f"retry of {run['run_id']} after its message 4" in shown.stdout
    listed = agentctl("runs", "list", "-o", "jsonl", *local)
    assert json.loads(listed.lines[0])["origin_kind"] == "retry"


@pytest.fixture
def planned(opened: Place) -> Run:
    """A run whose messages are those of the system, a user, a call, its result, and the end."""
    return opened.start("agents/planner", [call("record", "c1", entry="one"), say("finished")])


def test_messages_and_model_calls_of_a_run_have_numbers(
    agentctl: Agentctl, planned: Run, remote: tuple[str, ...]
) -> None:
    show = ("runs", "get", planned["run_id"], *remote)

    messages = agentctl(*show, "--messages", "-o", "table")
    assert [line.split()[:2] for line in messages.lines[1:]] == [
        ["1", "system"], ["2", "user"], ["3", "assistant"], ["4", "tool"], ["5", "assistant"],
    ]  # fmt: skip

    calls = agentctl(*show, "--model-calls", "-o", "table")
    assert [line.split()[:4] for line in calls.lines[1:]] == [
        ["model-1", "plan", "plan", "completed"], ["model-2", "plan", "plan", "completed"],
    ]  # fmt: skip

    sent = agentctl(*show, "--call", "model-2", "-o", "table")
    assert [line.split()[:3] for line in sent.lines[1:]] == [
        ["1", "system", "run"], ["2", "user", "run"], ["3", "assistant", "run"],
        ["4", "tool", "run"],
    ]  # fmt: skip
    assert agentctl(*show, "--call", "model-3").code == 5


def test_fork_begins_after_a_message_in_a_new_session(
    opened: Place, agentctl: Agentctl, planned: Run, remote: tuple[str, ...]
) -> None:
    fork = ("runs", "fork", planned["run_id"], *remote)
    elsewhere = ("-m", "hello", "--agent", "history", "--session", "forked")

    forked = agentctl(*fork, "--at", "5", *elsewhere, "-o", "json")
    assert forked.code == 0, forked.stderr
    record = json.loads(forked.stdout)
    assert (record["agent_id"], record["session_id"]) == ("history", "forked")
    roles = [role for role, _ in json.loads(record["content"])]
    assert roles[-4:] == ["assistant", "tool", "assistant", "user"]

    repeated = agentctl(*fork, "--at", "2", "--yes")
    assert (repeated.code, repeated.stdout) == (0, "next c1\n\nfinished\n")
    assert opened.ledger() == ["one", "one"]


def test_fork_needs_a_message_after_which_a_run_can_begin(
    agentctl: Agentctl, planned: Run, remote: tuple[str, ...]
) -> None:
    fork = ("runs", "fork", planned["run_id"], *remote)

    missing = agentctl(*fork)
    assert missing.code == 2
    assert f"runs get {planned['run_id']} --messages" in missing.stderr

    # The result of the call would be missing.
    middle = agentctl(*fork, "--at", "3")
    assert middle.code == 2
    assert "use 2 or 4" in middle.stderr


def test_a_retry_in_the_background_returns_at_once(
    opened: Place, agentctl: Agentctl, remote: tuple[str, ...]
) -> None:
    run = opened.start("agents/planner", [say("hello")])
    retry = ("runs", "retry", run["run_id"], "--background", "-o", "name")

    ended = agentctl(*retry, *remote)

    assert ended.code == 0, ended.stderr
    waited = agentctl("runs", "wait", ended.lines[0], *remote)
    assert waited.code == 0, waited.stderr


def test_a_retry_in_the_background_needs_a_server(
    opened: Place, agentctl: Agentctl, local: tuple[str, ...]
) -> None:
    run = opened.start("agents/planner", [say("hello")])
    assert agentctl("runs", "retry", run["run_id"], "--background", *local).code == 2
