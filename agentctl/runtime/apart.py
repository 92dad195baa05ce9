"""A client for providers whose connections know nothing of the runs that they were opened for.

A connection outlives the run that opened it, for the next one to use, and its transport keeps the
context of the task that it was made in. The model library notes the run there, and with it all
that was said: a hundred idle connections would keep a hundred runs that have ended.
"""

from __future__ import annotations

import asyncio
from contextvars import Context
from typing import Any

import httpx2

__all__ = ["Client"]


class Client(httpx2.AsyncClient):
    """A client that sends each request in an empty context."""

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
