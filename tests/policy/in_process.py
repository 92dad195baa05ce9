"""An application in this process, asked without a socket, many requests at once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import httpx2
from anyio.from_thread import BlockingPortal, start_blocking_portal
from fastapi import FastAPI
from starlette.types import ASGIApp

from agentctl.server import running
from agentctl.server.app import create_app
from agentctl.service.service import Service
from tests.deployment import Deployment

__all__ = ["Ask", "Inside", "inside", "told"]

T = TypeVar("T")

AT_ONCE = 64
VARYING = ("date", "x-request-id")


@dataclass(frozen=True)
class Ask:
    """A request. `bearer`: what follows `Bearer `; None: no credential is sent."""

    method: str
    path: str
    bearer: str | None = None
    body: bytes | None = None

    @property
    def headers(self) -> dict[str, str]:
        fields = {} if self.bearer is None else {"Authorization": f"Bearer {self.bearer}"}
        return fields if self.body is None else fields | {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Inside:
    """A running application, seen from a test.

    Attributes:
        world: of whose key its tokens are.
        app: the application.
        service: what it serves.
        client: asks it; lives in the portal's event loop.
        portal: the way into that loop.
    """

    deployment: Deployment
    app: FastAPI
    service: Service
    client: httpx2.AsyncClient
    portal: BlockingPortal

    def answers(
        self, asks: Sequence[Ask], client: httpx2.AsyncClient | None = None
    ) -> list[httpx2.Response]:
        """What is answered, in the order of the requests."""
        return self.portal.call(self._all, asks, client or self.client)

    def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """The result of a coroutine in the application's event loop."""
        return self.portal.call(work)

    async def _all(self, asks: Sequence[Ask], client: httpx2.AsyncClient) -> list[httpx2.Response]:
        room = asyncio.Semaphore(AT_ONCE)

        async def one(ask: Ask) -> httpx2.Response:
            async with room:
                return await client.request(
                    ask.method, ask.path, headers=ask.headers, content=ask.body
                )

        return list(await asyncio.gather(*map(one, asks)))

    @contextlib.contextmanager
    def through(self, app: ASGIApp, base: str) -> Iterator[httpx2.AsyncClient]:
        """A client for another application around this one."""
        with self.portal.wrap_async_context_manager(_client(app, base)) as client:
            yield client


def told(answer: httpx2.Response) -> tuple[int, tuple[tuple[str, str], ...], bytes]:
    """All that an answer says, without what differs between any two."""
    fields = tuple(field for field in answer.headers.multi_items() if field[0] not in VARYING)
    return answer.status_code, fields, answer.content


@contextlib.contextmanager
def inside(deployment: Deployment, app: FastAPI | None = None) -> Iterator[Inside]:
    """Run an application of the world, or this one of it, in a thread's event loop."""
    running_app = create_app(deployment.settings) if app is None else app
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(running(running_app)),
        portal.wrap_async_context_manager(_client(running_app, "http://inside")) as client,
    ):
        yield Inside(deployment, running_app, running_app.state.agentctl.service, client, portal)


@contextlib.asynccontextmanager
async def _client(app: ASGIApp, base: str) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url=base) as client:
        yield client
