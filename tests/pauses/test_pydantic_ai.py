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
from tests.pauses.waiting import WaitingDeployment, WaitingServer

PAY = ("pay", "p1", {"amount": 10, "to": "bob"})


def plan(*answers: list[tuple[str, str, dict[str, Any]]]) -> str:
    """Return a message that makes the model call tools, in several answers."""
    return json.dumps([{"tool_calls": [_build_call(*call) for call in calls]} for calls in answers])


def _build_call(name: str, call_id: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": call_id, "type": "function", "function": function}


def test_approved_call_is_made_once_on_another_server(waiting: WaitingDeployment) -> None:
    message = plan([("look_up", "l1", {"name": "bob"}), PAY])
    with waiting.serve() as server:
        run = server.start("library", message)
        assert run["status"] == "PAUSED"
        (asked,) = server.list_approvals(run)
        server.kill()
    assert (asked["kind"], asked["tool_name"], asked["policy"]) == ("approval", "pay", "user")
    assert asked["arguments"] == {"amount": 10, "to": "bob"}
    assert set(asked["schema"]["properties"]) == {"amount", "to"}
    assert waiting.ledger(run) == ["look up bob"]
    with waiting.serve("second.log") as server:
        run = server.decide_and_wait(run, "approve")
        (asked,) = server.list_approvals(run)
        events = server.read_events(run["run_id"])
    assert (run["status"], run["content"]) == ("COMPLETED", "BOB | paid 10")
    # The call that had ended before the pause is not made again.
    assert waiting.ledger(run) == ["look up bob", "pay 10 to bob"]
    assert (asked["execution"], asked["result"]) == ("done", "paid 10")
    called = [(call["tool_name"], call["result"]) for call in run["tools"]]
    assert called == [("look_up", "BOB"), ("pay", "paid 10")]
    names = [event["event"] for event in events]
    assert names.count("ToolCallStarted") == names.count("ToolCallCompleted") == 2
    texts = [event["content"] for event in events if event["event"] == "RunContent"]
    assert "".join(texts) == run["content"]


def test_two_calls_with_different_decisions(shared: WaitingServer) -> None:
    run = shared.start("library", plan([PAY, ("pay_much", "p2", {"amount": 9})]))
    asked = {each["tool_name"]: each for each in shared.list_approvals(run)}
    assert asked["pay_much"]["question"] == "Really 9?"
    shared.decide(run, "reject", "pay")
    run = shared.decide_and_wait(run, "approve", "pay_much")
    assert run["content"] == "The call was rejected | paid 9"
    assert shared.deployment.ledger(run) == ["pay much 9"]


def test_decisions_belong_to_their_calls(shared: WaitingServer) -> None:
    """Two calls are equal, and the decisions come in another order; an id is used again later."""
    calls = [("pay", f"p{n}", {"amount": min(n, 2), "to": "bob"}) for n in (1, 2, 3)]
    again = ("pay", "p2", {"amount": 9, "to": "eve"})
    run = shared.start("library", plan(calls, [again]))
    asked = {each["tool_call_id"]: each for each in shared.list_approvals(run)}
    for call_id, verb in (("p3", "reject"), ("p2", "approve"), ("p1", "reject")):
        shared.decide_one(asked[call_id], verb)
    run = shared.wait_for_next(run)
    assert shared.deployment.ledger(run) == ["pay 2 to bob"]
    assert run["status"] == "PAUSED"
    shared.decide(run, "reject")
    shared.wait_for_end(run)
    assert shared.deployment.ledger(run) == ["pay 2 to bob"]


def test_two_pauses_count_tokens_once(shared: WaitingServer, model_endpoint: ModelEndpoint) -> None:
    message = plan([("pay_much", "a", {"amount": 7})], [("pay_much", "b", {"amount": 8})])
    run = shared.start("library", message)
    run = shared.decide_and_wait(run, "approve")
    assert (run["status"], shared.deployment.ledger(run)) == ("PAUSED", ["pay much 7"])
    run = shared.decide_and_wait(run, "approve")
    assert (run["status"], run["content"]) == ("COMPLETED", "paid 8")
    assert shared.deployment.ledger(run) == ["pay much 7", "pay much 8"]
    # One call in each of two answers, and two words.
    assert run["metrics"]["output_tokens"] == 1 + 1 + 2
    models = [span for span in run["spans"] if span["kind"] == "model"]
    assert sum(span["output_tokens"] for span in models) == 4


def test_results_of_the_caller_and_answers(shared: WaitingServer) -> None:
    calls = [("open_file", "f1", {"path": "a"}), ("question", "q1", {"question": "Which?"})]
    run = shared.start("library", plan(calls))
    asked = {each["kind"]: each for each in shared.list_approvals(run)}
    assert asked["input"]["question"] == "Which?"
    assert asked["external"]["arguments"] == {"path": "a"}
    shared.decide(run, "complete", "open_file", result="text of a")
    run = shared.decide_and_wait(run, "answer", "question", answer="left")
    assert run["content"] == "text of a | left"


def test_failed_result_of_the_caller(shared: WaitingServer) -> None:
    run = shared.start("library", plan([("open_file", "f1", {"path": "a"})]))
    run = shared.decide_and_wait(run, "fail", note="no such file")
    assert run["content"] == '{"error":"no such file"}'
    assert run["tools"][0]["tool_call_error"] is True


def test_call_that_asks_for_a_retry_is_failed(shared: WaitingServer) -> None:
    run = shared.start("library", plan([("pay", "p1", {"amount": -1, "to": "bob"})]))
    run = shared.decide_and_wait(run, "approve")
    (asked,) = shared.list_approvals(run)
    assert (asked["execution"], asked["result"]) == ("failed", "the amount is negative")


@pytest.mark.parametrize(
    ("agent", "totals"), [("typed", [3]), ("declared", []), ("checked", [2, 3])]
)
def test_output_types_of_the_author_are_kept(
    shared: WaitingServer, agent: str, totals: list[int]
) -> None:
    drafts = [[("final_result", f"r{total}", {"total": total})] for total in totals]
    run = shared.start(agent, plan([PAY], *drafts))
    run = shared.decide_and_wait(run, "approve")
    assert run["status"] == "COMPLETED"
    assert run["output"] == ({"total": 3} if totals else None)
    assert shared.deployment.ledger(run) == ["pay 10 to bob"]


def test_key_approve_gates_tools_of_the_agent(shared: WaitingServer) -> None:
    run = shared.start("gated", plan([("look_up", "l1", {"name": "bob"}), PAY]))
    asked = {each["tool_name"]: each["policy"] for each in shared.list_approvals(run)}
    assert asked == {"look_up": "other", "pay": "user"}
    assert shared.deployment.ledger(run) == []
    run = shared.decide_and_wait(run, "approve")
    assert run["content"] == "BOB | paid 10"
    assert sorted(shared.deployment.ledger(run)) == ["look up bob", "pay 10 to bob"]


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


def test_next_turn_gets_what_happened(shared: WaitingServer, model_endpoint: ModelEndpoint) -> None:
    run = shared.start("library", plan([PAY]))
    shared.decide_and_wait(run, "approve")
    again = shared.start("library", plan(), session_id=run["session_id"])
    assert again["content"] == "done"
    sent = model_endpoint.requests("plan:library")[-1]["messages"]
    assert [message["role"] for message in sent] == [
        "user", "assistant", "tool", "assistant", "user",
    ]  # fmt: skip
    assert sent[2]["content"] == "paid 10"


@pytest.mark.parametrize("verb", ["complete", "retry"])
def test_server_that_dies_in_a_call_is_asked_about(waiting: WaitingDeployment, verb: str) -> None:
    hold = waiting.inner.folder / "hold"
    hold.touch()
    with waiting.serve() as server:
        run = server.start("library", plan([PAY]))
        server.decide(run, "approve")
        while not waiting.ledger(run):
            server.wait_for(run["run_id"], "RUNNING", "PENDING")
        server.kill()
    hold.unlink()
    with waiting.serve("second.log") as server:
        run = server.wait_for(run["run_id"], "PAUSED")
        result = {"result": "known"} if verb == "complete" else {}
        run = server.decide_and_wait(run, verb, **result)
    assert run["content"] == ("known" if verb == "complete" else "paid 10")
    assert len(waiting.ledger(run)) == (1 if verb == "complete" else 2)
