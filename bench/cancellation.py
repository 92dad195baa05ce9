"""Time from a cancel request until the run is final (docs/cancellation.md).

`python -m bench.cancellation [RUNS]`. All runs hang in a model call on the stub endpoint
of the tests at the same time. Each line of the table names the process that cancels. `response` is
the time that the caller waited, including the start of a command; `row` is the time from the
recorded request to the recorded end. A run that is not final when the response arrives counts as
late.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from agentctl.auth.principal import local_principal
from agentctl.interface.operations import Operations
from agentctl.interface.requests import CancelRequest, RunRequest
from agentctl.remote.client import RemoteOperations
from agentctl.service.service import Service
from bench.measure import Row, at_most, build_figure_row
from tests.kit.deployment import ADMIN, Deployment, create_deployment
from tests.kit.model import ModelEndpoint, start_endpoint
from tests.kit.process import base_environment, serve_config

AGENT = "hang"
SESSION = "s1"
WAIT_SECONDS = 10.0

Cancel = Callable[[str], Awaitable[None]]


class CancelTimes(NamedTuple):
    """The times of one cancel in milliseconds: until the response, and between the columns."""

    answer: float
    row: float
    final: bool


async def start_hung_runs(operations: Operations, endpoint: ModelEndpoint, count: int) -> list[str]:
    """Start runs and wait until each waits for its model; return their ids."""
    request = RunRequest("x", session_id=SESSION, background=True)
    started = [await operations.runs.create("agent", AGENT, request) for _ in range(count)]
    await asyncio.to_thread(endpoint.wait_for_open, count)
    return [run.value["run_id"] for run in started]


async def measure_cancel(operations: Operations, run_id: str, cancel: Cancel) -> CancelTimes:
    """Cancel a run and read the recorded times."""
    start = time.perf_counter()
    await cancel(run_id)
    answer = time.perf_counter() - start
    run = (await operations.runs.get(run_id)).value
    requested = run["cancel_requested_at"]
    ended = run["finished_at"]
    row = _timestamp(ended) - _timestamp(requested) if requested and ended else float("inf")
    return CancelTimes(answer * 1000, row * 1000, run["status"] == "CANCELLED")


def _timestamp(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def cancel_through(operations: Operations) -> Cancel:
    """Return a function that cancels through these operations."""

    async def cancel(run_id: str) -> None:
        request = CancelRequest(SESSION, wait=WAIT_SECONDS)
        await operations.runs.cancel("agent", AGENT, run_id, request)

    return cancel


def cancel_by_command(deployment: Deployment) -> Cancel:
    """Return a function that cancels with `agentctl runs cancel` in local mode."""
    command = [sys.executable, "-m", "agentctl", "runs", "cancel", "--config", str(deployment.path)]
    command += ["--agent", AGENT, "--session", SESSION, "--yes", "-o", "json"]

    def run(run_id: str) -> None:
        subprocess.run(
            [*command, run_id], env=base_environment(), capture_output=True, check=True, timeout=60
        )

    async def cancel(run_id: str) -> None:
        await asyncio.to_thread(run, run_id)

    return cancel


@asynccontextmanager
async def open_local_operations(deployment: Deployment) -> AsyncIterator[Operations]:
    """Open a service in this process."""
    async with Service.open(deployment.settings, create=True) as service:
        await service.prepare()
        yield service.operations_for(local_principal("benchmark"))


async def cancel_in_turn(
    owner: Operations, endpoint: ModelEndpoint, count: int, cancel: Cancel
) -> list[CancelTimes]:
    """Cancel the runs one after the other."""
    runs = await start_hung_runs(owner, endpoint, count)
    return [await measure_cancel(owner, run_id, cancel) for run_id in runs]


async def cancel_at_once(
    owner: Operations, endpoint: ModelEndpoint, count: int, cancel: Cancel
) -> list[CancelTimes]:
    """Cancel all runs at the same time."""
    runs = await start_hung_runs(owner, endpoint, count)
    return list(await asyncio.gather(*(measure_cancel(owner, run_id, cancel) for run_id in runs)))


async def measure_same_process(
    deployment: Deployment, endpoint: ModelEndpoint, count: int
) -> dict[str, list[CancelTimes]]:
    """Measure cancels by the process that executes the runs."""
    async with open_local_operations(deployment) as operations:
        cancel = cancel_through(operations)
        return {
            "same process, in turn": await cancel_in_turn(operations, endpoint, count, cancel),
            "same process, all at once": await cancel_at_once(operations, endpoint, count, cancel),
        }


async def measure_other_process(
    deployment: Deployment, url: str, endpoint: ModelEndpoint, count: int
) -> dict[str, list[CancelTimes]]:
    """Measure cancels by a process that shares only the database with the server of the runs."""
    token = deployment.token("benchmark", ADMIN, seconds=3_600)
    async with RemoteOperations(url, token) as server:
        async with open_local_operations(deployment) as other:
            cancel = cancel_through(other)
            results = {
                "another process, in turn": await cancel_in_turn(server, endpoint, count, cancel),
                "another process, all at once": await cancel_at_once(
                    server, endpoint, count, cancel
                ),
            }
        command = cancel_by_command(deployment)
        return results | {
            "local command, in turn": await cancel_in_turn(server, endpoint, count, command)
        }


def format_lines(results: dict[str, list[CancelTimes]]) -> Iterator[str]:
    """Format one line per way of cancelling."""
    yield f"{'cancelled by':<32}{'runs':>5}{'late':>6}{'answer ms':>22}{'row ms':>22}"
    yield f"{'':<43}{'p50    p99    max':>22}{'p50    p99    max':>22}"
    for name, cancels in results.items():
        late = sum(not cancelled.final for cancelled in cancels)
        answer = _format_spread([cancelled.answer for cancelled in cancels])
        row = _format_spread([cancelled.row for cancelled in cancels])
        yield f"{name:<32}{len(cancels):>5}{late:>6}{answer:>22}{row:>22}"


def _format_spread(values: list[float]) -> str:
    return f"{statistics.median(values):>7.0f}{_p99(values):>7.0f}{max(values):>7.0f}"


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]


GOALS = {
    "same process, in turn": 250.0,
    "another process, in turn": 1_000.0,
    "local command, in turn": 1_000.0,
}
"""The p99 to reach, in milliseconds, of the time in the row."""


def measure_hung_calls(folder: Path, count: int) -> Iterator[Row]:
    """Measure the cancels that have a goal; the figure is the p99 of `count` cancels."""
    results = measure_all(folder, count)
    for name, goal in GOALS.items():
        work = f"cancel of a hung call, by {name.partition(',')[0]}: p99"
        assert all(cancelled.final for cancelled in results[name]), name
        yield build_figure_row(
            work, [_p99([one.row for one in results[name]])], " ms", at_most(goal)
        )


def measure_all(folder: Path, count: int) -> dict[str, list[CancelTimes]]:
    """Run all measurements in an empty folder."""
    endpoint = start_endpoint()
    try:
        deployment = create_deployment(folder, endpoint.base_url)
        results = asyncio.run(measure_same_process(deployment, endpoint, count))
        with serve_config(deployment.path) as server:
            return results | asyncio.run(
                measure_other_process(deployment, server.url, endpoint, count)
            )
    finally:
        endpoint.stop()


if __name__ == "__main__":
    for name in [name for name in os.environ if name.startswith("AGENTCTL_")]:
        del os.environ[name]
    with tempfile.TemporaryDirectory() as directory:
        for line in format_lines(
            measure_all(Path(directory), int(sys.argv[1]) if sys.argv[1:] else 100)
        ):
            print(line)
