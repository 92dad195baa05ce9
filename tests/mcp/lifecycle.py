"""Runs with a call of an MCP tool, half of them cancelled: nothing of them is left.

    python -m tests.mcp.lifecycle [RUNS]

prints a table for docs/internals/measurements.md. `tests/mcp/test_lifecycle.py` runs it with few
runs.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from agentctl.interface.requests import CancelRequest, RunRequest
from agentctl.service.service import Service
from tests.kit.conditions import PATIENCE, wait_until
from tests.kit.deployment import create_deployment
from tests.kit.fake_context import UNREACHED_SECONDS
from tests.kit.model import ModelEndpoint, start_endpoint
from tests.kit.service import open_service, user
from tests.mcp.hosting import SERVER

BATCH = 20


@dataclass
class Counts:
    """Counts of one experiment.

    Attributes:
        tasks, descriptors, children: left after the close, compared with the start.
        latencies: seconds from each cancel to the final status.
    """

    completed: int = 0
    cancelled: int = 0
    connections: int = 0
    tasks: int = 0
    descriptors: int = 0
    children: int = 0
    latencies: list[float] = field(default_factory=list)

    @property
    def p99(self) -> float:
        """The 99th percentile of the latencies in seconds."""
        return sorted(self.latencies)[int(len(self.latencies) * 0.99)]


def count_descriptors() -> int:
    """Return the number of open file descriptors of this process."""
    return len(list(Path("/proc/self/fd").iterdir()))


def list_children(process_id: int) -> list[int]:
    """Return the ids of the child processes that the first thread started, zombies included."""
    children = Path(f"/proc/{process_id}/task/{process_id}/children")
    return [int(child) for child in children.read_text().split()]


def count_left() -> tuple[int, int, int]:
    """Return the numbers of tasks, open file descriptors and child processes."""
    return len(asyncio.all_tasks()), count_descriptors(), len(list_children(os.getpid()))


async def measure(folder: Path, endpoint: ModelEndpoint, runs: int, *, kill: bool) -> Counts:
    """Execute the runs and count the tasks, descriptors and children that are left.

    Args:
        kill: kill the program of the MCP server after half of the runs.
    """
    counts = Counts()
    entry = f'[[mcp_servers]]\nid = "files"\ncommand = "{sys.executable}"\nargs = ["{SERVER}"]\n'
    entry += f"call_seconds = {UNREACHED_SECONDS}\n"
    for name in ("echo", "hang"):
        entry += (
            f'[[models]]\nid = "mcp-{name}"\nprovider = "openai"\nmodel = "tool:files_{name}"\n'
            f'base_url = "{endpoint.base_url}"\n'
            f'[[agents]]\nid = "mcp-{name}"\nmodel = "mcp-{name}"\ntools = ["mcp:files"]\n'
        )
    deployment = create_deployment(folder, endpoint.base_url, extra=entry)
    gc.collect()  # Earlier tests may have left files that a collection closes.
    before = count_left()
    async with open_service(deployment) as service:
        await service.prepare()
        server = service.hosting.catalog.mcp.hosted["files"]
        await wait_until(lambda: server.state == "connected")
        for start in range(0, runs, BATCH):
            if kill and start == runs // 2 // BATCH * BATCH:
                known = server.counters.connections
                await _kill_program()
                await wait_until(lambda: server.counters.connections > known)  # noqa: B023
            size = min(BATCH, runs - start)
            await asyncio.gather(*(_run(service, index, counts) for index in range(size)))
        counts.connections = server.counters.connections
    with contextlib.suppress(AssertionError):
        await wait_until(lambda: count_left() == before)
    counts.tasks, counts.descriptors, counts.children = (
        left - known for left, known in zip(count_left(), before, strict=True)
    )
    return counts


async def _kill_program() -> None:
    for child in list_children(os.getpid()):
        line = Path(f"/proc/{child}/cmdline").read_bytes()
        if str(SERVER).encode() in line:
            # The child is the guard of the program.
            (program,) = list_children(child)
            os.kill(program, signal.SIGKILL)


async def _run(service: Service, index: int, counts: Counts) -> None:
    """Execute one run; every second one is cancelled while its call hangs."""
    port = user(service)
    hangs = index % 2 == 1
    agent = "mcp-hang" if hangs else "mcp-echo"
    request = RunRequest('{"text": "x"}', session_id=f"s{index}", background=True)
    run_id = (await port.runs.create("agent", agent, request)).value["run_id"]
    live = service.hosting.engine.find_run(run_id)
    if hangs:
        assert live is not None
        await wait_until(lambda: live.transcript.tools)
        started = time.monotonic()
        await port.runs.cancel("agent", agent, run_id, CancelRequest(f"s{index}", wait=30))
        counts.latencies.append(time.monotonic() - started)
        counts.cancelled += 1
        return
    if live is not None:
        await asyncio.wait_for(asyncio.shield(live.ended), PATIENCE)
    assert (await port.runs.get(run_id)).value["status"] == "COMPLETED"
    counts.completed += 1


def main(runs: int) -> None:
    """Print the counts without and with a killed program."""
    endpoint = start_endpoint()
    try:
        print(
            "| program killed | completed | cancelled | connections | tasks left "
            "| descriptors left | children left | cancel p99 |"
        )
        for kill in (False, True):
            with tempfile.TemporaryDirectory() as folder:
                counts = asyncio.run(measure(Path(folder), endpoint, runs, kill=kill))
            shown = [
                counts.completed,
                counts.cancelled,
                counts.connections,
                counts.tasks,
                counts.descriptors,
                counts.children,
            ]
            row = " | ".join(map(str, shown))
            print(f"| {'yes' if kill else 'no'} | {row} | {counts.p99 * 1000:.0f} ms |")
    finally:
        endpoint.stop()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000)
