"""How long it takes from asking a run to stop until its row is final (contract.md 5, design.md 4).

`python -m tests.benchmarks.cancellation [RUNS]`. Every run hangs in a call of a model, on the stub
endpoint of the tests; all of them hang at the same time. Each is cancelled by whoever the line
names: `answer` is what the caller waited, a started command included; `row` is from the recorded
request to the recorded end. A run that was not final by its answer is counted as late.
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
from agentctl.operations import CancelRequest, Operations, RunRequest
from agentctl.remote.client import RemoteOperations
from agentctl.service.service import Service
from tests.benchmarks.measure import Row, at_most, build_figure_row
from tests.endpoint import ModelEndpoint, start_endpoint
from tests.process import base_environment, serve_config
from tests.deployment import ADMIN, Deployment, create_deployment

AGENT, SESSION = "hang", "s1"
WAIT_SECONDS = 10.0
OPEN_SECONDS = 120.0

Cancel = Callable[[str], Awaitable[None]]


class CancelTimes(NamedTuple):
    """One cancel, in milliseconds: until its answer, and between the two times of the row."""

    answer: float
    row: float
    final: bool


async def start_hung_runs(port: Operations, endpoint: ModelEndpoint, count: int) -> list[str]:
    """Start runs, and wait until each waits for its model."""
    request = RunRequest("x", session_id=SESSION, background=True)
    started = [await port.create_run("agent", AGENT, request) for _ in range(count)]
    await asyncio.to_thread(endpoint.wait_for_open, count, OPEN_SECONDS)
    return [run.value["run_id"] for run in started]


async def measure_cancel(port: Operations, run_id: str, cancel: Cancel) -> CancelTimes:
    """Cancel a run and read what is stored of it."""
    start = time.perf_counter()
    await cancel(run_id)
    answer = time.perf_counter() - start
    run = (await port.get_run(run_id)).value
    asked, ended = run["cancel_requested_at"], run["finished_at"]
    row = _timestamp(ended) - _timestamp(asked) if asked and ended else float("inf")
    return CancelTimes(answer * 1000, row * 1000, run["status"] == "CANCELLED")


def _timestamp(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def cancel_through(port: Operations) -> Cancel:
    """Cancel through a port."""

    async def cancel(run_id: str) -> None:
        await port.cancel_run("agent", AGENT, run_id, CancelRequest(SESSION, wait=WAIT_SECONDS))

    return cancel


def cancel_by_command(deployment: Deployment) -> Cancel:
    """Cancel with `agentctl runs cancel` on the files."""
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
    """A service in this process."""
    async with Service.open(deployment.settings, create=True) as service:
        await service.prepare()
        yield service.operations_for(local_principal("benchmark"))


async def cancel_in_turn(
    owner: Operations, endpoint: ModelEndpoint, count: int, cancel: Cancel
) -> list[CancelTimes]:
    """One cancel after the other."""
    runs = await start_hung_runs(owner, endpoint, count)
    return [await measure_cancel(owner, run_id, cancel) for run_id in runs]


async def cancel_at_once(
    owner: Operations, endpoint: ModelEndpoint, count: int, cancel: Cancel
) -> list[CancelTimes]:
    """All cancels at the same time."""
    runs = await start_hung_runs(owner, endpoint, count)
    return list(await asyncio.gather(*(measure_cancel(owner, run_id, cancel) for run_id in runs)))


async def measure_same_process(
    deployment: Deployment, endpoint: ModelEndpoint, count: int
) -> dict[str, list[CancelTimes]]:
    """The process that works on the runs cancels them."""
    async with open_local_operations(deployment) as port:
        cancel = cancel_through(port)
        return {
            "same process, in turn": await cancel_in_turn(port, endpoint, count, cancel),
            "same process, all at once": await cancel_at_once(port, endpoint, count, cancel),
        }


async def measure_other_process(
    deployment: Deployment, url: str, endpoint: ModelEndpoint, count: int
) -> dict[str, list[CancelTimes]]:
    """A server works on the runs; who cancels them has only the database in common with it."""
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
    """One line for each way of cancelling."""
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
"""Milliseconds of the row, p99 (design.md 4)."""


def measure_hung_calls(folder: Path, count: int) -> Iterator[Row]:
    """What the goals are for, as rows; the figure is the p99 of so many cancels."""
    results = measure_all(folder, count)
    for name, goal in GOALS.items():
        work = f"cancel of a hung call, by {name.partition(',')[0]}: p99"
        assert all(cancelled.final for cancelled in results[name]), name
        yield build_figure_row(
            work, [_p99([one.row for one in results[name]])], " ms", at_most(goal)
        )


def measure_all(folder: Path, count: int) -> dict[str, list[CancelTimes]]:
    """All measurements."""
    endpoint = start_endpoint()
    try:
        deployment = create_deployment(folder, endpoint.base_url)
        results = asyncio.run(measure_same_process(deployment, endpoint, count))
        with serve_config(deployment.path) as server:
            return results | asyncio.run(measure_other_process(deployment, server.url, endpoint, count))
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
