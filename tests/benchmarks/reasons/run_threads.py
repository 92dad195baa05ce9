"""The threads of a run next to those of `ThreadPoolExecutor`, and to a thread for each call.

`python -m tests.benchmarks.reasons.run_threads` prints the longest stop of the event loop in
milliseconds while 200 synchronous functions are called at once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from statistics import median
from typing import Any

from agentctl.work.unstopped import RunThreads, UnstoppedWork

ROUNDS = 9
CALLS = 200
FUNCTIONS = {"empty functions": 0, "8 ms of CPU each": 200_000}


class EachThread(Executor):
    """An executor with a new thread for each call."""

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        call: Future[Any] = Future()
        work = partial(function, *args, **kwargs)
        threading.Thread(target=lambda: call.set_result(work()), daemon=True).start()
        return call


class OfRun(Executor):
    """The threads of a run."""

    def __init__(self) -> None:
        self._threads = RunThreads(UnstoppedWork())

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return self._threads.start(partial(function, *args, **kwargs))


def count(numbers: int) -> int:
    """Take CPU time."""
    return sum(range(numbers))


async def measure(build: Callable[[], Executor], numbers: int) -> float:
    """Return the longest stop of the event loop, in milliseconds."""
    loop = asyncio.get_running_loop()
    stops = [0.0]

    async def beat() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.001)
            stops.append(time.monotonic() - before)

    beating = asyncio.create_task(beat())
    await asyncio.sleep(0.02)
    with build() as executor:
        await asyncio.gather(
            *(loop.run_in_executor(executor, count, numbers) for _ in range(CALLS))
        )
    beating.cancel()
    return max(stops) * 1000


def main() -> None:
    """Print a line for each function and executor."""
    executors: dict[str, Callable[[], Executor]] = {
        "own": OfRun,
        "ThreadPoolExecutor of 6": lambda: ThreadPoolExecutor(6),
        "ThreadPoolExecutor of 32": lambda: ThreadPoolExecutor(32),
        "a thread for each call": EachThread,
    }
    for name, numbers in FUNCTIONS.items():
        rounds: dict[str, list[float]] = {each: [] for each in executors}
        for _ in range(ROUNDS):
            for each, build in executors.items():
                rounds[each].append(asyncio.run(measure(build, numbers)))
        for each, values in rounds.items():
            print(f"{name}, {each}: {median(values):.0f} ms")


if __name__ == "__main__":
    main()
