"""Runs of each library whose server is killed while they wait or call: another server goes on.

`tests/conformance` has the plain runs that wait; these have members, several calls, a subgraph and
a checkpointer with a file.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.kit.model import ModelEndpoint
from tests.pauses.graphs import CALL, build_plan
from tests.pauses.waiting import WaitingServer, create_waiting_deployment, list_members

CALLS = {"each": 2, "kept": 1, "nested": 1, "openai_two": 2}
"""Agents with their numbers of calls: one interrupt for each call, a checkpointer, a subgraph, and
an agent of openai-agents."""

MEMBERS = {
    "agno_crew": CALL,
    "agno_crews": CALL,
    "openai_caller": CALL,
    "openai_triage": json.dumps([
        {"tool_calls": [build_plan("transfer_to_payer")]},
        {"tool_calls": [build_plan("look"), build_plan("pay", amount=10, to="bob")]},
    ]),
}  # fmt: skip
"""Agents whose members wait: a team, a team in a team, an agent as a tool, and a handoff."""

CALLING = {
    "batched": CALL,
    "kept": CALL,
    "agno_payer": CALL,
    "openai_payer": CALL,
    "library": json.dumps([{"tool_calls": [build_plan("pay", amount=10, to="bob")]}]),
    "refund": "bob",
}
"""Agents whose approved call is under way when the server is killed."""


@dataclass(frozen=True)
class Moved:
    """A second server, with runs that waited and runs that called a tool in the first one."""

    server: WaitingServer
    waiting: dict[str, dict[str, Any]]
    calling: dict[str, dict[str, Any]]
    repeated: dict[str, Any]
    """A run of pydantic-ai like that in `calling`."""


@pytest.fixture(scope="module")
def moved(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[Moved]:
    folder: Path = tmp_path_factory.mktemp("elsewhere")
    deployment = create_waiting_deployment(folder, model_endpoint.base_url)

    hold = folder / "hold"
    hold.touch()

    with deployment.serve_in_thread() as server:
        messages = dict.fromkeys(CALLS, CALL) | MEMBERS
        waiting = {
            agent: server.start(agent, message, metadata={"tenant": "north"})
            for agent, message in messages.items()
        }
        assert {agent: run["status"] for agent, run in waiting.items()} == dict.fromkeys(
            waiting, "PAUSED"
        )

        for agent, number in CALLS.items():
            asked = server.list_approvals(waiting[agent])
            assert [each["arguments"] for each in asked] == [{"amount": 10, "to": "bob"}] * number
            assert deployment.ledger(waiting[agent]) == []

        calling = {agent: server.start(agent, message) for agent, message in CALLING.items()}
        repeated = server.start("library", CALLING["library"])
        for run in (*calling.values(), repeated):
            server.decide(run, "approve")
            while not any(line.startswith("pay") for line in deployment.ledger(run)):
                server.wait_for(run["run_id"], "RUNNING", "PENDING")
        server.kill()

    hold.unlink()
    with deployment.serve_in_thread() as server:
        yield Moved(server, waiting, calling, repeated)


@pytest.mark.parametrize("agent", CALLS)
def test_approved_calls_are_made_once_on_another_server(moved: Moved, agent: str) -> None:
    server = moved.server
    run = moved.waiting[agent]
    number = CALLS[agent]

    server.decide(run, "approve")
    ended = server.wait_for_end(run)
    assert ended["status"] == "COMPLETED", ended
    assert ended["content"] == " | ".join(["paid 10"] * number)

    # The metadata of the request are those of the first leg.
    assert server.deployment.ledger(run) == ["pay 10 to bob for north"] * number

    for each in server.list_approvals(run):
        assert (each["execution"], each["result"]) == ("done", "paid 10")

    roles = [message["role"] for message in ended["messages"]]
    assert roles == ["user", "assistant", *["tool"] * number, "assistant"]

    # The calls of the agent in a subgraph are those of a member.
    names = [
        event["event"]
        for event in server.read_events(run["run_id"])
        if event["run_id"] == run["run_id"] or "ToolCall" in event["event"]
    ]
    assert [name for name in names if name != "RunContent"] == [
        "RunStarted",
        *["ToolCallStarted"] * number,
        "RunPaused",
        "RunContinued",
        *["ToolCallCompleted"] * number,
        "RunCompleted",
    ]


@pytest.mark.parametrize("agent", MEMBERS)
def test_members_continue_on_another_server(moved: Moved, agent: str) -> None:
    server = moved.server
    run = moved.waiting[agent]

    before = list_members(server, run)
    assert {member["status"] for member in before} == {"PAUSED"}

    (asked,) = server.list_approvals(run)
    assert (asked["run_id"], asked["arguments"]) == (run["run_id"], json.loads(CALL))

    server.decide(run, "approve")
    ended = server.wait_for_end(run)
    assert ended["status"] == "COMPLETED", ended
    assert server.deployment.ledger(run)[-1] == "pay 10 to bob for north"

    after = list_members(server, ended)
    assert [each["run_id"] for each in after] == [each["run_id"] for each in before]
    assert {each["status"] for each in after} == {"COMPLETED"}
    assert after[-1]["agent_id"] == "payer"

    paid = after[-1]["tools"][-1]
    assert (paid["result"], paid["tool_call_error"]) == ("paid 10", False)
    assert "paid 10" in ended["content"]

    (approval,) = server.list_approvals(run)
    assert (approval["execution"], approval["result"]) == ("done", "paid 10")


@pytest.mark.parametrize("agent", CALLING)
def test_call_of_a_lost_server_is_not_made_again(moved: Moved, agent: str) -> None:
    server = moved.server
    run = moved.calling[agent]

    server.wait_for(run["run_id"], "PAUSED")
    asked = [(each["kind"], each["execution"]) for each in server.list_approvals(run)]
    assert asked == [("approval", "unknown"), ("outcome", None)]

    server.decide(run, "complete", result="receipt 7")
    ended = server.wait_for_end(run)

    paid = [line for line in server.deployment.ledger(run) if line.startswith("pay")]
    assert len(paid) == 1
    if agent == "kept":
        # A checkpointer of the graph keeps the approval that was given: the run stops before the
        # call.
        assert (ended["status"], ended["error"]["code"]) == ("ERROR", "AGENT_FAILED")
        assert "it is not made again" in ended["error"]["detail"]
    else:
        assert ended["status"] == "COMPLETED", ended
        assert ended["content"].startswith("receipt 7")


def test_lost_call_is_made_again_if_a_person_says_so(moved: Moved) -> None:
    server = moved.server
    run = moved.repeated
    server.wait_for(run["run_id"], "PAUSED")
    run = server.decide_and_wait(run, "retry")
    assert run["content"] == "paid 10"
    assert server.deployment.ledger(run) == ["pay 10 to bob"] * 2
