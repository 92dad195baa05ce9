"""Graphs of LangGraph that wait: both forms of langchain's middleware, and questions."""

from __future__ import annotations

import json

import pytest

from tests.pauses.graphs import CALL, build_calls_with_one_id, build_tool_calls
from tests.pauses.waiting import WaitingServer

FORMS = ["each", "nested"]
"""One interrupt for each call, and an agent in a subgraph.

`tests/conformance` has one interrupt for all calls, with and without a checkpointer.
"""


CROSSINGS = [
    "delegations",
    "gathering",
    "gathering_graphs",
    "gathering_tools",
    "functional",
    "functional_calls",
]
"""Agents that ask about two things at the same time, in another order when they run again."""


def calls_of(form: str) -> int:
    return 2 if form == "each" else 1


@pytest.mark.parametrize("form", FORMS)
def test_rejected_and_edited_calls(server: WaitingServer, form: str) -> None:
    rejected = server.start(form, CALL)
    edited = server.start(form, CALL)
    server.decide(rejected, "reject", note="too much")
    server.decide(edited, "approve", arguments={"amount": 5, "to": "eve"})
    ended = server.wait_for_end(rejected)
    assert ended["status"] == "COMPLETED"
    assert "too much" in ended["content"]
    made = [ended, *map(server.get_run, ended["member_runs"])]
    assert {call["result"] for run in made for call in run["tools"]} == {
        "The call was rejected: too much"
    }
    assert server.deployment.ledger(rejected) == []
    assert {each["execution"] for each in server.list_approvals(rejected)} == {None}
    ended = server.wait_for_end(edited)
    assert "paid 5" in ended["content"]
    assert server.deployment.ledger(edited) == ["pay 5 to eve for None"] * calls_of(form)


@pytest.mark.parametrize("form", ["exact", "exact_each"])
def test_calls_with_one_id_are_not_decided_about(server: WaitingServer, form: str) -> None:
    run = server.start(form, build_calls_with_one_id("pay"))
    run = server.wait_for_end(run)
    assert run["error"]["code"] == "MODEL_ANSWER_INVALID"
    assert server.deployment.ledger(run) == []


def test_agent_that_waits_in_a_subgraph_is_a_paused_member(server: WaitingServer) -> None:
    run = server.start("nested", CALL)
    (member_id,) = run["member_runs"]
    member = server.get_run(member_id)
    assert (member["status"], member["agent_id"]) == ("PAUSED", "agent")
    assert [call["result"] for call in member["tools"]] == [None]
    assert [each["run_id"] for each in run["approvals"]] == [run["run_id"]]
    server.cancel("nested", run["run_id"])
    assert server.wait_for_end(member)["status"] == "CANCELLED"
    other = server.start("nested", CALL)
    server.decide(other, "approve")
    ended = server.wait_for_end(other)
    (member_id,) = ended["member_runs"]
    member = server.get_run(member_id)
    assert (member["status"], member["content"]) == ("COMPLETED", ended["content"])
    assert [call["result"] for call in member["tools"]] == ["paid 10"]


def test_events_of_all_legs_tell_each_call_once(server: WaitingServer) -> None:
    run = server.start("batched", CALL)
    server.decide(run, "approve")
    server.wait_for_end(run)
    names = [event["event"] for event in server.read_events(run["run_id"])]
    assert [name for name in names if name != "RunContent"] == [
        "RunStarted", "ToolCallStarted", "RunPaused", "RunContinued", "ToolCallCompleted",
        "RunCompleted",
    ]  # fmt: skip


def test_questions_are_asked_one_after_the_other(server: WaitingServer) -> None:
    run = server.start("questions")
    (asked,) = server.list_approvals(run)
    assert (asked["kind"], asked["question"]) == ("input", "Which way?")
    with pytest.raises(AssertionError, match="422"):
        server.decide(run, "answer", answer="up")
    run = server.decide_and_wait(run, "answer", answer="left")
    asked = server.list_approvals(run)[-1]
    assert (run["status"], asked["question"]) == ("PAUSED", '{"question":"How far?"}')
    server.decide(run, "answer", answer={"miles": 3})
    run = server.wait_for_end(run)
    assert run["content"] == "left {'miles': 3}"
    # The node that waits runs again from its top, the node before it does not.
    assert server.deployment.ledger(run) == ["begin", "ask", "ask", "ask"]


def build_two_calls(tool: str) -> str:
    """Return the message for which the model `exact` calls a tool for A and for B."""
    calls = [
        {
            "id": f"call-{name}",
            "type": "function",
            "function": {"name": tool, "arguments": json.dumps({"name": name})},
        }
        for name in "AB"
    ]
    return json.dumps({"tool_calls": calls})


def test_answer_reaches_the_call_that_has_asked(server: WaitingServer) -> None:
    """When the graph continues, the call of B is the first to ask."""
    run = server.start("calls", build_two_calls("remove"))
    (asked,) = server.list_approvals(run)
    assert asked["question"] == "Remove A?"

    run = server.decide_and_wait(run, "answer", answer="yes")
    assert run["status"] == "PAUSED"
    asked = server.list_approvals(run)[-1]
    assert asked["question"] == "Remove B?"
    assert "B is removed" not in server.deployment.ledger(run)

    server.decide(run, "answer", answer="no")
    run = server.wait_for_end(run)
    assert run["status"] == "COMPLETED"
    assert [call["result"] for call in run["tools"]] == ["A is removed", "B stays"]
    # The call of A has ended before the question about B: it is not made again.
    ledger = server.deployment.ledger(run)
    assert [line for line in ledger if line.endswith("removed")] == ["A is removed"]


def test_result_that_cannot_be_stored_does_not_prevent_a_pause(server: WaitingServer) -> None:
    """Its call is made again when the graph continues, as LangGraph does with each of them."""
    run = server.start("calls", build_tool_calls("lock", "confirm"))
    assert run["status"] == "PAUSED", run
    assert server.deployment.ledger(run) == ["lock"]

    server.decide(run, "answer", answer="yes")
    run = server.wait_for_end(run)
    assert run["status"] == "COMPLETED", run
    assert [call["result"] for call in run["tools"]] == ["locked", "confirmed with yes"]
    assert server.deployment.ledger(run) == ["lock", "lock"]


@pytest.mark.parametrize("agent", CROSSINGS)
def test_answer_reaches_the_code_that_has_asked(server: WaitingServer, agent: str) -> None:
    """Two things are asked at the same time, in another order when the graph continues."""
    if agent == "delegations":
        run = server.start("calls", build_two_calls("delegate"))
    else:
        run = server.start(agent, "go", input={"thing": "both"})

    while run["status"] == "PAUSED":
        for asked in server.list_approvals(run):
            if asked["status"] == "pending":
                answer = {"Remove A?": "yes", "Remove B?": "no"}[asked["question"]]
                server.decide_one(asked, "answer", answer=answer)
        run = server.wait_for_next(run)

    assert run["status"] == "COMPLETED", run["error"]
    ledger = server.deployment.ledger(run)
    assert {line for line in ledger if line.endswith("removed")} == {"A is removed"}
    told = {line for line in ledger if "was answered" in line}
    assert told == {"A was answered yes", "B was answered no"}
    questions = [asked["question"] for asked in server.list_approvals(run)]
    assert sorted(questions) == ["Remove A?", "Remove B?"]


@pytest.mark.parametrize("form", ["limited", "limited_each"])
def test_decisions_that_a_graph_does_not_take(server: WaitingServer, form: str) -> None:
    run = server.start(form, CALL)
    with pytest.raises(AssertionError, match="422"):
        server.decide(run, "approve", arguments={"amount": 5, "to": "eve"})
    server.decide(run, "reject")
    run = server.wait_for_end(run)
    assert (run["status"], run["error"]["code"]) == ("ERROR", "AGENT_FAILED")
    assert "does not take a rejection" in run["error"]["detail"]
    assert server.deployment.ledger(run) == []


@pytest.mark.parametrize("form", ["altering", "altering_each"])
def test_call_with_other_arguments_is_not_made(server: WaitingServer, form: str) -> None:
    run = server.start(form, CALL)
    server.decide(run, "approve")
    run = server.wait_for_end(run)
    assert (run["status"], run["error"]["code"]) == ("ERROR", "AGENT_FAILED")
    assert "other arguments than the approved ones" in run["error"]["detail"]
    assert server.deployment.ledger(run) == []


def test_tool_that_only_a_person_answers_is_a_question(server: WaitingServer) -> None:
    run = server.start("asking", CALL)
    (asked,) = server.list_approvals(run)
    assert asked["kind"] == "input"
    server.decide(run, "answer", answer="ask my mother")
    run = server.wait_for_end(run)
    assert run["content"] == "ask my mother"
    assert server.deployment.ledger(run) == []
