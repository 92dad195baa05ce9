"""Graphs of LangGraph that wait: both forms of langchain's middleware, and questions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.endpoint import ModelEndpoint
from tests.pauses.graphs import CALL, create_graph_deployment
from tests.pauses.waiting import WaitingDeployment, WaitingServer

FORMS = ["batched", "each", "kept", "nested"]
"""One interrupt for all calls, one for each call, with a checkpointer, in a subgraph."""


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[WaitingServer]:
    """A server for all tests that kill none."""
    folder = tmp_path_factory.mktemp("graphs")
    with create_graph_deployment(folder, model_endpoint.base_url).serve() as server:
        yield server


@pytest.fixture
def waiting(tmp_path: Path, model_endpoint: ModelEndpoint) -> WaitingDeployment:
    return create_graph_deployment(tmp_path, model_endpoint.base_url)


def calls_of(form: str) -> int:
    return 2 if form == "each" else 1


def test_approved_calls_are_made_once_on_another_server(waiting: WaitingDeployment) -> None:
    with waiting.serve() as server:
        runs = {form: server.start(form, CALL) for form in FORMS}
        assert {run["status"] for run in runs.values()} == {"PAUSED"}
        for form, run in runs.items():
            asked = server.list_approvals(run)
            assert [each["tool_name"] for each in asked] == ["pay"] * calls_of(form)
            for each in asked:
                assert (each["kind"], each["arguments"]) == (
                    "approval",
                    {"amount": 10, "to": "bob"},
                )
                assert each["schema"]["required"] == ["amount", "to"]
                assert "pay" in each["question"]
            assert waiting.ledger(run) == []
        server.kill()
    with waiting.serve("second.log") as server:
        for run in runs.values():
            server.decide(run, "approve")
        for form, run in runs.items():
            ended = server.wait_for_end(run)
            assert ended["status"] == "COMPLETED", ended
            assert ended["content"] == " | ".join(["paid 10"] * calls_of(form))
            assert waiting.ledger(run) == ["pay 10 to bob"] * calls_of(form)
            for each in server.list_approvals(run):
                assert (each["execution"], each["result"]) == ("done", "paid 10")
            roles = [message["role"] for message in ended["messages"]]
            assert roles == ["user", "assistant", *["tool"] * calls_of(form), "assistant"]


@pytest.mark.parametrize("form", FORMS)
def test_rejected_and_edited_calls(shared: WaitingServer, form: str) -> None:
    rejected, edited = shared.start(form, CALL), shared.start(form, CALL)
    shared.decide(rejected, "reject", note="too much")
    shared.decide(edited, "approve", arguments={"amount": 5, "to": "eve"})
    ended = shared.wait_for_end(rejected)
    assert ended["status"] == "COMPLETED"
    assert "too much" in ended["content"]
    assert {call["result"] for call in ended["tools"]} == {"The call was rejected: too much"}
    assert shared.deployment.ledger(rejected) == []
    assert {each["execution"] for each in shared.list_approvals(rejected)} == {None}
    ended = shared.wait_for_end(edited)
    assert "paid 5" in ended["content"]
    assert shared.deployment.ledger(edited) == ["pay 5 to eve"] * calls_of(form)


def test_events_of_all_legs_tell_each_call_once(shared: WaitingServer) -> None:
    run = shared.start("batched", CALL)
    shared.decide(run, "approve")
    shared.wait_for_end(run)
    names = [event["event"] for event in shared.read_events(run["run_id"])]
    assert [name for name in names if name != "RunContent"] == [
        "RunStarted", "ToolCallStarted", "RunPaused", "RunContinued", "ToolCallCompleted",
        "RunCompleted",
    ]  # fmt: skip


def test_questions_are_asked_one_after_the_other(shared: WaitingServer) -> None:
    run = shared.start("questions")
    (asked,) = shared.list_approvals(run)
    assert (asked["kind"], asked["question"]) == ("input", "Which way?")
    with pytest.raises(AssertionError, match="422"):
        shared.decide(run, "answer", answer="up")
    run = shared.decide_and_wait(run, "answer", answer="left")
    asked = shared.list_approvals(run)[-1]
    assert (run["status"], asked["question"]) == ("PAUSED", '{"question":"How far?"}')
    shared.decide(run, "answer", answer={"miles": 3})
    run = shared.wait_for_end(run)
    assert run["content"] == "left {'miles': 3}"
    # The node that waits runs again from its top, the node before it does not.
    assert shared.deployment.ledger(run) == ["begin", "ask", "ask", "ask"]


def test_cancel_of_a_paused_run_makes_no_call(shared: WaitingServer) -> None:
    run = shared.start("batched", CALL)
    shared.cancel("batched", run["run_id"])
    ended = shared.get_run(run["run_id"])
    assert ended["status"] == "CANCELLED"
    assert [each["status"] for each in shared.list_approvals(run)] == ["cancelled"]
    assert shared.deployment.ledger(run) == []


@pytest.mark.parametrize("form", ["limited", "limited_each"])
def test_decisions_that_a_graph_does_not_take(shared: WaitingServer, form: str) -> None:
    run = shared.start(form, CALL)
    with pytest.raises(AssertionError, match="422"):
        shared.decide(run, "approve", arguments={"amount": 5, "to": "eve"})
    shared.decide(run, "reject")
    run = shared.wait_for_end(run)
    assert (run["status"], run["error"]["code"]) == ("ERROR", "AGENT_FAILED")
    assert "does not take a rejection" in run["error"]["detail"]
    assert shared.deployment.ledger(run) == []


def test_tool_that_only_a_person_answers_is_a_question(shared: WaitingServer) -> None:
    run = shared.start("asking", CALL)
    (asked,) = shared.list_approvals(run)
    assert asked["kind"] == "input"
    shared.decide(run, "answer", answer="ask my mother")
    run = shared.wait_for_end(run)
    assert run["content"] == "ask my mother"
    assert shared.deployment.ledger(run) == []


def test_call_of_a_lost_server_is_not_made_again(waiting: WaitingDeployment) -> None:
    hold = waiting.inner.folder / "hold"
    hold.touch()
    with waiting.serve() as server:
        runs = {form: server.start(form, CALL) for form in ("batched", "kept")}
        for run in runs.values():
            server.decide(run, "approve")
            while "pay 10 to bob" not in waiting.ledger(run):
                server.wait_for(run["run_id"], "RUNNING", "PENDING")
        server.kill()
    hold.unlink()
    with waiting.serve("second.log") as server:
        for run in runs.values():
            server.wait_for(run["run_id"], "PAUSED")
            asked = [(each["kind"], each["execution"]) for each in server.list_approvals(run)]
            assert asked == [("approval", "unknown"), ("outcome", None)]
            server.decide(run, "complete", result="receipt 7")
        batched, kept = (server.wait_for_end(run) for run in runs.values())
    assert (batched["status"], batched["content"]) == ("COMPLETED", "receipt 7")
    # A checkpointer of the graph keeps the approval that was given: the run stops before the call.
    assert (kept["status"], kept["error"]["code"]) == ("ERROR", "AGENT_FAILED")
    assert "it is not made again" in kept["error"]["detail"]
    for run in runs.values():
        assert waiting.ledger(run) == ["pay 10 to bob"]
