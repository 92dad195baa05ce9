"""Connections to the providers whose models come from the model library (docs/models.md).

The library of a provider is imported only if a configured model uses it. The clients get the HTTP
client of `runtime.models.provider`, so that the bounds of an answer are the same, except for
Bedrock: boto3 has its own client.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.models.library_model import LibraryConnection
from agentctl.runtime.models.provider import (
    CONNECT_SECONDS,
    READ_SECONDS,
    IsolatedClient,
    build_http_client,
)

if TYPE_CHECKING:
    from pydantic_ai.models import Model

    from agentctl.config import settings as config

_log = logging.getLogger("agentctl.runtime")

PLACEHOLDER_KEY = "not-needed"
"""Key for private endpoints that need none: the client libraries require a value."""

_BEDROCK_CONNECTIONS = 40
"""Connections that are kept: the library has this number of threads."""


class _HttpConnection(LibraryConnection):
    """A connection whose client uses the HTTP client of this package."""

    def __init__(self, model: Model, http: IsolatedClient, key: str) -> None:
        super().__init__(model)
        self.secret = key
        self._http = http

    async def close(self) -> None:
        await self._http.aclose()


def connect_anthropic(model: config.Model, key: str, run_bytes: int) -> LibraryConnection:
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


def connect_google(model: config.Model, key: str, run_bytes: int) -> LibraryConnection:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    http = build_http_client(run_bytes)
    url = model.base_url or "https://generativelanguage.googleapis.com"
    provider = GoogleProvider(api_key=key or PLACEHOLDER_KEY, base_url=url, http_client=http)
    connection = _HttpConnection(GoogleModel(model.model, provider=provider), http, key)
    connection.native_output = "without_tools"
    return connection


def connect_mistral(model: config.Model, key: str, run_bytes: int) -> LibraryConnection:
    from pydantic_ai.models.mistral import MistralModel
    from pydantic_ai.providers.mistral import MistralProvider

    http = build_http_client(run_bytes)
    url = model.base_url or "https://api.mistral.ai"
    provider = MistralProvider(api_key=key or PLACEHOLDER_KEY, base_url=url, http_client=http)
    connection = _HttpConnection(MistralModel(model.model, provider=provider), http, key)
    connection.native_output = "never"
    return connection


class _BedrockConnection(LibraryConnection):
    """Amazon Bedrock, which boto3 calls in threads. Its timeout is that of the client."""

    ignored_settings = ("timeout_seconds",)

    def __init__(self, model: Model, client: Any, key: str) -> None:
        super().__init__(model)
        self.secret = key
        self._client = client

    async def close(self) -> None:
        await asyncio.to_thread(self._client.close)


def connect_bedrock(model: config.Model, key: str, run_bytes: int) -> LibraryConnection:
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
        return self._token
