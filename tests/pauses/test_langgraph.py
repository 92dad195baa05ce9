"""Graphs of LangGraph that wait: both forms of langchain's middleware, and questions."""

from __future__ import annotations

import hashlib
import json
import random
from dataclasses import replace

import pytest

from tests.pauses.graphs import CALL, build_calls_with_one_id, build_tool_calls
from tests.pauses.waiting import WaitingDeployment, WaitingServer
from tests.server.files_of_runs import build_png

AGENTS = ("waiting_graphs",)

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
def test_rejected_and_edited_calls(shared_graphs: WaitingServer, form: str) -> None:
    rejected = shared_graphs.start(form, CALL)
    edited = shared_graphs.start(form, CALL)
    shared_graphs.decide(rejected, "reject", note="too much")
    shared_graphs.decide(edited, "approve", arguments={"amount": 5, "to": "eve"})
    ended = shared_graphs.wait_for_end(rejected)
    assert ended["status"] == "COMPLETED"
    assert "too much" in ended["content"]
    made = [ended, *map(shared_graphs.get_run, ended["member_runs"])]
    assert {call["result"] for run in made for call in run["tools"]} == {
        "The call was rejected: too much"
    }
    assert shared_graphs.deployment.ledger(rejected) == []
    assert {each["execution"] for each in shared_graphs.list_approvals(rejected)} == {None}
    ended = shared_graphs.wait_for_end(edited)
    assert "paid 5" in ended["content"]
    assert shared_graphs.deployment.ledger(edited) == ["pay 5 to eve for None"] * calls_of(form)


@pytest.mark.parametrize("form", ["exact", "exact_each"])
def test_calls_with_one_id_are_not_decided_about(shared_graphs: WaitingServer, form: str) -> None:
    run = shared_graphs.start(form, build_calls_with_one_id("pay"))
    run = shared_graphs.wait_for_end(run)
    assert run["error"]["code"] == "MODEL_ANSWER_INVALID"
    assert shared_graphs.deployment.ledger(run) == []


def test_agent_that_waits_in_a_subgraph_is_a_paused_member(shared_graphs: WaitingServer) -> None:
    run = shared_graphs.start("nested", CALL)
    (member_id,) = run["member_runs"]
    member = shared_graphs.get_run(member_id)
    assert (member["status"], member["agent_id"]) == ("PAUSED", "agent")
    assert [call["result"] for call in member["tools"]] == [None]
    assert [each["run_id"] for each in run["approvals"]] == [run["run_id"]]
    shared_graphs.cancel("nested", run["run_id"])
    assert shared_graphs.wait_for_end(member)["status"] == "CANCELLED"
    other = shared_graphs.start("nested", CALL)
    shared_graphs.decide(other, "approve")
    ended = shared_graphs.wait_for_end(other)
    (member_id,) = ended["member_runs"]
    member = shared_graphs.get_run(member_id)
    assert (member["status"], member["content"]) == ("COMPLETED", ended["content"])
    assert [call["result"] for call in member["tools"]] == ["paid 10"]


def test_events_of_all_legs_tell_each_call_once(shared_graphs: WaitingServer) -> None:
    run = shared_graphs.start("batched", CALL)
    shared_graphs.decide(run, "approve")
    shared_graphs.wait_for_end(run)
    names = [event["event"] for event in shared_graphs.read_events(run["run_id"])]
    assert [name for name in names if name != "RunContent"] == [
        "RunStarted", "ToolCallStarted", "RunPaused", "RunContinued", "ToolCallCompleted",
        "RunCompleted",
    ]  # fmt: skip


def test_questions_are_asked_one_after_the_other(shared_graphs: WaitingServer) -> None:
    run = shared_graphs.start("questions")
    (asked,) = shared_graphs.list_approvals(run)
    assert (asked["kind"], asked["question"]) == ("input", "Which way?")
    with pytest.raises(AssertionError, match="422"):
        shared_graphs.decide(run, "answer", answer="up")
    run = shared_graphs.decide_and_wait(run, "answer", answer="left")
    asked = shared_graphs.list_approvals(run)[-1]
    assert (run["status"], asked["question"]) == ("PAUSED", '{"question":"How far?"}')
    shared_graphs.decide(run, "answer", answer={"miles": 3})
    run = shared_graphs.wait_for_end(run)
    assert run["content"] == "left {'miles': 3}"
    # The node that waits runs again from its top, the node before it does not.
    assert shared_graphs.deployment.ledger(run) == ["begin", "ask", "ask", "ask"]


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


def test_answer_reaches_the_call_that_has_asked(shared_graphs: WaitingServer) -> None:
    """When the graph continues, the call of B is the first to ask."""
    run = shared_graphs.start("calls", build_two_calls("remove"))
    (asked,) = shared_graphs.list_approvals(run)
    assert asked["question"] == "Remove A?"

    run = shared_graphs.decide_and_wait(run, "answer", answer="yes")
    assert run["status"] == "PAUSED"
    asked = shared_graphs.list_approvals(run)[-1]
    assert asked["question"] == "Remove B?"
    assert "B is removed" not in shared_graphs.deployment.ledger(run)

    shared_graphs.decide(run, "answer", answer="no")
    run = shared_graphs.wait_for_end(run)
    assert run["status"] == "COMPLETED"
    assert [call["result"] for call in run["tools"]] == ["A is removed", "B stays"]
    # The call of A has ended before the question about B: it is not made again.
    ledger = shared_graphs.deployment.ledger(run)
    assert [line for line in ledger if line.endswith("removed")] == ["A is removed"]


def test_result_that_cannot_be_stored_does_not_prevent_a_pause(
    shared_graphs: WaitingServer,
) -> None:
    """Its call is made again when the graph continues, as LangGraph does with each of them."""
    run = shared_graphs.start("calls", build_tool_calls("lock", "confirm"))
    assert run["status"] == "PAUSED", run
    assert shared_graphs.deployment.ledger(run) == ["lock"]

    shared_graphs.decide(run, "answer", answer="yes")
    run = shared_graphs.wait_for_end(run)
    assert run["status"] == "COMPLETED", run
    assert [call["result"] for call in run["tools"]] == ["locked", "confirmed with yes"]
    assert shared_graphs.deployment.ledger(run) == ["lock", "lock"]


@pytest.mark.parametrize("form", ["calls", "kept_calls"])
def test_bytes_of_files_in_kept_results_do_not_count(graphs: WaitingDeployment, form: str) -> None:
    """The file is too large for the state of a run, which refers to it."""
    picture = build_png() + random.Random(1).randbytes(120_000)
    limited = replace(graphs, variables={"AGENTCTL_LIMITS__RUN_BYTES": "200000"})
    with limited.serve() as server:
        file_id = server.upload("dot.png", picture)
        run = server.start(form, build_tool_calls("show", "confirm"), files=[file_id])
        assert run["status"] == "PAUSED", run

        server.decide(run, "answer", answer="yes")
        run = server.wait_for_end(run)
        assert run["status"] == "COMPLETED", run

    artifact = f"artifact {hashlib.sha256(picture).hexdigest()}"
    assert limited.ledger(run) == ["show", artifact]


@pytest.mark.parametrize("agent", CROSSINGS)
def test_answer_reaches_the_code_that_has_asked(shared_graphs: WaitingServer, agent: str) -> None:
    """Two things are asked at the same time, in another order when the graph continues."""
    if agent == "delegations":
        run = shared_graphs.start("calls", build_two_calls("delegate"))
    else:
        run = shared_graphs.start(agent, "go", input={"thing": "both"})

    while run["status"] == "PAUSED":
        for asked in shared_graphs.list_approvals(run):
            if asked["status"] == "pending":
                answer = {"Remove A?": "yes", "Remove B?": "no"}[asked["question"]]
                shared_graphs.decide_one(asked, "answer", answer=answer)
        run = shared_graphs.wait_for_next(run)

    assert run["status"] == "COMPLETED", run["error"]
    ledger = shared_graphs.deployment.ledger(run)
    assert {line for line in ledger if line.endswith("removed")} == {"A is removed"}
    told = {line for line in ledger if "was answered" in line}
    assert told == {"A was answered yes", "B was answered no"}
    questions = [asked["question"] for asked in shared_graphs.list_approvals(run)]
    assert sorted(questions) == ["Remove A?", "Remove B?"]


@pytest.mark.parametrize("form", ["limited", "limited_each"])
def test_decisions_that_a_graph_does_not_take(shared_graphs: WaitingServer, form: str) -> None:
    run = shared_graphs.start(form, CALL)
    with pytest.raises(AssertionError, match="422"):
        shared_graphs.decide(run, "approve", arguments={"amount": 5, "to": "eve"})
    shared_graphs.decide(run, "reject")
    run = shared_graphs.wait_for_end(run)
    assert (run["status"], run["error"]["code"]) == ("ERROR", "AGENT_FAILED")
    assert "does not take a rejection" in run["error"]["detail"]
    assert shared_graphs.deployment.ledger(run) == []


@pytest.mark.parametrize("form", ["altering", "altering_each"])
def test_call_with_other_arguments_is_not_made(shared_graphs: WaitingServer, form: str) -> None:
    run = shared_graphs.start(form, CALL)
    shared_graphs.decide(run, "approve")
    run = shared_graphs.wait_for_end(run)
    assert (run["status"], run["error"]["code"]) == ("ERROR", "AGENT_FAILED")
    assert "other arguments than the approved ones" in run["error"]["detail"]
    assert shared_graphs.deployment.ledger(run) == []


def test_tool_that_only_a_person_answers_is_a_question(shared_graphs: WaitingServer) -> None:
    run = shared_graphs.start("asking", CALL)
    (asked,) = shared_graphs.list_approvals(run)
    assert asked["kind"] == "input"
    shared_graphs.decide(run, "answer", answer="ask my mother")
    run = shared_graphs.wait_for_end(run)
    assert run["content"] == "ask my mother"
    assert shared_graphs.deployment.ledger(run) == []
