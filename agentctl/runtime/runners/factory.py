"""Functions without parameters that make the object of an agent."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from agentctl.runtime.imports import UnusableObject
from agentctl.runtime.input_schema import InputSchema
from agentctl.runtime.runners.hosted_run import HostedRun
from agentctl.runtime.runners.owner import OwnerTask
from agentctl.runtime.runners.runner import Runner

BuildRunner = Callable[[Any], Runner]
"""Builds the runner of an object; raises UnusableObject, and NoAgentKind if it has no kind."""


class NoAgentKind(UnusableObject):
    """An object of no known kind. It may still be a context manager of an agent."""


def is_factory(target: object) -> bool:
    """Return True for a function without parameters."""
    if not inspect.isroutine(target):
        return False
    try:
        return not inspect.signature(target).parameters
    except (TypeError, ValueError):
        return False


def build_factory_runner(factory: Callable[[], Any], build: BuildRunner) -> Runner:
    """Call a factory and build the runner of its result.

    A factory that returns an awaitable or an async context manager is called when the server opens
    the agent, because that needs the event loop.

    Raises:
        UnusableObject: the factory failed, or its result is no agent.
    """
    if inspect.iscoroutinefunction(factory):
        return FactoryRunner(factory, build)
    try:
        target = factory()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise UnusableObject(f"the function failed ({reason})") from error
    if inspect.isawaitable(target) or hasattr(target, "__aenter__"):
        try:
            return build(target)
        except NoAgentKind:
            if inspect.iscoroutine(target):
                target.close()
            return FactoryRunner(factory, build)
    return build(target)


class FactoryRunner:
    """The runner of an object that an asynchronous factory makes, once in a process."""

    kind = "factory"

    def __init__(self, factory: Callable[[], Any], build: BuildRunner) -> None:
        self._factory = factory
        self._build = build
        self._runner: Runner | None = None
        self._owner = OwnerTask(self._enter)

    @property
    def input_schema(self) -> InputSchema | None:
        """The one of the object; None until it exists."""
        return None if self._runner is None else self._runner.input_schema

    async def open(self) -> None:
        await self._owner.open()

    async def close(self) -> None:
        await self._owner.close()

    async def run(self, message: str, run: HostedRun) -> None:
        assert self._runner is not None
        await self._runner.run(message, run)

    @asynccontextmanager
    async def _enter(self) -> AsyncIterator[None]:
        target = self._factory()
        if inspect.isawaitable(target):
            target = await target
        try:
            runner = self._build(target)
        except NoAgentKind:
            if not hasattr(target, "__aenter__"):
                raise
            async with target as entered, self._open(self._build(entered)):
                yield
            return
        async with self._open(runner):
            yield

    @asynccontextmanager
    async def _open(self, runner: Runner) -> AsyncIterator[None]:
        await runner.open()
        self._runner = runner
        try:
            yield
        finally:
            await runner.close()
