"""Bounds of the work of one step of the event loop (docs/decisions/0075).

While a step of the event loop works, no request and no other run of the process continues. Work
that grows with what a peer sends, such as a model endpoint, an MCP program or an agent in code, is
refused by its size, divided into steps, or done in a thread.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from functools import cached_property
from typing import TypeVar
from weakref import WeakKeyDictionary

from agentctl.records.strict import JSON_STRING
from agentctl.runtime.failures import ExecutionError

T = TypeVar("T")

STEP_SECONDS = 0.01
"""Time after which a loop over received items gives other tasks their turn."""

STEP_BYTES = 65_536
"""Size of data whose conversion is a step of the event loop; larger data is converted in a thread,
between whose instructions other tasks get their turn."""

MAXIMUM_VALUES = 65_536
"""Maximum number of values in one JSON document of a peer, such as an MCP message or the arguments
of tool calls."""

_STRINGS = re.compile(JSON_STRING.encode())

MAXIMUM_CALLS = 128
"""Maximum number of tool calls in one answer: they are executed concurrently."""

MAXIMUM_PARTS = 1_024
"""Maximum number of parts in one answer: texts, reasoning and tool calls in turn."""

_begun: WeakKeyDictionary[asyncio.AbstractEventLoop, float] = WeakKeyDictionary()

MAXIMUM_FAILURES = 3
"""Failures of one tool in a row after which the run ends with TOOL_FAILED."""

MAXIMUM_UNKNOWN = 3
"""Calls of unknown tools that a run tolerates; the next one ends it with MODEL_REJECTED."""


def check_parts(parts: int, calls: int) -> None:
    """Raise ExecutionError if an answer that arrives has too many parts or tool calls."""
    if calls > MAXIMUM_CALLS:
        raise ExecutionError("MODEL_REJECTED", "The model called too many tools at once")
    if parts > MAXIMUM_PARTS:
        raise ExecutionError("MODEL_REJECTED", "The model's answer has too many parts")


class Turns:
    """Gives the other tasks of the event loop their turn while a task works on many items.

    A task that awaits something that takes time anyway is not delayed.
    """

    def __init__(self) -> None:
        self._begun: float | None = None

    async def take(self) -> None:
        """Let other tasks continue if this one has worked for `STEP_SECONDS`."""
        now = time.perf_counter()
        if self._begun is None:
            self._begun = now
            self._loop.call_soon(self._renew)
        elif now - self._begun >= STEP_SECONDS:
            await asyncio.sleep(0)

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        # Kept: in Python 3.11 a system call is necessary to find the running event loop.
        return asyncio.get_running_loop()

    def _renew(self) -> None:
        self._begun = None


async def take_shared_turn() -> None:
    """Wait for a step of the event loop in which callers have worked less than `STEP_SECONDS`.

    For short work of many tasks: a step of the loop continues all tasks that are ready.
    """
    loop = asyncio.get_running_loop()
    while (begun := _begun.get(loop)) is not None:
        if time.perf_counter() - begun < STEP_SECONDS:
            return
        await asyncio.sleep(0)
    _begun[loop] = time.perf_counter()
    loop.call_soon(_begun.pop, loop, None)


async def convert(function: Callable[[], T], size: int, step_bytes: int = STEP_BYTES) -> T:
    """Call a function that converts data, in a thread if the data is large.

    A cancel does not end a thread; its result is dropped.

    Args:
        function: has no effect except its result.
        size: the size of the data in bytes or characters.
        step_bytes: the size that is a step of the event loop.
    """
    if size <= step_bytes:
        return function()
    from agentctl.work.run_scope import outside_run

    with outside_run():
        return await asyncio.to_thread(function)


def has_too_many_values(document: bytes) -> bool:
    """Return True if a JSON document has more than `MAXIMUM_VALUES` values, without parsing it.

    Each value takes the parser, the validation and the conversion some microseconds. A document
    that is not JSON is counted in the same way.
    """
    if len(document) <= MAXIMUM_VALUES or _count_values(document) <= MAXIMUM_VALUES:
        return False
    # A string is a value or a name, so half of them are values, or they are escaped quotes.
    if document.count(b'"') - document.count(b'\\"') > 4 * MAXIMUM_VALUES + 4:
        return True
    return _count_values(_STRINGS.sub(b"", document)) > MAXIMUM_VALUES


def _count_values(document: bytes) -> int:
    return sum(map(document.count, (b",", b"[", b"{")))
