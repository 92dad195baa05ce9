"""Restarts of two instances with one socket, one after the other, under load."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.kit.concurrent_callers import Event, check_order, read_events
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.packaging.programs import needs_packaging_mode
from tests.packaging.service_manager import Instance, Manager

pytestmark = [needs_packaging_mode]

LONG = os.environ.get("AGENTCTL_TEST_LONG") == "1"
RESTARTS, STREAMS, BACKGROUND = (20, 200, 50) if LONG else (4, 20, 10)
WORK = '{"seconds": 2}'
"""The message of a run: its tool takes two seconds."""


@dataclass
class Load:
    """Callers without idempotency keys, which repeat no request, and all that they have received.

    Attributes:
        streams: the events of each streamed run, with those after a resume.
        background: ids of runs that were started in the background.
        counts: numbers of responses with 503, of resumed and of interrupted streams.
        lost: requests without a response.
    """

    url: str
    token: str
    streams: list[list[Event]] = field(default_factory=list)
    background: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    async def call(self, number: int, *, streamed: bool) -> None:
        """Start runs one after the other. Half of the callers keep their connection open."""
        headers = {"Authorization": f"Bearer {self.token}"}
        if number % 2:
            headers["Connection"] = "close"
        limits = httpx2.Limits(keepalive_expiry=3)
        async with httpx2.AsyncClient(
            base_url=self.url, headers=headers, timeout=PATIENCE, limits=limits
        ) as client:
            turn = 0
            while not self.stop.is_set():
                turn += 1
                if streamed:
                    await self._stream(client, f"s{number}", leave=turn % 2 == 0)
                else:
                    await self._start(client, f"s{number}")
                    await asyncio.sleep(1)

    async def _stream(self, client: httpx2.AsyncClient, session: str, *, leave: bool) -> None:
        """Read a stream to its end; with `leave`, disconnect and resume it at once."""
        events = list[Event]()
        body = {"message": WORK, "session_id": session, "stream": "true"}
        request = client.build_request("POST", "/agents/tool-wait/runs", data=body)
        try:
            async for event in self._read(client, request):
                events.append(event)
                if leave and len(events) == 2:
                    break
        except httpx2.TransportError as error:
            if not events:
                self.lost.append(f"{session}: {error!r}")
                return
            self.counts["interrupted"] += 1
        if not events:
            return  # a 503
        run_id = events[0].data["run_id"]
        while not (events[-1].name == "RunCompleted" and events[-1].data["run_id"] == run_id):
            self.counts["resumed"] += 1
            request = client.build_request(
                "GET",
                f"/agents/tool-wait/runs/{run_id}/events",
                headers={"Last-Event-ID": str(events[-1].number)},
            )
            try:
                events += [event async for event in self._read(client, request)]
            except httpx2.TransportError:
                self.counts["interrupted"] += 1
        self.streams.append(events)

    async def _read(
        self, client: httpx2.AsyncClient, request: httpx2.Request
    ) -> AsyncIterator[Event]:
        response = await client.send(request, stream=True)
        try:
            if await self._is_accepted(response):
                async for event in read_events(response):
                    yield event
        finally:
            await response.aclose()

    async def _start(self, client: httpx2.AsyncClient, session: str) -> None:
        body = {"message": WORK, "session_id": session, "stream": "false", "background": "true"}
        try:
            response = await client.post("/agents/tool-wait/runs", data=body)
        except httpx2.TransportError as error:
            self.lost.append(f"{session}: {error!r}")
            return
        if await self._is_accepted(response):
            self.background.append(response.json()["run_id"])

    async def _is_accepted(self, response: httpx2.Response) -> bool:
        if response.status_code != 503:
            assert response.status_code < 300, await response.aread()
            return True
        assert response.headers["Retry-After"]
        self.counts["503"] += 1
        await asyncio.sleep(0.1)
        return False


LONG_HEADERS = """
from agentctl.server.transport.connection import TimedConnection

TimedConnection.header_seconds = 60


async def agent(message: str) -> str:
    return message
"""
"""A module of the servers: the process of all callers may connect long before it sends."""


@pytest.fixture
def deployment(tmp_path: Path, model_endpoint: ModelEndpoint) -> Deployment:
    folder = tmp_path / "deployment"
    folder.mkdir()
    created = create_deployment(
        folder,
        model_endpoint.base_url,
        server='on_disconnect = "detach"',
        extra='[limits]\nfollowed_runs = 1000\n[[agents]]\nid = "x"\nobject = "patience:agent"\n',
    )
    (folder / "patience.py").write_text(LONG_HEADERS)
    text = created.path.read_text()
    created.path.write_text(text.replace("drain_seconds = 1", "drain_seconds = 60"))
    return created


async def restart_in_turn(
    manager: Manager, servers: list[Instance], deployment: Deployment, load: Load
) -> list[float]:
    """Restart one server after the other under load, each when some more streams have ended.

    Return the seconds of each stop.
    """
    stops = list[float]()
    async with asyncio.TaskGroup() as group:
        for number in range(STREAMS + BACKGROUND):
            group.create_task(load.call(number, streamed=number < STREAMS))
        for restart in range(RESTARTS):
            enough = restart * STREAMS // 2
            await wait_until(lambda enough=enough: len(load.streams) > enough)
            place = restart % 2
            began = time.monotonic()
            await asyncio.to_thread(servers[place].stop)
            stops.append(time.monotonic() - began)
            servers[place] = await asyncio.to_thread(manager.start, deployment)
        load.stop.set()
    return stops


async def test_rolling_restarts_lose_nothing(tmp_path: Path, deployment: Deployment) -> None:
    """Every request has a response, every run ends as recorded, and every stream is complete."""
    manager = Manager(tmp_path)
    try:
        servers = [await asyncio.to_thread(manager.start, deployment) for _ in range(2)]
        load = Load(manager.url, deployment.token("ada", ADMIN, seconds=3600))
        began = time.monotonic()
        stops = await restart_in_turn(manager, servers, deployment, load)
        seconds = time.monotonic() - began
        print(
            f"{RESTARTS} restarts in {seconds:.0f} s, a stop in {max(stops):.1f} s at most:"
            f" {len(load.streams)} streams, {len(load.background)} background runs,"
            f" {len(load.lost)} lost requests, {dict(load.counts)}"
        )

        assert load.lost == [], Counter(load.lost)
        assert load.counts["interrupted"] == 0
        # A request that comes in the moment in which its server begins to drain.
        assert load.counts["503"] <= RESTARTS
        await check_records(load)
        for server in servers:
            await asyncio.to_thread(server.stop)
    finally:
        manager.close()


async def check_records(load: Load) -> None:
    """Compare the stored runs with everything that the callers have received."""
    headers = {"Authorization": f"Bearer {load.token}"}
    async with httpx2.AsyncClient(base_url=load.url, headers=headers, timeout=PATIENCE) as client:

        async def count(query: str) -> int:
            page = (await client.get(f"/runs?{query}&limit=1")).raise_for_status().json()
            return int(page["meta"]["total_count"])

        async def count_completed() -> int:
            # No index has this status: each page compares some hundred runs, and has a part of all.
            query = {"status": "COMPLETED", "limit": "100"}
            found = 0
            while True:
                page = (await client.get("/runs", params=query)).raise_for_status().json()
                found += len(page["data"])
                if page["meta"]["next_cursor"] is None:
                    return found
                query["cursor"] = page["meta"]["next_cursor"]

        async def has_no_live_run() -> bool:
            return await count("live=true") == 0

        await wait_until(has_no_live_run)
        started = [events[0].data["run_id"] for events in load.streams] + load.background
        assert len(set(started)) == len(started)
        assert await count("status=ERROR") == await count("status=CANCELLED") == 0
        assert await count_completed() == len(started)
        for events in load.streams:
            assert events[0].name == "RunStarted"
            check_order(events, str(events[0].data["run_id"]))
        for run_id in load.background:
            run: dict[str, Any] = (await client.get(f"/runs/{run_id}")).json()
            assert run["status"] == "COMPLETED", run
