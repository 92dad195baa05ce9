"""Decisions of approvers over HTTP."""

from __future__ import annotations

from tests.approvals.people import People


def test_approved_call_is_made_and_the_run_completes(people: People) -> None:
    run = people.start("other")
    assert run["status"] == "PAUSED"
    (approval,) = people.approvals(run)
    assert run["approvals"] == [
        {
            "approval_id": approval["approval_id"],
            "kind": "approval",
            "tool_name": "pay",
            "status": "pending",
        }
    ]
    response = people.decide(approval, "approve")
    assert response.status_code == 200, response.text
    assert response.json()["status"] == "approved"
    ended = people.wait_for_end(run)
    assert (ended["status"], ended["content"]) == ("COMPLETED", "Results: paid")
    (approval,) = people.approvals(run)
    assert (approval["execution"], approval["decided_by"]) == ("done", "eve")
