"""Agents and tools in code that report as much as they can."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime

from pydantic import BaseModel

from agentctl import RunContext
from agentctl.agents import Output, Thinking, ToolCompleted, ToolStarted

MILLION = 1_000_000

# Built once, so that a measurement has the work of the server only.
LONG = "x" * 300 * MILLION
WIDE = "é" * 7 * MILLION
FITTING = "x" * 14 * MILLION
BYTES = LONG.encode()
LISTS = [[0] * 1_000] * 20_000
ROWS = [[0] * 100] * 60_000
TIMES = [datetime(2026, 1, 1, tzinfo=UTC)] * 262_143
NAMES = {str(number): ROWS[0] for number in range(300_000)}


class Model(BaseModel):
    body: list[datetime]


async def long_text(message: str) -> str:
    return LONG


async def long_bytes(message: str) -> bytes:
    return BYTES


async def long_failure(message: str) -> str:
    raise ValueError(FITTING)


async def wide_text(message: str) -> str:
    return WIDE


async def storable_text(message: str) -> str:
    return FITTING


async def many_lists(message: str) -> list[list[int]]:
    return LISTS


async def fitting_lists(message: str) -> list[list[int]]:
    return ROWS


async def fitting_model(message: str) -> Model:
    return Model.model_construct(body=TIMES)


async def long_leaf(message: str) -> dict[str, str]:
    return {"a": LONG}


async def many_pieces(message: str) -> AsyncIterator[str]:
    for _ in range(300_000):
        yield "x"


async def many_thoughts(message: str) -> AsyncIterator[Thinking]:
    for _ in range(300_000):
        yield Thinking("x")


async def many_calls(message: str) -> AsyncIterator[ToolStarted | ToolCompleted]:
    for number in range(30_000):
        yield ToolStarted(str(number), "t", {})
        yield ToolCompleted(str(number), "x")


async def large_arguments(message: str) -> AsyncIterator[ToolStarted]:
    yield ToolStarted("a", "t", {"a": LISTS})
    yield ToolStarted("b", "t", NAMES)


async def large_results(message: str) -> AsyncIterator[ToolStarted | ToolCompleted]:
    yield ToolStarted("a", "t", {})
    yield ToolCompleted("a", LISTS)


async def many_outputs(message: str) -> AsyncIterator[Output]:
    for _ in range(30):
        yield Output([[0] * 100] * 5_000)


async def large_state(message: str, context: RunContext) -> str:
    context.state["a"] = LISTS
    return "x"


async def much_progress(message: str, context: RunContext) -> str:
    for _ in range(200_000):
        context.progress("x" * 1_000)
    return "x"


def from_thread(message: str) -> list[list[int]]:
    return ROWS
