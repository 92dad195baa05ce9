"""Agents of agno that wait: confirmations, answers, and tools that the caller executes."""

from __future__ import annotations

import json

from tests.pauses.graphs import CALL, build_calls_with_one_id
from tests.pauses.waiting import WaitingServer


def test_calls_with_one_id_are_not_decided_about(server: WaitingServer) -> None:
    run = server.start("agno_exact", build_calls_with_one_id("agno_pay"))
    for asked in server.list_approvals(run):
        verb = "approve" if asked["arguments"]["amount"] == 1_000 else "reject"
        server.decide_one(asked, verb)
    run = server.wait_for_end(run)
    assert server.deployment.ledger(run) == []
    assert run["error"]["code"] == "MODEL_ANSWER_INVALID"


def test_answer_is_given_to_the_tool(server: WaitingServer) -> None:
    run = server.start("agno_mailer", CALL)
    (asked,) = server.list_approvals(run)
    assert (asked["kind"], asked["schema"]["properties"]["to"]) == ("input", {"type": "string"})
    server.decide(run, "answer", answer={"to": "carl"})
    run = server.wait_for_end(run)
    assert run["content"] == "mailed carl"
    assert server.deployment.ledger(run) == ["mail to carl"]


def test_result_of_the_caller_reaches_the_model(server: WaitingServer) -> None:
    run = server.start("agno_opener", CALL)
    (asked,) = server.list_approvals(run)
    assert asked["kind"] == "external"
    server.decide(run, "complete", result="opened")
    assert server.wait_for_end(run)["content"] == "opened"


def test_agent_asks_for_input(server: WaitingServer) -> None:
    fields = [{"field_name": "city", "field_type": "str", "field_description": "Where to"}]
    run = server.start("agno_asker", json.dumps({"user_input_fields": fields}))
    (asked,) = server.list_approvals(run)
    assert (asked["kind"], asked["tool_name"]) == ("input", "get_user_input")
    described = {"type": "string", "description": "Where to"}
    assert asked["schema"]["properties"] == {"city": described}
    server.decide(run, "answer", answer={"city": "Oslo"})
    run = server.wait_for_end(run)
    assert run["status"] == "COMPLETED"
    # The record has what the model has read.
    (call,) = run["tools"]
    assert (
        call["result"]
        == run["content"]
        == ('User inputs retrieved: [{"name": "city", "value": "Oslo"}]')
    )


def test_agent_asks_a_question_with_choices(server: WaitingServer) -> None:
    options = [{"label": "left"}, {"label": "right"}]
    question = {"question": "Which way?", "header": "Way", "options": options}
    run = server.start("agno_chooser", json.dumps({"questions": [question]}))
    (asked,) = server.list_approvals(run)
    assert (asked["kind"], asked["question"]) == ("input", "Which way?")
    server.decide(run, "answer", answer={"Which way?": ["left"]})
    run = server.wait_for_end(run)
    assert run["tools"][0]["result"] == run["content"]
    assert "left" in run["content"]


def test_approval_of_agno_needs_a_second_person(server: WaitingServer) -> None:
    run = server.start("agno_transferer", CALL)
    (asked,) = server.list_approvals(run)
    assert (asked["kind"], asked["policy"]) == ("approval", "other")
    server.decide(run, "approve")
    assert server.wait_for_end(run)["content"] == "transferred 10"
    assert server.deployment.ledger(run) == ["transfer 10"]


def test_two_members_of_a_team_wait(server: WaitingServer) -> None:
    run = server.start("agno_pair", json.dumps({"task": CALL}))
    assert sorted(each["kind"] for each in server.list_approvals(run)) == [
        "approval", "input",
    ]  # fmt: skip
    server.decide(run, "answer", "agno_mail", answer={"to": "carl"})
    assert server.get_run(run["run_id"])["status"] == "PAUSED"
    assert server.deployment.ledger(run) == []
    server.decide(run, "reject", "agno_pay", note="too much")
    run = server.wait_for_end(run)
    assert run["status"] == "COMPLETED", run
    assert server.deployment.ledger(run) == ["mail to carl"]
    assert "mailed carl" in run["content"]
    assert "too much" in run["content"]
