"""Figures of `agentctl top` for docs/measurements.md: `python -m tests.cli.measure_top`."""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path

from agentctl.cli.target import Target
from agentctl.interface.requests import RunFilter
from agentctl.remote import RemoteOperations
from agentctl.top.command import create_app
from tests.deployment import ADMIN, create_deployment
from tests.endpoint import start_endpoint
from tests.process import start_server

RUNS = 100
SECONDS = 20.0
KEYS = 30


def measure_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def start_runs(operations: RemoteOperations) -> None:
    from agentctl.interface.requests import RunRequest

    for at in range(RUNS):
        request = RunRequest(f"wait {at}", f"measure-{at}", background=True)
        await operations.create_run("agent", "hang", request)


async def measure(url: str, token: str, *, runs: int) -> None:
    """Print the first screen, keys and CPU with some live runs; with 0 on a port of no server."""
    async with RemoteOperations(url, token) as operations:
        if runs:
            await start_runs(operations)
        app = create_app(Target(operations, f"on {url}", token=token), RunFilter(), every=2.0)
        began = time.perf_counter()
        spent = measure_cpu()
        async with app.run_test(size=(120, 40)) as pilot:
            while len(app.feed.runs) < runs:
                await asyncio.sleep(0.01)
            if runs:
                wall = time.perf_counter() - began
                cpu = measure_cpu() - spent
                print(f"first screen: {wall * 1000:.0f} ms, CPU {cpu * 1000:.0f} ms")
                keys = []
                for _ in range(KEYS):
                    spent = measure_cpu()
                    await pilot.press("down")
                    keys.append(measure_cpu() - spent)
                print(f"key to screen, CPU: {statistics.median(keys) * 1000:.0f} ms")
            began = time.perf_counter()
            spent = measure_cpu()
            await asyncio.sleep(SECONDS)
            share = (measure_cpu() - spent) / (time.perf_counter() - began)
            print(f"{runs} live runs: {share:.1%} of a core" if runs else f"no server: {share:.1%}")


def main() -> None:
    endpoint = start_endpoint()
    folder = Path(tempfile.mkdtemp())
    deployment = create_deployment(folder, endpoint.base_url)
    token = deployment.token("boss", ADMIN)
    arguments = ("--config", str(deployment.path))
    with start_server(*arguments, log=folder / "log", environment=dict(os.environ)) as server:
        asyncio.run(measure(server.url, token, runs=RUNS))
    asyncio.run(measure("http://127.0.0.1:9", token, runs=0))
    endpoint.stop()


if __name__ == "__main__":
    main()
