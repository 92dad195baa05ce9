"""Streamed runs over HTTP: events, disconnects, comments and cancels."""

from __future__ import annotations

import time

import httpx2
import pytest

from agentctl.server import answers
from tests.kit.conditions import PATIENCE, wait_for
from tests.kit.deployment import Deploy, Deployment
from tests.kit.model import ModelEndpoint
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.server.event_streams import parse_events, record, start_and_disconnect
from tests.server.raw_http import open_raw_connection
from tests.server.seeds import as_caller


def test_stream_has_events_from_start_to_end(server: ThreadedServer) -> None:
    headers = as_caller(server, "me")
    body = {"message": "hello world", "session_id": "streamed"}
    with server.client.stream("POST", "/agents/echo/runs", json=body, headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-accel-buffering"] == "no"
        found = list(parse_events(answer.iter_lines()))
    assert found[0][0] == "RunStarted"
    assert found[-1][0] == "RunCompleted"
    assert [number for _, _, number in found] == list(range(len(found)))
    assert (
        "".join(data["content"] for name, data, _ in found if name == "RunContent")
        == (found[-1][1]["content"])
    )
    assert all(data["event"] == name for name, data, _ in found)


def test_waiting_events_are_sent_in_few_chunks(server: ThreadedServer) -> None:
    headers = as_caller(server, "me")
    words = " ".join(f"w{number}" for number in range(2_000))
    body = {"message": words, "session_id": "long-stream"}
    with server.client.stream("POST", "/agents/echo/runs", json=body, headers=headers) as answer:
        live = list(parse_events(answer.iter_lines()))
    run_id = live[0][1]["run_id"]
    path = f"/agents/echo/runs/{run_id}/resume?session_id=long-stream"
    fields = {**headers, "Host": "here", "Content-Length": "0"}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    with open_raw_connection(server.port) as raw:
        raw.send("\r\n".join([*lines, "", ""]).encode())
        resumed = raw.answer()
    assert list(parse_events(resumed.body.decode().split("\n"))) == live
    assert resumed.chunks < len(live) / 20 + 3


def test_refused_run_is_a_status_and_no_stream(server: ThreadedServer) -> None:
    body = {"message": "hello", "session_id": "theirs"}
    answer = server.client.post("/agents/echo/runs", json=body, headers=as_caller(server, "me"))
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/json"


def test_cancelled_stream_ends_with_run_cancelled(
    server: ThreadedServer, model_endpoint: ModelEndpoint
) -> None:
    headers = as_caller(server, "me")
    body = {"message": "hello", "session_id": "to-cancel"}
    with server.client.stream("POST", "/agents/hang/runs", json=body, headers=headers) as answer:
        found = parse_events(answer.iter_lines())
        _, first, _ = next(found)
        cancelled = httpx2.post(
            f"{server.url}/agents/hang/runs/{first['run_id']}/cancel?wait=30",
            params={"session_id": "to-cancel", "reason": "enough", "wait": "5"},
            headers=headers,
        )
        rest = list(found)
    assert cancelled.json()["cancel"] == "stopped"
    assert rest[-1][0] == "RunCancelled"
    assert rest[-1][1]["reason"] == "enough"


def test_disconnect_from_a_stream_stops_the_run(server: ThreadedServer) -> None:
    run_id = start_and_disconnect(server, {"message": "hello"})
    wait_for(lambda: record(server, run_id)["status"] == "CANCELLED")
    assert record(server, run_id)["cancel_requested_by"] == "me"


def test_background_run_continues_without_its_client(server: ThreadedServer) -> None:
    run_id = start_and_disconnect(server, {"message": "hello", "background": True})
    time.sleep(0.3)  # as long as the other one was given: nothing must happen
    assert record(server, run_id)["status"] == "RUNNING"
    cancel = f"/agents/hang/runs/{run_id}/cancel?wait=30"
    assert server.client.post(cancel, headers=as_caller(server, "admin")).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_keyed_run_continues_without_its_client(server: ThreadedServer, stream: bool) -> None:
    session = f"keyed-{stream}"
    body = {"message": '{"seconds": 4}', "session_id": session, "stream": stream}
    headers = {**as_caller(server, "me"), "Idempotency-Key": session}
    with pytest.raises(httpx2.ReadTimeout):
        # The client disconnects while the tool waits, with or without the first events.
        httpx2.post(f"{server.url}/agents/tool-wait/runs", json=body, headers=headers, timeout=0.3)
    again = server.client.post(
        "/agents/tool-wait/runs", json=body, headers=headers, timeout=PATIENCE
    )
    assert ("RunCompleted" in again.text) if stream else (again.json()["status"] == "COMPLETED")
    (run,) = server.client.get(f"/sessions/{session}/runs", headers=headers).json()
    assert (run["status"], run["content"]) == ("COMPLETED", "waited")


def give_up(host: ThreadedServer, session_id: str) -> str:
    """Start a run, disconnect before its end and return its id."""
    body = {"message": "hello", "stream": False, "session_id": session_id}
    headers = as_caller(host, "me")
    with pytest.raises(httpx2.ReadTimeout):
        httpx2.post(f"{host.url}/agents/hang/runs", json=body, headers=headers, timeout=0.5)
    # A busy server may start the run after the client has left.
    answer = wait_for(lambda: get_existing(host, f"/sessions/{session_id}/runs", headers))
    (run,) = answer.json()
    return str(run["run_id"])


def get_existing(
    host: ThreadedServer, path: str, headers: dict[str, str]
) -> httpx2.Response | None:
    answer = host.client.get(path, headers=headers)
    return None if answer.status_code == 404 else answer


def test_disconnect_while_waiting_stops_the_run(server: ThreadedServer) -> None:
    run_id = give_up(server, "waited-for")
    wait_for(lambda: record(server, run_id)["status"] == "CANCELLED")


@pytest.fixture
def detached(deploy: Deploy) -> Deployment:
    return deploy(server='on_disconnect = "detach"')


def test_detached_run_continues_without_its_client(detached: Deployment) -> None:
    with serve_in_thread(detached) as host:
        left = [start_and_disconnect(host, {"message": "hello"}), give_up(host, "given-up")]
        time.sleep(0.3)  # nothing must happen
        assert [record(host, run_id)["status"] for run_id in left] == ["RUNNING", "RUNNING"]


def test_idle_stream_has_comments(settled: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "COMMENT_SECONDS", 0.05)
    with serve_in_thread(settled) as host:
        headers = as_caller(host, "me")
        body = {"message": "hello"}
        with host.client.stream("POST", "/agents/hang/runs", json=body, headers=headers) as answer:
            lines = answer.iter_lines()
            assert sum(next(lines).startswith(":") for _ in range(12)) >= 3
