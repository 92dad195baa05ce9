"""Open connections of components: to models, and to the objects of agents in code.

They belong to one event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.models.attempts import ModelCounters
from agentctl.work.unstopped import abandon_task

if TYPE_CHECKING:
    from agentctl.config.settings import Model
    from agentctl.runtime.models.calls import ModelConnection
    from agentctl.runtime.runners.runner import Runner

CLOSE_SECONDS = 5.0
"""Maximum time that the end of a process waits for the runner of an agent."""

_log = logging.getLogger("agentctl.runtime")


class ModelConnections:
    """The connections to the configured models, opened at first use.

    Args:
        models: the models by id.
        run_bytes: maximum size of a run, and therefore of an answer.

    Attributes:
        counters: counts of further attempts of model calls.
    """

    def __init__(self, models: Mapping[str, Model], run_bytes: int) -> None:
        self.counters = ModelCounters(models)
        self._models = models
        self._run_bytes = run_bytes
        self._open: dict[str, ModelConnection] = {}

    def connect(self, model: Model) -> list[tuple[Model, ModelConnection]]:
        """Return a model and its fallbacks, each once, in the order in which they are called.

        Fallbacks without an API key are left out.

        Raises:
            ExecutionError: the API key of the model is not set.
        """
        return [(model, self._connect(model)), *self._connect_fallbacks(model)]

    def _connect(self, model: Model) -> ModelConnection:
        if model.id not in self._open:
            from agentctl.runtime.models.providers import connect_model

            self._open[model.id] = connect_model(model, self._run_bytes)
        return self._open[model.id]

    def _connect_fallbacks(self, model: Model) -> list[tuple[Model, ModelConnection]]:
        connected: dict[str, tuple[Model, ModelConnection]] = {}
        for fallback in (self._models[name] for name in model.fallbacks):
            with suppress(ExecutionError):
                connected.setdefault(fallback.id, (fallback, self._connect(fallback)))
            for entry in self._connect_fallbacks(fallback):
                connected.setdefault(entry[0].id, entry)
        return list(connected.values())

    async def close(self) -> None:
        connections, self._open = self._open, {}
        for connection in connections.values():
            await connection.close()


class HostedRunners:
    """The runners of agents in code, by the id of the agent."""

    def __init__(self) -> None:
        self.loaded: dict[str, Runner] = {}
        self._openings: dict[str, asyncio.Task[None]] = {}

    async def open(self, agent_id: str, runner: Runner) -> None:
        """Open a runner once. Runs that arrive meanwhile wait.

        Raises:
            Exception: opening failed; the next call tries again.
        """
        opening = self._openings.get(agent_id)
        if opening is None:
            opening = self._openings[agent_id] = asyncio.create_task(_contain(runner.open()))
        if not opening.done():
            # Shielded: the cancel of one run must not disturb the others.
            await asyncio.wait({opening})
        if opening.cancelled() or opening.exception() is not None:
            if self._openings.get(agent_id) is opening:
                del self._openings[agent_id]
            await opening

    async def close(self) -> None:
        loaded, self.loaded = self.loaded, {}
        for opening in self._openings.values():
            opening.cancel()
        for agent_id, runner in loaded.items():
            await _close_runner(agent_id, runner)


async def _contain(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except (SystemExit, KeyboardInterrupt) as error:
        raise RuntimeError(f"the agent raised {type(error).__name__}") from error


async def _close_runner(agent_id: str, runner: Runner) -> None:
    """Close a runner. The code of users must not keep a process from its end."""
    closing = asyncio.create_task(_contain(runner.close()))
    await asyncio.wait({closing}, timeout=CLOSE_SECONDS)
    if not closing.done():
        _log.warning("agent %s: it could not be closed within %g seconds", agent_id, CLOSE_SECONDS)
        abandon_task(closing)
    elif not closing.cancelled() and closing.exception() is not None:
        _log.warning("agent %s: it could not be closed", agent_id, exc_info=closing.exception())
