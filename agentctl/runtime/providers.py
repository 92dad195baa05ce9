"""Connections to model providers, by the name of the provider (docs/models.md).

The library of a provider is imported only if a configured model uses it. The clients get the HTTP
client of `runtime.provider`, so that the bounds of an answer are the same, except for Bedrock:
boto3 has its own client.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from agentctl.config.providers import PROVIDERS, require_extra, requires_key
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.provider import (
    CONNECT_SECONDS,
    OPENAI_PROFILE,
    PLACEHOLDER_KEY,
    READ_SECONDS,
    IsolatedClient,
    ModelConnection,
    OpenAIConnection,
    build_http_client,
)

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from pydantic_ai.models import Model

    from agentctl.config import settings as config
    from agentctl.config.settings import Provider

_log = logging.getLogger("agentctl.runtime")


class _HttpConnection(ModelConnection):
    """A connection whose client uses the HTTP client of this package."""

    def __init__(self, model: Model, http: IsolatedClient, key: str) -> None:
        super().__init__(model)
        self.secret = key
        self._http = http

    async def close(self) -> None:
        await self._http.aclose()


def _connect_anthropic(model: config.Model, key: str, run_bytes: int) -> ModelConnection:
    from anthropic import AsyncAnthropic
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    http = build_http_client(run_bytes)
    client = AsyncAnthropic(
        api_key=key or PLACEHOLDER_KEY,
        base_url=model.base_url or "https://api.anthropic.com",
        max_retries=0,
        timeout=http.timeout,
        http_client=http,
    )
    provider = AnthropicProvider(anthropic_client=client)
    return _HttpConnection(AnthropicModel(model.model, provider=provider), http, key)


def _connect_google(model: config.Model, key: str, run_bytes: int) -> ModelConnection:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    http = build_http_client(run_bytes)
    url = model.base_url or "https://generativelanguage.googleapis.com"
    provider = GoogleProvider(api_key=key or PLACEHOLDER_KEY, base_url=url, http_client=http)
    connection = _HttpConnection(GoogleModel(model.model, provider=provider), http, key)
    connection.native_output = "without_tools"
    return connection


def _connect_mistral(model: config.Model, key: str, run_bytes: int) -> ModelConnection:
    from pydantic_ai.models.mistral import MistralModel
    from pydantic_ai.providers.mistral import MistralProvider

    http = build_http_client(run_bytes)
    url = model.base_url or "https://api.mistral.ai"
    provider = MistralProvider(api_key=key or PLACEHOLDER_KEY, base_url=url, http_client=http)
    connection = _HttpConnection(MistralModel(model.model, provider=provider), http, key)
    connection.native_output = "never"
    return connection


class _BedrockConnection(ModelConnection):
    """Amazon Bedrock, which boto3 calls in threads. Its timeout is that of the client."""

    ignored_settings = ("timeout_seconds",)

    def __init__(self, model: Model, client: Any, key: str) -> None:
        super().__init__(model)
        self.secret = key
        self._client = client

    async def close(self) -> None:
        await asyncio.to_thread(self._client.close)


def _connect_bedrock(model: config.Model, key: str, run_bytes: int) -> ModelConnection:
    """Connect to Bedrock with an API key, or with the credentials that boto3 finds."""
    import boto3
    from botocore.config import Config
    from botocore.session import Session
    from botocore.tokens import FrozenAuthToken
    from pydantic_ai.models.bedrock import BedrockConverseModel
    from pydantic_ai.providers.bedrock import BedrockProvider

    base, options = Session(), dict[str, Any]()
    if not key and base.get_credentials() is None:
        _log.error("model %s: there are no AWS credentials, and api_key_env is not set", model.id)
        raise ExecutionError("MODEL_UNAVAILABLE", "The credentials of the model are not set")
    if key:
        options["signature_version"] = "bearer"
        base.register_component("token_provider", _ApiKeyProvider(FrozenAuthToken(key)))
        # Without any, boto3 would search for credentials, also over the network.
        base.set_credentials(PLACEHOLDER_KEY, PLACEHOLDER_KEY)
    client = boto3.Session(botocore_session=base, region_name=model.region).client(
        "bedrock-runtime",
        endpoint_url=model.base_url or None,
        config=Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=model.settings.timeout_seconds or READ_SECONDS,
            retries={"total_max_attempts": 1},
            max_pool_connections=_BEDROCK_CONNECTIONS,
            ignore_configured_endpoint_urls=True,
            **options,
        ),
    )
    provider = BedrockProvider(bedrock_client=client)
    return _BedrockConnection(BedrockConverseModel(model.model, provider=provider), client, key)


class _ApiKeyProvider:
    """The source of the bearer token of a boto3 session."""

    def __init__(self, token: object) -> None:
        self._token = token

    def load_token(self, **_: Any) -> object:
        """Return the token."""
        return self._token


_BEDROCK_CONNECTIONS = 40
"""Connections that are kept: the library has this number of threads."""


class _AzureConnection(OpenAIConnection):
    """Azure OpenAI: the version-independent interface, or a dated version of a deployment."""

    def create_client(self, model: config.Model, **options: Any) -> AsyncOpenAI:
        if not model.api_version:
            return super().create_client(model, **options)
        from openai import AsyncAzureOpenAI

        return AsyncAzureOpenAI(
            azure_endpoint=model.base_url, api_version=model.api_version, **options
        )


class _GroqConnection(OpenAIConnection):
    default_url = "https://api.groq.com/openai/v1"


class _OpenRouterConnection(OpenAIConnection):
    default_url = "https://openrouter.ai/api/v1"

    def build_model(self, name: str, client: AsyncOpenAI) -> Model:
        from pydantic_ai.models.openrouter import OpenRouterModel
        from pydantic_ai.providers.openrouter import OpenRouterProvider

        provider = OpenRouterProvider(openai_client=client)
        return OpenRouterModel(name, provider=provider, profile=OPENAI_PROFILE)

    def convert_effort(self, effort: str | None) -> dict[str, Any]:
        return ModelConnection.convert_effort(self, effort)


class _OllamaConnection(OpenAIConnection):
    default_url = "http://127.0.0.1:11434/v1"

    def build_model(self, name: str, client: AsyncOpenAI) -> Model:
        from pydantic_ai.models.ollama import OllamaModel
        from pydantic_ai.providers.ollama import OllamaProvider

        provider = OllamaProvider(openai_client=client)
        return OllamaModel(name, provider=provider, profile=OPENAI_PROFILE)


CONNECTIONS: dict[Provider, Callable[[config.Model, str, int], ModelConnection]] = {
    "openai": OpenAIConnection,
    "anthropic": _connect_anthropic,
    "google": _connect_google,
    "bedrock": _connect_bedrock,
    "azure": _AzureConnection,
    "mistral": _connect_mistral,
    "groq": _GroqConnection,
    "openrouter": _OpenRouterConnection,
    "ollama": _OllamaConnection,
}
"""Functions that connect a model, from its entry, its API key and the maximum size of a run."""


def connect_model(model: config.Model, run_bytes: int) -> ModelConnection:
    """Build the connection of a configured model.

    Args:
        run_bytes: maximum size of a run, and therefore of an answer.

    Raises:
        ExecutionError: MODEL_UNAVAILABLE if the API key of the model is not set.
        InvalidConfiguration: there is no such demo model, or a library is not installed.
    """
    if model.provider == "demo":
        from agentctl.runtime.demo import build_demo_model

        return ModelConnection(build_demo_model(model.model))
    require_extra(model)
    key = _read_api_key(model)
    connection = CONNECTIONS[model.provider](model, key, run_bytes)
    connection.ignored_settings += PROVIDERS[model.provider].ignored_settings
    return connection


def _read_api_key(model: config.Model) -> str:
    """Return the API key of a model, `""` for none. The log gets the name of its variable only."""
    if not model.api_key_env and not requires_key(model):
        return ""
    key = os.environ.get(model.api_key_env, "") if model.api_key_env else ""
    if not key:
        _log.error(
            "model %s: the environment variable %s is not set",
            model.id,
            model.api_key_env or "that api_key_env should name",
        )
        raise ExecutionError("MODEL_UNAVAILABLE", "The API key of the model is not set")
    return key
