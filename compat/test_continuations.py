"""Paused runs and approvals for clients of AgentOS: decisions, conflicts and cancels."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from compat.test_clients import SCOPES, UNKNOWN, Ours, serve_ours
from tests.approvals import paying_agent
from tests.kit.deployment import ADMIN
from tests.kit.model import ModelEndpoint

PAYERS = """
[[agents]]
id = "payer"
name = "Payer"
object = "paying_agent:wait_for_people"

[[agents]]
id = "second-payer"
object = "paying_agent:wait_for_people"
database = "second"
"""

HELD = """
[[workflows]]
id = "sign"
steps = [{ name = "sum", agent = "clerk" }, { name = "last", agent = "hang" }]
"""

NEEDS_APPROVER = "This run requires admin approval before it can be continued"
APPROVER = ("approvals:read", "approvals:write")


class Payers(Ours):
    """A server with agents that wait for people: `ann` starts runs and `eve` approves."""

    @property
    def payments(self) -> list[Any]:
        """The payments that were made so far."""
        return (self.deployment.folder / "ledger.jsonl").read_text().splitlines()

    def approve(self, method: str, path: str, **options: Any) -> httpx2.Response:
        """Send a request as the approver."""
        token = self.deployment.token("eve", *APPROVER)
        return self.call(method, path, token=token, **options)

    def pause(self, words: str, agent: str = "payer", **form: str) -> Any:
        """Start a run that pauses; return its record."""
        run = self.run(f"agents/{agent}", message=words, **form)
        assert run["status"] == "PAUSED", run
        return run

    def go_on(
        self, run: Any, calls: list[Any], *, token: str | None = None, **form: str
    ) -> httpx2.Response:
        """Continue a run with the calls of a client."""
        path = f"/agents/{run['agent_id']}/runs/{run['run_id']}/continue"
        data = {"tools": json.dumps(calls), "stream": "false", **form}
        return self.call("POST", path, data=data, token=token)

    def find_approval(self, run: Any) -> Any:
        """Return the only approval of a run, as the approver sees it."""
        (found,) = self.approve("GET", f"/approvals?run_id={run['run_id']}").json()["data"]
        return found

    def resolve(self, run: Any, status: str, **data: Any) -> httpx2.Response:
        """Decide about the only approval of a run."""
        path = f"/approvals/{self.find_approval(run)['id']}/resolve"
        body = {"status": status, "resolved_by": "mallory", "resolution_data": data or None}
        return self.approve("POST", path, json=body)


@pytest.fixture(scope="module")
def payers(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[Payers]:
    folder = tmp_path_factory.mktemp("payers")
    shutil.copy(paying_agent.__file__, folder)
    (folder / "ledger.jsonl").touch()
    with serve_ours(folder, model_endpoint.base_url, extra=PAYERS) as server:
        yield Payers(server.deployment, server.url, server.client)


def confirm(run: Any, **changes: Any) -> list[Any]:
    """Return the calls of a run as a client sends them that confirms."""
    return [{**tool, "confirmed": True, **changes} for tool in run["tools"]]


def read_events(answer: httpx2.Response) -> list[Any]:
    assert answer.status_code == 200, answer.text
    lines = answer.text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


def test_paused_run_names_its_calls(payers: Payers) -> None:
    run = payers.pause("user ask open form")
    call, asked, external, form = run["tools"]
    assert (call["tool_args"], call["requires_confirmation"]) == ({"amount": 10, "to": "bob"}, True)
    (field,) = asked["user_input_schema"]
    assert (field["name"], field["allowed_values"]) == ("answer", ["left", "right"])
    assert (asked["requires_user_input"], external["external_execution_required"]) == (True, True)
    assert [each["field_type"] for each in form["user_input_schema"]][:3] == ["int", "str", "bool"]
    ids = [each["tool_execution"]["tool_call_id"] for each in run["requirements"]]
    assert ids == [tool["tool_call_id"] for tool in run["tools"]]
    path = f"/agents/payer/runs/{run['run_id']}"
    assert payers.call("GET", path).json()["requirements"] == run["requirements"]


def test_every_kind_of_call_is_decided(payers: Payers) -> None:
    run = payers.pause("user user ask form open")
    first, second, asked, form, external = run["tools"]
    first["confirmed"] = True
    second |= {"confirmed": False, "confirmation_note": "too much"}
    asked["user_input_schema"][0]["value"] = "left"
    for field, value in zip(form["user_input_schema"], (2, "Ann", True, "first"), strict=True):
        field["value"] = value
    external["result"] = "opened"
    before = len(payers.payments)
    ended = payers.go_on(run, [first, second, asked, form, external]).json()
    assert ended["status"] == "COMPLETED", ended
    answer = {"seats": 2, "name": "Ann", "window": True, "class": "first"}
    assert ended["content"] == (
        f"Results: paid, The call was rejected: too much, left, {answer}, opened"
    )
    assert len(payers.payments) == before + 1


def test_decision_on_the_requirement_counts(payers: Payers) -> None:
    run = payers.run("teams/office", message='{"a": 2, "b": 3}')
    (requirement,) = run["requirements"]
    assert requirement["member_agent_id"] == "clerk"
    path = f"/teams/office/runs/{run['run_id']}/continue"
    form = {"requirements": json.dumps([{**requirement, "confirmation": True}]), "stream": "false"}
    ended = payers.call("POST", path, data=form).json()
    assert (ended["status"], ended["content"]) == ("COMPLETED", "5")


def test_changed_arguments_are_a_conflict(payers: Payers) -> None:
    before = payers.payments
    for arguments in ({"amount": 99_999, "to": "mallory"}, {"amount": True, "to": "bob"}, {}):
        run = payers.pause("user")
        answer = payers.go_on(run, confirm(run, tool_args=arguments))
        assert answer.status_code == 409, answer.text
        assert answer.json()["detail"].startswith("tool_args of call-0-0 are not those of the call")
        again = payers.call("GET", f"/agents/payer/runs/{run['run_id']}").json()
        assert (again["status"], again["tools"]) == ("PAUSED", run["tools"])
    assert payers.payments == before


def test_another_tool_name_is_a_conflict(payers: Payers) -> None:
    before = payers.payments
    run = payers.pause("user")
    answer = payers.go_on(run, confirm(run, tool_name="refund"))
    assert answer.status_code == 409, answer.text
    assert answer.json()["detail"].startswith("tool_name of call-0-0 is not that of the call")
    assert payers.payments == before


def test_two_continues_at_once_make_one_call(payers: Payers) -> None:
    run = payers.pause("user")
    before = len(payers.payments)
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: payers.go_on(run, confirm(run)), range(4)))
    assert sorted(answer.status_code for answer in answers) == [200, 409, 409, 409]
    assert len(payers.payments) == before + 1


def test_user_does_not_continue_before_the_approver(payers: Payers) -> None:
    run = payers.pause("other")
    assert run["tools"][0]["approval_type"] == "required"
    before = len(payers.payments)
    for token in (None, payers.deployment.token("ann", *SCOPES, *APPROVER)):
        for tools in (confirm(run), []):
            answer = payers.go_on(run, tools, token=token)
            assert (answer.status_code, answer.json()["detail"]) == (403, NEEDS_APPROVER)
    own = payers.deployment.token("ann", *SCOPES, *APPROVER)
    path = f"/approvals/{payers.find_approval(run)['id']}/resolve"
    refused = payers.call("POST", path, token=own, json={"status": "approved"})
    assert (refused.status_code, refused.json()["error_code"]) == (403, "FOUR_EYES")
    assert len(payers.payments) == before


@pytest.mark.parametrize("status", ["approved", "rejected"])
def test_decision_of_the_approver_wins(payers: Payers, status: str) -> None:
    run = payers.pause("other")
    before = len(payers.payments)
    resolved = payers.resolve(run, status, note="by phone")
    assert resolved.status_code == 200, resolved.text
    record = resolved.json()
    assert (record["status"], record["resolved_by"]) == (status, "eve")
    # The client sends the opposite; a stream and a plain answer have what follows.
    tools = confirm(run, confirmed=status == "rejected")
    events = read_events(payers.go_on(run, tools, stream="true"))
    assert [events[0]["event"], events[-1]["event"]] == ["RunContinued", "RunCompleted"]
    ended = payers.go_on(run, tools).json()
    assert (ended["status"], ended["content"]) == ("COMPLETED", events[-1]["content"])
    assert len(payers.payments) == before + (status == "approved")
    again = payers.resolve(run, "approved")
    assert (again.status_code, again.json()["detail"]) == (
        409,
        f"Approval is already '{status}' and cannot be resolved",
    )


def test_undecided_run_pauses_again(payers: Payers) -> None:
    run = payers.pause("user")
    assert payers.go_on(run, []).json()["tools"] == run["tools"]
    (event,) = read_events(payers.go_on(run, [], stream="true"))
    assert (event["event"], event["tools"][0]["tool_call_id"]) == ("RunPaused", "call-0-0")


def test_calls_of_earlier_pauses_are_sent_again(payers: Payers) -> None:
    run = payers.pause("user | user")
    first = confirm(run)
    events = read_events(payers.go_on(run, first, stream="true"))
    assert [event["event"] for event in events] == ["RunContinued", "RunPaused"]
    second = [{**tool, "confirmed": True} for tool in events[-1]["tools"]]
    ended = payers.go_on(run, [*first, *second]).json()
    assert (ended["status"], ended["content"]) == ("COMPLETED", "Results: paid")
    assert payers.go_on(run, [*first, *second]).status_code == 409


def test_background_continuation_has_numbered_events(payers: Payers) -> None:
    run = payers.pause("user")
    accepted = payers.go_on(run, confirm(run), background="true")
    assert (accepted.status_code, accepted.json()["run_id"]) == (202, run["run_id"])
    run = payers.pause("user")
    events = read_events(payers.go_on(run, confirm(run), background="true", stream="true"))
    assert all("event_index" in event for event in events)


@pytest.mark.parametrize(
    ("form", "status", "detail"),
    [
        ({"tools": "{"}, 400, "Invalid JSON in tools field"),
        ({"tools": '{"a": 1}'}, 400, "Invalid structure or content for tools"),
        ({"tools": '[{"tool_call_id": 1}]'}, 400, "Invalid structure or content for tools"),
        ({"tools": '[{"tool_call_id": "x", "confirmed": true}]'}, 404, "Approval not found"),
        ({"tools": "[" + "1," * 70_000 + "1]"}, 413, "tools has more than"),
        ({"fork": "true"}, 422, "fork is not supported"),
        ({"regenerate": "true"}, 422, "regenerate is not supported"),
        ({"continue_from": "3"}, 422, "continue_from is not supported"),
        ({"input": "more"}, 422, "input is not supported"),
        ({"session_id": "another"}, 404, "Run not found"),
    ],
)
def test_bad_continuation_changes_nothing(
    payers: Payers, form: dict[str, str], status: int, detail: str
) -> None:
    run = payers.pause("user")
    answer = payers.go_on(run, confirm(run), **form)
    assert answer.status_code == status, answer.text
    assert detail in answer.text
    again = payers.call("GET", f"/agents/payer/runs/{run['run_id']}").json()
    assert (again["status"], again["tools"]) == ("PAUSED", run["tools"])


def test_strangers_find_no_run_and_no_approval(payers: Payers) -> None:
    run = payers.pause("user")
    stranger = payers.deployment.token("ben", *SCOPES, "approvals:read")
    for tools in (confirm(run), []):
        answer = payers.go_on(run, tools, token=stranger)
        absent = payers.go_on({**run, "run_id": UNKNOWN}, tools, token=stranger)
        assert (answer.status_code, answer.content) == (404, absent.content)
    approval_id = payers.find_approval(run)["id"]
    for end in ("", "/status"):
        answer = payers.call("GET", f"/approvals/{approval_id}{end}", token=stranger)
        absent = payers.call("GET", f"/approvals/{UNKNOWN}{end}", token=stranger)
        assert (answer.status_code, answer.content) == (404, absent.content)
    of_others = payers.deployment.token("joe", "approvals:clerk:read", "approvals:clerk:write")
    assert payers.call("GET", f"/approvals/{approval_id}", token=of_others).status_code == 404
    path = f"/approvals/{approval_id}/resolve"
    body = {"status": "approved"}
    assert payers.call("POST", path, token=of_others, json=body).status_code == 403
    assert payers.call("GET", "/approvals").status_code == 403


def test_approvals_are_listed_and_counted(payers: Payers) -> None:
    before = payers.approve("GET", "/approvals/count").json()["count"]
    run = payers.pause("other user")
    assert payers.approve("GET", "/approvals/count").json() == {"count": before + 2}
    assert payers.approve("GET", "/approvals/count?user_id=nobody").json() == {"count": 0}
    place = f"/approvals?run_id={run['run_id']}&status=pending"
    for query, number in (
        ("", 2),
        ("&approval_type=required", 1),
        ("&approval_type=audit", 0),
        ("&pause_type=confirmation&agent_id=payer&source_type=agent", 2),
        ("&pause_type=user_input", 0),
        ("&team_id=payer", 0),
        ("&schedule_id=x", 0),
        ("&limit=1000", 2),
    ):
        listed = payers.approve("GET", place + query).json()
        assert (len(listed["data"]), listed["meta"]["total_count"]) == (number, number), query
    (record,) = payers.approve("GET", f"{place}&approval_type=required").json()["data"]
    assert (record["tool_name"], record["tool_args"]) == ("pay", {"amount": 10, "to": "bob"})
    assert (record["agent_id"], record["source_name"], record["run_id"]) == (
        "payer",
        "Payer",
        run["run_id"],
    )
    assert payers.approve("GET", f"/approvals/{record['id']}").json() == record
    status = payers.approve("GET", f"/approvals/{record['id']}/status").json()
    assert (status["approval_id"], status["status"]) == (record["id"], "pending")
    assert payers.approve("GET", "/approvals?agent_id=a&team_id=b").status_code == 422
    assert payers.approve("DELETE", f"/approvals/{record['id']}").status_code == 405


def test_approval_of_another_database_is_resolved(payers: Payers) -> None:
    run = payers.pause("user", agent="second-payer")
    approval_id = run["requirements"][0]["id"]
    path = f"/approvals/{approval_id}/resolve"
    resolved = payers.approve("POST", path, json={"status": "approved"})
    assert (resolved.status_code, resolved.json()["status"]) == (200, "approved")


def test_resolution_is_bound_to_the_shown_call(payers: Payers) -> None:
    run = payers.pause("other")
    assert payers.resolve(run, "approved", arguments_hash="sha256:0").status_code == 409
    shown = payers.find_approval(run)["context"]["arguments_hash"]
    assert payers.resolve(run, "approved", arguments_hash=shown).status_code == 200


def test_answers_and_results_are_resolved(payers: Payers) -> None:
    for words, data, missing in (
        ("ask", {"values": {"answer": "left"}}, "values"),
        ("open", {"result": "opened"}, "result"),
    ):
        run = payers.pause(words)
        refused = payers.resolve(run, "approved")
        assert refused.status_code == 422
        assert f"resolution_data.{missing} is required" in refused.text
        assert payers.resolve(run, "approved", **data).json()["status"] == "answered"
    run = payers.pause("ask")
    assert payers.resolve(run, "rejected").json()["status"] == "rejected"


def test_cancel_of_a_paused_run_closes_its_approvals(payers: Payers) -> None:
    run = payers.pause("user")
    before = payers.payments
    cancelled = payers.call("POST", f"/agents/payer/runs/{run['run_id']}/cancel").json()
    assert (cancelled["cancel"], cancelled["status"]) == ("stopped", "CANCELLED")
    assert payers.find_approval(run)["status"] == "cancelled"
    assert payers.go_on(run, confirm(run)).status_code == 409
    assert payers.payments == before


def test_explanation_knows_the_routes_of_approvals(payers: Payers) -> None:
    for path, method, operation in (
        ("/approvals/count", "GET", "get_approvals"),
        (f"/approvals/{UNKNOWN}", "GET", "get_approvals"),
        (f"/approvals/{UNKNOWN}/resolve", "POST", "decide_agent_approval"),
    ):
        token = payers.deployment.token("eve", *APPROVER)
        asked = {"method": method, "path": path, "token": token}
        found = payers.call("POST", "/auth/explain", ADMIN, json=asked).json()
        assert found["operation"] == operation, found
        native = payers.approve(method, path, headers={"Agentctl-Interface": "contract"})
        assert native.status_code == 404


@pytest.mark.parametrize("workers", [1, 2])
def test_cancel_ends_the_call_of_the_model(
    tmp_path: Path, model_endpoint: ModelEndpoint, workers: int
) -> None:
    with serve_ours(tmp_path, model_endpoint.base_url, extra=HELD, workers=workers) as server:
        run = server.run("workflows/sign", message='{"a": 2, "b": 3}')
        (step,) = run["step_requirements"]
        step["executor_requirements"][0]["tool_execution"]["confirmed"] = True
        form = {"step_requirements": json.dumps([step]), "stream": "false", "background": "true"}
        path = f"/workflows/sign/runs/{run['run_id']}"
        assert server.call("POST", f"{path}/continue", data=form).status_code == 202
        model_endpoint.wait_for_open(1)
        # Each connection reaches one of the workers, and one of them executes the run.
        with ThreadPoolExecutor(8) as pool:
            cancel = partial(server.call, "POST", f"{path}/cancel")
            results = [each.result().json() for each in [pool.submit(cancel) for _ in range(8)]]
        assert {each["status"] for each in results} == {"CANCELLED"}, results
        model_endpoint.wait_for_open(0)
        assert server.call("GET", path).json()["status"] == "CANCELLED"
