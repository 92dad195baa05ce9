"""Waiting agents of libraries whose server is killed: they go on in another process."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.kit.model import ModelEndpoint
from tests.pauses.graphs import CALL, create_graph_deployment
from tests.pauses.waiting import WaitingServer

FORMS = {
    "batched": 1,
    "each": 2,
    "kept": 1,
    "nested": 1,
    "agno_payer": 1,
    "openai_payer": 1,
    "openai_two": 2,
}
"""The agents and their numbers of calls: one interrupt for all calls, one for each call, with a
checkpointer, in a subgraph; agents of agno and of openai-agents."""


@dataclass(frozen=True)
class Moved:
    """A second server, with runs that waited and runs that called a tool in the first one."""

    server: WaitingServer
    waiting: dict[str, dict[str, Any]]
    calling: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def moved(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[Moved]:
    folder: Path = tmp_path_factory.mktemp("elsewhere")
    modules = ("waiting_graphs", "waiting_agno", "waiting_agents")
    deployment = create_graph_deployment(folder, model_endpoint.base_url, *modules)
    hold = folder / "hold"
    hold.touch()
    with deployment.serve() as server:
        waiting = {form: server.start(form, CALL, metadata={"tenant": "north"}) for form in FORMS}
        assert {run["status"] for run in waiting.values()} == {"PAUSED"}
        for form, run in waiting.items():
            asked = server.list_approvals(run)
            assert len(asked) == FORMS[form]
            for each in asked:
                assert (each["kind"], each["policy"]) == ("approval", "user")
                assert each["arguments"] == {"amount": 10, "to": "bob"}
                assert each["schema"]["required"] == ["amount", "to"]
            assert deployment.ledger(run) == []
        calling = {
            form: server.start(form, CALL)
            for form in ("batched", "kept", "agno_payer", "openai_payer")
        }
        for run in calling.values():
            server.decide(run, "approve")
            while not deployment.ledger(run):
                server.wait_for(run["run_id"], "RUNNING", "PENDING")
        server.kill()
    hold.unlink()
    with deployment.serve("second.log") as server:
        yield Moved(server, waiting, calling)


def test_approved_calls_are_made_once_on_another_server(moved: Moved) -> None:
    server = moved.server
    for run in moved.waiting.values():
        server.decide(run, "approve")
    for form, run in moved.waiting.items():
        number = FORMS[form]
        ended = server.wait_for_end(run)
        assert ended["status"] == "COMPLETED", ended
        assert ended["content"] == " | ".join(["paid 10"] * number)
        # The metadata of the request are those of the first leg.
        assert server.deployment.ledger(run) == ["pay 10 to bob for north"] * number
        for each in server.list_approvals(run):
            assert (each["execution"], each["result"]) == ("done", "paid 10")
        roles = [message["role"] for message in ended["messages"]]
        assert roles == ["user", "assistant", *["tool"] * number, "assistant"]
        # The calls of the agent in a subgraph are those of a member.
        names = [
            event["event"]
            for event in server.read_events(run["run_id"])
            if event["run_id"] == run["run_id"] or "ToolCall" in event["event"]
        ]
        assert [name for name in names if name != "RunContent"] == [
            "RunStarted",
            *["ToolCallStarted"] * number,
            "RunPaused",
            "RunContinued",
            *["ToolCallCompleted"] * number,
            "RunCompleted",
        ]


def test_call_of_a_lost_server_is_not_made_again(moved: Moved) -> None:
    server = moved.server
    runs = moved.calling
    for run in runs.values():
        server.wait_for(run["run_id"], "PAUSED")
        asked = [(each["kind"], each["execution"]) for each in server.list_approvals(run)]
        assert asked == [("approval", "unknown"), ("outcome", None)]
        server.decide(run, "complete", result="receipt 7")
    batched, kept, agno, openai = (server.wait_for_end(run) for run in runs.values())
    for run in (batched, agno, openai):
        assert (run["status"], run["content"]) == ("COMPLETED", "receipt 7")
    # A checkpointer of the graph keeps the approval that was given: the run stops before the call.
    assert (kept["status"], kept["error"]["code"]) == ("ERROR", "AGENT_FAILED")
    assert "it is not made again" in kept["error"]["detail"]
    for run in runs.values():
        assert server.deployment.ledger(run) == ["pay 10 to bob for None"]


def test_approved_call_is_done_although_its_result_is_too_large(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    modules = ("waiting_graphs", "waiting_agno", "waiting_agents")
    deployment = create_graph_deployment(tmp_path, model_endpoint.base_url, *modules)
    limited = replace(deployment, variables={"AGENTCTL_LIMITS__RUN_BYTES": "200000"})
    with limited.serve() as server:
        for form in ("batched", "agno_payer", "openai_payer"):
            run = server.start(form, json.dumps({"amount": 10, "to": "everyone"}))
            assert run["status"] == "PAUSED", run
            server.decide(run, "approve")
            ended = server.wait_for_end(run)
            assert ended["error"]["detail"] == "The run exceeded its maximum size", form
            (approval,) = server.list_approvals(run)
            assert approval["execution"] == "done", form
            (call,) = ended["tools"]
            assert call["result"].startswith("paid 10 to all of them"), form
            assert len(limited.ledger(run)) == 1
