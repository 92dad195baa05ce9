"""Resumed streams and repeated requests over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest

from agentctl.server import answers
from tests.kit.conditions import PATIENCE
from tests.kit.deployment import Deployment
from tests.kit.threaded_server import ThreadedServer, serve_in_thread
from tests.server.event_streams import Event, parse_events, record, start_and_disconnect
from tests.server.seeds import as_caller

Pair = tuple[ThreadedServer, ThreadedServer]


@contextmanager
def resumed(
    host: ThreadedServer, agent: str, run_id: str, after: int | None = None, **more: Any
) -> Iterator[httpx2.Response]:
    """Return the response of a resume, before its body is read."""
    headers = as_caller(host, "admin")
    if after is not None:
        headers["Last-Event-ID"] = str(after)
    path = f"{host.url}/agents/{agent}/runs/{run_id}/resume"
    with httpx2.stream("POST", path, headers=headers, timeout=PATIENCE, **more) as answer:
        yield answer


def whole(host: ThreadedServer, agent: str, run_id: str, after: int | None = None) -> list[Event]:
    with resumed(host, agent, run_id, after) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.headers["cache-control"] == "no-store"
        return list(parse_events(answer.iter_lines()))


def begin(host: ThreadedServer, agent: str, **fields: Any) -> list[Event]:
    """Start a background run, read three events of its stream and disconnect."""
    body = {"message": "x", "background": True, **fields}
    headers = as_caller(host, "me")
    url = f"{host.url}/agents/{agent}/runs"
    with httpx2.stream("POST", url, json=body, headers=headers) as answer:
        found = parse_events(answer.iter_lines())
        return [next(found) for _ in range(3)]


def stop(host: ThreadedServer, agent: str, run_id: str) -> None:
    path = f"/agents/{agent}/runs/{run_id}/cancel?wait=30"
    answer = host.client.post(path, headers=as_caller(host, "admin"))
    assert answer.json()["cancel"] == "stopped"


@pytest.fixture(scope="module")
def pair(settled: Deployment) -> Iterator[Pair]:
    """Two servers on the same files."""
    first, second = (serve_in_thread(settled) for _ in range(2))
    with first as one, second as other:
        yield one, other


def test_broken_stream_continues_at_any_server(pair: Pair) -> None:
    one, other = pair
    seen = begin(one, "trickle")
    run_id = seen[0][1]["run_id"]
    for host in (one, other):
        with resumed(host, "trickle", run_id, seen[-1][2]) as answer:
            found = parse_events(answer.iter_lines())
            seen += [next(found) for _ in range(5)]
    stop(other, "trickle", run_id)
    seen += whole(other, "trickle", run_id, seen[-1][2])
    assert [number for _, _, number in seen] == list(range(len(seen)))
    assert seen[-1][0] == "RunCancelled"
    assert whole(one, "trickle", run_id) == whole(other, "trickle", run_id) == seen


def test_stream_is_replayed_after_a_restart(settled: Deployment) -> None:
    with serve_in_thread(settled) as host:
        seen = begin(host, "trickle")
    with serve_in_thread(settled) as host:
        rest = whole(host, "trickle", seen[0][1]["run_id"], 2)
    numbers = [number for _, _, number in seen + rest]
    assert numbers == list(range(len(numbers)))
    name, data, _ = rest[-1]
    assert (name, data["reason"]) == ("RunCancelled", "The server is shutting down")


def test_resumed_idle_run_responds_with_comments(
    server: ThreadedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(answers, "COMMENT_SECONDS", 0.05)
    run_id = start_and_disconnect(server, {"message": "hello", "background": True})
    with resumed(server, "hang", run_id, 0) as answer:
        assert answer.status_code == 200
        lines = answer.iter_lines()
        assert sum(next(lines).startswith(":") for _ in range(12)) >= 3
        stop(server, "hang", run_id)
        assert [name for name, _, _ in parse_events(lines)] == ["RunCancelled"]


def test_leaving_a_resumed_stream_does_not_stop_the_run(server: ThreadedServer) -> None:
    run_id = start_and_disconnect(server, {"message": "hello", "background": True})
    for after in (None, 0):
        with resumed(server, "hang", run_id, after) as answer:
            assert answer.status_code == 200
    time.sleep(0.3)  # nothing must happen
    assert record(server, run_id)["status"] == "RUNNING"
    stop(server, "hang", run_id)


@pytest.mark.parametrize(
    ("header", "query", "status"),
    [
        ("0", "0", 200),
        ("0", "1", 422),
        ("x", "", 422),
        ("-2", "", 422),
        ("", "", 422),
        ("1, 1", "", 422),
        ("9" * 19, "", 422),
        ("-1", "-1", 200),
    ],
)
def test_last_event_may_be_given_twice_with_one_value(
    server: ThreadedServer, header: str, query: str, status: int
) -> None:
    params = {"last_event_index": query} if query else {}
    headers = as_caller(server, "admin") | {"Last-Event-ID": header}
    path = f"/agents/echo/runs/{server.ids['agent_run']}/resume"
    answer = server.client.post(path, headers=headers, params=params)
    assert answer.status_code == status
    if status == 422:
        assert answer.json()["error_code"] == "VALIDATION_ERROR"


def test_repeated_header_field_is_rejected(server: ThreadedServer) -> None:
    path = f"/agents/echo/runs/{server.ids['agent_run']}/resume"
    headers = [*as_caller(server, "admin").items(), ("Last-Event-ID", "0"), ("Last-Event-ID", "0")]
    answer = server.client.post(path, headers=headers)
    assert answer.status_code == 422
    assert answer.json()["detail"] == "Last-Event-ID is given more than once"


def ask(host: ThreadedServer, key: str, who: str = "me", **fields: Any) -> httpx2.Response:
    body = {"message": "hello", "stream": False, **fields}
    headers = as_caller(host, who) | {"Idempotency-Key": key}
    return host.client.post("/agents/echo/runs", json=body, headers=headers)


def test_repeated_request_returns_the_same_run(pair: Pair) -> None:
    one, other = pair
    first = ask(one, "again")
    assert first.status_code == 200
    assert ask(one, "again").content == ask(other, "again").content == first.content
    assert ask(one, "again", "other").json()["run_id"] != first.json()["run_id"]
    assert ask(other, "again", message="else").status_code == 422
    assert ask(other, "again", stream=True).status_code == 422


def test_repeated_background_request_is_accepted(server: ThreadedServer) -> None:
    first, second = (ask(server, "background", background=True) for _ in range(2))
    assert (first.status_code, second.status_code) == (202, 202)
    assert first.json()["run_id"] == second.json()["run_id"]


def test_repeated_stream_request_replays_from_the_start(pair: Pair) -> None:
    one, other = pair
    told = [ask(host, "streamed", stream=True).text for host in (one, other, one)]
    assert told[0] == told[1] == told[2]
    assert next(parse_events(iter(told[0].splitlines())))[2] == 0


async def test_concurrent_repeats_create_one_run(pair: Pair) -> None:
    one, other = pair
    headers = as_caller(one, "me") | {"Idempotency-Key": "many"}
    body = {"message": "hello", "stream": False}
    async with httpx2.AsyncClient(timeout=PATIENCE) as http:
        told = await asyncio.gather(
            *(
                http.post(f"{host.url}/agents/echo/runs", json=body, headers=headers)
                for host in [one, other] * 15
            )
        )
    assert {answer.status_code for answer in told} == {200}
    assert len({answer.content for answer in told}) == 1


@pytest.mark.parametrize("key", ["", "a b", "x" * 256, "ä"])
def test_invalid_idempotency_key_is_rejected(server: ThreadedServer, key: str) -> None:
    headers = [(name.encode(), value.encode()) for name, value in as_caller(server, "me").items()]
    headers.append((b"Idempotency-Key", key.encode()))
    body = {"message": "hello", "stream": False}
    answer = server.client.post("/agents/echo/runs", json=body, headers=headers)
    assert answer.status_code == 422
    assert answer.json()["detail"] == "Idempotency-Key must be 1 to 255 visible ASCII characters"


def test_key_of_a_deleted_run_is_a_conflict(server: ThreadedServer) -> None:
    assert ask(server, "deleted", session_id="keyed").status_code == 200
    headers = as_caller(server, "me")
    assert server.client.delete("/sessions/keyed", headers=headers).status_code == 204
    for stream in (False, True):
        answer = ask(server, "deleted", session_id="keyed", stream=stream)
        assert answer.status_code == (422 if stream else 409)
    assert ask(server, "deleted", session_id="keyed").json() == {
        "detail": "The run of this Idempotency-Key was deleted",
        "error_code": "CONFLICT",
    }


def test_items_are_streamed_and_resumed(pair: Pair) -> None:
    one, other = pair
    run_id = begin(one, "trickle")[0][1]["run_id"]
    path = f"/agents/trickle/runs/{run_id}/events?view=items"
    headers = as_caller(other, "me")
    with httpx2.stream("GET", other.url + path, headers=headers, timeout=PATIENCE) as answer:
        found = parse_events(answer.iter_lines())
        changed = [next(found) for _ in range(3)]
    assert {name for name, _, _ in changed} == {"ItemsChanged"}
    stop(one, "trickle", run_id)
    items = one.client.get(f"/runs/{run_id}?view=items", headers=headers).json()["items"]
    (item,) = [each for each in items if each["type"] != "prompt"]
    after = {"Last-Event-ID": str(changed[-1][2])}
    with httpx2.stream("GET", one.url + path, headers=headers | after, timeout=PATIENCE) as rest:
        changed += list(parse_events(rest.iter_lines()))
    text = ""
    for _, data, _ in changed:
        for change in data["changes"]:
            text += change.get("added") or change.get("item", {}).get("text", "")
    assert text == item["text"]
    assert changed[-1][1]["changes"][0]["run"]["status"] == "CANCELLED"
