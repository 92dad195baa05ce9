"""Tokens of agents of pydantic-ai that a tool of a run calls.

A tool may hand the usage of its run on (`usage=ctx.usage`): then the library adds the tokens of the
nested agent to it. Otherwise only the nested agent knows its tokens. The library has no hook for
the runs of all agents, so `Agent.iter`, through which each of them goes, is replaced.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from copy import copy
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.usage import RunUsage

from agentctl.runtime.models.conversion import extract_usage

_current: ContextVar[NestedUsage | None] = ContextVar("agentctl_nested_usage", default=None)


class NestedUsage:
    """The tokens of a run with those of its nested agents, each counted once.

    Args:
        usage: the usage of the run, to which the library adds.
    """

    def __init__(self, usage: RunUsage) -> None:
        self._usage = usage
        self._nested: list[tuple[RunUsage, dict[str, int]]] = []

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count the agents that are called in the block, and in its tasks and threads."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    def add(self, usage: RunUsage) -> None:
        """Count the usage of a nested run that begins, unless it is counted already."""
        known = [self._usage, *(nested for nested, _ in self._nested)]
        if not any(usage is other for other in known):
            self._nested.append((usage, extract_usage(copy(usage))))

    def sum_counters(self, usage: RunUsage) -> dict[str, int]:
        """Return the sums of the token counters.

        Args:
            usage: the usage of the run so far, without the nested ones that have their own.
        """
        sums = extract_usage(usage)
        for nested, before in tuple(self._nested):
            for name, count in extract_usage(nested).items():
                sums[name] += count - before[name]
        return sums


def _count_runs() -> None:
    original: Any = Agent.iter
    if getattr(original, "counts_runs", False):
        return

    @functools.wraps(original)
    @asynccontextmanager
    async def iterate(self: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        async with original(self, *args, **options) as steps:
            if (nested := _current.get()) is not None:
                nested.add(steps.usage)
            yield steps

    iterate.counts_runs = True  # type: ignore[attr-defined]
    setattr(Agent, "iter", iterate)  # noqa: B010


_count_runs()
