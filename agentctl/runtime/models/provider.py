"""Models of providers: connections, limits of their responses, and classes of their failures."""

from __future__ import annotations

import asyncio
import logging
import ssl
from contextvars import Context
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies

import httpx2

from agentctl.records.text import mask_secrets
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.models.response_limits import build_limit_hook
from agentctl.runtime.models.stream_transport import StreamTransport
from agentctl.runtime.tracing import HEADER, Propagation, find_traceparent

if TYPE_CHECKING:
    from agentctl.runtime.models.calls import ModelFailure

_log = logging.getLogger("agentctl.runtime")

CONNECT_SECONDS = 30.0
"""Connect timeout. It is long because a loop that starts a thousand runs at once is slow to see
that a connection is established."""

RUN_BYTES = 16_777_216
"""Size of an answer for a client without a configuration: the default of `limits.run_bytes`."""

READ_SECONDS = 300.0
"""Maximum time without data from a provider, before and during an answer."""

_LOGGED_CHARACTERS = 2_000
"""Maximum number of characters of a provider's text in the log."""


def build_http_client(run_bytes: int) -> IsolatedClient:
    """Build the client of a provider, with the bounds of an answer; it follows no redirect."""
    return IsolatedClient(
        run_bytes,
        timeout=httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=100),
    )


def build_stream_client(run_bytes: int) -> IsolatedClient:
    """Build the client of a provider for streams, with the transport that costs less for each read.

    If the environment names a proxy, the client has the transport of httpx2, which knows proxies.
    """
    if getproxies().keys() & {"http", "https", "all"}:
        return build_http_client(run_bytes)
    return IsolatedClient(
        run_bytes,
        timeout=httpx2.Timeout(READ_SECONDS, connect=CONNECT_SECONDS),
        transport=StreamTransport(_create_ssl_context()),
    )


def http_client() -> httpx2.AsyncClient:
    """Build an HTTP client for the model client of a library, such as `ChatOpenAI`.

    It costs less for each token than the client that the library builds, and an idle connection
    keeps nothing of a run alive. An answer has at most 16 MiB of text.
    """
    return build_stream_client(RUN_BYTES)


class IsolatedClient(httpx2.AsyncClient):
    """An HTTP client that sends each request in an empty context and limits the responses.

    A connection outlives the run that opened it, and its transport keeps the context of the task
    that created it. The model library stores the run in that context, with all of its messages: a
    hundred idle connections would keep a hundred finished runs in memory.

    All clients share one set of trusted certificate authorities, which takes a megabyte and 20 ms
    to load. So `verify` is not an argument.

    Args:
        run_bytes: maximum size of a run, and therefore of an answer (`models.response_limits`).
        options: other arguments of `httpx2.AsyncClient`.

    Attributes:
        propagation: the kind of system, for the `traceparent` of its requests.
    """

    propagation: Propagation = "models"

    def __init__(self, run_bytes: int, **options: Any) -> None:
        hooks = {"response": [build_limit_hook(run_bytes)]}
        super().__init__(verify=_create_ssl_context(), event_hooks=hooks, **options)
        self.headers["Accept-Encoding"] = "identity"

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        if (traceparent := find_traceparent(self.propagation)) is not None:
            request.headers[HEADER] = traceparent
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


def classify_failure(error: ModelFailure, run_id: str, secret: str = "") -> ExecutionError:
    """Return the public failure of a run; the text of the provider goes to the log.

    Args:
        run_id: run that called the model.
        secret: the API key of the provider, which is masked in the log.
    """
    text = mask_secrets(" ".join(str(error).split()), [secret])
    _log.warning("run %s: the model failed: %s", run_id, text[:_LOGGED_CHARACTERS])
    return ExecutionError(error.code)
