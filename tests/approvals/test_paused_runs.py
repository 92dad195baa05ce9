"""Paused runs over HTTP: records, lists, sessions, cancels and repeated requests."""

from __future__ import annotations

from typing import Any

from tests.approvals.people import People


def list_ids(people: People, query: str) -> list[str]:
    response = people.send("root", "GET", f"/runs?{query}&limit=100")
    return [run["run_id"] for run in response.json()["data"]]


def test_lists_filter_paused_runs(people: People) -> None:
    run = people.start("user")
    run_id = run["run_id"]
    assert run_id in list_ids(people, "status=PAUSED")
    assert run_id not in list_ids(people, "live=true")
    assert run_id not in list_ids(people, "status=RUNNING")
    path = f"/agents/payer/runs?status=PAUSED&session_id={run['session_id']}&view=summary"
    (summary,) = people.send("ann", "GET", path).json()["data"]
    assert (summary["status"], summary["paused_at"]) == ("PAUSED", run["paused_at"])
    assert summary["approvals"] == run["approvals"]
    assert summary["finished_at"] is None


def test_every_read_of_a_run_has_its_approvals(people: People) -> None:
    run = people.start("user ask")
    run_id = run["run_id"]
    session_id = run["session_id"]
    for path in (
        f"/runs/{run_id}",
        f"/agents/payer/runs/{run_id}",
        f"/sessions/{session_id}/runs/{run_id}",
    ):
        assert people.send("root", "GET", path).json() == run
        for view in ("summary", "phase", "items"):
            record = people.send("root", "GET", f"{path}?view={view}").json()
            assert (record["approvals"], record["paused_at"]) == (
                run["approvals"],
                run["paused_at"],
            )
    (listed,) = people.send("root", "GET", f"/sessions/{session_id}/runs").json()
    assert listed == run


def test_session_is_paused_and_not_deleted(people: People) -> None:
    run = people.start("user")
    session_id = run["session_id"]
    sessions = people.send("ann", "GET", "/sessions?limit=100").json()["data"]
    (summary,) = [each for each in sessions if each["session_id"] == session_id]
    assert summary["last_status"] == "PAUSED"
    response = people.send("ann", "DELETE", f"/sessions/{session_id}")
    assert response.status_code == 409
    assert run["run_id"] in response.json()["detail"]
    several = {"session_ids": [session_id]}
    assert people.send("ann", "DELETE", "/sessions", json=several).status_code == 409
    assert people.send("ann", "DELETE", f"/sessions/{session_id}?cancel=true").status_code == 204
    assert people.send("root", "GET", f"/runs/{run['run_id']}").status_code == 404
    assert people.approvals(run) == []


def test_busy_session_names_the_paused_run(people: People) -> None:
    run = people.start("user", agent="busy")
    body = {"message": "user", "session_id": run["session_id"], "stream": False}
    response = people.send("ann", "POST", "/agents/busy/runs", json=body)
    assert response.status_code == 409
    assert response.json()["detail"] == f"The session is busy with run {run['run_id']}"


def test_repeated_request_returns_the_paused_run(people: People) -> None:
    headers = {"Idempotency-Key": "start-once"}
    body: dict[str, Any] = {"message": "user", "stream": False}
    first = people.send("ann", "POST", "/agents/payer/runs", json=body, headers=headers)
    again = people.send("ann", "POST", "/agents/payer/runs", json=body, headers=headers)
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json()["status"] == "PAUSED"
    assert again.json() == first.json()


def test_background_run_that_pauses_is_read_as_paused(people: People) -> None:
    body = {"message": "user", "stream": False, "background": True}
    response = people.send("ann", "POST", "/agents/payer/runs", json=body)
    assert response.status_code == 202
    assert people.wait_for_end(response.json(), "PAUSED")["approvals"]


def test_run_that_never_paused_has_no_approvals(people: People) -> None:
    run = people.start("none", name="root")
    assert (run["status"], run["paused_at"], run["approvals"]) == ("COMPLETED", None, [])
