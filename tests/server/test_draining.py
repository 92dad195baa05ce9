"""SIGTERM to a loaded server, with one process and with several."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import httpx2
import pytest

from tests.kit.concurrent_callers import RequestedRun, check_order, open_client
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.deployment import Deployment
from tests.kit.process import ServerProcess, serve_config
from tests.server.database_checks import (
    check_events,
    check_integrity,
    open_read_only,
    stored_events,
)

DRAIN_SECONDS = 10.0

WORK_SECONDS = 2.0
"""Seconds of the runs that end by themselves."""

RUNS = 30
"""Streams, and as many runs that are waited for."""

PROBES = 6
"""Number of readiness checks; any free process responds to each."""


def asked(number: int, *, stream: bool) -> RequestedRun:
    """Return the requests of runs: half of them end by themselves, the others never."""
    path = ("/agents/tool-wait", "/agents/half", "/agents/tool-wait", "/teams/jam")[number % 4]
    message = f'{number} {{"seconds": {WORK_SECONDS}}}'
    return RequestedRun(path, {"message": message, "stream": stream, "session_id": f"s{path[-3:]}"})


@pytest.mark.parametrize("workers", [1, 2])
async def test_loaded_server_drains_and_leaves_no_live_run(
    deployment: Deployment, workers: int
) -> None:
    text = deployment.path.read_text()
    deployment.path.write_text(
        text.replace("drain_seconds = 1", f"drain_seconds = {DRAIN_SECONDS}")
    )
    with serve_config(deployment.path, "--workers", str(workers)) as served:
        async with open_client(deployment, served.url) as client:
            streams = [asked(number, stream=True) for number in range(RUNS)]
            plain = [asked(number, stream=False) for number in range(RUNS)]
            async with asyncio.TaskGroup() as asking:
                for one in [*streams, *plain]:
                    asking.create_task(one.ask(client))
                await wait_until(lambda: all(stream.received for stream in streams))
                await wait_until(lambda: all_are_begun(client))
                served.process.send_signal(signal.SIGTERM)
                await check_draining(deployment, served)
        assert await asyncio.to_thread(served.process.wait, PATIENCE) == 0
        assert "Traceback" not in served.log_text
    check_ends(deployment, streams, plain)


async def all_are_begun(client: httpx2.AsyncClient) -> bool:
    """Return True if every requested run has a row."""
    page = (await client.get("/runs?limit=1")).json()
    live = (await client.get("/runs?limit=1&status=PENDING")).json()
    return bool(page["meta"]["total_count"] >= 2 * RUNS and live["meta"]["total_count"] == 0)


async def check_draining(deployment: Deployment, served: ServerProcess) -> None:
    """Check that a draining server is not ready, rejects new runs and serves all else."""
    headers = deployment.bearer("me", "agents:run", "sessions:read")
    limits = httpx2.Limits(max_keepalive_connections=0)
    async with httpx2.AsyncClient(
        base_url=served.url, headers=headers, limits=limits, timeout=PATIENCE
    ) as probe:
        await asyncio.to_thread(served.wait_for, "stopping: ")
        draining = 0
        while draining < PROBES:
            ready = (await probe.get("/ready")).status_code
            draining = draining + 1 if ready == 503 else 0
        late = [probe.post("/agents/echo/runs", json={"message": "late"}) for _ in range(PROBES)]
        for answer in await asyncio.gather(*late):
            assert (answer.status_code, answer.json()["error_code"]) == (503, "UNAVAILABLE")
            assert answer.headers["retry-after"]
            assert answer.headers["connection"] == "close"
        assert (await probe.get("/health")).status_code == 200


def check_ends(
    deployment: Deployment, streams: list[RequestedRun], plain: list[RequestedRun]
) -> None:
    """Check that the stored runs equal those in the responses."""
    with open_read_only(deployment.folder / "main.db") as connection:
        check_integrity(connection)
        rows: list[Any] = connection.execute(
            "SELECT run_id, status, cancel_requested_by FROM runs"
        ).fetchall()
        stored = {run_id: (status, by) for run_id, status, by in rows}
        assert {status for status, _ in stored.values()} <= {"COMPLETED", "CANCELLED"}
        assert {by for _, by in stored.values()} <= {None, "system:shutdown"}
        assert connection.execute("SELECT count(*) FROM workers").fetchall() == [(0,)]
        for stream in streams:
            run_id = str(stream.run_id)
            check_order(stream.received, run_id)
            assert stored_events(connection, run_id) == stream.received
            check_events(stream.received, run_id, stored[run_id][0])
    assert list((deployment.folder / "main.db.workers").iterdir()) == []
    for one in [*streams, *plain]:
        assert one.final_status == stored[str(one.run_id)][0]
        if one.path != "/agents/tool-wait":
            assert stored[str(one.run_id)] == ("CANCELLED", "system:shutdown")
