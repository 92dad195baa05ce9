"""Models of providers, built from their configuration.

A client for providers whose connections know nothing of the runs that they were opened for.

A connection outlives the run that opened it, for the next one to use, and its transport keeps the
context of the task that it was made in. The model library notes the run there, and with it all
that was said: a hundred idle connections would keep a hundred runs that have ended.

A bound on what a provider may send without an end, since no layer above has one.

Events of a stream are taken apart as they arrive, and what is in them is counted there; but an
event that never ends, or a refusal without an end, would be gathered in memory for ever.

What a failure of the model library, or of a provider behind it, means for a run.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import Context
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

if TYPE_CHECKING:
    from pydantic_ai.models import Model

    from agentctl.config import settings as config

__all__ = [
    "CONNECT_SECONDS",
    "READ_SECONDS",
    "RETRIES",
    "IsolatedClient",
    "ModelConnection",
    "ResponseTooLarge",
    "build_size_limit_hook",
    "classify_failure",
    "connect_model",
]

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

_PLACEHOLDER_KEY = "not-needed"
"""Stands for the key of an endpoint of one's own that asks for none; the client insists on one."""


class ModelConnection:
    """A model that is ready for use, with the connections that it shares among runs."""

    secret = ""
    """The key that the provider is sent; empty: none."""

    def __init__(self, model: Model) -> None:
        self.model = model

    async def close(self) -> None:
        """Close the connections to the provider."""


def connect_model(model: config.Model, run_bytes: int) -> ModelConnection:
    """Build a model; `run_bytes` is what a run may hold, and so what an answer may.

    Raises:
        RunFailure: MODEL_UNAVAILABLE when the key of the model is not set.
        InvalidConfiguration: there is no such demo model.
    """
    if model.provider == "openai":
        return _OpenAIConnection(model, _read_api_key(model), run_bytes)
    from agentctl.runtime.demo import build_demo_model

    return ModelConnection(build_demo_model(model.model))


class _OpenAIConnection(ModelConnection):
    def __init__(self, model: config.Model, key: str, run_bytes: int) -> None:
        import httpx2
        from openai import AsyncOpenAI
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        timeout = httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
        hook = build_size_limit_hook(2 * run_bytes + _ENVELOPE_BYTES)
        self._client = AsyncOpenAI(
            api_key=key,
            base_url=model.base_url or _OPENAI_URL,
            max_retries=RETRIES,
            timeout=timeout,
            http_client=IsolatedClient(
                timeout=timeout, limits=limits, event_hooks={"response": [hook]}
            ),
        )
        provider = OpenAIProvider(openai_client=self._client)
        super().__init__(OpenAIChatModel(model.model, provider=provider))
        self.secret = "" if key == _PLACEHOLDER_KEY else key

    async def close(self) -> None:
        await self._client.close()


def _read_api_key(model: config.Model) -> str:
    """The API key of a model. Only the name of its variable ever reaches the log."""
    if not model.api_key_env and model.base_url:
        return _PLACEHOLDER_KEY
    key = os.environ.get(model.api_key_env, "") if model.api_key_env else ""
    if not key:
        _log.error(
            "model %s: the environment variable %s is not set",
            model.id,
            model.api_key_env or "that api_key_env should name",
        )
        raise ExecutionError("MODEL_UNAVAILABLE", "The API key of the model is not set")
    return key


class IsolatedClient(httpx2.AsyncClient):
    """A client that sends each request in an empty context.

    Takes what any client takes, but for `verify`: all share the authorities that they trust,
    which are a megabyte and take 20 ms to load.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(verify=_create_ssl_context(), **given)

    async def send(self, request: httpx2.Request, **given: Any) -> httpx2.Response:
        """Like that of any client."""
        sending = asyncio.create_task(super().send(request, **given), context=Context())
        try:
            return await sending
        except asyncio.CancelledError:
            if sending.done() and not sending.cancelled() and sending.exception() is None:
                # It came at the moment of the cancel, and nobody else will close it.
                await sending.result().aclose()
            raise


@cache
def _create_ssl_context() -> ssl.SSLContext:
    return httpx2.create_ssl_context()


_EVENT_SEPARATORS = (b"\n\n", b"\r\n\r\n", b"\r\r")


class ResponseTooLarge(httpx2.RemoteProtocolError):
    """A provider sent more in one piece than a run may hold."""


def build_size_limit_hook(limit: int) -> Callable[[httpx2.Response], Awaitable[None]]:
    """A hook for responses: one event, or a body that is no event stream, has at most `limit`
    bytes; reading more raises AnswerTooLarge.
    """

    async def hook(response: httpx2.Response) -> None:
        streamed = response.headers.get("content-type", "").startswith("text/event-stream")
        stream = cast(httpx2.AsyncByteStream, response.stream)
        response.stream = _LimitedStream(stream, limit, _EVENT_SEPARATORS if streamed else ())

    return hook


class _LimitedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream, limit: int, ends: tuple[bytes, ...]) -> None:
        self._stream = stream
        self._limit = limit
        self._ends = ends

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._stream:
            after = max((chunk.rfind(end) for end in self._ends), default=-1)
            size = len(chunk) - after if after >= 0 else size + len(chunk)
            if size > self._limit:
                raise ResponseTooLarge("more than a run may hold came in one piece")
            yield chunk

    async def aclose(self) -> None:
        await self._stream.aclose()


_GATEWAY_TIMEOUTS = {408, 504}
_LOGGED_CHARACTERS = 2_000
"""Characters of a provider's text that go to the log."""

_MINIMUM_SECRET_LENGTH = 8
"""What is shorter is no key that is kept secret, and may be a part of any word."""


def classify_failure(
    error: AgentRunError | httpx2.HTTPError, run_id: str, secret: str = ""
) -> ExecutionError:
    """The public failure; what the provider said goes to the log.

    Args:
        error: what the model library raised.
        run_id: whose model it was.
        secret: the key that the provider was sent: one that repeats it does not write it there.
    """
    said = " ".join(str(error).split())
    if len(secret) >= _MINIMUM_SECRET_LENGTH:
        said = said.replace(secret, MASK)
    said = said[:_LOGGED_CHARACTERS]
    _log.warning("run %s: the model failed: %s: %s", run_id, type(error).__name__, said)
    return ExecutionError(_failure_code(error))


def _failure_code(error: AgentRunError | httpx2.HTTPError) -> FailureCode:
    """MODEL_REJECTED is for what trying again unchanged will not mend.

    Failures of the connection itself come bare while a refusal is being read.
    """
    if isinstance(error.__cause__, ValueError) or _is_too_large(error):
        # An answer that was received and could not be read, such as half a JSON document.
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


def _is_too_large(error: BaseException | None) -> bool:
    return error is not None and (
        isinstance(error, ResponseTooLarge) or _is_too_large(error.__cause__)
    )
