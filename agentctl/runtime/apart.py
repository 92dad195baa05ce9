"""A client for providers whose connections know nothing of the runs that they were opened for.

A connection outlives the run that opened it, for the next one to use, and its transport keeps the
context of the task that it was made in. The model library notes the run there, and with it all
that was said: a hundred idle connections would keep a hundred runs that have ended.
"""

from __future__ import annotations

import asyncio
import ssl
from contextvars import Context
from functools import cache
from typing import Any

import httpx2

__all__ = ["Client"]


class Client(httpx2.AsyncClient):
    """A client that sends each request in an empty context.

    Takes what any client takes, but for `verify`: all share the authorities that they trust,
    which are a megabyte and take 20 ms to load.
    """

    def __init__(self, **given: Any) -> None:
        super().__init__(verify=_trusted(), **given)

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
def _trusted() -> ssl.SSLContext:
    return httpx2.create_ssl_context()
