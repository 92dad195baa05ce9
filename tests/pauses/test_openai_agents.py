"""Agents of openai-agents that wait: several calls, members, and a call that was made."""

from __future__ import annotations

import json
from typing import Any

from tests.pauses.graphs import CALL
from tests.pauses.waiting import WaitingDeployment, WaitingServer

AGENTS = ("waiting_agents",)


def call(number: int, name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_{number}", "type": "function", "function": function}


def test_one_of_two_calls_is_rejected(shared_graphs: WaitingServer) -> None:
    run = shared_graphs.start("openai_two", CALL)
    first, second = shared_graphs.list_approvals(run)
    shared_graphs.decide_one(first, "approve")
    assert shared_graphs.get_run(run["run_id"])["status"] == "PAUSED"
    shared_graphs.decide_one(second, "reject")
    run = shared_graphs.wait_for_end(run)
    assert sorted(run["content"].split(" | ")) == ["The call was rejected", "paid 10"]
    assert shared_graphs.deployment.ledger(run) == ["pay 10 to bob for None"]
    executions = {each["status"]: each["execution"] for each in shared_graphs.list_approvals(run)}
    assert executions == {"approved": "done", "rejected": None}


def test_decisions_belong_to_their_calls(shared_graphs: WaitingServer) -> None:
    """Two calls are equal, and the decisions come in another order; an id is used again later."""
    calls = [call(number, "pay", amount=min(number, 2), to="bob") for number in (1, 2, 3)]
    again = call(2, "pay", amount=9, to="eve")
    answers = [{"tool_calls": calls}, {"tool_calls": [again]}]
    run = shared_graphs.start("openai_planner", json.dumps(answers))
    asked = {each["tool_call_id"]: each for each in shared_graphs.list_approvals(run)}
    for call_id, verb in (("call_3", "reject"), ("call_2", "approve"), ("call_1", "reject")):
        shared_graphs.decide_one(asked[call_id], verb)
    run = shared_graphs.wait_for_end(run)
    # The library refuses a second call with an id.
    assert run["error"]["code"] == "MODEL_ANSWER_INVALID"
    assert shared_graphs.deployment.ledger(run) == ["pay 2 to bob for None"]


def test_other_calls_of_the_answer_are_made_once(shared_graphs: WaitingServer) -> None:
    calls = [call(1, "look"), call(2, "pay", amount=10, to="bob")]
    answer = {"content": "One moment.", "tool_calls": calls}
    run = shared_graphs.start("openai_planner", json.dumps([answer]))
    assert (run["status"], run["content"]) == ("PAUSED", "One moment.")
    assert shared_graphs.deployment.ledger(run) == ["look"]
    tokens = run["total_tokens"]
    run = shared_graphs.decide_and_wait(run, "approve")
    assert (run["status"], run["content"]) == ("COMPLETED", "One moment.\n\nlooked | paid 10")
    assert shared_graphs.deployment.ledger(run) == ["look", "pay 10 to bob for None"]
    assert [each["result"] for each in run["tools"]] == ["looked", "paid 10"]
    assert run["total_tokens"] > tokens > 0
    spans = [span["output_tokens"] for span in run["spans"] if span["kind"] == "model"]
    assert sum(spans) == run["metrics"]["output_tokens"]
    # The next run of the session gets the items of both legs.
    again = shared_graphs.start("openai_planner", "[]", session_id=run["session_id"])
    assert (again["status"], again["content"]) == ("COMPLETED", "done")


def test_members_go_on_on_another_server(graphs: WaitingDeployment) -> None:
    plan = [
        {"tool_calls": [call(1, "transfer_to_payer")]},
        {"tool_calls": [call(2, "look"), call(3, "pay", amount=10, to="bob")]},
    ]
    with graphs.serve() as server:
        called = server.start("openai_caller", CALL)
        handed = server.start("openai_triage", json.dumps(plan))
        for run in (called, handed):
            assert run["status"] == "PAUSED", run
            (member,) = run["member_runs"]
            assert server.get_run(member)["status"] == "PAUSED"
            (asked,) = server.list_approvals(run)
            assert (asked["run_id"], asked["tool_name"]) == (run["run_id"], "pay")
        server.kill()
    with graphs.serve("second.log") as server:
        server.decide(called, "approve", arguments={"amount": 5, "to": "eve"})
        server.decide(handed, "approve")
        for run, content, line in (
            (called, "paid 5", "pay 5 to eve for None"),
            (handed, "looked | paid 10", "pay 10 to bob for None"),
        ):
            ended = server.wait_for_end(run)
            assert (ended["status"], ended["content"]) == ("COMPLETED", content)
            assert graphs.ledger(run)[-1] == line
            assert ended["member_runs"] == run["member_runs"]
            member = server.get_run(run["member_runs"][0])
            assert (member["status"], member["content"]) == ("COMPLETED", content)
            assert member["agent_id"] == "payer"
            paid = member["tools"][-1]
            assert (paid["tool_name"], paid["result"]) == (
                "pay",
                line.split(" to")[0].replace("pay", "paid"),
            )
            (asked,) = server.list_approvals(run)
            assert asked["execution"] == "done"


def test_run_with_two_agents_of_one_name_can_wait(shared_graphs: WaitingServer) -> None:
    """With the library alone it can; what agentctl adds to an agent must not change that."""
    run = shared_graphs.start("openai_twins", CALL)
    assert run["status"] == "PAUSED", run["error"]
    shared_graphs.decide(run, "approve")
    ended = shared_graphs.wait_for_end(run)
    assert (ended["status"], ended["content"]) == ("COMPLETED", "paid 10"), ended["error"]
    assert shared_graphs.deployment.ledger(run) == ["pay 10 to bob for None"]


def test_cancel_of_a_paused_run_ends_its_member_without_a_call(
    shared_graphs: WaitingServer,
) -> None:
    run = shared_graphs.start("openai_caller", CALL)
    shared_graphs.cancel("openai_caller", run["run_id"])
    assert shared_graphs.get_run(run["run_id"])["status"] == "CANCELLED"
    assert shared_graphs.get_run(run["member_runs"][0])["status"] == "CANCELLED"
    assert shared_graphs.deployment.ledger(run) == []
