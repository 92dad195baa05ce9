"""Agents of agno that wait: confirmations, answers, and tools that the caller executes."""

from __future__ import annotations

from tests.pauses.graphs import CALL
from tests.pauses.waiting import WaitingServer


def test_rejected_and_edited_calls(shared_graphs: WaitingServer) -> None:
    rejected, edited = (
        shared_graphs.start("agno_payer", CALL),
        shared_graphs.start("agno_payer", CALL),
    )
    shared_graphs.decide(rejected, "reject", note="too much")
    shared_graphs.decide(edited, "approve", arguments={"amount": 5, "to": "eve"})
    ended = shared_graphs.wait_for_end(rejected)
    assert ended["content"] == "The call was rejected: too much"
    assert shared_graphs.deployment.ledger(rejected) == []
    ended = shared_graphs.wait_for_end(edited)
    assert ended["content"] == "paid 5"
    assert shared_graphs.deployment.ledger(edited) == ["pay 5 to eve for None"]


def test_one_of_two_calls_is_rejected(shared_graphs: WaitingServer) -> None:
    run = shared_graphs.start("agno_two", CALL)
    first, second = shared_graphs.list_approvals(run)
    shared_graphs.decide_one(first, "approve")
    assert shared_graphs.get_run(run["run_id"])["status"] == "PAUSED"
    assert shared_graphs.deployment.ledger(run) == []
    shared_graphs.decide_one(second, "reject")
    run = shared_graphs.wait_for_end(run)
    assert sorted(run["content"].split(" | ")) == ["The call was rejected", "paid 10"]
    assert shared_graphs.deployment.ledger(run) == ["pay 10 to bob for None"]
    executions = {each["status"]: each["execution"] for each in shared_graphs.list_approvals(run)}
    assert executions == {"approved": "done", "rejected": None}


def test_answer_is_given_to_the_tool(shared_graphs: WaitingServer) -> None:
    run = shared_graphs.start("agno_mailer", CALL)
    (asked,) = shared_graphs.list_approvals(run)
    assert (asked["kind"], asked["schema"]["properties"]["to"]) == ("input", {"type": "string"})
    shared_graphs.decide(run, "answer", answer={"to": "carl"})
    run = shared_graphs.wait_for_end(run)
    assert run["content"] == "mailed carl"
    assert shared_graphs.deployment.ledger(run) == ["mail to carl"]


def test_result_of_the_caller_reaches_the_model(shared_graphs: WaitingServer) -> None:
    run = shared_graphs.start("agno_opener", CALL)
    (asked,) = shared_graphs.list_approvals(run)
    assert asked["kind"] == "external"
    shared_graphs.decide(run, "complete", result="opened")
    assert shared_graphs.wait_for_end(run)["content"] == "opened"


def test_cancel_of_a_paused_run_makes_no_call(shared_graphs: WaitingServer) -> None:
    run = shared_graphs.start("agno_payer", CALL)
    shared_graphs.cancel("agno_payer", run["run_id"])
    assert shared_graphs.get_run(run["run_id"])["status"] == "CANCELLED"
    assert [each["status"] for each in shared_graphs.list_approvals(run)] == ["cancelled"]
    assert shared_graphs.deployment.ledger(run) == []
