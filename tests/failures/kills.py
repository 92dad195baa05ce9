"""Servers that are killed or stopped with runs of every kind, each followed by a message."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Sequence

from tests.deployment import Deployment
from tests.endpoint import ModelEndpoint
from tests.failures.server import serve_failures
from tests.failures.table import FAILURES
from tests.failures.trial import Clients, Trial

__all__ = ["ENDS", "WORK", "run_ends_of_servers"]

WORK = (
    "cancelled-in-a-model-call", "cancelled-in-a-stream", "cancelled-in-a-tool",
    "cancelled-in-a-second-model-call", "cancelled-while-paused",
)  # fmt: skip
"""The failures whose runs are live, or wait, when their server ends."""

ENDS = {"killed": signal.SIGKILL, "stopped": signal.SIGTERM}


def run_ends_of_servers(
    deployment: Deployment, endpoint: ModelEndpoint, kinds: Sequence[str]
) -> list[Trial]:
    """End a server with live runs of all kinds, and continue their sessions on another one."""
    trials: list[Trial] = []
    for name, number in ENDS.items():
        those = [Trial(kind, FAILURES[work], prefix=name) for kind in kinds for work in WORK]
        with serve_failures(deployment, endpoint, f"{name}.log") as server:
            asyncio.run(_start(Clients(server), those))
            server.process.stop(number)
        with serve_failures(deployment, endpoint, f"after-{name}.log") as server:
            asyncio.run(_go_on(Clients(server), those))
        trials += those
    return trials


async def _start(clients: Clients, trials: Sequence[Trial]) -> None:
    async with clients.open(), clients.watch():
        await asyncio.gather(*map(clients.start, trials))


async def _go_on(clients: Clients, trials: Sequence[Trial]) -> None:
    async with clients.open(), clients.watch():
        await asyncio.gather(*map(clients.go_on, trials))
