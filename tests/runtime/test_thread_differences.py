"""The threads of a run and `ThreadPoolExecutor`, with the same random functions."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from random import Random
from typing import Any

import pytest

from agentctl.work.event_loop import abandoned_threads
from agentctl.work.unstopped import MAXIMUM_THREADS, RunThreads, UnstoppedWork
from tests.differential.comparison import LONG
from tests.kit.conditions import PATIENCE, wait_until

ROUNDS = 200 if LONG else 20

ERRORS = (ValueError, KeyError, SystemExit, asyncio.CancelledError, MemoryError)

variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=-1)


def work(kind: int, number: int) -> Any:
    """Return a value, raise an exception, or wait for a moment."""
    seen = variable.get()
    # The change is not seen by the next call of the thread.
    variable.set(-2)
    if kind < len(ERRORS):
        raise ERRORS[kind](number)
    if kind == len(ERRORS):
        threading.Event().wait(0.001)
    return seen, number


async def collect(calls: list[Future[Any]]) -> list[str]:
    """Return the outcomes of calls: results and exceptions."""
    waiting = asyncio.gather(*map(asyncio.wrap_future, calls), return_exceptions=True)
    await asyncio.wait_for(waiting, PATIENCE)
    return [repr(call.exception() or call.result()) for call in calls]


@pytest.mark.parametrize("seed", range(ROUNDS))
async def test_functions_have_the_same_outcomes(seed: int) -> None:
    random = Random(seed)
    unstopped = UnstoppedWork()
    before = abandoned_threads.count
    given = [
        (random.randrange(9), number) for number in range(random.randrange(1, 3 * MAXIMUM_THREADS))
    ]
    threads = RunThreads(unstopped)
    calls: dict[str, list[Future[Any]]] = {"own": [], "library": []}
    with ThreadPoolExecutor(MAXIMUM_THREADS) as pool, threads:
        for kind, number in given:
            variable.set(number)
            function = partial(work, kind, number)
            calls["own"].append(threads.start(function))
            # The executor itself has no contexts, those of the callers of asyncio have.
            calls["library"].append(pool.submit(contextvars.copy_context().run, function))
            if random.random() < 0.1:
                await asyncio.sleep(0)
        outcomes = {name: await collect(each) for name, each in calls.items()}
    assert outcomes["own"] == outcomes["library"]
    await wait_until(lambda: not unstopped.pending and abandoned_threads.count == before)
