"""Agents of pydantic-ai that wait for approvals and results of their callers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic_ai import Agent
from pydantic_ai.toolsets import DynamicToolset

from agentctl.runtime.imports import UnusableObject
from agentctl.runtime.runners.library_runner import RunnerOptions
from agentctl.runtime.runners.loading import build_runner
from agentctl.runtime.runners.pydantic_ai import PydanticAIRunner
from tests.kit.model import ModelEndpoint
from tests.pauses.waiting import WaitingServer

PAY = ("pay", "p1", {"amount": 10, "to": "bob"})


def plan(*answers: list[tuple[str, str, dict[str, Any]]]) -> str:
    """Return a message that makes the model call tools, in several answers."""
    return json.dumps([{"tool_calls": [_build_call(*call) for call in calls]} for calls in answers])


def _build_call(name: str, call_id: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function}


def test_call_before_the_pause_is_not_made_again(server: WaitingServer) -> None:
    run = server.start("library", plan([("look_up", "l1", {"name": "bob"}), PAY]))
    assert run["status"] == "PAUSED"
    (asked,) = server.list_approvals(run)
    assert (asked["kind"], asked["tool_name"], asked["policy"]) == ("approval", "pay", "user")
    assert set(asked["schema"]["properties"]) == {"amount", "to"}
    assert server.deployment.ledger(run) == ["look up bob"]

    run = server.decide_and_wait(run, "approve")
    assert (run["status"], run["content"]) == ("COMPLETED", "BOB | paid 10")
    assert server.deployment.ledger(run) == ["look up bob", "pay 10 to bob"]
    called = [(call["tool_name"], call["result"]) for call in run["tools"]]
    assert called == [("look_up", "BOB"), ("pay", "paid 10")]
    events = server.read_events(run["run_id"])
    names = [event["event"] for event in events]
    assert names.count("ToolCallStarted") == names.count("ToolCallCompleted") == 2
    texts = [event["content"] for event in events if event["event"] == "RunContent"]
    assert "".join(texts) == run["content"]


def test_two_calls_with_different_decisions(server: WaitingServer) -> None:
    run = server.start("library", plan([PAY, ("pay_much", "p2", {"amount": 9})]))
    asked = {each["tool_name"]: each for each in server.list_approvals(run)}
    assert asked["pay_much"]["question"] == "Really 9?"
    server.decide(run, "reject", "pay")
    run = server.decide_and_wait(run, "approve", "pay_much")
    assert run["content"] == "The call was rejected | paid 9"
    assert server.deployment.ledger(run) == ["pay much 9"]


def test_decisions_belong_to_their_calls(server: WaitingServer) -> None:
    """Two calls are equal, and the decisions come in another order; an id is used again later."""
    calls = [("pay", f"p{n}", {"amount": min(n, 2), "to": "bob"}) for n in (1, 2, 3)]
    again = ("pay", "p2", {"amount": 9, "to": "eve"})
    run = server.start("library", plan(calls, [again]))
    asked = {each["tool_call_id"]: each for each in server.list_approvals(run)}
    for call_id, verb in (("p3", "reject"), ("p2", "approve"), ("p1", "reject")):
        server.decide_one(asked[call_id], verb)
    run = server.wait_for_next(run)
    assert server.deployment.ledger(run) == ["pay 2 to bob"]
    assert run["status"] == "PAUSED"
    server.decide(run, "reject")
    server.wait_for_end(run)
    assert server.deployment.ledger(run) == ["pay 2 to bob"]


def test_two_pauses_count_tokens_once(server: WaitingServer, model_endpoint: ModelEndpoint) -> None:
    message = plan([("pay_much", "a", {"amount": 7})], [("pay_much", "b", {"amount": 8})])
    run = server.start("library", message)
    run = server.decide_and_wait(run, "approve")
    assert (run["status"], server.deployment.ledger(run)) == ("PAUSED", ["pay much 7"])
    run = server.decide_and_wait(run, "approve")
    assert (run["status"], run["content"]) == ("COMPLETED", "paid 8")
    assert server.deployment.ledger(run) == ["pay much 7", "pay much 8"]
    # One call in each of two answers, and two words.
    assert run["metrics"]["output_tokens"] == 1 + 1 + 2
    models = [span for span in run["spans"] if span["kind"] == "model"]
    assert sum(span["output_tokens"] for span in models) == 4


def test_results_of_the_caller_and_answers(server: WaitingServer) -> None:
    calls = [("open_file", "f1", {"path": "a"}), ("question", "q1", {"question": "Which?"})]
    run = server.start("library", plan(calls))
    asked = {each["kind"]: each for each in server.list_approvals(run)}
    assert asked["input"]["question"] == "Which?"
    assert asked["external"]["arguments"] == {"path": "a"}
    server.decide(run, "complete", "open_file", result="text of a")
    run = server.decide_and_wait(run, "answer", "question", answer="left")
    assert run["content"] == "text of a | left"


def test_failed_result_of_the_caller(server: WaitingServer) -> None:
    run = server.start("library", plan([("open_file", "f1", {"path": "a"})]))
    run = server.decide_and_wait(run, "fail", note="no such file")
    assert run["content"] == '{"error":"no such file"}'
    assert run["tools"][0]["tool_call_error"] is True


def test_call_that_asks_for_a_retry_is_failed(server: WaitingServer) -> None:
    run = server.start("library", plan([("pay", "p1", {"amount": -1, "to": "bob"})]))
    run = server.decide_and_wait(run, "approve")
    (asked,) = server.list_approvals(run)
    assert (asked["execution"], asked["result"]) == ("failed", "the amount is negative")


@pytest.mark.parametrize(
    ("agent", "totals"), [("typed", [3]), ("declared", []), ("checked", [2, 3])]
)
def test_output_types_of_the_author_are_kept(
    server: WaitingServer, agent: str, totals: list[int]
) -> None:
    drafts = [[("final_result", f"r{total}", {"total": total})] for total in totals]
    run = server.start(agent, plan([PAY], *drafts))
    run = server.decide_and_wait(run, "approve")
    assert run["status"] == "COMPLETED"
    assert run["output"] == ({"total": 3} if totals else None)
    assert server.deployment.ledger(run) == ["pay 10 to bob"]


def test_key_approve_gates_tools_of_the_agent(server: WaitingServer) -> None:
    run = server.start("gated", plan([("look_up", "l1", {"name": "bob"}), PAY]))
    asked = {each["tool_name"]: each["policy"] for each in server.list_approvals(run)}
    assert asked == {"look_up": "other", "pay": "user"}
    assert server.deployment.ledger(run) == []
    run = server.decide_and_wait(run, "approve")
    assert run["content"] == "BOB | paid 10"
    assert sorted(server.deployment.ledger(run)) == ["look up bob", "pay 10 to bob"]


def build(approve: dict[str, Any], *toolsets: Any) -> PydanticAIRunner:
    def pay(amount: int) -> str:
        """Pay."""
        return str(amount)

    agent = Agent("test", tools=[pay], toolsets=toolsets)
    return PydanticAIRunner(agent, RunnerOptions(approve=approve))


def test_pattern_of_no_tool_is_refused() -> None:
    with pytest.raises(UnusableObject, match="matches none of its tools") as refused:
        build({"pey": "other"})
    assert "its tools are: pay" in (refused.value.hint or "")
    build({"p*": "other"})
    # The tools of other toolsets are known in a run only.
    build({"pey": "other"}, DynamicToolset(lambda context: None))


def test_key_approve_has_no_effect_for_functions() -> None:
    with pytest.raises(UnusableObject, match="approve has no effect for a function"):
        build_runner(plan, RunnerOptions(approve={"pay": "user"}))


def test_next_turn_gets_what_happened(server: WaitingServer, model_endpoint: ModelEndpoint) -> None:
    run = server.start("library", plan([PAY]))
    server.decide_and_wait(run, "approve")
    again = server.start("library", plan(), session_id=run["session_id"])
    assert again["content"] == "done"
    sent = model_endpoint.requests("plan:library")[-1]["messages"]
    assert [message["role"] for message in sent] == [
        "user", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip
    assert sent[2]["content"] == "paid 10"
