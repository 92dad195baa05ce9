"""Functions and generators that start work of every form. The server imports this module."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

from work import BEAT_SECONDS, kept, run_command, start, write

from agentctl import RunContext


async def function(message: str, context: RunContext) -> str:
    return await start(**json.loads(message))


def synchronous(message: str) -> str:
    return run_command(**json.loads(message))


async def generator(message: str, context: RunContext) -> AsyncIterator[str]:
    """Read a queue that a task fills, as agents with callbacks do."""
    queue: asyncio.Queue[str] = asyncio.Queue()

    async def fill() -> None:
        options = json.loads(message)
        while True:
            write(options["tag"])
            await queue.put("word ")
            await asyncio.sleep(BEAT_SECONDS)

    kept.append(asyncio.create_task(fill()))
    while True:
        yield await queue.get()
