"""Models of providers, built from their configuration."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from agentctl.runtime.failures import RunFailure

if TYPE_CHECKING:
    from pydantic_ai.models import Model

    from agentctl.config import settings as config

__all__ = ["CONNECT_SECONDS", "READ_SECONDS", "RETRIES", "Connection", "connect"]

_log = logging.getLogger("agentctl.runtime")

CONNECT_SECONDS = 30.0
"""How long a connection to a provider may take: much, for where a thousand runs begin at once the
event loop is slow to see that it is there."""

READ_SECONDS = 300.0
"""How long a provider may be silent, before and in the middle of an answer."""

RETRIES = 1
"""How often a call that failed for the moment is tried again, before the run fails."""

_ENVELOPE_BYTES = 65_536
"""What may stand around the text in a piece of an answer, which is escaped besides."""

_OPENAI_URL = "https://api.openai.com/v1"
"""Named here so that OPENAI_BASE_URL in the environment does not redirect a configured model."""

_NO_KEY = "not-needed"
"""Stands for the key of an endpoint of one's own that asks for none; the client insists on one."""


class Connection:
    """A model that is ready for use, with the connections that it shares among runs."""

    secret = ""
    """The key that the provider is sent; empty: none."""

    def __init__(self, model: Model) -> None:
        self.model = model

    async def close(self) -> None:
        """Close the connections to the provider."""


def connect(model: config.Model, run_bytes: int) -> Connection:
    """Build a model; `run_bytes` is what a run may hold, and so what an answer may.

    Raises:
        RunFailure: MODEL_UNAVAILABLE when the key of the model is not set.
        InvalidConfiguration: there is no such demo model.
    """
    if model.provider == "openai":
        return _OpenAIConnection(model, _key(model), run_bytes)
    from agentctl.runtime.demo import demo_model

    return Connection(demo_model(model.model))


class _OpenAIConnection(Connection):
    def __init__(self, model: config.Model, key: str, run_bytes: int) -> None:
        import httpx2
        from openai import AsyncOpenAI
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        from agentctl.runtime.apart import Client
        from agentctl.runtime.bounded import bounded

        timeout = httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
        hook = bounded(2 * run_bytes + _ENVELOPE_BYTES)
        self._client = AsyncOpenAI(
            api_key=key,
            base_url=model.base_url or _OPENAI_URL,
            max_retries=RETRIES,
            timeout=timeout,
            http_client=Client(timeout=timeout, limits=limits, event_hooks={"response": [hook]}),
        )
        provider = OpenAIProvider(openai_client=self._client)
        super().__init__(OpenAIChatModel(model.model, provider=provider))
        self.secret = "" if key == _NO_KEY else key

    async def close(self) -> None:
        await self._client.close()


def _key(model: config.Model) -> str:
    """The API key of a model. Only the name of its variable ever reaches the log."""
    if not model.api_key_env and model.base_url:
        return _NO_KEY
    key = os.environ.get(model.api_key_env, "") if model.api_key_env else ""
    if not key:
        _log.error(
            "model %s: the environment variable %s is not set",
            model.id,
            model.api_key_env or "that api_key_env should name",
        )
        raise RunFailure("MODEL_UNAVAILABLE", "The API key of the model is not set")
    return key
