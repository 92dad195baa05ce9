"""Connections to model providers, by the name of the provider (docs/models.md)."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from agentctl.config.providers import PROVIDERS, require_extra, requires_key
from agentctl.runtime.failures import ExecutionError

if TYPE_CHECKING:
    from agentctl.config import settings as config
    from agentctl.config.settings import Provider
    from agentctl.runtime.models.calls import ModelConnection

_log = logging.getLogger("agentctl.runtime")


def _connect_openai(model: config.Model, key: str, run_bytes: int) -> ModelConnection:
    from agentctl.runtime.models.openai_chat import OpenAIConnection

    return OpenAIConnection(model, key, run_bytes)


def _connect_library(model: config.Model, key: str, run_bytes: int) -> ModelConnection:
    from agentctl.runtime.models import library_providers

    connect = getattr(library_providers, f"connect_{model.provider}")
    connection: ModelConnection = connect(model, key, run_bytes)
    return connection


CONNECTIONS: dict[Provider, Callable[[config.Model, str, int], ModelConnection]] = {
    "openai": _connect_openai,
    "anthropic": _connect_library,
    "google": _connect_library,
    "bedrock": _connect_library,
    "azure": _connect_openai,
    "mistral": _connect_library,
    "groq": _connect_openai,
    "openrouter": _connect_openai,
    "ollama": _connect_openai,
}
"""Functions that connect a model, from its entry, its API key and the maximum size of a run. They
import the libraries of their provider."""


def connect_model(model: config.Model, run_bytes: int) -> ModelConnection:
    """Build the connection of a configured model.

    Args:
        run_bytes: maximum size of a run, and therefore of an answer.

    Raises:
        ExecutionError: MODEL_UNAVAILABLE if the API key of the model is not set.
        InvalidConfiguration: there is no such demo model, or a library is not installed.
    """
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
    connection = CONNECTIONS[model.provider](model, key, run_bytes)
    connection.ignored_settings += PROVIDERS[model.provider].ignored_settings
    return connection
