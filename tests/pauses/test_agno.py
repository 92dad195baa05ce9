"""Agents of agno that wait: confirmations, answers, and tools that the caller executes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.endpoint import ModelEndpoint
from tests.pauses.graphs import CALL, create_graph_deployment
from tests.pauses.waiting import WaitingDeployment, WaitingServer


@pytest.fixture(scope="module")
def shared(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[WaitingServer]:
    """A server for all tests that kill none."""
    folder = tmp_path_factory.mktemp("agno")
    with create_graph_deployment(folder, model_endpoint.base_url).serve() as server:
        yield server


@pytest.fixture
def waiting(tmp_path: Path, model_endpoint: ModelEndpoint) -> WaitingDeployment:
    return create_graph_deployment(tmp_path, model_endpoint.base_url)


def test_confirmed_call_is_made_once_on_another_server(waiting: WaitingDeployment) -> None:
    with waiting.serve() as server:
        run = server.start("agno_payer", CALL, metadata={"tenant": "north"})
        assert run["status"] == "PAUSED"
        (asked,) = server.list_approvals(run)
        assert (asked["kind"], asked["policy"], asked["tool_name"]) == (
            "approval", "user", "agno_pay",
        )  # fmt: skip
        assert asked["schema"]["required"] == ["amount", "to"]
        assert waiting.ledger(run) == []
        server.kill()
    with waiting.serve("second.log") as server:
        server.decide(run, "approve")
        run = server.wait_for_end(run)
        assert (run["status"], run["content"]) == ("COMPLETED", "paid 10")
        assert waiting.ledger(run) == ["pay 10 to bob for north"]
        (asked,) = server.list_approvals(run)
        assert (asked["execution"], asked["result"]) == ("done", "paid 10")
        assert [message["role"] for message in run["messages"]] == [
            "user", "assistant", "tool", "assistant",
        ]  # fmt: skip
        names = [event["event"] for event in server.read_events(run["run_id"])]
        assert [name for name in names if name != "RunContent"] == [
            "RunStarted", "ToolCallStarted", "RunPaused", "RunContinued", "ToolCallCompleted",
            "RunCompleted",
        ]  # fmt: skip


def test_rejected_and_edited_calls(shared: WaitingServer) -> None:
    rejected, edited = shared.start("agno_payer", CALL), shared.start("agno_payer", CALL)
    shared.decide(rejected, "reject", note="too much")
    shared.decide(edited, "approve", arguments={"amount": 5, "to": "eve"})
    ended = shared.wait_for_end(rejected)
    assert ended["content"] == "The call was rejected: too much"
    assert shared.deployment.ledger(rejected) == []
    ended = shared.wait_for_end(edited)
    assert ended["content"] == "paid 5"
    assert shared.deployment.ledger(edited) == ["pay 5 to eve for None"]


def test_one_of_two_calls_is_rejected(shared: WaitingServer) -> None:
    run = shared.start("agno_two", CALL)
    first, second = shared.list_approvals(run)
    shared.decide_one(first, "approve")
    assert shared.get_run(run["run_id"])["status"] == "PAUSED"
    assert shared.deployment.ledger(run) == []
    shared.decide_one(second, "reject")
    run = shared.wait_for_end(run)
    assert sorted(run["content"].split(" | ")) == ["The call was rejected", "paid 10"]
    assert shared.deployment.ledger(run) == ["pay 10 to bob for None"]
    executions = {each["status"]: each["execution"] for each in shared.list_approvals(run)}
    assert executions == {"approved": "done", "rejected": None}


def test_answer_is_given_to_the_tool(shared: WaitingServer) -> None:
    run = shared.start("agno_mailer", CALL)
    (asked,) = shared.list_approvals(run)
    assert (asked["kind"], asked["schema"]["properties"]["to"]) == ("input", {"type": "string"})
    shared.decide(run, "answer", answer={"to": "carl"})
    run = shared.wait_for_end(run)
    assert run["content"] == "mailed carl"
    assert shared.deployment.ledger(run) == ["mail to carl"]


def test_result_of_the_caller_reaches_the_model(shared: WaitingServer) -> None:
    run = shared.start("agno_opener", CALL)
    (asked,) = shared.list_approvals(run)
    assert asked["kind"] == "external"
    shared.decide(run, "complete", result="opened")
    assert shared.wait_for_end(run)["content"] == "opened"


def test_cancel_of_a_paused_run_makes_no_call(shared: WaitingServer) -> None:
    run = shared.start("agno_payer", CALL)
    shared.cancel("agno_payer", run["run_id"])
    assert shared.get_run(run["run_id"])["status"] == "CANCELLED"
    assert [each["status"] for each in shared.list_approvals(run)] == ["cancelled"]
    assert shared.deployment.ledger(run) == []


def test_call_of_a_lost_server_is_not_made_again(waiting: WaitingDeployment) -> None:
    hold = waiting.inner.folder / "hold"
    hold.touch()
    with waiting.serve() as server:
        run = server.start("agno_payer", CALL)
        server.decide(run, "approve")
        while not waiting.ledger(run):
            server.wait_for(run["run_id"], "RUNNING", "PENDING")
        server.kill()
    hold.unlink()
    with waiting.serve("second.log") as server:
        server.wait_for(run["run_id"], "PAUSED")
        asked = [(each["kind"], each["execution"]) for each in server.list_approvals(run)]
        assert asked == [("approval", "unknown"), ("outcome", None)]
        server.decide(run, "complete", result="receipt 7")
        run = server.wait_for_end(run)
    assert (run["status"], run["content"]) == ("COMPLETED", "receipt 7")
    assert waiting.ledger(run) == ["pay 10 to bob for None"]
