"""Agents of agno that wait: confirmations, answers, and tools that the caller executes."""

from __future__ import annotations

import json
from typing import Any

from tests.pauses.graphs import CALL, build_calls_with_one_id
from tests.pauses.waiting import WaitingDeployment, WaitingServer

AGENTS = ("waiting_agno",)


def test_one_of_two_calls_is_rejected(shared_graphs: WaitingServer) -> None:
    run = shared_graphs.start("agno_two", CALL)
    first, second = shared_graphs.list_approvals(run)
    shared_graphs.decide_one(first, "approve")
    assert shared_graphs.get_run(run["run_id"])["status"] == "PAUSED"
    assert shared_graphs.deployment.ledger(run) == []
    shared_graphs.decide_one(second, "reject")
    run = shared_graphs.wait_for_end(run)
    assert sorted(run["content"].split(" | ")) == ["The call was rejected", "paid 10"]
    assert shared_graphs.deployment.ledger(run) == ["pay 10 to bob for None"]
    executions = {each["status"]: each["execution"] for each in shared_graphs.list_approvals(run)}
    assert executions == {"approved": "done", "rejected": None}


def test_calls_with_one_id_are_not_decided_about(shared_graphs: WaitingServer) -> None:
    run = shared_graphs.start("agno_exact", build_calls_with_one_id("agno_pay"))
    for asked in shared_graphs.list_approvals(run):
        verb = "approve" if asked["arguments"]["amount"] == 1_000 else "reject"
        shared_graphs.decide_one(asked, verb)
    run = shared_graphs.wait_for_end(run)
    assert shared_graphs.deployment.ledger(run) == []
    assert run["error"]["code"] == "MODEL_ANSWER_INVALID"


def test_decisions_belong_to_their_calls(shared_graphs: WaitingServer) -> None:
    """Two calls are equal, and the decisions come in another order."""
    calls = [
        {
            "id": f"call-{number}",
            "type": "function",
            "function": {
                "name": "agno_pay",
                "arguments": json.dumps({"amount": min(number, 2), "to": "bob"}),
            },
        }
        for number in (1, 2, 3)
    ]
    run = shared_graphs.start("agno_exact", json.dumps({"tool_calls": calls}))
    asked = {each["tool_call_id"]: each for each in shared_graphs.list_approvals(run)}
    for call_id, verb in (("call-3", "reject"), ("call-2", "approve"), ("call-1", "reject")):
        shared_graphs.decide_one(asked[call_id], verb)
    run = shared_graphs.wait_for_end(run)
    assert shared_graphs.deployment.ledger(run) == ["pay 2 to bob for None"]
    refused = "The call was rejected"
    assert [each["result"] for each in run["tools"]] == [refused, "paid 2", refused]


def test_answer_is_given_to_the_tool(shared_graphs: WaitingServer) -> None:
    run = shared_graphs.start("agno_mailer", CALL)
    (asked,) = shared_graphs.list_approvals(run)
    assert (asked["kind"], asked["schema"]["properties"]["to"]) == ("input", {"type": "string"})
    shared_graphs.decide(run, "answer", answer={"to": "carl"})
    run = shared_graphs.wait_for_end(run)
    assert run["content"] == "mailed carl"
    assert shared_graphs.deployment.ledger(run) == ["mail to carl"]


def test_result_of_the_caller_reaches_the_model(shared_graphs: WaitingServer) -> None:
    run = shared_graphs.start("agno_opener", CALL)
    (asked,) = shared_graphs.list_approvals(run)
    assert asked["kind"] == "external"
    shared_graphs.decide(run, "complete", result="opened")
    assert shared_graphs.wait_for_end(run)["content"] == "opened"


def test_agent_asks_for_input(shared_graphs: WaitingServer) -> None:
    fields = [{"field_name": "city", "field_type": "str", "field_description": "Where to"}]
    run = shared_graphs.start("agno_asker", json.dumps({"user_input_fields": fields}))
    (asked,) = shared_graphs.list_approvals(run)
    assert (asked["kind"], asked["tool_name"]) == ("input", "get_user_input")
    described = {"type": "string", "description": "Where to"}
    assert asked["schema"]["properties"] == {"city": described}
    shared_graphs.decide(run, "answer", answer={"city": "Oslo"})
    run = shared_graphs.wait_for_end(run)
    assert run["status"] == "COMPLETED"
    # The record has what the model has read.
    (call,) = run["tools"]
    assert (
        call["result"]
        == run["content"]
        == ('User inputs retrieved: [{"name": "city", "value": "Oslo"}]')
    )


def test_agent_asks_a_question_with_choices(shared_graphs: WaitingServer) -> None:
    options = [{"label": "left"}, {"label": "right"}]
    question = {"question": "Which way?", "header": "Way", "options": options}
    run = shared_graphs.start("agno_chooser", json.dumps({"questions": [question]}))
    (asked,) = shared_graphs.list_approvals(run)
    assert (asked["kind"], asked["question"]) == ("input", "Which way?")
    shared_graphs.decide(run, "answer", answer={"Which way?": ["left"]})
    run = shared_graphs.wait_for_end(run)
    assert run["tools"][0]["result"] == run["content"]
    assert "left" in run["content"]


def test_approval_of_agno_needs_a_second_person(shared_graphs: WaitingServer) -> None:
    run = shared_graphs.start("agno_transferer", CALL)
    (asked,) = shared_graphs.list_approvals(run)
    assert (asked["kind"], asked["policy"]) == ("approval", "other")
    shared_graphs.decide(run, "approve")
    assert shared_graphs.wait_for_end(run)["content"] == "transferred 10"
    assert shared_graphs.deployment.ledger(run) == ["transfer 10"]


def list_members(server: WaitingServer, run: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the runs below a run, parents first."""
    found = []
    for run_id in run["member_runs"]:
        member = server.get_run(run_id)
        found += [member, *list_members(server, member)]
    return found


def test_members_of_teams_wait_and_go_on_on_another_server(graphs: WaitingDeployment) -> None:
    started = []
    with graphs.serve() as server:
        for team, names in (("agno_crew", 1), ("agno_crews", 2)):
            run = server.start(team, CALL, metadata={"tenant": "north"})
            assert run["status"] == "PAUSED", run
            members = list_members(server, run)
            assert [each["status"] for each in members] == ["PAUSED"] * names
            (asked,) = server.list_approvals(run)
            assert (asked["tool_name"], asked["arguments"]) == ("agno_pay", json.loads(CALL))
            assert asked["schema"]["required"] == ["amount", "to"]
            started.append((run, members))
        server.kill()
    with graphs.serve("second.log") as server:
        for run, members in started:
            server.decide(run, "approve")
            check_team(server, server.wait_for_end(run), members)


def check_team(server: WaitingServer, run: dict[str, Any], members: list[dict[str, Any]]) -> None:
    """Check a team whose last member has paid on another server."""
    assert run["status"] == "COMPLETED", run
    assert server.deployment.ledger(run) == ["pay 10 to bob for north"]
    after = list_members(server, run)
    assert [each["run_id"] for each in after] == [each["run_id"] for each in members]
    assert {each["status"] for each in after} == {"COMPLETED"}
    (paid,) = after[-1]["tools"]
    assert (paid["tool_name"], paid["result"], paid["tool_call_error"]) == (
        "agno_pay", "paid 10", False,
    )  # fmt: skip
    for leader in (run, *after[:-1]):
        (delegation,) = leader["tools"]
        assert "paid 10" in delegation["result"]
        assert leader["content"] == delegation["result"]
    (approval,) = server.list_approvals(run)
    assert (approval["execution"], approval["result"]) == ("done", "paid 10")


def test_two_members_of_a_team_wait(shared_graphs: WaitingServer) -> None:
    run = shared_graphs.start("agno_pair", json.dumps({"task": CALL}))
    assert sorted(each["kind"] for each in shared_graphs.list_approvals(run)) == [
        "approval", "input",
    ]  # fmt: skip
    shared_graphs.decide(run, "answer", "agno_mail", answer={"to": "carl"})
    assert shared_graphs.get_run(run["run_id"])["status"] == "PAUSED"
    assert shared_graphs.deployment.ledger(run) == []
    shared_graphs.decide(run, "reject", "agno_pay", note="too much")
    run = shared_graphs.wait_for_end(run)
    assert run["status"] == "COMPLETED", run
    assert shared_graphs.deployment.ledger(run) == ["mail to carl"]
    assert "mailed carl" in run["content"]
    assert "too much" in run["content"]
