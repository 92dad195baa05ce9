"""The continuation of paused runs by their users over HTTP."""

from __future__ import annotations

from typing import Any

from tests.approvals.people import People
from tests.server.event_streams import Event, parse_events

ABSENT = "01900000-0000-7000-8000-000000000000"


def path_of(run: dict[str, Any], agent: str = "payer") -> str:
    return f"/agents/{agent}/runs/{run['run_id']}/continue"


def decisions_of(run: dict[str, Any], decision: str = "approve", **fields: Any) -> list[Any]:
    """Decide about everything that the record of a run names."""
    return [
        {
            "tool_call_id": approval["tool_call_id"],
            "decision": decision,
            "arguments_hash": approval["arguments_hash"],
            **fields,
        }
        for approval in run["approvals"]
        if approval["status"] == "pending"
    ]


def names(events: list[Event]) -> list[str]:
    return [name for name, _, _ in events]


def test_user_continues_with_the_record(people: People) -> None:
    run = people.start("user ask")
    call, question = run["approvals"]
    body = {
        "stream": False,
        "decisions": [
            {
                "approval_id": call["approval_id"],
                "decision": "approve",
                "arguments_hash": call["arguments_hash"],
            },
            {"tool_call_id": question["tool_call_id"], "decision": "answer", "answer": "right"},
        ],
        "dependencies": {"shop": 7},
    }
    response = people.send("ann", "POST", path_of(run), json=body)
    assert response.status_code == 200, response.text
    record = response.json()
    assert (record["status"], record["run_id"]) == ("COMPLETED", run["run_id"])
    assert record["content"] == "Results: paid, right; given {'shop': 7}"
    assert [each["status"] for each in record["approvals"]] == ["approved", "answered"]
    assert [each["decided_by"] for each in people.approvals(run)] == ["ann", "ann"]


def test_stream_goes_on_where_it_paused(people: People) -> None:
    first = people.stream("ann", "/agents/payer/runs", {"message": "user | user"})
    assert names(first) == ["RunStarted", "RunPaused"]
    paused = first[-1][1]
    run = {"run_id": paused["run_id"], "approvals": paused["approvals"]}
    second = people.stream("ann", path_of(run), {"decisions": decisions_of(run)})
    assert names(second) == ["RunContinued", "RunPaused"]
    run["approvals"] = second[-1][1]["approvals"]
    third = people.stream("ann", path_of(run), {"decisions": decisions_of(run)})
    assert names(third) == ["RunContinued", "RunContent", "RunCompleted"]
    everything = [*first, *second, *third]
    assert [number for _, _, number in everything] == list(range(len(everything)))
    record = people.send("root", "GET", f"/runs/{run['run_id']}").json()
    path = f"/agents/payer/runs/{run['run_id']}"
    for method, place in (("GET", "events"), ("POST", "resume")):
        with people.host.client.stream(
            method,
            f"{path}/{place}",
            params={"session_id": record["session_id"]},
            headers=people.headers("ann"),
        ) as response:
            assert list(parse_events(response.iter_lines())) == everything


def test_run_that_still_waits_is_returned_without_a_stream(people: People) -> None:
    run = people.start("user other")
    body = {"decisions": decisions_of(run)[:1]}
    response = people.send("ann", "POST", path_of(run), json=body)
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    record = response.json()
    assert (record["status"], record["content"]) == ("PAUSED", run["content"])
    assert [each["status"] for each in record["approvals"]] == ["approved", "pending"]
    assert people.decide(people.approvals(run)[1], "approve").status_code == 200
    assert people.wait_for_end(run)["content"] == "Results: paid, paid"


def test_background_continuation_returns_at_once(people: People) -> None:
    run = people.start("user")
    body = {"decisions": decisions_of(run), "background": True, "stream": False}
    response = people.send("ann", "POST", path_of(run), json=body)
    assert response.status_code == 202
    assert response.json()["status"] in ("PENDING", "RUNNING", "COMPLETED")
    assert people.wait_for_end(run)["status"] == "COMPLETED"


def test_continuation_without_decisions_returns_the_paused_run(people: People) -> None:
    run = people.start("user")
    response = people.send("ann", "POST", path_of(run))
    assert (response.status_code, response.json()) == (200, run)


def test_repeated_continuation_changes_nothing(people: People) -> None:
    run = people.start("user")
    before = people.payments
    headers = {"Idempotency-Key": f"continue-{run['run_id']}"}
    body = {"decisions": decisions_of(run), "stream": False}
    first = people.send("ann", "POST", path_of(run), json=body, headers=headers)
    again = people.send("ann", "POST", path_of(run), json=body, headers=headers)
    assert (first.status_code, again.status_code) == (200, 200)
    assert again.json() == first.json()
    assert len(people.payments) == len(before) + 1
    path = "/audit?operation=continue_agent_run&limit=100"
    entries = people.send("root", "GET", path).json()["data"]
    assert sum(f"run:{run['run_id']}" in entry["resource"] for entry in entries) == 1
    changed = {**body, "decisions": decisions_of(run, "reject")}
    response = people.send("ann", "POST", path_of(run), json=changed, headers=headers)
    assert response.status_code == 422


def test_decisions_are_stored_all_or_none(people: People) -> None:
    run = people.start("user user")
    good, bad = decisions_of(run)
    body = {"decisions": [good, {**bad, "arguments_hash": "sha256:0"}]}
    assert people.send("ann", "POST", path_of(run), json=body).status_code == 409
    assert people.send("root", "GET", f"/runs/{run['run_id']}").json() == run


def test_user_does_not_decide_for_an_approver(people: People) -> None:
    run = people.start("other")
    body = {"decisions": decisions_of(run)}
    for name in ("ann", "root"):
        response = people.send(name, "POST", path_of(run), json=body)
        assert (response.status_code, response.json()["error_code"]) == (403, "FOUR_EYES")
    assert people.send("root", "GET", f"/runs/{run['run_id']}").json() == run


def test_run_of_another_user_is_not_found(people: People) -> None:
    run = people.start("user", name="ann")
    for body in ({"decisions": decisions_of(run)}, {"decisions": "nonsense"}):
        response = people.send("ben", "POST", path_of(run), json=body)
        absent = people.send("ben", "POST", path_of({"run_id": ABSENT}), json=body)
        assert (response.status_code, response.content) == (404, absent.content)


def test_events_of_a_plain_run_that_waits_name_its_approvals(people: People) -> None:
    run = people.start("user ask")
    path = f"/agents/payer/runs/{run['run_id']}/events"
    with people.host.client.stream("GET", path, headers=people.headers("ann")) as response:
        events = list(parse_events(response.iter_lines()))
    assert names(events) == ["RunPaused"]
    called, asked = events[0][1]["approvals"]
    assert called["arguments"] == {"amount": 10, "to": "bob"}
    assert called["arguments_hash"] == run["approvals"][0]["arguments_hash"]
    assert asked["question"] == "Which way?"
