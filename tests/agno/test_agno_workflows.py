"""Workflows of agno: steps, failures, cancels, and what they wait for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from agno.workflow import (
    Condition,
    Loop,
    Parallel,
    Router,
    Step,
    StepInput,
    StepOutput,
    Steps,
    Workflow,
    pause,
)
from agno.workflow.types import HumanReview

from agentctl.runtime.imports import UnusableObject
from agentctl.runtime.runners.agno_workflow import AgnoWorkflowRunner
from agentctl.runtime.runners.library_runner import RunnerOptions
from tests.agno.test_agno_teams import request
from tests.kit.model import ModelEndpoint
from tests.pauses.graphs import CALL
from tests.pauses.waiting import WaitingServer, list_members


def test_steps_are_shown(server: WaitingServer) -> None:
    run = server.start("stages", "tea")
    events = server.read_events(run["run_id"])
    names = [event["step_name"] for event in events if event["event"] == "StepStarted"]
    assert sorted(names) == sorted(["read", "left", "right", "then", "shout", "shout"])
    assert (names[0], names[-3:]) == ("read", ["then", "shout", "shout"])
    assert len([event for event in events if event["event"] == "StepCompleted"]) == len(names)
    steps = [span for span in run["spans"] if span["kind"] == "step"]
    assert [span["name"] for span in steps] == names
    assert {span["status"] for span in steps} == {"completed"}
    members = list_members(server, run)
    assert sorted(each["agent_id"] for each in members) == [
        "left-agent", "read-agent", "right-agent", "then-agent",
    ]  # fmt: skip
    by_id = {span["member_run_id"]: span["name"] for span in steps}
    assert all(each["agent_id"] == f"{by_id[each['run_id']]}-agent" for each in members)
    # A step gets the result of the one before it.
    then = next(each for each in members if each["agent_id"] == "then-agent")
    assert then["input"] == then["content"] != "tea"
    assert run["content"] == then["content"].upper()
    texts = [event["text"] for event in events if event["event"] == "RunProgress"]
    assert texts == [
        "both: steps at the same time", "maybe: True", "again: iteration 1", "again: iteration 2",
    ]  # fmt: skip
    session = request(server, f"/sessions/{run['session_id']}?type=agent").json()
    assert session["session_state"] == {"shouts": 2}


def test_step_that_failed_is_left_out(server: WaitingServer) -> None:
    run = server.start("skipping", "tea")
    first, second = list_members(server, run)
    assert (run["status"], second["status"]) == ("COMPLETED", "COMPLETED")
    assert (first["status"], first["error"]["code"]) == ("ERROR", "MODEL_REJECTED")
    spans = {span["name"]: span["status"] for span in run["spans"] if span["kind"] == "step"}
    assert spans == {"first": "failed", "second": "completed"}
    assert "secret" not in json.dumps([run, first, second])


def test_failure_of_the_last_step_is_that_of_the_run(server: WaitingServer) -> None:
    run = server.start("failing_step", "tea")
    assert (run["status"], run["error"]["code"]) == ("ERROR", "AGENT_FAILED")
    assert "step break failed" in run["error"]["detail"]
    assert "secret" not in json.dumps(run)


def test_cancel_in_parallel_steps(server: WaitingServer, model_endpoint: ModelEndpoint) -> None:
    sent = {"message": "tea", "stream": False, "background": True}
    run_id = request(server, "/agents/hanging/runs", sent).json()["run_id"]
    model_endpoint.wait_for_open(2)
    server.cancel("hanging", run_id)
    run = server.wait_for_end({"run_id": run_id})
    model_endpoint.wait_for_open(0)
    assert run["status"] == "CANCELLED"
    assert [each["status"] for each in list_members(server, run)] == ["CANCELLED"] * 2


def test_member_in_a_step_waits_and_goes_on(server: WaitingServer) -> None:
    run = server.start("paying", CALL)
    assert run["status"] == "PAUSED", run
    (asked,) = server.list_approvals(run)
    assert (asked["tool_name"], asked["arguments"]) == ("pay", json.loads(CALL))

    server.decide(run, "approve")
    run = server.wait_for_end(run)
    assert run["status"] == "COMPLETED", run
    assert server.deployment.ledger(run) == ["pay 10 to bob for ann"]
    assert "PAID 10" in run["content"]
    team, agent = list_members(server, run)
    assert (team["status"], agent["status"]) == ("COMPLETED", "COMPLETED")
    assert agent["tools"][0]["result"] == "paid 10"
    steps = [(span["name"], span["status"]) for span in run["spans"] if span["kind"] == "step"]
    assert steps == [("prepare", "completed"), ("pay", "completed"), ("shout", "completed")]


def test_confirmation_of_a_step(server: WaitingServer) -> None:
    runs = [server.start("confirmed", "tea") for _ in range(2)]
    (asked,) = server.list_approvals(runs[0])
    assert (asked["kind"], asked["tool_name"], asked["question"]) == ("approval", "ask", "Really?")
    server.decide(runs[0], "approve")
    server.decide(runs[1], "reject")
    assert server.wait_for_end(runs[0])["content"] == "TEA"
    rejected = server.wait_for_end(runs[1])
    # The library leaves a rejected step out.
    assert (rejected["status"], rejected["member_runs"]) == ("COMPLETED", [])


def test_answer_to_a_step(server: WaitingServer) -> None:
    runs = [server.start("asking", "tea") for _ in range(2)]
    (asked,) = server.list_approvals(runs[0])
    assert (asked["kind"], asked["question"]) == ("input", "Which city?")
    assert asked["schema"]["required"] == ["city"]
    server.decide(runs[0], "answer", answer={"city": "Oslo"})
    assert "city: Oslo" in server.wait_for_end(runs[0])["content"]
    server.decide(runs[1], "reject")
    assert server.wait_for_end(runs[1])["error"]["code"] == "AGENT_FAILED"


@pytest.mark.parametrize(("edit", "content"), [({}, "TEA"), ({"output": "milk"}, "MILK")])
def test_review_of_the_output_of_a_step(
    server: WaitingServer, edit: dict[str, Any], content: str
) -> None:
    run = server.start("reviewed", "tea")
    (asked,) = server.list_approvals(run)
    assert (asked["arguments"], asked["question"]) == ({"output": "tea"}, "Is it good?")
    server.decide(run, "approve", **({"arguments": edit} if edit else {}))
    assert server.wait_for_end(run)["content"] == content


def test_choice_of_a_router(server: WaitingServer) -> None:
    run = server.start("routed", "tea")
    (asked,) = server.list_approvals(run)
    assert asked["schema"]["properties"]["choices"]["items"] == {"enum": ["left", "shout"]}
    server.decide(run, "answer", answer={"choices": ["shout"]})
    assert server.wait_for_end(run)["content"] == "TEA"


@pytest.mark.parametrize("agent", ["twice_team", "twice_workflow"])
def test_member_waits_twice(server: WaitingServer, agent: str) -> None:
    plan = [
        {
            "tool_calls": [
                {
                    "id": f"c{n}",
                    "type": "function",
                    "function": {
                        "name": "pay",
                        "arguments": json.dumps({"amount": n, "to": "bob"}),
                    },
                }
            ]
        }
        for n in (1, 2)
    ]
    run = server.start(agent, json.dumps(plan))
    run = server.decide_and_wait(run, "approve")
    assert run["status"] == "PAUSED", run
    assert server.deployment.ledger(run) == ["pay 1 to bob for ann"]
    run = server.decide_and_wait(run, "reject", note="enough")
    assert run["status"] == "COMPLETED", run
    assert server.deployment.ledger(run) == ["pay 1 to bob for ann"]
    (member,) = list_members(server, run)
    assert [(call["tool_args"]["amount"], call["result"]) for call in member["tools"]] == [
        (1, "paid 1"), (2, "The call was rejected: enough"),
    ]  # fmt: skip


def test_review_of_the_iterations_of_a_loop(server: WaitingServer) -> None:
    run = server.start("looped", "tea")
    run = server.decide_and_wait(run, "reject")
    assert run["status"] == "PAUSED", run
    run = server.decide_and_wait(run, "approve", arguments={"output": "milk"})
    assert (run["status"], run["content"]) == ("COMPLETED", "milk")


@pytest.mark.parametrize("agent", ["counting_team", "counting_workflow"])
def test_continued_member_reads_the_state_of_the_session(server: WaitingServer, agent: str) -> None:
    run = server.start(agent, "{}", session_state={"count": 7})
    run = server.decide_and_wait(run, "approve")
    (member,) = list_members(server, run)
    assert member["content"] == "count 7"


def test_agent_starts_the_steps_of_its_workflow(server: WaitingServer) -> None:
    run = server.start("agentic", '{"query": "tea"}')
    assert (run["status"], run["content"]) == ("COMPLETED", "TEA")
    assert [span["name"] for span in run["spans"]] == ["shout"]


def build_review() -> HumanReview:
    return HumanReview(requires_confirmation=True, confirmation_message="Really?")


@pause(requires_confirmation=True)
def ask_first(step_input: StepInput) -> StepOutput:
    return StepOutput(content="made")


def make(step_input: StepInput) -> StepOutput:
    return StepOutput(content="made")


@pytest.mark.parametrize("build", [Parallel, Loop, Steps, Condition, Router])
def test_review_that_agno_never_asks_for_is_refused(build: Any) -> None:
    """agno executes an inner step with a review at once."""
    reviewed = Step(name="pay", executor=make, human_review=build_review())
    options: dict[str, Any] = {"name": "outer"}
    if build is Condition:
        options |= {"evaluator": True}
    for inner in (reviewed, Steps(name="group", steps=[reviewed]), ask_first):
        if build is Router:
            outer = Router(choices=[inner], selector=lambda _: [reviewed], **options)
        elif build is Parallel:
            outer = Parallel(inner, **options)
        else:
            outer = build(steps=[inner], **options)
        with pytest.raises(UnusableObject, match="never asks for the review of"):
            AgnoWorkflowRunner(Workflow(steps=[outer]), RunnerOptions())

    group = Steps(name="group", steps=[make], human_review=build_review())
    AgnoWorkflowRunner(Workflow(steps=[reviewed, group]), RunnerOptions())
