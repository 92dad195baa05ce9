"""The models of the configuration for the code of agents (docs/models.md "Models in code").

This module imports no client of a provider: most runs of agents in code call no configured model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeVar

from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.models.attempts import Attempts, prepare_models

if TYPE_CHECKING:
    from agentctl.config import settings as config
    from agentctl.runtime.components.connections import ModelConnections

T = TypeVar("T")


class ModelAccess:
    """The models of the configuration for the code of one run. Belongs to one event loop.

    Args:
        models: the models by id.
        run_bytes: maximum size of a run, and therefore of an answer.
    """

    def __init__(
        self,
        models: Mapping[str, config.Model],
        connections: ModelConnections,
        run_id: str,
        run_bytes: int,
    ) -> None:
        self.run_bytes = run_bytes
        self.loop = asyncio.get_running_loop()
        self._models = models
        self._connections = connections
        self._run_id = run_id

    def prepare(self, model_id: str, settings: Mapping[str, Any] | None) -> Attempts:
        """Return the attempts of a call.

        Raises:
            ExecutionError: there is no such model, or its API key is not set.
        """
        model = self._models.get(model_id)
        if model is None:
            raise ExecutionError(
                "AGENT_FAILED", f"The agent calls the model {model_id}, which is not configured"
            )
        chosen = {name: value for name, value in (settings or {}).items() if value is not None}
        prepared = prepare_models(self._connections.connect(model), chosen)
        attempts = Attempts(self._run_id, prepared, self._connections.counters)
        attempts.begin_call()
        return attempts


current_access: ContextVar[ModelAccess | None] = ContextVar("agentctl_models", default=None)
"""The models for the code of the current run; None outside of runs."""


def get_access() -> ModelAccess:
    """Return the models for the current code.

    Raises:
        RuntimeError: the code is not called by a run.
    """
    access = current_access.get()
    if access is None:
        raise RuntimeError(
            "a model of the configuration was called outside of a run: start the agent with"
            " agentctl, for example with `agentctl runs start`"
        )
    return access


def call_from_thread(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Call a model from a thread of a run and wait for the result.

    Raises:
        RuntimeError: the code is not called by a run, or it is called in the event loop, which
            would wait for itself.
    """
    access = get_access()
    try:
        is_loop = asyncio.get_running_loop() is access.loop
    except RuntimeError:
        is_loop = False
    if is_loop:
        raise RuntimeError("call the model with await: this call would block the server")
    return asyncio.run_coroutine_threadsafe(work(), access.loop).result()
