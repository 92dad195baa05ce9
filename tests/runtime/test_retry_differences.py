"""Retries of model calls compared with tenacity: the same failures, waits, ends and cancels.

The clock is that of the test. tenacity gets the rules of a wait, and decides itself whether there
is another attempt. Fallbacks are not compared: it has none.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import tenacity

from agentctl.config.settings import Model
from agentctl.runtime.models import attempts as own_part
from agentctl.runtime.models.attempts import Attempts, ModelCounters
from agentctl.runtime.models.calls import ModelFailure, PreparedModel
from tests.differential.comparison import Comparison, Outcome

Failures = Sequence[ModelFailure | None]
Pause = Callable[[float], Awaitable[None]]
Uniform = Callable[[float, float], float]
TEMPORARY = ("MODEL_UNAVAILABLE", "MODEL_TIMEOUT")


def build_attempts(retries: int) -> Attempts:
    """Return the attempts of a run with one model."""
    nothing: Any = None
    source = Model("m", "demo", "echo", retries=retries)
    model = PreparedModel("m", nothing, nothing, source)
    return Attempts("run", [model], ModelCounters(["m"]))


async def call(attempts: Attempts, failures: Failures, work: Pause) -> int | None:
    """Return the number of the attempt that succeeded; None if the call failed."""
    attempts.begin_call()
    for number, failure in enumerate(failures, 1):
        await work(number)
        if failure is None:
            return number
        if not await attempts.wait_after(failure):
            return None
    raise AssertionError("the last attempt succeeds")


async def call_with_tenacity(
    retries: int, seconds: float, failures: Failures, pause: Pause, uniform: Uniform
) -> int | None:
    """Return the same by tenacity; `pause` is also its work."""
    backoff = tenacity.wait_exponential(multiplier=0.5, max=8.0)

    def wait(state: tenacity.RetryCallState) -> float:
        assert state.outcome is not None
        failure: Any = state.outcome.exception()
        if failure.retry_after is None:
            return backoff(state) * uniform(0.5, 1.0)
        return float(failure.retry_after) + uniform(0.0, 0.5)

    def is_temporary(error: BaseException) -> bool:
        return isinstance(error, ModelFailure) and error.code in TEMPORARY and error.is_repeatable

    retrying = tenacity.AsyncRetrying(
        sleep=pause,
        wait=wait,
        stop=tenacity.stop_after_attempt(retries + 1) | tenacity.stop_before_delay(seconds),
        retry=tenacity.retry_if_exception(is_temporary),
        reraise=True,
    )
    number = 0
    try:
        async for attempt in retrying:
            with attempt:
                number += 1
                failure = failures[number - 1]
                if failure is not None:
                    raise failure
    except ModelFailure:
        return None
    return number


class Simulation:
    """The clock, the waits and the random numbers of both sides."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.waits = list[float]()
        self.fraction = 0.0
        """The random number of each jitter, between 0 and 1."""
        self.cancelled_wait = 0
        """The number of the wait that is cancelled; 0 for none."""

        clock = SimpleNamespace(monotonic=lambda: self.now)
        monkeypatch.setattr(own_part, "time", clock)
        monkeypatch.setattr(own_part, "asyncio", SimpleNamespace(sleep=self.pause))
        monkeypatch.setattr(own_part, "jitter", self.uniform)
        monkeypatch.setattr(tenacity, "time", clock)

    async def pause(self, seconds: float) -> None:
        self.waits.append(seconds)
        if len(self.waits) == self.cancelled_wait:
            raise asyncio.CancelledError
        self.now += seconds

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self.fraction

    async def observe(self, calling: Awaitable[int | None]) -> Outcome:
        """Return the result of a call, and its waits."""
        self.now = 0.0
        self.waits.clear()
        result: int | str | None
        try:
            result = await calling
        except asyncio.CancelledError:
            result = "cancelled"
        return Outcome((result, [round(wait, 9) for wait in self.waits]))


def build_failures(chance: Random) -> Failures:
    """Return the failures of a call, the last of whose attempts succeeds."""
    failures: list[ModelFailure | None] = [
        ModelFailure(
            chance.choice((*TEMPORARY, *TEMPORARY, "MODEL_REJECTED")),
            "no",
            retry_after=chance.choice((None, None, 0.0, 0.3, 1.7, 30.0)),
            is_repeatable=chance.random() < 0.95,
        )
        for _ in range(chance.randrange(9))
    ]
    return [*failures, None]


async def do_nothing(_: float) -> None:
    """Take the place of the work of an attempt."""


async def test_attempts_are_those_of_tenacity(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = Simulation(monkeypatch)
    seen = set[object]()
    with Comparison("retries of model calls") as comparison:
        chance = comparison.chance
        for _ in comparison.rounds(300):
            retries = chance.randrange(7)
            seconds = chance.choice((3.0, 20.0, 90.0))
            monkeypatch.setattr(own_part, "RETRY_SECONDS", seconds)
            attempts = build_attempts(retries)
            # The same object for several calls: nothing of a cancelled one is left for the next.
            for _ in range(3):
                failures = build_failures(chance)
                simulation.fraction = chance.random()
                simulation.cancelled_wait = chance.choice((0, 0, 1, 2, 3))

                ours = await simulation.observe(call(attempts, failures, do_nothing))
                theirs = await simulation.observe(
                    call_with_tenacity(
                        retries, seconds, failures, simulation.pause, simulation.uniform
                    )
                )
                seen.add(ours.value[0])
                comparison.compare((retries, seconds, failures), ours, theirs)
    assert {None, "cancelled", 1, 2, 3} <= seen
