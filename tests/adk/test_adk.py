"""Agents of Google ADK: members, approvals, questions, state, results and failures."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from tests.kit.conditions import PATIENCE
from tests.kit.model import ModelEndpoint
from tests.kit.process import serve_config
from tests.kit.scripted_models import ScriptedModels
from tests.pauses.waiting import WaitingDeployment, WaitingServer

PAYMENT = [("pay", {"amount": 10, "to": "bob"})]


def get_members(server: WaitingServer, run: dict[str, Any]) -> list[dict[str, Any]]:
    return [server.get_run(run_id) for run_id in run["member_runs"]]


def sum_tokens(runs: list[dict[str, Any]], kind: str) -> int:
    return sum(run["metrics"][kind] or 0 for run in runs)


def test_agent_that_takes_over_is_a_member(server: WaitingServer, models: ScriptedModels) -> None:
    transfer = [("transfer_to_agent", {"agent_name": "clerk"})]
    models.begin({"front": [[("look", {})], transfer], "clerk": [[("look", {})], "Done here."]})
    run = server.start("front", "hello")
    assert (run["status"], run["content"]) == ("COMPLETED", "Done here."), run["error"]
    assert [call["tool_name"] for call in run["tools"]] == ["look", "transfer_to_agent"]
    assert run["tools"][0]["result"] == "looked"
    (member,) = get_members(server, run)
    assert (member["agent_id"], member["status"]) == ("clerk", "COMPLETED")
    assert (member["content"], member["tools"][0]["tool_name"]) == ("Done here.", "look")
    for kind in ("input_tokens", "output_tokens"):
        seen = sum(getattr(call, kind) for call in models.calls)
        assert sum_tokens([run, member], kind) == seen > 0
    spans = [span for each in (run, member) for span in each["spans"] if span["kind"] == "model"]
    assert len(spans) == len(models.calls) == 4

    # The stored events say who has answered: that agent goes on.
    models.begin({"clerk": ["Still here."]})
    again = server.start("front", "and now", session_id=run["session_id"])
    assert again["content"] == "Still here."
    sent = json.dumps(models.calls[0].body)
    assert [text in sent for text in ("hello", "Done here.", "looked", "and now")] == [True] * 4


def test_repeated_call_is_refused_and_then_ends_the_run(
    server: WaitingServer, models: ScriptedModels
) -> None:
    models.begin({"repeater": [[("look", {})]] * 4})
    run = server.start("repeater", "look around")
    assert (run["status"], run["error"]["code"]) == ("ERROR", "LOOP"), run["error"]
    results = [call["result"] for call in run["tools"]]
    assert results[:2] == ["looked", "looked"]
    assert results[2].startswith("The call was not made: look was called 2 times in a row")
    assert "The call was not made" in json.dumps(models.calls[-1].body)


def test_agent_as_a_tool_is_a_member(server: WaitingServer, models: ScriptedModels) -> None:
    asked = [("searcher", {"request": "find it"})]
    models.begin({"planner": [asked, "It is there."], "searcher": [[("look", {})], "Found."]})
    run = server.start("planner", "plan")
    assert (run["status"], run["content"]) == ("COMPLETED", "It is there."), run["error"]
    (call,) = run["tools"]
    assert (call["tool_name"], call["result"]) == ("searcher", "Found.")
    (member,) = get_members(server, run)
    assert (member["agent_id"], member["content"]) == ("searcher", "Found.")
    assert member["messages"][0]["content"] == "find it"
    assert [each["tool_name"] for each in member["tools"]] == ["look"]
    for kind in ("input_tokens", "output_tokens"):
        counted = sum_tokens([run, member], kind)
        assert counted == sum(getattr(each, kind) for each in models.calls) > 0


def test_first_model_call_imports_nothing(
    deployment: WaitingDeployment, models: ScriptedModels
) -> None:
    models.begin({"loader": ["Hello."]})
    variables = {"MODEL_URL": deployment.model_url, **deployment.variables}
    # A fork of a loaded process would have loaded it before.
    program = (deployment.python, "-m", "agentctl")
    place = deployment.inner.path
    with serve_config(place, log="loading.log", variables=variables, program=program) as process:
        server = WaitingServer(deployment, process)
        run = server.start("loader", "hello")
        session = server._request("GET", f"/sessions/{run['session_id']}")
    assert (run["content"], session["session_state"]["loaded"]) == ("Hello.", True)


def test_failed_member_fails_its_run(server: WaitingServer, models: ScriptedModels) -> None:
    models.begin({"planner": [[("searcher", {"request": "x"})]], "searcher": [500]})
    run = server.start("planner", "plan")
    assert (run["status"], run["error"]["code"]) == ("ERROR", "MODEL_UNAVAILABLE")
    (member,) = get_members(server, run)
    assert (member["status"], member["error"]["code"]) == ("ERROR", "MODEL_UNAVAILABLE")
    assert "secret" not in json.dumps([run, member])


def test_agents_one_after_the_other_are_members(
    server: WaitingServer, models: ScriptedModels
) -> None:
    models.begin({"first": ["One."], "second": ["Two."]})
    run = server.start("line", "go")
    assert (run["status"], run["content"]) == ("COMPLETED", "One.\n\nTwo."), run["error"]
    answers = [entry for entry in run["messages"] if entry["role"] == "assistant"]
    assert [answer["finish_reason"] for answer in answers] == ["stop", "stop"]
    assert [each["content"] for each in get_members(server, run)] == ["One.", "Two."]
    assert "Use One." in json.dumps(models.calls[1].body)


def test_result_of_a_workflow_is_the_output(server: WaitingServer, models: ScriptedModels) -> None:
    models.begin({"start": ["ab"]})
    run = server.start("flow", "go")
    assert (run["status"], run["output"]) == ("COMPLETED", {"twice": "abab"}), run["error"]
    assert [each["agent_id"] for each in get_members(server, run)] == ["start"]


def test_approval_of_a_member_survives_a_kill(
    server: WaitingServer, models: ScriptedModels
) -> None:
    deployment = server.deployment
    transfer = [("transfer_to_agent", {"agent_name": "clerk"})]
    models.begin({"front": [transfer], "clerk": [[("look", {}), *PAYMENT], "It is paid."]})
    with deployment.serve("killed.log") as killed_server:
        run = killed_server.start("front", "pay bob")
        assert run["status"] == "PAUSED", run["error"]
        assert [each["status"] for each in get_members(killed_server, run)] == ["PAUSED"]
        (asked,) = killed_server.list_approvals(run)
        assert (asked["tool_name"], asked["arguments"]) == ("pay", PAYMENT[0][1])
        assert asked["question"] is None
        killed_server.kill()
    assert deployment.ledger(run) == ["look"]

    server.decide(run, "approve", arguments={"amount": 5, "to": "eve"})
    ended = server.wait_for_end(run)
    assert (ended["status"], ended["content"]) == ("COMPLETED", "It is paid."), ended["error"]
    (member,) = get_members(server, ended)
    assert (member["run_id"], member["status"]) == (run["member_runs"][0], "COMPLETED")
    (asked,) = server.list_approvals(run)
    assert asked["execution"] == "done"
    assert deployment.ledger(run) == ["look", "pay 5 to eve"]
    assert [each["result"] for each in member["tools"]] == ["looked", "paid 5"]


def test_result_without_a_truth_value_is_recorded_as_made(
    server: WaitingServer, deployment: WaitingDeployment, models: ScriptedModels
) -> None:
    models.begin({"tabular": [[("tabulate", {})], "Done."]})
    run = server.start("tabular", "go")
    assert (run["status"], run["content"]) == ("COMPLETED", "Done."), run["error"]
    (call,) = run["tools"]
    assert (call["result"], call["tool_call_error"]) == ("The result has no JSON form", False)
    assert deployment.ledger(run) == ["tabulate"]


@pytest.mark.parametrize("decision", ["approve", "reject"])
def test_steps_after_a_confirmation_are_made(
    server: WaitingServer, models: ScriptedModels, decision: str
) -> None:
    """A bare agent is not resumable in the library: its later steps would be left out."""
    models.begin({"one": [PAYMENT, "One."], "two": ["Two."], "three": ["Three."]})
    run = server.start("steps", "pay bob")
    assert run["status"] == "PAUSED", run["error"]
    server.decide(run, decision)
    run = server.wait_for_end(run)
    assert (run["status"], run["content"]) == ("COMPLETED", "One.\n\nTwo.\n\nThree."), run["error"]
    assert [each["agent_id"] for each in get_members(server, run)] == ["one", "two", "three"]
    paid = ["pay 10 to bob"] if decision == "approve" else []
    assert server.deployment.ledger(run) == paid


def test_steps_that_would_not_be_made_end_the_run_at_the_pause(
    server: WaitingServer, models: ScriptedModels
) -> None:
    """The author says that the app is not resumable: a decision would lose the later steps."""
    models.begin({"before": [PAYMENT, "Before."], "after": ["After."]})
    run = server.start("fixed", "pay bob")
    assert (run["status"], run["error"]["code"]) == ("ERROR", "AGENT_FAILED")
    assert "ResumabilityConfig(is_resumable=True)" in run["error"]["detail"]
    assert server.deployment.ledger(run) == []


@pytest.mark.parametrize("approved", ["bob", "eve"])
def test_answers_reach_agents_that_work_at_the_same_time(
    server: WaitingServer, models: ScriptedModels, approved: str
) -> None:
    """The library goes on with one agent for each message."""
    script: dict[str, Any] = {
        "left": [PAYMENT, "Left."],
        "right": [[("pay", {"amount": 20, "to": "eve"})], "Right."],
    }
    models.begin(script)
    run = server.start("both", "pay both")
    asked = {each["arguments"]["to"]: each for each in server.list_approvals(run)}
    for name, each in sorted(asked.items(), reverse=True):
        server.decide_one(each, "approve" if name == approved else "reject")

    run = server.wait_for_end(run)
    assert run["status"] == "COMPLETED", run["error"]
    amount = asked[approved]["arguments"]["amount"]
    assert server.deployment.ledger(run) == [f"pay {amount} to {approved}"]
    assert sorted(run["content"].split()) == ["Left.", "Right."]
    executions = {each["status"]: each["execution"] for each in server.list_approvals(run)}
    assert executions == {"approved": "done", "rejected": None}


def test_agents_that_would_not_go_on_end_the_run_at_the_pause(
    server: WaitingServer, models: ScriptedModels
) -> None:
    models.begin({"left": [PAYMENT], "right": [PAYMENT]})
    run = server.start("inner_pair", "pay both")
    assert (run["status"], run["error"]["code"]) == ("ERROR", "AGENT_FAILED")
    assert "ParallelAgent" in run["error"]["detail"]
    assert server.deployment.ledger(run) == []


@pytest.mark.parametrize("first", ["approve", "reject"])
def test_call_with_a_repeated_id_is_asked_about(
    server: WaitingServer, models: ScriptedModels, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    monkeypatch.setattr(models, "numbers", itertools.repeat(7))
    models.begin({"payer": [PAYMENT, [("pay", {"amount": 20, "to": "eve"})], "Half."]})
    run = server.start("payer", "pay both")
    run = server.decide_and_wait(run, first)
    assert run["status"] == "PAUSED", run["error"]
    (asked,) = [each for each in server.list_approvals(run) if each["status"] == "pending"]
    assert asked["arguments"] == {"amount": 20, "to": "eve"}

    second = "reject" if first == "approve" else "approve"
    run = server.decide_and_wait(run, second)
    assert (run["status"], run["content"]) == ("COMPLETED", "Half."), run["error"]
    paid = "pay 10 to bob" if first == "approve" else "pay 20 to eve"
    assert server.deployment.ledger(run) == [paid]


def test_tool_asks_for_a_value(server: WaitingServer, models: ScriptedModels) -> None:
    # The library asks its model again, which does not know the answer yet.
    models.begin({"buyer": [[("buy", {"item": "a car"})], "One moment.", "Bought."]})
    run = server.start("buyer", "buy a car")
    (asked,) = server.list_approvals(run)
    assert (asked["kind"], asked["question"]) == ("input", "May I buy a car?")
    server.decide(run, "answer", answer={"budget": 7})
    run = server.wait_for_end(run)
    assert (run["status"], run["content"]) == ("COMPLETED", "One moment.\n\nBought."), run["error"]
    assert json.loads(run["tools"][0]["result"]) == {"bought": "a car", "budget": 7}


def test_result_of_a_long_call_comes_from_elsewhere(
    server: WaitingServer, models: ScriptedModels
) -> None:
    models.begin({"buyer": [[("order", {"item": "tea"})], "Ordered."]})
    run = server.start("buyer", "order tea")
    (asked,) = server.list_approvals(run)
    assert (asked["kind"], asked["arguments"]) == ("external", {"item": "tea"})
    server.decide(run, "complete", result="number 7")
    run = server.wait_for_end(run)
    assert (run["status"], run["content"]) == ("COMPLETED", "Ordered."), run["error"]
    assert run["tools"][0]["result"] == "number 7"
    assert "number 7" in json.dumps(models.calls[-1].body)


def test_failed_tool_is_named_without_its_text(
    server: WaitingServer, models: ScriptedModels
) -> None:
    models.begin({"failing": [[("fail", {})]]})
    run = server.start("failing", "go")
    assert (run["status"], run["error"]["code"]) == ("ERROR", "TOOL_FAILED")
    assert run["error"]["detail"] == "The tool fail failed (RuntimeError)"
    assert "secret" not in json.dumps(run)
    # The session goes on.
    models.begin({"failing": ["Fine."]})
    again = server.start("failing", "again", session_id=run["session_id"])
    assert (again["status"], again["content"]) == ("COMPLETED", "Fine."), again["error"]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (400, "MODEL_REJECTED"),
        (401, "MODEL_KEY_REJECTED"),
        (429, "MODEL_UNAVAILABLE"),
        (503, "MODEL_UNAVAILABLE"),
    ],
)
def test_status_of_a_model_is_the_code(
    server: WaitingServer, models: ScriptedModels, answer: int, code: str
) -> None:
    models.begin({"payer": [answer]})
    run = server.start("payer", "go")
    assert (run["status"], run["error"]["code"]) == ("ERROR", code)


def test_answer_that_does_not_match_its_schema(
    server: WaitingServer, models: ScriptedModels
) -> None:
    models.begin({"wrong": ['{"total": "many"}']})
    run = server.start("wrong", "go")
    assert (run["status"], run["error"]["code"]) == ("ERROR", "OUTPUT_INVALID")
    assert "many" not in json.dumps(run["error"])


def test_state_of_the_session_is_kept(server: WaitingServer, models: ScriptedModels) -> None:
    models.begin({"counting": [[("count", {})], "One.", [("count", {})], "Two."]})
    run = server.start("counting", "go")
    again = server.start("counting", "go", session_id=run["session_id"])
    assert [each["tools"][0]["result"] for each in (run, again)] == ["1", "2"]
    session = server._request("GET", f"/sessions/{run['session_id']}")
    assert session["session_state"] == {"counted": 2}


# The model of the library


def test_gemini_streams_text_and_thinking(server: WaitingServer) -> None:
    run = server.start("gemini_thinks", "hello big world")
    assert (run["status"], run["content"]) == ("COMPLETED", "hello big world"), run["error"]
    assert run["reasoning_content"] == "Let me think."
    pieces = [e["content"] for e in server.read_events(run["run_id"]) if e["event"] == "RunContent"]
    assert "".join(pieces) == "hello big world"
    assert run["metrics"]["input_tokens"] == 7
    assert run["metrics"]["output_tokens"] == 5


def test_gemini_calls_a_tool(server: WaitingServer) -> None:
    run = server.start("gemini_tool", "{}")
    assert (run["status"], run["tools"][0]["result"]) == ("COMPLETED", "looked"), run["error"]
    assert run["content"].endswith("looked")


def test_gemini_gets_the_bytes_of_files(
    server: WaitingServer, vendor_endpoint: ModelEndpoint
) -> None:
    import base64

    from tests.server.files_of_runs import PDF, build_png

    picture = build_png(90)
    files = [upload(server, "dot.png", picture), upload(server, "paper.pdf", PDF)]
    run = server.start("gemini_pay", '{"amount": 10, "to": "bob"}', files=files)
    assert run["status"] == "PAUSED", run["error"]
    server.decide(run, "approve")
    run = server.wait_for_end(run)
    assert run["status"] == "COMPLETED", run["error"]
    assert run["content"].endswith("paid 10")
    for body in vendor_endpoint.requests("tool:pay")[-2:]:
        parts = [part.get("inlineData") for part in body["contents"][0]["parts"]]
        sent = [base64.urlsafe_b64decode(each["data"]) for each in parts if each]
        assert sent == [picture, PDF]
    folder = server.deployment.inner.folder
    stored = b"".join(path.read_bytes() for path in folder.glob("*.db*") if path.is_file())
    assert base64.b64encode(picture) not in stored
    assert base64.urlsafe_b64encode(picture) not in stored


def test_cancel_closes_the_call_of_gemini(
    server: WaitingServer, vendor_endpoint: ModelEndpoint
) -> None:
    before = vendor_endpoint.open_calls()
    body = {"message": "go", "background": True, "stream": False}
    run = server._request("POST", "/agents/gemini_hang/runs", body)
    vendor_endpoint.wait_for_open(before + 1)
    server.cancel("gemini_hang", run["run_id"])
    vendor_endpoint.wait_for_open(before)
    assert server.get_run(run["run_id"])["stopped_at"] is not None


def test_failure_of_gemini_has_no_text(server: WaitingServer) -> None:
    run = server.start("gemini_failing", "go")
    assert (run["status"], run["error"]["code"]) == ("ERROR", "MODEL_UNAVAILABLE")
    assert "secret" not in json.dumps(run)


def test_agent_of_a_new_project_answers_offline(server: WaitingServer) -> None:
    run = server.start("assistant", "hi")
    assert (run["status"], run["content"]) == ("COMPLETED", "hi"), run["error"]


def upload(server: WaitingServer, name: str, data: bytes) -> str:
    import httpx2

    from tests.kit.deployment import ADMIN

    headers = server.deployment.inner.bearer("ann", ADMIN)
    url = f"{server.host.url}/files?name={name}"
    answer = httpx2.post(url, content=data, headers=headers, timeout=PATIENCE)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["file_id"])
