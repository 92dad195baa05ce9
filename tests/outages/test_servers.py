"""Two servers on one PostgreSQL database: each sees the changes of the other, also after one dies.

With AGENTCTL_TEST_LONG=1 a hundred cancels are measured and their durations printed.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from agentctl.auth.keys.signing import generate_key
from agentctl.runs.log.event_rows import LOST_SEQ_STEP
from tests.kit.concurrent_callers import Event, RequestedRun, check_order, read_events
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.model import ModelEndpoint
from tests.kit.postgres_server import PostgresServer
from tests.outages.server_pair import Pair, running_pair

LONG = os.environ.get("AGENTCTL_TEST_LONG") == "1"
CANCELS = 100 if LONG else 10


@pytest.fixture(scope="module")
def pair(model_endpoint: ModelEndpoint, server: PostgresServer) -> Iterator[Pair]:
    with running_pair(model_endpoint.base_url, server) as pair:
        yield pair


def body(session_id: str, **more: Any) -> dict[str, Any]:
    return {"message": "hello", "session_id": session_id, "stream": False, **more}


async def background(client: httpx2.AsyncClient, agent: str, session_id: str) -> str:
    """Start a run in the background. Return its id."""
    asked = body(session_id, background=True)
    answer = await client.post(f"/agents/{agent}/runs", json=asked)
    assert answer.status_code == 202, answer.text
    return str(answer.json()["run_id"])


async def cancels(pair: Pair, count: int) -> list[float]:
    """Cancel runs through the other server. Return the sorted durations in seconds."""
    took = list[float]()
    async with pair.client(pair.a) as a, pair.client(pair.b) as b:
        for number in range(count):
            run_id = await background(a, "hang", f"cancel-{number}")
            began = time.monotonic()
            path = f"/agents/hang/runs/{run_id}/cancel?session_id=cancel-{number}&wait=30"
            answer = await b.post(path)
            took.append(time.monotonic() - began)
            assert answer.json()["cancel"] == "stopped"
    return sorted(took)


async def test_a_cancel_reaches_the_other_server(pair: Pair) -> None:
    took = await cancels(pair, CANCELS)
    if LONG:
        p50 = took[len(took) // 2]
        p99 = took[int(0.99 * len(took))]
        print(f"cancel through the other: p50 {p50:.3f} s, p99 {p99:.3f} s")


async def test_a_cancel_reaches_the_other_server_without_notifications(pair: Pair) -> None:
    for change in ("DISABLE", "ENABLE"):
        await pair.rows(f"ALTER TABLE runs {change} TRIGGER runs_announce")
        if change == "DISABLE":
            took = await cancels(pair, CANCELS)
            if LONG:
                print(f"not announced: p50 {took[len(took) // 2]:.3f} s, longest {took[-1]:.3f} s")


async def heard(client: httpx2.AsyncClient, asked: RequestedRun, after: int) -> list[Event]:
    """Return the events after a number, to the end of the run."""
    path = f"{asked.url}/resume?session_id={asked.body['session_id']}"
    async with client.stream("POST", path, headers={"Last-Event-ID": str(after)}) as answer:
        assert answer.status_code == 200, await answer.aread()
        return [event async for event in read_events(answer)]


async def test_a_stream_continues_through_the_other_server(pair: Pair) -> None:
    async with pair.client(pair.a) as a, pair.client(pair.b) as b:
        asked = RequestedRun(
            "/agents/trickle", {"message": "x", "session_id": "st", "stream": True}
        )
        asking = asyncio.create_task(asked.ask(a))
        await wait_until(lambda: len(asked.received) > 5)
        followers = [asyncio.create_task(heard(b, asked, after)) for after in (-1, 3)]
        await wait_until(lambda: len(asked.received) > 20)
        cancel = await b.post(f"{asked.url}/cancel?session_id=st&wait=30")
        assert cancel.json()["cancel"] == "stopped"
        await asking
        whole, rest = await asyncio.gather(*followers)
    check_order(asked.received, str(asked.run_id))
    assert whole == asked.received
    assert rest == asked.received[4:]


async def test_runs_of_a_killed_server_end_once(pair: Pair) -> None:
    async with pair.third() as c, pair.client(c) as dying, pair.client(pair.b) as b:
        asked = RequestedRun(
            "/agents/trickle", {"message": "x", "session_id": "dead", "stream": True}
        )
        asking = asyncio.create_task(asked.ask(dying))
        plain = await background(dying, "hang", "dead")
        await wait_until(lambda: len(asked.received) > 10)
        following = asyncio.create_task(heard(b, asked, -1))
        await asyncio.to_thread(c.kill)
        with pytest.raises(httpx2.TransportError):
            await asking
        found = await asyncio.wait_for(following, PATIENCE)
        await wait_until(lambda: is_final(pair, plain))
        for run_id in (plain, asked.run_id):
            record = (await b.get(f"/runs/{run_id}")).json()
            assert (record["status"], record["error"]["code"]) == ("ERROR", "WORKER_LOST")
    assert [event.number for event in found[:-1]] == list(range(len(found) - 1))
    assert found[-1].number == found[-2].number + LOST_SEQ_STEP
    assert found[-1].name == "RunError"
    stored = [event for event in asked.received if event.number <= found[-2].number]
    assert found[: len(stored)] == stored


async def test_runs_of_a_dead_sweeper_end_once(pair: Pair) -> None:
    """Its machine stops without a trace: only its heartbeat and its lease show that."""
    async with pair.third() as c, pair.client(c) as dying:
        run_id = await background(dying, "hang", "swept")
        owner = str((await pair.rows("SELECT owner FROM runs WHERE run_id = $1", run_id))[0][0])
        await pair.rows("UPDATE workers SET host = 'far' WHERE worker_id = $1", owner)
        await pair.rows("UPDATE leases SET owner = $1", owner)
        # The server c has extended the lease: it sweeps, and no other does.
        leases = "SELECT owner, expires_at FROM leases"
        taken = (await pair.rows(leases))[0]
        await wait_until(lambda: has_extended(pair, tuple(taken)))
        await asyncio.to_thread(c.kill)
        began = time.monotonic()
        await wait_until(lambda: is_final(pair, run_id))
    took = time.monotonic() - began
    if LONG:
        print(f"a run of a dead server that swept was ended after {took:.1f} s")
    rows = await pair.rows("SELECT error_code, attempt FROM runs WHERE run_id = $1", run_id)
    assert tuple(rows[0]) == ("WORKER_LOST", 2)


async def has_extended(pair: Pair, before: tuple[str, int]) -> bool:
    owner, expires_at = (await pair.rows("SELECT owner, expires_at FROM leases"))[0]
    return owner == before[0] and expires_at > before[1]


async def is_final(pair: Pair, run_id: str) -> bool:
    return await pair.status(run_id) not in ("PENDING", "RUNNING")


async def test_a_server_drains_while_the_other_responds(pair: Pair) -> None:
    async with pair.third() as c, pair.client(c) as leaving, pair.client(pair.b) as b:
        run_id = await background(leaving, "half", "drained")
        c.process.send_signal(signal.SIGTERM)
        while c.process.poll() is None:
            answer = await b.post("/agents/echo/runs", json=body("served"))
            assert answer.status_code == 200
        assert c.process.wait() == 0
        record = (await b.get(f"/runs/{run_id}")).json()
        assert record["status"] == "CANCELLED"


async def test_busy_sessions_and_keys_are_shared(pair: Pair) -> None:
    async with pair.client(pair.a) as a, pair.client(pair.b) as b:
        asked = body("alone", background=True)
        answers = await asyncio.gather(
            *(client.post("/agents/alone/runs", json=asked) for client in (a, b) * 4)
        )
        assert sorted(answer.status_code for answer in answers) == [202] + [409] * 7
        key = {"Idempotency-Key": "one"}
        answers = await asyncio.gather(
            *(
                client.post("/agents/echo/runs", json=body("keyed"), headers=key)
                for client in (a, b) * 4
            )
        )
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.json()["run_id"] for answer in answers}) == 1


async def test_a_revoked_account_is_rejected_by_both(pair: Pair) -> None:
    async with pair.client(pair.a) as a, pair.client(pair.b) as b:
        new = {"name": "bot", "scopes": [{"scope": "agents:read"}]}
        made = (await a.post("/service-accounts", json=new)).json()
        theirs = {"Authorization": f"Bearer {made['token']}"}
        for client in (a, b):
            assert (await client.get("/agents", headers=theirs)).status_code == 200
        assert (await a.delete(f"/service-accounts/{made['id']}")).status_code == 204
        await wait_until(lambda: refused(b, theirs))


async def test_a_removed_key_is_rejected_by_both(pair: Pair) -> None:
    theirs = {"Authorization": f"Bearer {pair.second_token()}"}
    async with pair.client(pair.a) as a, pair.client(pair.b) as b:
        for client in (a, b):
            assert (await client.get("/agents", headers=theirs)).status_code == 200
        pair.write_jwks(generate_key("RS256"))
        for client in (a, b):
            await wait_until(lambda client=client: refused(client, theirs))  # type: ignore[misc]


async def refused(client: httpx2.AsyncClient, headers: dict[str, str]) -> bool:
    return (await client.get("/agents", headers=headers)).status_code == 401


async def ready(client: httpx2.AsyncClient) -> bool:
    return (await client.get("/ready")).status_code == 200


async def test_a_server_without_a_network_recovers(pair: Pair) -> None:
    async with pair.client(pair.a) as a, pair.client(pair.b) as b:
        run_id = await background(a, "half", "held")
        owner = await pair.rows("SELECT owner FROM runs WHERE run_id = $1", run_id)
        await asyncio.to_thread(pair.way.hold)
        requests = [a.get("/sessions/held") for _ in range(12)]
        answers = await asyncio.gather(*requests, a.get("/ready"))
        assert {answer.status_code for answer in answers} == {503}
        assert all("retry-after" in answer.headers for answer in answers)
        assert (await b.get("/sessions/held")).status_code == 200
        await asyncio.to_thread(pair.way.release)
        await wait_until(lambda: ready(a))
        assert (await a.get("/sessions/held")).status_code == 200
        path = f"/agents/half/runs/{run_id}/cancel?session_id=held&wait=30"
        assert (await b.post(path)).json()["cancel"] == "stopped"
        workers = await pair.rows("SELECT worker_id FROM workers")
        assert owner[0][0] in [row[0] for row in workers]


WORKERS = "SELECT worker_id FROM workers ORDER BY worker_id"

WAIT_SECONDS = 4.0
"""The time of a tool call whose end comes while the database is away."""


async def test_live_runs_survive_a_crash_of_the_database(pair: Pair) -> None:
    streamed = RequestedRun(
        "/agents/trickle",
        {"message": "x", "session_id": "crash", "stream": True, "background": True},
    )
    waiting = body("crash", message=f'x {{"seconds": {WAIT_SECONDS}}}')
    async with pair.client(pair.a) as a, pair.client(pair.b) as b:
        streaming = asyncio.create_task(streamed.ask(a))
        ending = asyncio.create_task(a.post("/agents/tool-wait/runs", json=waiting))
        await wait_until(lambda: len(streamed.received) > 5)
        workers = await pair.rows(WORKERS)
        await wait_until(lambda: is_running(pair, "tool-wait"))

        await asyncio.to_thread(pair.postgres.stop)
        answers = [(await client.get("/runs")).status_code for client in (a, b) for _ in range(5)]
        assert set(answers) == {503}
        await asyncio.sleep(WAIT_SECONDS + 0.2)
        await asyncio.to_thread(pair.postgres.start)
        for client in (a, b):
            await wait_until(lambda client=client: answered(client))  # type: ignore[misc]

        received = len(streamed.received)
        await wait_until(lambda: len(streamed.received) > received + 5)
        stopped = await b.post(f"{streamed.url}/cancel?session_id=crash&wait=30")
        assert stopped.json()["cancel"] == "stopped"
        await streaming
        check_order(streamed.received, str(streamed.run_id))
        assert await heard(b, streamed, -1) == streamed.received
        ended = await ending
        assert (ended.status_code, ended.json()["status"]) == (200, "COMPLETED")
        assert await pair.rows(WORKERS) == workers
    check_logs(pair)


def check_logs(pair: Pair) -> None:
    """Check that both servers have said little, and nothing about a failure of their own."""
    for server in (pair.a, pair.b):
        log = server.logs[-1].read_text()
        assert "Traceback" not in log
        assert len(log.splitlines()) < 60, log


async def is_running(pair: Pair, component_id: str) -> bool:
    rows = await pair.rows(
        "SELECT 1 FROM runs WHERE component_id = $1 AND status = 'RUNNING'", component_id
    )
    return bool(rows)


async def answered(client: httpx2.AsyncClient) -> bool:
    return (await client.get("/runs")).status_code == 200
