"""Connections to the providers of the configured models (docs/models.md).

They belong to one event loop.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from agentctl.config.providers import PROVIDERS, require_extra, requires_key
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.models.attempts import ModelCounters

if TYPE_CHECKING:
    from agentctl.config import settings as config
    from agentctl.runtime.models.calls import ModelConnection

_log = logging.getLogger("agentctl.runtime")


class ModelConnections:
    """The connections to the configured models, opened at first use.

    Args:
        models: the models by id.
        run_bytes: maximum size of a run, and therefore of an answer.

    Attributes:
        counters: counts of further attempts of model calls.
    """

    def __init__(self, models: Mapping[str, config.Model], run_bytes: int) -> None:
        self.counters = ModelCounters(models)
        self._models = models
        self._run_bytes = run_bytes
        self._open: dict[str, ModelConnection] = {}

    def connect(self, model: config.Model) -> list[tuple[config.Model, ModelConnection]]:
        """Return a model and its fallbacks, each once, in the order in which they are called.

        Fallbacks without an API key are left out.

        Raises:
            ExecutionError: the API key of the model is not set.
        """
        return [(model, self._connect(model)), *self._connect_fallbacks(model)]

    def _connect(self, model: config.Model) -> ModelConnection:
        if model.id not in self._open:
            self._open[model.id] = _connect_model(model, self._run_bytes)
        return self._open[model.id]

    def _connect_fallbacks(self, model: config.Model) -> list[tuple[config.Model, ModelConnection]]:
        connected: dict[str, tuple[config.Model, ModelConnection]] = {}
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


def _connect_model(model: config.Model, run_bytes: int) -> ModelConnection:
    """Build the connection of a configured model."""
    if model.provider == "demo":
        from agentctl.runtime.models.demo import DemoConnection

        return DemoConnection(model.model)
    require_extra(model)
    key = os.environ.get(model.api_key_env, "") if model.api_key_env else ""
    if not key and (model.api_key_env or requires_key(model)):
        _log.error(
            "model %s: the environment variable %s is not set",
            model.id,
            model.api_key_env or "that api_key_env should name",
        )
        raise ExecutionError("MODEL_UNAVAILABLE", "The API key of the model is not set")
    if PROVIDERS[model.provider].library:
        from agentctl.runtime.models.library_model import connect_library

        return connect_library(model, key, run_bytes)
    from agentctl.runtime.models.openai_chat import OpenAIConnection

    return OpenAIConnection(model, key, run_bytes)
