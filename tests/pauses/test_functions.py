"""Functions and generators that wait: `approve`, `ask` and `step` in several legs."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from agentctl import Decision, Rejected, RunContext
from agentctl.runtime.pauses import DecidedCall, Leg
from agentctl.runtime.runners.replay import Replay
from tests.pauses.waiting import WaitingServer


def test_finished_step_is_not_made_again_in_the_next_leg(server: WaitingServer) -> None:
    run = server.start("refund")
    assert (run["status"], run["content"]) == ("PAUSED", "")
    assert server.deployment.ledger(run) == ["begin", "look up bob"]
    (asked,) = server.list_approvals(run)
    assert (asked["kind"], asked["policy"], asked["question"]) == ("approval", "other", "Refund?")
    assert asked["arguments"] == {"amount": 10, "to": "BOB"}

    run = server.decide_and_wait(run, "approve")
    (asked,) = server.list_approvals(run)
    assert (run["status"], run["content"]) == ("COMPLETED", "paid by boss")
    # The function ran again, its finished step did not.
    ledger = ["begin", "look up bob", "begin", "pay 10 to BOB"]
    assert server.deployment.ledger(run) == ledger
    assert (asked["execution"], asked["result"]) == ("done", '"paid"')


def test_object_input_is_the_same_in_the_next_leg(server: WaitingServer) -> None:
    run = server.start("order", message="two", input={"pieces": 2})
    assert run["status"] == "PAUSED"
    run = server.decide_and_wait(run, "approve")
    assert run["content"] == "{'pieces': 2, 'seen': 1} {'pieces': 2} True"
    assert (run["input"], run["input_object"]) == ("two", {"pieces": 2})
    begun = "begin {'pieces': 2, 'seen': 1} {'pieces': 2}"
    assert server.deployment.ledger(run) == [begun] * 2


def test_same_call_is_asked_for_twice(server: WaitingServer) -> None:
    run = server.start("twice")
    run = server.decide_and_wait(run, "approve")
    server.decide(run, "reject")
    run = server.wait_for_end(run)
    assert run["content"] == "[{'account': 'BOB'}, 'no']"
    assert server.deployment.ledger(run) == ["look up bob"]


def test_calls_of_several_tasks_are_asked_for_together(server: WaitingServer) -> None:
    run = server.start("parallel")
    asked = server.list_approvals(run)
    assert sorted(each["tool_name"] for each in asked) == ["first", "second", "third"]
    server.decide(run, "approve", "first")
    server.decide(run, "reject", "second")
    server.decide(run, "approve", "third")
    run = server.wait_for_end(run)
    assert run["content"] == "yes,no,yes"
    assert server.deployment.ledger(run) == ["slow"]


def test_question_is_answered_or_rejected(server: WaitingServer) -> None:
    answered = server.start("form")
    rejected = server.start("form")
    server.decide(answered, "answer", answer={"size": 3})
    server.decide(rejected, "reject", note="no idea")
    assert server.wait_for_end(answered)["content"] == "size 3"
    assert server.wait_for_end(rejected)["content"] == "rejected: no idea"


def test_generator_publishes_nothing_twice(server: WaitingServer) -> None:
    run = server.start("streamed")
    assert (run["status"], run["content"]) == ("PAUSED", "one ")
    run = server.decide_and_wait(run, "approve")
    server.decide(run, "answer", answer="because")
    run = server.wait_for_end(run)
    events = server.read_events(run["run_id"])
    assert run["content"] == "one two True three because"
    texts = [event["content"] for event in events if event["event"] == "RunContent"]
    assert "".join(texts) == run["content"]
    names = [event["event"] for event in events]
    assert names.count("ToolCallStarted") == names.count("ToolCallCompleted") == 1
    assert names.count("RunProgress") == 2
    assert len(run["tools"]) == 1
    assert run["metrics"]["input_tokens"] == 100 + 3 + 5 + 7
    assert run["metrics"]["output_tokens"] == 2 + 5
    assert server.deployment.ledger(run) == ["look up bob"]


@pytest.mark.parametrize("agent", ["branching", "drifting", "drifting_call"])
def test_other_work_in_the_next_leg_is_an_error(server: WaitingServer, agent: str) -> None:
    run = server.start(agent)
    run = server.decide_and_wait(run, "approve")
    assert run["error"]["code"] == "REPLAY_MISMATCH"


def find_name(asked: dict[str, Any]) -> str:
    """Return the name of the thing that an approval of `crossing` is about."""
    if asked["arguments"]:
        return str(asked["arguments"]["name"])
    if asked["schema"]:
        return str(asked["schema"]["title"])
    if asked["question"]:
        return str(asked["question"]).removeprefix("Remove ").removesuffix("?")
    return {"user": "A", "other": "B"}[asked["policy"]]


@pytest.mark.parametrize("form", ["arguments", "question", "policy", "schema", "ask"])
def test_answer_reaches_the_task_that_has_asked(server: WaitingServer, form: str) -> None:
    """When the function runs again, the tasks ask in another order."""
    run = server.start("crossing", form)
    asked = {find_name(each): each for each in server.list_approvals(run)}
    for name, decision in (("A", "yes"), ("B", "no")):
        if asked[name]["kind"] == "input":
            server.decide_one(asked[name], "answer", answer=decision)
        else:
            server.decide_one(asked[name], "approve" if decision == "yes" else "reject")

    run = server.wait_for_end(run)
    assert run["status"] == "COMPLETED", run["error"]
    ledger = server.deployment.ledger(run)
    assert [line for line in ledger if line != "leg"] == ["A is removed"]


def test_one_of_two_equal_questions_is_approved(server: WaitingServer) -> None:
    run = server.start("crossing", "same")
    first, second = server.list_approvals(run)
    server.decide_one(first, "approve")
    server.decide_one(second, "reject")
    run = server.wait_for_end(run)
    assert run["status"] == "COMPLETED", run["error"]
    assert len([line for line in server.deployment.ledger(run) if line != "leg"]) == 1


@pytest.mark.parametrize("form", ["arguments", "question", "policy", "schema", "ask"])
def test_answer_does_not_reach_another_question(server: WaitingServer, form: str) -> None:
    run = server.start("turning", form)
    if form in ("schema", "ask"):
        run = server.decide_and_wait(run, "answer", answer="yes")
    else:
        run = server.decide_and_wait(run, "approve")
    assert server.deployment.ledger(run) == ["leg", "leg"]
    assert run["error"]["code"] == "REPLAY_MISMATCH"


async def test_log_of_an_earlier_version_is_read() -> None:
    """It has digests of questions without their policies and schemas."""
    encoded = orjson.dumps(["ask", "ask", {"question": "Which?"}])
    digest = f"ask-{hashlib.sha256(encoded).hexdigest()[:24]}"
    logged = {"lane": 0, "title": "ask ask", "digest": digest, "call_id": digest}
    answered = DecidedCall("a1", "input", "answered", digest, "ask", {}, answer="left")
    run: Any = SimpleNamespace(
        context_host=SimpleNamespace(replayer=None),
        environment=SimpleNamespace(
            leg=Leg({"calls": [logged]}, [answered]), limits=SimpleNamespace(run_bytes=1_000)
        ),
    )
    replay = Replay(run)
    assert await replay.execute(replay.ask("Which?", {"type": "string"}), list) == "left"


def test_synchronous_function_cannot_wait(server: WaitingServer) -> None:
    run = server.start("blocking")
    assert "context.approve is for async functions" in run["error"]["detail"]


def test_call_outside_of_a_step_is_done_when_the_function_returns(server: WaitingServer) -> None:
    run = server.start("inline")
    server.decide(run, "approve")
    server.wait_for_end(run)
    failed = "the step broken failed (ValueError)"
    # The failure of the step is repeated, its function is not.
    assert server.deployment.ledger(run) == ["failing", failed, failed, "inline"]
    (asked,) = server.list_approvals(run)
    assert asked["execution"] == "done"


def test_calls_are_made_by_the_steps_after_several_pauses(server: WaitingServer) -> None:
    run = server.start("late")
    run = server.decide_and_wait(run, "approve")
    run = server.decide_and_wait(run, "approve")
    asked = server.list_approvals(run)
    # Nothing is done yet: the function waits for the answer.
    assert [each["execution"] for each in asked] == ["executing", "executing", None]
    assert server.deployment.ledger(run) == []
    run = server.decide_and_wait(run, "answer", answer="left")
    assert [each["execution"] for each in server.list_approvals(run)[:2]] == ["done", "done"]
    run = server.decide_and_wait(run, "answer", answer=None)
    assert run["status"] == "COMPLETED", run
    steps = ["left 1", "left 2", "slow"]
    assert server.deployment.ledger(run) == [*steps, "TimeoutError", "StepFailed"]


def test_state_of_the_session_is_changed_once(server: WaitingServer) -> None:
    run = server.start("counted")
    server.decide(run, "approve")
    assert server.wait_for_end(run)["content"] == "1"


async def test_context_of_a_test_takes_replies() -> None:
    context = RunContext(replies=[True, Decision(False, note="no"), "large", Rejected("later")])
    assert (await context.approve("refund", {"amount": 1})).arguments == {"amount": 1}
    assert not await context.approve("refund", {"amount": 1})
    assert await context.ask("Which size?") == "large"
    with pytest.raises(Rejected, match="later"):
        await context.ask("Which size?")
    with pytest.raises(RuntimeError, match="replies"):
        await context.ask("Which size?")
    assert await context.step("add", lambda a, b: a + b, 1, 2) == 3
