"""Tools and results of the conformance tests. The modules of agents import it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from agentctl import RunContext

STUBBORN_SECONDS = 3_600.0
"""Time after which a tool that ignores a cancel ends although its file exists.

It is longer than a test waits, so that an end before it is due to the cancel.
"""


_tasks: list[asyncio.Task[None]] = []


class Total(BaseModel):
    """A structured result."""

    total: int


def describe(context: RunContext) -> str:
    """Return the context as JSON."""
    names = ("user_id", "session_id", "run_id", "component_id")
    described = {name: getattr(context, name) for name in names}
    claims = dict(context.claims)
    metadata = dict(context.metadata)
    return json.dumps(described | {"claims": claims, "metadata": metadata})


def hold(path: str) -> Iterator[None]:
    """Create a file, and continue until it is removed."""
    deadline = time.monotonic() + STUBBORN_SECONDS
    file = Path(path)
    file.touch()
    while file.exists() and time.monotonic() < deadline:
        yield


class Receipt:
    """A result of a client of a shop: an object without a JSON form."""


NO_JSON = -1
"""The first number, or the amount, for which a tool returns a `Receipt`."""


def add(a: int, b: int) -> Any:
    """Add two numbers."""
    if a == NO_JSON:
        return Receipt()
    return a + b


async def stubborn(path: str) -> str:
    """Create a file and work until it is removed. Ignore every cancellation."""
    for _ in hold(path):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.02)
    return "late"


def block(path: str) -> str:
    """Create a file and block a thread until it is removed."""
    for _ in hold(path):
        time.sleep(0.02)
    return "late"


async def wait() -> str:
    """Wait, and stop when cancelled."""
    await asyncio.sleep(600)
    return "late"


async def start_task(path: str) -> str:
    """Start a task that adds to a file, and wait."""

    async def write() -> None:
        while True:
            with Path(path).open("a") as file:
                file.write("x")
            await asyncio.sleep(0.02)

    _tasks.append(asyncio.create_task(write()))
    return await wait()


def show(context: RunContext) -> str:
    """Show the context."""
    return describe(context)


def pay(amount: int, to: str) -> Any:
    """Pay an amount, and add a line to the ledger."""
    with Path(__file__).with_name("ledger").open("a") as ledger:
        ledger.write(f"{amount} to {to}\n")
    if amount == NO_JSON:
        return Receipt()
    return f"paid {amount} to {to}"
