"""A request of agentctl in an application with routes of a user, next to one without.

`python -m tests.benchmarks.reasons.own_routes` calls both ASGI applications in process, in turns:
the list of agents with a token, and an application with fifty routes of a user. Printed are the CPU
microseconds of a request, the median of the rounds, and the median of their ratios.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any

import agentctl
from agentctl import server
from tests.deployment import create_deployment

REQUESTS = 1_000
ROUNDS = 15

Application = Callable[[Any, Any, Any], Awaitable[None]]


def build_scope(headers: dict[str, str]) -> dict[str, Any]:
    """Return the scope of a list of agents."""
    fields = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    return {
        "type": "http",
        "method": "GET",
        "path": "/agents",
        "raw_path": b"/agents",
        "query_string": b"",
        "headers": [(b"host", b"x"), *fields],
        "root_path": "",
        "http_version": "1.1",
        "scheme": "http",
        "server": ("x", 80),
        "client": ("y", 1),
    }


async def measure(app: Application, scope: dict[str, Any]) -> float:
    """Return the CPU microseconds of a request."""

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200

    start = time.process_time()
    for _ in range(REQUESTS):
        await app(dict(scope), receive, send)
    return (time.process_time() - start) * 1e6 / REQUESTS


async def compare(folder: Path) -> None:
    """Print both medians and the median of the ratios of the rounds."""
    deployment = create_deployment(folder, "http://127.0.0.1:9/v1")
    scope = build_scope(deployment.bearer("me", "agents:read"))
    own = agentctl.create_app(deployment.settings)
    for number in range(50):

        @own.get(f"/things{number}/{{thing_id}}")
        async def get_thing(thing_id: str) -> str:
            return thing_id

    apps = [server.create_app(deployment.settings), own]
    async with AsyncExitStack() as stack:
        for app in apps:
            await stack.enter_async_context(server.running(app))
        rounds = [[await measure(app, scope) for app in apps] for _ in range(ROUNDS)]
    alone, beside = (median(values) for values in zip(*rounds, strict=True))
    ratio = median(mine / other for other, mine in rounds)
    print(f"alone {alone:.1f} us, with own routes {beside:.1f} us, ratio {ratio:.3f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        asyncio.run(compare(Path(name)))
