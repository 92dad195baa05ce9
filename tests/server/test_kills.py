"""kill -9 of a loaded server: every acknowledged run is stored once and can be followed.

A few rounds, and at least a hundred with AGENTCTL_TEST_LONG=1.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import subprocess
import time
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import Any

import apsw
import httpx2

from tests.kit.concurrent_callers import RequestedRun, check_order, open_client, read_events
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.deployment import Deployment
from tests.kit.process import AGENTCTL, ServerProcess, serve_config
from tests.server.database_checks import (
    check_events,
    check_integrity,
    open_read_only,
    statuses,
    stored_events,
)

LONG = os.environ.get("AGENTCTL_TEST_LONG") == "1"

ROUNDS = 120 if LONG else 2

ANSWERS = (2, 80)
"""Minimum and maximum number of responses before the kill."""

BUSY = 1.0 if LONG else 5.0
"""A machine that is busy with other tests keeps the bounds less strictly."""

FINAL_SECONDS = 5.0 * BUSY
"""Maximum seconds of a live run after a restart (docs/internals/security-cases.md R01)."""

TAKEOVER_SECONDS = 20.0 * BUSY
"""The same where it is another process that has to notice (security case R47)."""

WORKERS = 8
FOLLOWERS = 6
"""Callers that make one request after the other, and callers that follow runs without an end."""

QUICK = (("/agents/echo", "a"), ("/teams/crew", "t"), ("/workflows/line", "w"))
ENDLESS = (("/agents/trickle", "a"), ("/agents/half", "a"), ("/teams/jam", "t"))


@dataclass
class Ledger:
    """Everything that the callers have received.

    Attributes:
        asked: every requested run.
        names: possible names of a session, by its id: the acknowledged one, then the requested one
            without a response.
        unanswered: ids of sessions that may exist.
    """

    asked: list[RequestedRun] = field(default_factory=list)
    names: dict[str, list[str]] = field(default_factory=dict)
    unanswered: set[str] = field(default_factory=set)

    @property
    def answers(self) -> int:
        """The number of acknowledged requests."""
        return len(self.names) + len(self.acknowledged)

    @property
    def acknowledged(self) -> dict[str, RequestedRun]:
        return {asked.run_id: asked for asked in self.asked if asked.run_id is not None}


class Load:
    """The callers of one server, until it ends."""

    def __init__(self, url: str, deployment: Deployment, label: str, ledger: Ledger) -> None:
        self._url = url
        self._world = deployment
        self._label = label
        self._ledger = ledger
        self._dice = random.Random(label)
        self._count = 0

    async def until_gone(self) -> None:
        async with open_client(self._world, self._url) as client:
            work = [self._work(client, f"{self._label}-{n}") for n in range(WORKERS)]
            follow = [self._follow(client) for _ in range(FOLLOWERS)]
            await asyncio.gather(*map(_until_gone, [*work, *follow]))

    async def _work(self, client: httpx2.AsyncClient, own: str) -> None:
        while True:
            step = self._dice.random()
            if own not in self._ledger.names:
                await self._create(client, own)
            elif step < 0.25:
                await self._rename(client, own)
            elif step < 0.35:
                await self._create(client, f"{own}-{self._next()}")
            else:
                await self._run(client, own)

    async def _create(self, client: httpx2.AsyncClient, session_id: str) -> None:
        body = {"session_id": session_id, "session_name": "new", "agent_id": "echo"}
        self._ledger.unanswered.add(session_id)
        answer = await client.post("/sessions", json=body)
        assert answer.status_code == 201, answer.text
        self._ledger.unanswered.remove(session_id)
        self._ledger.names[session_id] = ["new"]

    async def _rename(self, client: httpx2.AsyncClient, session_id: str) -> None:
        name = f"name {self._next()}"
        self._ledger.names[session_id].append(name)
        answer = await client.post(f"/sessions/{session_id}/rename", json={"session_name": name})
        assert answer.status_code == 200, answer.text
        self._ledger.names[session_id] = [name]

    async def _run(self, client: httpx2.AsyncClient, own: str) -> None:
        path, kind = self._dice.choice(QUICK)
        shared = self._dice.random() < 0.5
        session_id = f"{self._label}-shared" if shared else own
        suffix = "" if kind == "a" else f"-{kind}"
        stream = self._dice.random() < 0.5
        background = self._dice.random() < 0.3
        await self._request_document(path, session_id + suffix, stream, background).ask(client)

    async def _follow(self, client: httpx2.AsyncClient) -> None:
        """Start runs without an end; stay until the server ends, or disconnect."""
        while True:
            path, kind = self._dice.choice(ENDLESS)
            asked = self._request_document(
                path, f"{self._label}-endless-{kind}", True, self._dice.random() < 0.3
            )
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._dice.uniform(0.05, 2.0)):
                    await asked.ask(client)

    def _request_document(
        self, path: str, session_id: str, stream: bool, background: bool
    ) -> RequestedRun:
        body: dict[str, Any] = {"message": f"echo {self._label} {self._next()}"}
        body |= {"session_id": session_id, "stream": stream, "background": background}
        key = f"{self._label}-{self._count}" if self._dice.random() < 0.7 else None
        self._ledger.asked.append(RequestedRun(path, body, key))
        return self._ledger.asked[-1]

    def _next(self) -> int:
        self._count += 1
        return self._count


async def _until_gone(work: Awaitable[None]) -> None:
    with contextlib.suppress(httpx2.TransportError):
        await work


async def killed_under_load(deployment: Deployment, served: ServerProcess, label: str) -> Ledger:
    """Put load on a server, kill it at some moment and return the ledger of its callers."""
    ledger = Ledger()
    load = asyncio.create_task(Load(served.url, deployment, label, ledger).until_gone())
    enough = random.Random(label).randint(*ANSWERS)
    await wait_until(lambda: ledger.answers >= enough or load.done())
    served.process.kill()
    served.process.wait()
    await load
    return ledger


async def no_run_is_live(
    client: httpx2.AsyncClient, seconds: float, besides: str | None = None
) -> None:
    """Wait until no run is live, except the given one."""
    deadline = time.monotonic() + seconds
    while True:
        live = (await client.get("/runs?live=true&limit=2")).json()["data"]
        if [run for run in live if run["run_id"] != besides] == []:
            return
        assert time.monotonic() < deadline, live
        await asyncio.sleep(0.02)


async def check(
    deployment: Deployment,
    client: httpx2.AsyncClient,
    ledger: Ledger,
    seconds: float = FINAL_SECONDS,
) -> None:
    """Check after a kill that responses are true and requests without a response can be repeated.

    Args:
        client: client of a running server.
        seconds: time in which runs may still be live.
    """
    await no_run_is_live(client, seconds)
    check_file(deployment, ledger)
    await in_parallel([check_stream(client, asked) for asked in ledger.asked if asked.received])
    await in_parallel([check_name(client, *named) for named in ledger.names.items()])
    await in_parallel([ask_again(client, asked) for asked in ledger.asked if asked.key])
    await in_parallel([create_again(client, session_id) for session_id in ledger.unanswered])
    await no_run_is_live(client, PATIENCE)
    check_file(deployment, ledger)
    sessions = {asked.body["session_id"] for asked in ledger.asked if asked.run_id is not None}
    await in_parallel([check_session(client, session_id) for session_id in sessions])


async def in_parallel(checks: list[Awaitable[None]]) -> None:
    await asyncio.gather(*checks)


def check_file(deployment: Deployment, ledger: Ledger) -> None:
    """Check that the file has each acknowledged run as reported, and no run twice."""
    with open_read_only(deployment.folder / "main.db") as connection:
        check_integrity(connection)
        stored = statuses(connection)
        twice = (
            "SELECT input FROM runs WHERE parent_run_id IS NULL GROUP BY input HAVING count(*) > 1"
        )
        assert connection.execute(twice).fetchall() == []
        for run_id, asked in ledger.acknowledged.items():
            assert asked.final_status in (None, stored[run_id])
            check_stored_events(connection, asked, stored[run_id])


def check_stored_events(connection: apsw.Connection, asked: RequestedRun, status: str) -> None:
    """Check that stored events are complete and contain the delivered ones except the last."""
    assert asked.run_id is not None
    found = stored_events(connection, asked.run_id)
    if not asked.streamed and not asked.body["background"]:
        assert found == []
        return
    if found:
        check_events(found, asked.run_id, status)
    delivered = {event.number: event for event in asked.received}
    assert [event for event in found if event != delivered.get(event.number, event)] == []


async def check_stream(client: httpx2.AsyncClient, asked: RequestedRun) -> None:
    """Check that a stream continues after the last received event, up to its end."""
    assert asked.run_id is not None
    last = asked.received[-1].number
    final_status = asked.final_status
    url = f"{asked.url}/resume?session_id={asked.body['session_id']}"
    async with client.stream("POST", url, headers={"Last-Event-ID": str(last)}) as answer:
        assert answer.status_code == 200, await answer.aread()
        rest = [event async for event in read_events(answer)]
    run = (await client.get(f"/runs/{asked.run_id}")).json()
    if final_status is not None:
        assert (rest, run["status"]) == ([], final_status)
    else:
        check_events(rest, asked.run_id, run["status"], after=last)
    for event in rest:
        asked.hear(event)


async def check_name(client: httpx2.AsyncClient, session_id: str, names: list[str]) -> None:
    session = await client.get(f"/sessions/{session_id}")
    assert session.status_code == 200, session.text
    assert session.json()["session_name"] in names


async def ask_again(client: httpx2.AsyncClient, asked: RequestedRun) -> None:
    """Repeat a request: it returns the same run, or creates it if there is none."""
    again = [RequestedRun(asked.path, asked.body, asked.key, asked.run_id) for _ in range(2)]
    for repeated in again:
        answer = await client.send(repeated.request(client), stream=True)
        try:
            if repeated.streamed:
                await to_the_end(client, repeated, answer)
            else:
                repeated.learn(answer.status_code, await answer.aread())
        finally:
            await answer.aclose()
        asked.run_id = asked.run_id or repeated.run_id
        assert repeated.run_id == asked.run_id
        asked.final_status = asked.final_status or repeated.final_status
        assert repeated.final_status in (None, asked.final_status)


async def to_the_end(
    client: httpx2.AsyncClient, asked: RequestedRun, answer: httpx2.Response
) -> None:
    """Follow a stream to its end; cancel the run, because a new one may have no end."""
    assert answer.status_code == 200, await answer.aread()
    async for event in read_events(answer):
        if asked.received == []:
            asked.hear(event)
            cancelled = await client.post(f"{asked.url}/cancel?wait=30")
            assert cancelled.json()["cancel"] in ("stopped", "already_final")
        else:
            asked.hear(event)
    assert asked.run_id is not None
    assert asked.final_status is not None
    check_events(asked.received, asked.run_id, asked.final_status)


async def create_again(client: httpx2.AsyncClient, session_id: str) -> None:
    """Check that a session which may exist is complete, or create it."""
    body = {"session_id": session_id, "session_name": "new", "agent_id": "echo"}
    made = await client.post("/sessions", json=body)
    assert made.status_code in (201, 409), made.text
    assert (await client.get(f"/sessions/{session_id}")).json()["session_name"] == "new"


async def check_session(client: httpx2.AsyncClient, session_id: str) -> None:
    """Check that the session has all of its runs once, in order, with their messages."""
    runs = list[Any]()
    while part := (await client.get(_page_after(session_id, runs))).json():
        runs += part
    ids = [run["run_id"] for run in runs]
    assert len(ids) == len(set(ids))
    session = (await client.get(f"/sessions/{session_id}")).json()
    if "workflow_id" in runs[0]:
        return
    asked = [run["input"] for run in runs if run["parent_run_id"] is None]
    said = [said["content"] for said in session["chat_history"] if said["role"] == "user"]
    assert said == asked


def _page_after(session_id: str, runs: list[Any]) -> str:
    after = f"?after={runs[-1]['run_id']}" if runs else ""
    return f"/sessions/{session_id}/runs{after}"


def killed_at_start(deployment: Deployment, seconds: float) -> None:
    """Start a server and kill it during its start, before or during recovery."""
    with (deployment.folder / "killed.log").open("wb") as said:
        line = [*AGENTCTL, "serve", "--config", str(deployment.path), "--port", "0"]
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=said)
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
    finally:
        process.kill()
        process.wait()


def serving(deployment: Deployment, name: str) -> Any:
    """Serve the deployment; several servers may do so."""
    return serve_config(deployment.path, log=f"{name}.log")


async def test_killed_server_keeps_acknowledged_runs(deployment: Deployment) -> None:
    known: dict[str, RequestedRun] = {}
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(serving(deployment, "server-0"))
        for number in range(1, ROUNDS + 1):
            ledger = await killed_under_load(deployment, served, f"r{number}")
            if number % 3 == 2:
                killed_at_start(deployment, random.Random(number).uniform(0.3, 2.0))
            served = stack.enter_context(serving(deployment, f"server-{number}"))
            async with open_client(deployment, served.url) as client:
                await check(deployment, client, ledger)
            known |= ledger.acknowledged
            check_all(deployment, known)
        assert served.stop() == 0
        assert "Traceback" not in served.log_text
    assert known


def check_all(deployment: Deployment, known: dict[str, RequestedRun]) -> None:
    """Check all ledgers, and that only the live process is registered."""
    with open_read_only(deployment.folder / "main.db") as connection:
        stored = statuses(connection)
        workers = connection.execute("SELECT worker_id FROM workers").fetchall()
    for run_id, asked in known.items():
        assert asked.final_status in (None, stored[run_id])
    locks = [path.stem for path in (deployment.folder / "main.db.workers").iterdir()]
    assert [(name,) for name in locks] == workers
    assert len(workers) == 1


async def test_other_worker_ends_runs_of_a_killed_one(deployment: Deployment) -> None:
    with serving(deployment, "killed") as killed, serving(deployment, "other") as other:
        async with open_client(deployment, other.url) as client:
            own = RequestedRun(
                "/agents/trickle", {"message": "own", "session_id": "own", "stream": True}
            )
            asking = asyncio.create_task(own.ask(client))
            await wait_until(lambda: own.run_id is not None)
            ledger = await killed_under_load(deployment, killed, "two")
            seen = asyncio.gather(*(follow_on(client, asked) for asked in ledger.asked))
            deadline = time.monotonic() + TAKEOVER_SECONDS
            await no_run_is_live(client, TAKEOVER_SECONDS, besides=own.run_id)
            await asyncio.wait_for(seen, deadline - time.monotonic())
            assert not asking.done()
            stopped = await client.post(f"{own.url}/cancel?wait=30")
            assert stopped.json()["cancel"] == "stopped"
            await asking
            check_order(own.received, str(own.run_id))
            await check(deployment, client, ledger)
        check_all(deployment, ledger.acknowledged | {str(own.run_id): own})


async def follow_on(client: httpx2.AsyncClient, asked: RequestedRun) -> None:
    """Continue a stream at the other process, before it has detected the end of the first."""
    if asked.received:
        await check_stream(client, asked)
