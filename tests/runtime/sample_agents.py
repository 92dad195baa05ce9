"""Agents in code that tests host."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from agentctl import Output, Progress, RunContext, Thinking, ToolCompleted, ToolStarted, Usage

release = threading.Event()
"""Ends the agents that ignore their cancellation."""


class Ticket(BaseModel):
    """A structured result."""

    title: str
    priority: int = 1


@dataclass
class Plain:
    """A dataclass as a result."""

    words: list[str]


async def greet(message: str, context: RunContext) -> str:
    return f"{context.user_id or 'nobody'}: {message}"


async def only_message(message: str) -> str:
    return message.upper()


async def second_is_context(message, context):  # type: ignore[no-untyped-def]
    return type(context).__name__


def in_thread(message: str, context: RunContext) -> str:
    return f"{message} in {threading.current_thread().name}"


async def ticket(message: str) -> Ticket:
    return Ticket(title=message)


async def plain(message: str) -> Plain:
    return Plain(message.split())


async def nothing(message: str) -> None:
    return None


async def no_json(message: str) -> object:
    return object()


async def fails(message: str) -> str:
    raise ValueError("the password is hunter2")


async def exits(message: str) -> str:
    raise SystemExit(3)


async def cancels_itself(message: str) -> str:
    raise asyncio.CancelledError


async def counts(message: str, context: RunContext) -> str:
    context.usage(input_tokens=3, output_tokens=4)
    context.usage(input_tokens=1)
    return "counted"


async def remembers(message: str, context: RunContext) -> str:
    return " | ".join(f"{entry['role']}: {entry['content']}" for entry in context.history)


async def stream(message: str, context: RunContext) -> AsyncIterator[Any]:
    yield Thinking("let me look. ")
    yield Progress("searching", 0.25)
    yield ToolStarted("c1", "search", {"query": message, "limit": 3})
    yield ToolStarted("c2", "search", "more")
    yield ToolCompleted("c1", ({"hit": number} for number in (1,)))
    yield ToolCompleted("c2", "nothing", failed=True)
    for word in ("found ", "one"):
        yield word
    yield Usage(input_tokens=5, output_tokens=2, reasoning_tokens=1)
    yield Output(Ticket(title="one"))


async def cuts_characters(message: str) -> AsyncIterator[Any]:
    for piece in ("x \ud83d", "\ude00 y", "\ud83d", Progress("half"), "\ude00", "\ud83d"):
        yield piece


async def yields_number(message: str) -> AsyncIterator[Any]:
    yield "a"
    yield 5


async def never_ends(message: str, context: RunContext) -> AsyncIterator[str]:
    yield "begun "
    await asyncio.sleep(3_600)


async def ignores_cancel(message: str, context: RunContext) -> str:
    deadline = time.monotonic() + 20
    while not release.is_set() and time.monotonic() < deadline:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            continue
    return "late"


async def talks_on(message: str) -> AsyncIterator[str]:
    yield "first "
    while True:
        try:
            await asyncio.sleep(3_600)
        except asyncio.CancelledError:
            yield "second"


def watches_flag(message: str, context: RunContext) -> str:
    deadline = time.monotonic() + 20
    while not context.cancelled and time.monotonic() < deadline:
        time.sleep(0.005)
    return "stopped"


async def leaves_call_open(message: str) -> AsyncIterator[Any]:
    yield ToolStarted("c1", "search", {})
    yield "answer"


def generator_without_async(message: str):  # type: ignore[no-untyped-def]
    yield message


def no_parameters() -> str:
    return ""


async def too_many(message: str, first: int, second: int) -> str:
    return message


async def with_default(
    message: str, style: str = "plain", context: RunContext | None = None
) -> str:
    assert context is not None
    return f"{message} {style} {context.component_id}"


class Callable:
    """A class, which is no agent."""


number = 5


async def long_output(message: str) -> list[Any]:
    """Returns a million numbers, and then a value without a JSON form."""
    return [*[7] * 1_000_000, object()]


ROWS = [[0] * 100] * 30_000


def build_huge_text() -> str:
    """Return a text of 48 MB: a constant would stay until the end of all tests."""
    return "\ud800x" * 12_000_000


async def huge_text(message: str) -> str:
    return build_huge_text()


async def huge_leaf(message: str) -> dict[str, str]:
    return {"text": build_huge_text()}


async def huge_rows(message: str) -> list[list[int]]:
    return ROWS * 10


async def large_rows(message: str) -> list[list[int]]:
    return ROWS


async def many_pieces(message: str) -> AsyncIterator[str]:
    for _ in range(100_000):
        yield "x"


async def large_arguments(message: str) -> AsyncIterator[ToolStarted]:
    yield ToolStarted("a", "search", {"rows": ROWS, "text": "x" * 300_000})


async def many_arguments(message: str) -> AsyncIterator[ToolStarted]:
    names = {str(number): ROWS[0] for number in range(100_000)}
    yield ToolStarted("a", "search", names)


async def many_calls(message: str) -> AsyncIterator[ToolStarted | ToolCompleted]:
    for number in range(20_000):
        yield ToolStarted(str(number), "search", {})
        yield ToolCompleted(str(number), "")
