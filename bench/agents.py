"""Time from a cancel request until the run is final, for every kind of agent (docs/agents.md).

`python -m bench.agents [RUNS]`. A run hangs in a model call, in an asynchronous tool, in
one that ignores its cancellation, or in a tool that blocks a thread; a function hangs in an `await`
in the place of the model. Each line of the table has the time from the recorded request to the
recorded end, and the number of runs whose work continued at that time.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from agentctl.interface.operations import Operations
from agentctl.interface.requests import CancelRequest, RunRequest
from tests.conformance.server import ConformanceServer, create_conformance_deployment
from tests.conformance.table import KINDS
from tests.kit.model import ModelEndpoint, start_endpoint
from tests.kit.process import serve_config

WORKS = {
    "hang": "model",
    "wait": "asynchronous tool",
    "stubborn": "tool that ignores it",
    "block": "tool in a thread",
}
"""The agents, by what hangs."""

START_SECONDS = 30.0
WAIT_SECONDS = 10.0


class CancelTime(NamedTuple):
    """Milliseconds until the final row, and whether work of the run continued."""

    row: float
    continues: bool


async def measure_cancel(
    operations: Operations, endpoint: ModelEndpoint, kind: str, work: str
) -> CancelTime:
    """Start a run, wait until it hangs, cancel it, and read the recorded times."""
    agent = f"{kind}-{work}"
    started: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    in_tool = asyncio.Event()

    async def follow() -> None:
        async for event in operations.runs.stream("agent", agent, RunRequest("{}")):
            if not started.done():
                started.set_result(orjson.loads(event.data)["run_id"])
            if event.name == "ToolCallStarted":
                in_tool.set()

    following = asyncio.create_task(follow())
    run_id = await asyncio.wait_for(asyncio.shield(started), START_SECONDS)
    if kind == "function" or (kind == "generator" and work == "hang"):
        await asyncio.sleep(0.1)
    elif work == "hang":
        await asyncio.to_thread(endpoint.wait_for_open, 1)
    else:
        await asyncio.wait_for(in_tool.wait(), START_SECONDS)
        await asyncio.sleep(0.05)
    session = (await operations.runs.get(run_id)).value["session_id"]
    await operations.runs.cancel("agent", agent, run_id, CancelRequest(session, wait=WAIT_SECONDS))
    run: dict[str, Any] = dict((await operations.runs.get(run_id)).value)
    await following
    assert run["status"] == "CANCELLED", run
    if work == "hang":
        await asyncio.to_thread(endpoint.wait_for_open, 0)
    row = _timestamp(run["finished_at"]) - _timestamp(run["cancel_requested_at"])
    return CancelTime(row * 1000, run["stopped_at"] is None)


def _timestamp(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


async def measure_all(
    server: ConformanceServer, endpoint: ModelEndpoint, count: int
) -> dict[tuple[str, str], list[CancelTime]]:
    """Measure all kinds and works, one run after the other."""
    results: dict[tuple[str, str], list[CancelTime]] = {}
    async with server.connect() as operations:
        for work in WORKS:
            for kind in KINDS:
                await measure_cancel(operations, endpoint, kind, work)  # connections, imports
                results[kind, work] = [
                    await measure_cancel(operations, endpoint, kind, work) for _ in range(count)
                ]
    return results


def format_lines(results: dict[tuple[str, str], list[CancelTime]]) -> Iterator[str]:
    """Format the results as a table of Markdown."""
    yield "| agent | hangs in | runs | p50 ms | p99 ms | maximum ms | work continued |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for (kind, work), cancels in results.items():
        times = [cancel.row for cancel in cancels]
        p99 = statistics.quantiles(times, n=100, method="inclusive")[98]
        continued = sum(cancel.continues for cancel in cancels)
        yield (
            f"| {kind} | {WORKS[work]} | {len(times)} | {statistics.median(times):.0f} |"
            f" {p99:.0f} | {max(times):.0f} | {continued} |"
        )


def main(count: int) -> None:
    """Measure and print the table."""
    endpoint = start_endpoint()
    try:
        with tempfile.TemporaryDirectory() as directory:
            folder = Path(directory)
            deployment = create_conformance_deployment(folder, endpoint.base_url)
            variables = {"MODEL_URL": endpoint.base_url}
            with serve_config(deployment.path, variables=variables) as process:
                server = ConformanceServer(process.url, deployment)
                results = asyncio.run(measure_all(server, endpoint, count))
        print("\n".join(format_lines(results)))
    finally:
        endpoint.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 20)
