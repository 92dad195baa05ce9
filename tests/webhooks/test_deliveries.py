"""Events of runs and approvals reach their endpoints, signed, once under one id."""

from __future__ import annotations

import base64
import subprocess
from collections import Counter
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any

import apsw
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from standardwebhooks import Webhook, WebhookVerificationError

from agentctl.webhooks.deliveries import TICK_SECONDS
from tests.approvals.people import People
from tests.kit.conditions import wait_for
from tests.kit.deployment import Deployment
from tests.webhooks.conftest import OLD_SECRET, SECRET
from tests.webhooks.receiver import Answer, Received, Receiver


def wait_for_event(receiver: Receiver, run_id: str, event: str, path: str = "/all") -> Received:
    """Wait until an event of a run was accepted; return its request."""

    def find() -> Received | None:
        found = (got for got in receiver.about(run_id, path) if got.event["type"] == event)
        return next(found, None)

    got: Received = wait_for(find)
    return got


def deliveries(people: People, **filter: str) -> list[Any]:
    response = people.send("root", "GET", "/webhooks/deliveries", params=filter)
    assert response.status_code == 200, response.text
    rows: list[Any] = response.json()["data"]
    return rows


def wait_for_error(people: People, run_id: str, webhook_id: str) -> Any:
    """Wait until an attempt of a delivery has failed; return the delivery."""

    def find() -> Any:
        (row,) = deliveries(people, run_id=run_id, webhook_id=webhook_id)
        return row if row["last_error"] else None

    return wait_for(find)


def test_event_of_a_run_has_the_ids_of_its_files(people: People, receiver: Receiver) -> None:
    marker = b"only in the bytes of the file"
    headers = people.headers("ann") | {"content-type": "text/plain"}
    sent = people.host.client.post("/files?name=n.txt", content=marker, headers=headers)
    file_id = sent.json()["file_id"]
    run = people.start("look", agent="long", files=[file_id])
    got = wait_for_event(receiver, run["run_id"], "run.completed")
    data = got.event["data"]
    assert (data["input_files"], data["saved_files"]) == ([file_id], [])
    assert b"n.txt" not in got.body
    assert marker not in got.body


def test_completed_run_is_delivered_with_a_valid_signature(
    people: People, receiver: Receiver
) -> None:
    run = people.start("hello", agent="long")
    got = wait_for_event(receiver, run["run_id"], "run.completed")
    for secret in (SECRET, OLD_SECRET):
        event = Webhook(secret).verify(got.body, got.headers)
        assert event["data"]["run_id"] == run["run_id"]
    data = got.event["data"]
    assert data["status"] == "COMPLETED"
    assert data["finished_at"] == run["finished_at"]
    assert data["user_id"] == "ann"
    assert "content" not in data
    assert "hello" not in got.body.decode()
    assert data["console_url"].endswith(f"/console#/sessions/{run['session_id']}")
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(got.body.replace(b"COMPLETED", b"CANCELLED"), got.headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(got.body, {**got.headers, "webhook-id": "other"})


def test_ed25519_signature_verifies_with_the_listed_key(people: People, receiver: Receiver) -> None:
    run = people.start("40000", agent="long")
    got = wait_for_event(receiver, run["run_id"], "run.completed", "/signed")
    listed = {row["webhook_id"]: row for row in people.send("root", "GET", "/webhooks").json()}
    public = base64.b64decode(listed["signed"]["public_key"].removeprefix("whpk_"))
    version, _, text = got.headers["webhook-signature"].partition(",")
    assert version == "v1a"
    key = Ed25519PublicKey.from_public_bytes(public)
    signature = base64.b64decode(text)
    prefix = f"{got.event_id}.{got.headers['webhook-timestamp']}.".encode()
    key.verify(signature, prefix + got.body)
    with pytest.raises(InvalidSignature):
        key.verify(signature, prefix + got.body.replace(b"COMPLETED", b"CANCELLED"))
    # The answer is part of this body, cut.
    assert 12_000 < len(got.body) < 20_000
    data = got.event["data"]
    assert data["content_cut"]
    assert run["content"].startswith(data["content"])


def test_failed_attempts_are_repeated_under_one_id(people: People, receiver: Receiver) -> None:
    refused: Counter[str] = Counter()

    def answer(got: Received) -> Answer:
        refused[got.event_id] += 1
        return (503, {}) if refused[got.event_id] <= 2 else (204, {})

    receiver.answers["/flaky"] = answer
    run = people.start("again", agent="long")
    got = wait_for_event(receiver, run["run_id"], "run.completed", "/flaky")
    assert refused[got.event_id] == 3

    def find() -> Any:
        rows = deliveries(people, run_id=run["run_id"], webhook_id="flaky", state="delivered")
        return rows[0] if rows else None

    row = wait_for(find)
    assert (row["attempts"], row["event_id"], row["last_status"]) == (3, got.event_id, 204)
    sent = [each for each in receiver.requests if each.event_id == got.event_id]
    # Each endpoint of a fact has the same id; each attempt has the stored bytes.
    assert {each.body for each in sent if each.path == "/flaky"} == {got.body}


def test_pause_decision_and_end_are_events(people: People, receiver: Receiver) -> None:
    run = people.start("other")
    got = wait_for_event(receiver, run["run_id"], "run.paused")
    (waits,) = got.event["data"]["approvals"]
    assert (waits["kind"], waits["policy"], waits["tool_name"]) == ("approval", "other", "pay")
    (approval,) = people.approvals(run)
    assert people.decide(approval, "approve", note="secret note").status_code == 200
    decided = wait_for_event(receiver, run["run_id"], "approval.decided")
    data = decided.event["data"]
    assert (data["status"], data["decided_by"]) == ("approved", "eve")
    assert data["approval_id"] == waits["approval_id"]
    assert "secret note" not in decided.body.decode()
    wait_for_event(receiver, run["run_id"], "run.completed")
    assert Counter(receiver.types(run["run_id"])) == {
        "run.paused": 1,
        "approval.decided": 1,
        "run.completed": 1,
    }


def test_cancel_of_a_paused_run_is_an_event(people: People, receiver: Receiver) -> None:
    run = people.start("user")
    path = f"/agents/payer/runs/{run['run_id']}/cancel?wait=30"
    assert people.send("root", "POST", path, json={"reason": "no"}).status_code == 200
    got = wait_for_event(receiver, run["run_id"], "run.cancelled")
    assert got.event["data"]["status"] == "CANCELLED"


def test_only_root_runs_are_reported(people: People, receiver: Receiver) -> None:
    body = {"message": "step", "stream": False}
    response = people.send("root", "POST", "/workflows/chain/runs", json=body)
    assert response.status_code == 200, response.text
    run = response.json()
    wait_for_event(receiver, run["run_id"], "run.completed")
    sessions = [got.event["data"] for got in receiver.accepted if got.path == "/all"]
    of_session = [data for data in sessions if data["session_id"] == run["session_id"]]
    assert [data["component_id"] for data in of_session] == ["chain"]


def test_gone_endpoint_is_disabled_until_it_is_enabled(people: People, receiver: Receiver) -> None:
    receiver.answers["/gone"] = lambda got: (410, {})
    run = people.start("x", agent="doomed")

    def find_disabled() -> Any:
        rows = people.send("root", "GET", "/webhooks").json()
        return next(
            (row for row in rows if row["webhook_id"] == "gone" and row["state"] == "disabled"),
            None,
        )

    row = wait_for(find_disabled)
    assert "410" in row["reason"]
    # A server that has just read that the endpoint is active does not send the event again.
    waits_until = wait_for_error(people, run["run_id"], "gone")["next_attempt_at"]
    until, since = map(datetime.fromisoformat, (waits_until, row["disabled_at"]))
    assert until - since >= timedelta(seconds=TICK_SECONDS)
    second = people.start("x", agent="doomed")
    wait_for_event(receiver, second["run_id"], "run.failed")
    sent = [got for got in receiver.requests if got.path == "/gone"]
    assert [got.event["data"]["run_id"] for got in sent] == [run["run_id"]]
    receiver.answers["/gone"] = lambda got: (204, {})
    assert people.send("eve", "POST", "/webhooks/gone/enable").status_code == 403
    assert people.send("root", "POST", "/webhooks/gone/enable").json()["state"] == "active"
    for each in (run, second):
        got = wait_for_event(receiver, each["run_id"], "run.failed", "/gone")
        assert "secret text" not in got.body.decode()


def test_redirect_is_not_followed_and_private_address_is_refused(
    people: People, receiver: Receiver
) -> None:
    receiver.answers["/redirected"] = lambda got: (302, {"Location": f"{receiver.url}/all"})
    run = people.start("x", agent="doomed")
    row = wait_for_error(people, run["run_id"], "redirected")
    assert row["last_error"] == "the server responds with 302: redirects are not followed"
    row = wait_for_error(people, run["run_id"], "guarded")
    assert "is private, loopback or link-local" in row["last_error"]
    assert row["last_status"] is None

    def find_dead() -> Any:
        rows = deliveries(people, run_id=run["run_id"], webhook_id="guarded", state="dead")
        return rows[0] if rows else None

    dead = wait_for(find_dead)
    assert dead["attempts"] == 4
    again = people.send("root", "POST", f"/webhooks/deliveries/{dead['delivery_id']}/redeliver")
    assert again.json()["state"] == "waiting"
    assert again.json()["event_id"] == dead["event_id"]


def test_test_event_is_sent_at_once_and_not_stored(people: People, receiver: Receiver) -> None:
    tested = people.send("root", "POST", "/webhooks/all/test").json()
    assert (tested["delivered"], tested["status"]) == (True, 204)
    (got,) = [got for got in receiver.accepted if got.event_id == tested["event_id"]]
    assert Webhook(SECRET).verify(got.body, got.headers)["type"] == "webhook.test"
    refused = people.send("root", "POST", "/webhooks/guarded/test").json()
    assert not refused["delivered"]
    assert people.send("root", "POST", "/webhooks/none/test").status_code == 404
    assert people.send("ann", "GET", "/webhooks").status_code == 403


def test_every_fact_has_its_rows_and_no_other_row_exists(
    people: People, hooked: Deployment, receiver: Receiver
) -> None:
    run = people.start("last", agent="long")
    wait_for_event(receiver, run["run_id"], "run.completed")
    path = hooked.folder / "main.db"
    # The server is a thread of this process. Another library, or a file that is closed here, would
    # release its locks on the database (POSIX).
    with closing(apsw.Connection(str(path))) as database:
        assert find_differences(database) == []
    secrets = (SECRET, OLD_SECRET)
    stored = subprocess.run(["cat", path], capture_output=True, check=True).stdout
    assert not any(secret.removeprefix("whsec_").encode() in stored for secret in secrets)


def find_differences(database: apsw.Connection) -> list[Any]:
    """Return final runs without one row for the endpoint `all`, and rows without a final run."""
    ended = (
        "SELECT run_id, CASE status WHEN 'COMPLETED' THEN 'run.completed' WHEN 'ERROR' THEN"
        " 'run.failed' ELSE 'run.cancelled' END FROM runs WHERE parent_run_id IS NULL"
        " AND status IN ('COMPLETED', 'ERROR', 'CANCELLED')"
    )
    told = (
        "SELECT run_id, type FROM webhook_deliveries WHERE webhook_id = 'all'"
        " AND type IN ('run.completed', 'run.failed', 'run.cancelled')"
    )
    facts, rows = (Counter(database.execute(sql).fetchall()) for sql in (ended, told))
    return [*(facts - rows).elements(), *(rows - facts).elements()]
