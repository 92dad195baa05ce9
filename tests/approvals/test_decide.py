"""Decisions of approvers over HTTP, and what they change.

`tests/contract/table/approvals.py` has the decisions that are refused.
"""

from __future__ import annotations

import json
from typing import Any

import httpx2

from tests.approvals.people import People, path_of
from tests.kit.conditions import wait_for

ABSENT = "01900000-0000-7000-8000-000000000000"


def test_approved_call_is_made_and_the_run_completes(people: People) -> None:
    run = people.start("other")
    assert run["status"] == "PAUSED"
    assert run["paused_at"] is not None
    (approval,) = people.approvals(run)
    assert run["approvals"] == [
        {
            "approval_id": approval["approval_id"],
            "run_id": run["run_id"],
            "kind": "approval",
            "policy": "other",
            "tool_call_id": "call-0-0",
            "tool_name": "pay",
            "arguments_hash": approval["arguments_hash"],
            "status": "pending",
            "execution": None,
            "created_at": approval["created_at"],
            "decided_at": None,
            "decided_by": None,
            "note": None,
        }
    ]
    before = people.payments
    response = people.decide(approval, "approve", note="fine")
    assert response.status_code == 200, response.text
    decided = response.json()
    assert (decided["status"], decided["decided_by"]) == ("approved", "eve")
    ended = people.wait_for_end(run)
    assert (ended["status"], ended["content"]) == ("COMPLETED", "Results: paid")
    assert people.payments == [*before, {"amount": 10, "to": "bob"}]
    (approval,) = people.approvals(run)
    assert (approval["execution"], approval["result"], approval["note"]) == ("done", "paid", "fine")
    assert ended["approvals"][0]["status"] == "approved"


def test_answers_and_results_reach_the_run(people: People) -> None:
    run = people.start("ask open")
    asked, called = people.approvals(run)
    assert (asked["kind"], asked["question"]) == ("input", "Which way?")
    assert people.decide(asked, "answer", answer="left").status_code == 200
    assert people.decide(called, "complete", result={"lines": 3}).status_code == 200
    assert people.wait_for_end(run)["content"] == 'Results: left, {"lines":3}'


def test_user_of_the_run_is_not_its_approver(people: People) -> None:
    run = people.start("other", name="ann")
    (approval,) = people.approvals(run)
    both = people.host.bearer("ann", "approvals:write", "agents:run")
    response = people.decide(approval, "approve", name=both)
    assert response.status_code == 403
    assert response.json()["error_code"] == "FOUR_EYES"
    assert "www-authenticate" not in response.headers
    assert people.approvals(run) == [approval]
    own = people.start("user", name="ann")
    (approval,) = people.approvals(own)
    assert people.decide(approval, "approve", name=both).status_code == 200


def test_principal_that_started_the_run_of_another_is_not_its_approver(people: People) -> None:
    run = people.start("other", name="root", user_id="ann")
    assert run["user_id"] == "ann"
    (approval,) = people.approvals(run)
    assert people.decide(approval, "approve", name="root").status_code == 403
    assert people.decide(approval, "approve", name="eve").status_code == 200


def test_reader_sees_its_own_approvals_and_approvers_see_all(people: People) -> None:
    runs = {name: people.start("other", name=name) for name in ("ann", "ben")}

    def seen(*scopes: str, subject: str = "ann", path: str = "/approvals?limit=100") -> set[str]:
        response = people.send(people.host.bearer(subject, *scopes), "GET", path)
        assert response.status_code == 200
        data = response.json()["data"]
        wanted = {run["run_id"]: name for name, run in runs.items()}
        return {wanted[row["run_id"]] for row in data if row["run_id"] in wanted}

    assert seen("approvals:read") == {"ann"}
    assert seen("approvals:payer:read") == {"ann"}
    assert seen("approvals:busy:read") == set()
    assert seen("approvals:read", subject="eve") == set()
    assert seen("approvals:read", "approvals:write") == {"ann", "ben"}
    assert seen("approvals:read", "approvals:payer:write") == {"ann", "ben"}
    assert seen("approvals:read", "approvals:busy:write") == {"ann"}
    assert seen("approvals:payer:read", "approvals:payer:write", subject="eve") == {"ann", "ben"}
    assert seen("approvals:read", "approvals:write", path="/approvals?user_id=ben&limit=100") == {
        "ben"
    }
    assert seen("approvals:read", path="/approvals?user_id=ben&limit=100") == set()
    (hidden,) = people.approvals(runs["ben"])
    reader = people.host.bearer("ann", "approvals:read")
    assert people.send(reader, "GET", path_of(hidden)).status_code == 404


def test_approver_without_scope_for_sessions_sees_the_call_only(people: People) -> None:
    run = people.start("other")
    (approval,) = people.approvals(run)
    assert people.send("eve", "GET", path_of(approval)).json() == approval
    for path in (f"/runs/{run['run_id']}", f"/sessions/{run['session_id']}"):
        assert people.send("eve", "GET", path).status_code == 403


def test_list_has_filters_and_pages(people: People) -> None:
    run = people.start("other ask open")
    base = f"/approvals?run_id={run['run_id']}"

    def ask(query: str) -> list[str]:
        response = people.send("root", "GET", f"{base}&{query}")
        assert response.status_code == 200, response.text
        return [row["tool_name"] for row in response.json()["data"]]

    everything = ["pay", "ask", "open_file"]
    assert ask("sort_order=asc") == everything
    assert ask("") == everything[::-1]
    assert ask("kind=input") == ["ask"]
    assert ask("status=approved") == []
    assert ask("execution=done") == []
    assert ask("component_type=team") == []
    assert ask("component_type=agent&component_id=payer&user_id=ann&limit=1") == ["open_file"]
    assert ask(f"session_id={run['session_id']}&page=2&limit=2") == ["pay"]
    assert ask(f"created_after={run['paused_at']}&sort_order=asc") == everything
    assert ask(f"created_before={run['paused_at']}") == []
    first = people.send("root", "GET", f"{base}&limit=2").json()
    assert first["meta"]["total_count"] == 3
    cursor = first["meta"]["next_cursor"]
    assert ask(f"limit=2&cursor={cursor}") == ["pay"]
    for query in ("status=maybe", "limit=0", "cursor=x", "created_after=yesterday"):
        assert people.send("root", "GET", f"{base}&{query}").status_code == 422
    assert people.send("root", "GET", f"{base}&db_id=nowhere").status_code == 404


def test_approvals_of_a_second_database_are_decided(people: People) -> None:
    run = people.start("other", agent="second-payer")
    data = people.send("root", "GET", f"/approvals?db_id=second&run_id={run['run_id']}").json()
    (approval,) = data["data"]
    headers = {"Idempotency-Key": "second"}
    for _ in range(2):
        response = people.decide(approval, "approve", headers=headers)
        assert (response.status_code, response.json()["status"]) == (200, "approved")
    path = f"/agents/second-payer/runs/{run['run_id']}"
    wait_for(lambda: people.send("root", "GET", path).json()["status"] == "COMPLETED")
    assert len(audit_entries(people, approval)) == 1


def audit_entries(people: People, approval: dict[str, Any]) -> list[dict[str, Any]]:
    path = "/audit?operation=decide_agent_approval&limit=100"
    entries = people.send("root", "GET", path).json()["data"]
    named = f"approval:{approval['approval_id']}"
    return [entry for entry in entries if named in entry["resource"]]


def test_decision_is_one_audit_entry_with_its_run(people: People) -> None:
    run = people.start("other")
    (approval,) = people.approvals(run)
    people.decide(approval, "approve", arguments_hash="sha256:11")
    people.decide(approval, "approve")
    allowed, failed = audit_entries(people, approval)
    assert (allowed["outcome"], allowed["principal"]) == ("allowed", "eve")
    assert f"run:{run['run_id']}" in allowed["resource"]
    assert (failed["outcome"], failed["status"]) == ("failed", 409)


def test_repeated_decision_has_the_first_result(people: People) -> None:
    run = people.start("other")
    (approval,) = people.approvals(run)
    headers = {"Idempotency-Key": f"decide-{run['run_id']}"}
    first = people.decide(approval, "reject", note="no", headers=headers)
    again = people.decide(approval, "reject", note="no", headers=headers)
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.json() == first.json()
    assert len(audit_entries(people, approval)) == 1
    other = people.decide(approval, "reject", note="other", headers=headers)
    assert other.status_code == 422
    assert other.json()["detail"] == "The Idempotency-Key was used for another request"
    invalid = people.decide(approval, "reject", headers={"Idempotency-Key": "a" * 256})
    assert invalid.status_code == 422


def test_decisions_at_the_same_time_count_once(people: People) -> None:
    run = people.start("other")
    (approval,) = people.approvals(run)
    before = people.payments
    responses = people.send_together(
        "eve",
        f"{path_of(approval)}/decide",
        [
            {"decision": verb, "arguments_hash": approval["arguments_hash"]}
            for verb in ("approve", "reject") * 8
        ],
    )
    statuses = [response.status_code for response in responses]
    assert sorted(set(statuses)) == [200, 409]
    assert statuses.count(200) == 1
    chosen: httpx2.Response = responses[statuses.index(200)]
    people.wait_for_end(run)
    paid = len(people.payments) - len(before)
    assert paid == (json.loads(chosen.content)["status"] == "approved")
