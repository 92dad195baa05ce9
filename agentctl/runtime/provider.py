"""Models of providers: connections, limits of their responses, and classes of their failures."""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextvars import Context
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import httpx2
from pydantic_ai.exceptions import (
    AgentRunError,
    ModelAPIError,
    ModelHTTPError,
    ModelRequestRejectedError,
    ModelRequestTimeout,
    ModelTimeoutError,
    UnexpectedModelBehavior,
)

from agentctl.config.transfer import MASK
from agentctl.runtime.failures import ExecutionError, FailureCode
from agentctl.runtime.response_limits import UnusableResponse, build_limit_hook

if TYPE_CHECKING:
    from openai import AsyncOpenAI
    from pydantic_ai.models import Model
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.settings import ModelSettings

    from agentctl.config import settings as config
    from agentctl.runtime.attempts import NativeOutput

_log = logging.getLogger("agentctl.runtime")

CONNECT_SECONDS = 30.0
"""Connect timeout. It is long because a loop that starts a thousand runs at once is slow to see
that a connection is established."""

READ_SECONDS = 300.0
"""Maximum time without data from a provider, before and during an answer."""

OPENAI_PROFILE: OpenAIModelProfile = {"openai_chat_streaming_requires_finish_reason": True}
"""Without it the library reports a stream that was cut off as complete."""

PLACEHOLDER_KEY = "not-needed"
"""Key for private endpoints that need none: the client library requires a value."""


class ModelConnection:
    """A model that is ready for use, with connections that all runs share."""

    secret = ""
    """The API key that the provider receives; empty for none."""

    ignored_settings: tuple[str, ...] = ()
    """Settings that the provider does not have. An agent may set them for another model."""

    native_output: NativeOutput = "always"
    """See `attempts.PreparedModel`. Models that do not take a schema get it as instructions."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def convert_settings(self, settings: config.ModelSettings) -> ModelSettings | None:
        """Convert the settings of model calls to those of the library; None for none."""
        unset: dict[str, Any] = dict.fromkeys(self.ignored_settings)
        settings = replace(settings, **unset)
        converted: dict[str, Any] = {
            "temperature": settings.temperature,
            "max_tokens": settings.max_tokens,
            "top_p": settings.top_p,
            "stop_sequences": list(settings.stop) or None,
            "seed": settings.seed,
            "timeout": settings.timeout_seconds,
            "extra_body": settings.extra_body,
            **self.convert_effort(settings.reasoning_effort),
        }
        given = {name: value for name, value in converted.items() if value is not None}
        return cast("ModelSettings", given) if given else None

    def convert_effort(self, effort: str | None) -> dict[str, Any]:
        """Return the setting of the library for `reasoning_effort`."""
        return {"thinking": False if effort == "none" else effort}

    async def close(self) -> None:
        """Close the connections to the provider."""


class OpenAIConnection(ModelConnection):
    """An endpoint with the interface of OpenAI. Subclasses adapt it to other providers.

    Args:
        key: the API key; `""` for none.

    Attributes:
        default_url: URL of the provider.
    """

    default_url = "https://api.openai.com/v1"
    """Set explicitly, so that the variable OPENAI_BASE_URL does not redirect a configured model."""

    def __init__(self, model: config.Model, key: str, run_bytes: int) -> None:
        http = build_http_client(run_bytes)
        self._client = self.create_client(
            model,
            api_key=key or PLACEHOLDER_KEY,
            max_retries=0,
            timeout=http.timeout,
            http_client=http,
        )
        super().__init__(self.build_model(model.model, self._client))
        self.secret = key

    def create_client(self, model: config.Model, **options: Any) -> AsyncOpenAI:
        """Create the client of the endpoint."""
        from openai import AsyncOpenAI

        return AsyncOpenAI(base_url=model.base_url or self.default_url, **options)

    def build_model(self, name: str, client: AsyncOpenAI) -> Model:
        """Build the model of the library."""
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        provider = OpenAIProvider(openai_client=client)
        return OpenAIChatModel(name, provider=provider, profile=OPENAI_PROFILE)

    def convert_effort(self, effort: str | None) -> dict[str, Any]:
        """Return the parameter of the interface: the library knows the models of OpenAI only."""
        return {"openai_reasoning_effort": effort}

    async def close(self) -> None:
        await self._client.close()


def build_http_client(run_bytes: int) -> IsolatedClient:
    """Build the client of a provider, with the bounds of an answer; it follows no redirect."""
    return IsolatedClient(
        run_bytes,
        timeout=httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100),
    )


class IsolatedClient(httpx2.AsyncClient):
    """An HTTP client that sends each request in an empty context and limits the responses.

    A connection outlives the run that opened it, and its transport keeps the context of the task
    that created it. The model library stores the run in that context, with all of its messages: a
    hundred idle connections would keep a hundred finished runs in memory.

    All clients share one set of trusted certificate authorities, which takes a megabyte and 20 ms
    to load. So `verify` is not an argument.

    Args:
        run_bytes: maximum size of a run, and therefore of an answer (`runtime.response_limits`).
        options: other arguments of `httpx2.AsyncClient`.
    """

    def __init__(self, run_bytes: int, **options: Any) -> None:
        hooks = {"response": [build_limit_hook(run_bytes)]}
        super().__init__(verify=_create_ssl_context(), event_hooks=hooks, **options)
        self.headers["Accept-Encoding"] = "identity"

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request; see `httpx2.AsyncClient.send`."""
        sending = asyncio.create_task(super().send(request, **options), context=Context())
        try:
            return await sending
        except asyncio.CancelledError:
            if sending.done() and not sending.cancelled() and sending.exception() is None:
                # The response arrived together with the cancel: only this code can close it.
                await sending.result().aclose()
            raise


@cache
def _create_ssl_context() -> ssl.SSLContext:
    return httpx2.create_ssl_context()


_GATEWAY_TIMEOUTS = {408, 504}
_LOGGED_CHARACTERS = 2_000
"""Maximum number of characters of a provider's text in the log."""

_MINIMUM_SECRET_LENGTH = 8
"""Shorter keys are not secrets, and could be a part of any word."""


def classify_failure(
    error: AgentRunError | httpx2.HTTPError, run_id: str, secret: str = ""
) -> ExecutionError:
    """Return the public failure of a run; the text of the provider goes to the log.

    Args:
        error: exception of the model library.
        run_id: run that called the model.
        secret: the API key of the provider, which is masked in the log.
    """
    unusable = _find_unusable_response(error)
    text = " ".join(f"{error} ({unusable})".split() if unusable else str(error).split())
    if len(secret) >= _MINIMUM_SECRET_LENGTH:
        text = text.replace(secret, MASK)
    text = text[:_LOGGED_CHARACTERS]
    _log.warning("run %s: the model failed: %s: %s", run_id, type(error).__name__, text)
    return ExecutionError(_failure_code(error))


def _failure_code(error: AgentRunError | httpx2.HTTPError) -> FailureCode:
    """Return the error code; MODEL_REJECTED if a retry of the same request cannot succeed.

    While an error body is read, the model library does not wrap failures of the connection.
    """
    if isinstance(error.__cause__, ValueError) or _find_unusable_response(error):
        # The answer arrived and is not readable, such as half a JSON document.
        return "MODEL_REJECTED"
    if isinstance(error, httpx2.TimeoutException):
        return "MODEL_TIMEOUT"
    if isinstance(error, ModelTimeoutError | ModelRequestTimeout):
        return "MODEL_TIMEOUT"
    if isinstance(error, ModelHTTPError) and error.status_code in _GATEWAY_TIMEOUTS:
        return "MODEL_TIMEOUT"
    if isinstance(error, ModelRequestRejectedError | UnexpectedModelBehavior):
        return "MODEL_REJECTED"
    if isinstance(error, ModelAPIError | httpx2.HTTPError):
        return "MODEL_UNAVAILABLE"
    return "INTERNAL"


def _find_unusable_response(error: BaseException | None) -> UnusableResponse | None:
    """Return the reason for which a response was not read, if the error has one."""
    while error is not None and not isinstance(error, UnusableResponse):
        error = error.__cause__
    return error
