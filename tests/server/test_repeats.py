"""Retry and fork over HTTP: what the new run begins with, and what it repeats."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import serve_in_thread
from tests.server.repeating import (
    PLAN,
    SCOPES,
    Place,
    call,
    create_place_deployment,
    open_place,
    say,
    serve_place,
)


@pytest.fixture(scope="module")
def opened(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[Place]:
    with open_place(tmp_path_factory.mktemp("repeats"), model_endpoint) as place:
        yield place


@pytest.fixture
def place(opened: Place) -> Iterator[Place]:
    yield opened
    opened.clear()


def test_a_retry_goes_on_after_the_last_finished_call(place: Place) -> None:
    run = place.interrupt("agents/planner", PLAN, "two")
    assert (run["status"], run["origin_run_id"]) == ("CANCELLED", None)

    status, refusal = place.repeat("agents/planner", run)
    assert status == 409
    plan = refusal["plan"]
    shown = [(each["tool_name"], each["arguments"], each["state"]) for each in plan["calls"]]
    assert shown == [("hold", '{"entry":"two"}', "unknown")]
    assert plan["at"] == 4  # the instructions, the message, the answer and its result
    assert refusal["detail"] == "The retry may repeat 1 tool call: confirm it"
    assert place.ledger() == ["one", "two"]
    # Another hash than that of the plan starts nothing.
    status, refusal = place.repeat("agents/planner", run, confirm="0" * 64)
    assert (status, refusal["error_code"]) == (409, "NEEDS_CONFIRMATION")

    retried = place.confirm("agents/planner", run)
    assert (retried["status"], retried["session_id"]) == ("COMPLETED", run["session_id"])
    assert place.ledger() == ["one", "two", "two", "three"]
    origin = (retried["origin_run_id"], retried["origin_kind"], retried["origin_at"])
    assert origin == (run["run_id"], "retry", 4)
    assert retried["input"] == run["input"]
    assert [tool["tool_call_id"] for tool in retried["tools"]] == ["c2", "c3"]
    assert retried["content"] == "next c2\n\nnext c3\n\nfinished"
    kept = [message for message in retried["messages"] if "origin_run_id" in message]
    assert [message["role"] for message in kept] == ["user", "assistant", "tool"]
    assert kept[-1]["content"] == "recorded one"
    # The items of a view have the new part only, and the record of a list names the origin.
    view = place.server.client.get(
        f"/runs/{retried['run_id']}?view=items", headers=place.headers
    ).json()
    calls = [item["tool_call_id"] for item in view["items"] if item["type"] == "tool_call"]
    assert calls == ["c2", "c3"]
    assert (view["origin_run_id"], view["origin_kind"]) == (run["run_id"], "retry")


def test_the_next_run_of_the_session_has_the_retry_in_place_of_its_origin(place: Place) -> None:
    run = place.interrupt("agents/planner", PLAN, "two")
    place.confirm("agents/planner", run)
    place.start("agents/planner", [say("hello")], session_id=run["session_id"])
    sent = place.endpoint.requests("plan")[-1]["messages"]
    results = [message["content"] for message in sent if message["role"] == "tool"]
    assert results == ["recorded one", "held two", "recorded three"]
    assert [message["role"] for message in sent].count("user") == 2


def test_a_second_retry_names_the_first(place: Place) -> None:
    run = place.start("agents/planner", [say("hello")])
    status, first = place.repeat("agents/planner", run)
    assert (status, first["content"], first["origin_at"]) == (200, "hello", 0)
    status, refusal = place.repeat("agents/planner", run)
    assert status == 409
    assert refusal["plan"]["retries"] == [first["run_id"]]
    assert first["run_id"] in refusal["detail"]
    status, again = place.repeat("agents/planner", first)
    assert (status, again["origin_run_id"]) == (200, first["run_id"])


def test_failed_calls_at_the_end_are_made_again(place: Place) -> None:
    plan = [
        call("record", "c1", entry="one"),
        *(call("refuse", f"r{n}", entry="in") for n in "123"),
    ]
    run = place.start("agents/planner", [*plan, say("finished")])
    assert run["error"]["code"] == "TOOL_FAILED"
    (place.folder / "gate").touch()
    _, refusal = place.repeat("agents/planner", run)
    assert [each["state"] for each in refusal["plan"]["calls"]] == ["failed"] * 3
    retried = place.confirm("agents/planner", run)
    assert (retried["status"], retried["origin_at"]) == ("COMPLETED", 4)
    assert place.ledger().count("one") == 1


def test_a_retry_of_a_retry_keeps_what_both_have_finished(place: Place) -> None:
    plan = [
        call("record", "c1", entry="one"),
        call("hold", "c2", entry="two"),
        call("hold", "c3", entry="three"),
        say("finished"),
    ]
    run = place.interrupt("agents/planner", plan, "two")
    (place.folder / "gate").unlink()
    _, refusal = place.repeat("agents/planner", run)
    body = {"confirm": refusal["plan"]["confirm"], "background": True}
    status, second = place.repeat("agents/planner", run, **body)
    assert status == 202
    place.wait_for_entries("two", 2)
    (place.folder / "gate").touch()
    place.wait_for_entry("three")
    record = place.wait_for_end(second)
    status, third = place.repeat("agents/planner", record)
    assert status == 200
    assert (third["content"], third["tools"]) == ("finished", [])
    kept = [each["tool_call_id"] for each in third["messages"] if each["role"] == "tool"]
    assert kept == ["c1", "c2", "c3"]
    assert place.ledger() == ["one", "two", "two", "three"]


def test_a_team_keeps_the_reports_of_its_members(place: Place) -> None:
    member = json.dumps([call("record", "m1", entry="by member"), say("report")])
    held = json.dumps([call("hold", "m2", entry="held"), say("late report")])
    plan = [
        call("delegate_task_to_member", "d1", member_id="planner", task=member),
        call("delegate_task_to_member", "d2", member_id="planner", task=held),
        say("finished"),
    ]
    run = place.interrupt("teams/planners", plan, "held")
    _, refusal = place.repeat("teams/planners", run)
    # The call of the member that is asked again; a delegation is no effect.
    assert [each["arguments"] for each in refusal["plan"]["calls"]] == ['{"entry":"held"}']
    assert refusal["plan"]["calls"][0]["run_id"] in run["member_runs"]
    retried = place.confirm("teams/planners", run)
    assert (retried["status"], len(retried["member_runs"])) == ("COMPLETED", 1)
    assert place.ledger() == ["by member", "held", "held"]


def test_a_workflow_begins_with_its_first_unfinished_step(place: Place) -> None:
    second = [call("hold", "c2", entry="second"), say("finished")]
    first = [call("record", "c1", entry="first"), say(json.dumps(second))]
    run = place.interrupt("workflows/steps", first, "second")
    _, refusal = place.repeat("workflows/steps", run)
    assert [each["arguments"] for each in refusal["plan"]["calls"]] == ['{"entry":"second"}']
    retried = place.confirm("workflows/steps", run)
    assert (retried["status"], retried["content"]) == ("COMPLETED", "next c2\n\nfinished")
    assert (retried["origin_at"], len(retried["member_runs"])) == (1, 1)
    assert place.ledger() == ["first", "second", "second"]
    again = place.confirm("workflows/steps", retried)
    assert (again["origin_at"], place.ledger()) == (1, ["first", "second", "second", "second"])


def test_code_and_broadcasts_work_from_the_beginning_after_a_confirmation(place: Place) -> None:
    run = place.start("agents/code", "hello")
    status, refusal = place.repeat("agents/code", run)
    assert (status, refusal["plan"]["runs_code"]) == (409, True)
    assert place.ledger() == ["code hello"]
    retried = place.confirm("agents/code", run)
    assert (retried["content"], retried["origin_at"]) == ("0 before: hello", 0)
    assert place.ledger() == ["code hello"] * 2

    run = place.start("teams/all", [call("record", "c1", entry="one"), say("report")])
    _, refusal = place.repeat("teams/all", run)
    assert [each["tool_call_id"] for each in refusal["plan"]["calls"]] == ["c1"]
    retried = place.confirm("teams/all", run)
    assert (retried["origin_at"], len(retried["member_runs"])) == (0, 1)


def test_a_retry_streams_and_repeats_with_its_key(place: Place) -> None:
    run = place.interrupt("agents/planner", PLAN, "two")
    _, refusal = place.repeat("agents/planner", run)
    path = f"/agents/planner/runs/{run['run_id']}/retry"
    body = {"confirm": refusal["plan"]["confirm"]}
    headers = {**place.headers, "Idempotency-Key": "k1"}
    response = place.server.client.post(path, json=body, headers=headers)
    assert response.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in response.text.splitlines() if line.startswith("data: ")]
    first = json.loads(lines[0].removeprefix("data: "))
    assert first["event"] == "RunStarted"
    assert (first["origin_run_id"], first["origin_kind"]) == (run["run_id"], "retry")
    assert json.loads(lines[-1].removeprefix("data: "))["event"] == "RunCompleted"
    # The same key is the same run, and its repeat asks nothing.
    again = place.server.client.post(path, json={}, headers=headers)
    assert json.loads(again.text.split("data: ")[1].split("\n")[0])["run_id"] == first["run_id"]
    assert place.ledger().count("three") == 1
    other = place.server.client.post(path, json={"background": True}, headers=headers)
    assert other.status_code == 422


def test_what_cannot_be_retried(place: Place) -> None:
    status, _ = place.post("/agents/planner/runs/nothing/retry", {})
    assert status == 404
    live = place.start("agents/planner", PLAN, background=True)
    place.wait_for_entry("two")
    status, error = place.repeat("agents/planner", live)
    assert (status, error["detail"]) == (409, "The run has not ended: it is RUNNING")
    place.cancel("agents/planner", live)
    other = place.server.bearer("bob", *SCOPES)
    path = f"/agents/planner/runs/{live['run_id']}/retry"
    assert place.server.client.post(path, json={}, headers=other).status_code == 404
    reader = place.server.bearer("ann", "agents:read", "sessions:read")
    assert place.server.client.post(path, json={}, headers=reader).status_code == 403

    line = place.start("workflows/steps", [say(json.dumps([say("done")]))])
    member = place.get(line["member_runs"][0])
    status, error = place.repeat("agents/planner", member)
    assert (status, error["error_code"]) == (409, "CONFLICT")
    assert error["detail"] == f"The run is part of run {line['run_id']}: retry that one"

    session = f"/sessions/{live['session_id']}"
    assert place.server.client.delete(session, headers=place.headers).status_code == 204
    assert place.repeat("agents/planner", live)[0] == 404


def test_a_fork_takes_the_conversation_to_a_new_session(place: Place) -> None:
    before = place.start("agents/planner", [say("before")])
    session_id = before["session_id"]
    plan = [call("record", "c1", entry="one"), say("finished")]
    run = place.start("agents/planner", plan, session_id=session_id)
    question = json.dumps([say("forked")])
    # After its last message nothing is repeated; the instructions are the first message.
    status, fork = place.repeat("agents/planner", run, "fork", at=5, message=question)
    assert (status, fork["content"]) == (200, "forked"), fork
    assert fork["session_id"] != session_id
    origin = (fork["origin_run_id"], fork["origin_kind"], fork["origin_at"])
    assert origin == (run["run_id"], "fork", 5)
    sent = place.endpoint.requests("plan")[-1]["messages"]
    roles = [message["role"] for message in sent if message["role"] != "system"]
    assert roles == ["user", "assistant", "user", "assistant", "tool", "assistant", "user"]
    # The next run of the new session knows all of it.
    place.start("agents/planner", [say("next")], session_id=fork["session_id"])
    sent = place.endpoint.requests("plan")[-1]["messages"]
    assert [message["role"] for message in sent].count("user") == 4

    # In the session itself, from the message of the run: its call may be made again.
    record = place.confirm(
        "agents/planner", run, "fork", at=2, message=question, session_id=session_id
    )
    assert record["session_id"] == session_id
    # Without a message the conversation goes on after the call.
    status, record = place.repeat("agents/planner", run, "fork", at=4)
    assert (status, record["content"], record["tools"]) == (200, "finished", [])


def test_a_fork_goes_to_another_component(place: Place) -> None:
    run = place.start("agents/planner", [call("record", "c1", entry="one"), say("finished")])
    status, fork = place.repeat(
        "agents/planner", run, "fork", at=5, message="hello", agent_id="history"
    )
    assert (status, fork["agent_id"]) == (200, "history")
    seen = [role for role, _ in json.loads(fork["content"]) if role != "system"]
    assert seen == ["user", "assistant", "tool", "assistant", "user"]
    status, fork = place.repeat(
        "agents/planner", run, "fork", at=5, message="hello", agent_id="code"
    )
    assert (status, fork["content"]) == (200, "4 before: hello")
    # The history of a later run has the messages of the origin, too.
    later = place.start("agents/code", "again", session_id=fork["session_id"])
    assert later["content"] == "6 before: again"
    # The caller needs the right to run the other component.
    scopes = ("agents:planner:run", "agents:read")
    path = f"/agents/planner/runs/{run['run_id']}/fork"
    body = {"at": 5, "message": "hello", "agent_id": "history"}
    headers = place.server.bearer("ann", *scopes)
    response = place.server.client.post(path, json=body, headers=headers)
    assert (response.status_code, response.json()["required_scopes"][0]) == (
        403, "agents:history:run",
    )  # fmt: skip


def test_what_cannot_be_forked(place: Place) -> None:
    run = place.start("agents/planner", [call("record", "c1", entry="one"), say("finished")])
    refused = {
        "at must be 0 to 5: the run has 5 messages": {"at": 6},
        "at must not be 3, between tool calls and their results: use 2 or 4": {"at": 3},
        "message is required: the run cannot go on after message 5 alone": {"at": 5},
        "agent_id and team_id cannot be used together: give one of them": {
            "at": 5, "agent_id": "echo", "team_id": "crew",
        },
    }  # fmt: skip
    for detail, body in refused.items():
        status, error = place.repeat("agents/planner", run, "fork", **body)
        assert (status, error["detail"]) == (422, detail)
    other = place.start("agents/planner", [say("other")])
    status, error = place.repeat(
        "agents/planner", run, "fork", at=5, message="x", session_id=other["session_id"]
    )
    assert (status, error["detail"]) == (409, f"The session {other['session_id']} already exists")
    assert place.repeat("agents/planner", run, "fork", at=5, message="x", agent_id="no")[0] == 404
    assert place.ledger() == ["one"]


def test_an_export_names_the_origin(place: Place) -> None:
    run = place.start("agents/planner", [say("hello")])
    _, retried = place.repeat("agents/planner", run)
    path = f"/sessions/{run['session_id']}/export"
    text = place.server.client.get(path, headers=place.headers).text
    assert f'"origin_run_id":"{run["run_id"]}"' in text
    assert retried["run_id"] in text
    text = place.server.client.get(f"{path}?format=markdown", headers=place.headers).text
    assert f"retry of {run['run_id']}" in text


def test_a_run_of_a_killed_server_is_retried(tmp_path: Path, model_endpoint: ModelEndpoint) -> None:
    deployment = create_place_deployment(tmp_path, model_endpoint)
    with serve_place(deployment, model_endpoint) as (place, server):
        run = place.start("agents/planner", PLAN, background=True)
        place.wait_for_entry("two")
        place.wait_for_stored_call(run, "c2")
        server.process.kill()
        server.process.wait()

    (place.folder / "gate").touch()
    with serve_in_thread(deployment) as host:
        place = Place(host, model_endpoint)
        lost = place.wait_for_end(run)
        assert lost["error"]["code"] == "WORKER_LOST"
        roles = [message["role"] for message in lost["messages"]]
        assert roles == ["user", "assistant", "tool", "assistant", "tool"]
        status, refusal = place.repeat("agents/planner", lost)
        plan = refusal["plan"]
        assert (status, plan["at"], plan["calls_unknown"]) == (409, 3, True)
        shown = [(each["arguments"], each["state"]) for each in plan["calls"]]
        assert shown == [('{"entry":"two"}', "unknown")]

        retried = place.confirm("agents/planner", lost)
        assert (retried["status"], retried["origin_at"]) == ("COMPLETED", 3)
        assert place.ledger() == ["one", "two", "two", "three"]


def test_calls_at_once_are_kept_together_or_made_again(place: Place) -> None:
    both = call("record", "c2", entry="with two")
    both["tool_calls"] += call("hold", "c3", entry="two")["tool_calls"]
    plan = [call("record", "c1", entry="one"), both, say("finished")]
    run = place.interrupt("agents/planner", plan, "two")
    _, refusal = place.repeat("agents/planner", run)
    shown = [(each["tool_call_id"], each["state"]) for each in refusal["plan"]["calls"]]
    assert (refusal["plan"]["at"], shown) == (4, [("c2", "done"), ("c3", "unknown")])
    retried = place.confirm("agents/planner", run)
    assert retried["status"] == "COMPLETED"
    assert sorted(place.ledger()) == ["one", "two", "two", "with two", "with two"]
