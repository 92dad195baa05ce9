"""Agents of openai-agents that wait: several calls, members, and a call that was made."""

from __future__ import annotations

import json
from typing import Any

from tests.pauses.graphs import CALL
from tests.pauses.waiting import WaitingServer


def call(number: int, name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_{number}", "type": "function", "function": function}


def test_decisions_belong_to_their_calls(server: WaitingServer) -> None:
    """Two calls are equal, and the decisions come in another order; an id is used again later."""
    calls = [call(number, "pay", amount=min(number, 2), to="bob") for number in (1, 2, 3)]
    again = call(2, "pay", amount=9, to="eve")
    answers = [{"tool_calls": calls}, {"tool_calls": [again]}]
    run = server.start("openai_planner", json.dumps(answers))
    asked = {each["tool_call_id"]: each for each in server.list_approvals(run)}
    for call_id, verb in (("call_3", "reject"), ("call_2", "approve"), ("call_1", "reject")):
        server.decide_one(asked[call_id], verb)
    run = server.wait_for_end(run)
    # The library refuses a second call with an id.
    assert run["error"]["code"] == "MODEL_ANSWER_INVALID"
    assert server.deployment.ledger(run) == ["pay 2 to bob for None"]


def test_other_calls_of_the_answer_are_made_once(server: WaitingServer) -> None:
    calls = [call(1, "look"), call(2, "pay", amount=10, to="bob")]
    answer = {"content": "One moment.", "tool_calls": calls}
    run = server.start("openai_planner", json.dumps([answer]))
    assert (run["status"], run["content"]) == ("PAUSED", "One moment.")
    assert server.deployment.ledger(run) == ["look"]
    tokens = run["total_tokens"]
    run = server.decide_and_wait(run, "approve")
    assert (run["status"], run["content"]) == ("COMPLETED", "One moment.\n\nlooked | paid 10")
    assert server.deployment.ledger(run) == ["look", "pay 10 to bob for None"]
    assert [each["result"] for each in run["tools"]] == ["looked", "paid 10"]
    assert run["total_tokens"] > tokens > 0
    spans = [span["output_tokens"] for span in run["spans"] if span["kind"] == "model"]
    assert sum(spans) == run["metrics"]["output_tokens"]
    # The next run of the session gets the items of both legs.
    again = server.start("openai_planner", "[]", session_id=run["session_id"])
    assert (again["status"], again["content"]) == ("COMPLETED", "done")


def test_run_with_two_agents_of_one_name_can_wait(server: WaitingServer) -> None:
    """With the library alone it can; what agentctl adds to an agent must not change that."""
    run = server.start("openai_twins", CALL)
    assert run["status"] == "PAUSED", run["error"]
    server.decide(run, "approve")
    ended = server.wait_for_end(run)
    assert (ended["status"], ended["content"]) == ("COMPLETED", "paid 10"), ended["error"]
    assert server.deployment.ledger(run) == ["pay 10 to bob for None"]
