"""An application in this process that serves concurrent requests without a socket."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import httpx2
from anyio.from_thread import BlockingPortal, start_blocking_portal
from starlette.types import ASGIApp

from agentctl.server import running
from agentctl.server.app import create_app
from agentctl.service.service import Service
from tests.kit.deployment import Deployment

if TYPE_CHECKING:
    from fastapi import FastAPI

__all__ = ["HttpRequest", "InProcessServer", "comparable", "serve_in_process"]

T = TypeVar("T")

AT_ONCE = 64
VARYING = ("date", "x-request-id")


@dataclass(frozen=True)
class HttpRequest:
    """A request. `bearer` is the token; None sends no credential."""

    method: str
    path: str
    bearer: str | None = None
    body: bytes | None = None

    @property
    def headers(self) -> dict[str, str]:
        fields = {} if self.bearer is None else {"Authorization": f"Bearer {self.bearer}"}
        return fields if self.body is None else fields | {"Content-Type": "application/json"}


@dataclass(frozen=True)
class InProcessServer:
    """A running application.

    Attributes:
        deployment: the deployment whose key signs its tokens.
        app: the application.
        service: the service of the application.
        client: its client, in the event loop of the portal.
        portal: runs coroutines in that event loop.
    """

    deployment: Deployment
    app: FastAPI
    service: Service
    client: httpx2.AsyncClient
    portal: BlockingPortal

    def answers(
        self, requests: Sequence[HttpRequest], client: httpx2.AsyncClient | None = None
    ) -> list[httpx2.Response]:
        """Return the responses, in the order of the requests."""
        return self.portal.call(self._all, requests, client or self.client)

    def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Return the result of a coroutine in the event loop of the application."""
        return self.portal.call(work)

    async def _all(
        self, requests: Sequence[HttpRequest], client: httpx2.AsyncClient
    ) -> list[httpx2.Response]:
        limit = asyncio.Semaphore(AT_ONCE)

        async def send_one(request: HttpRequest) -> httpx2.Response:
            async with limit:
                return await client.request(
                    request.method, request.path, headers=request.headers, content=request.body
                )

        return list(await asyncio.gather(*map(send_one, requests)))

    @contextlib.contextmanager
    def through(self, app: ASGIApp, base: str) -> Iterator[httpx2.AsyncClient]:
        """Yield a client of another application that contains this one."""
        with self.portal.wrap_async_context_manager(_client(app, base)) as client:
            yield client


def comparable(answer: httpx2.Response) -> tuple[int, tuple[tuple[str, str], ...], bytes]:
    """Return status, headers and body without the headers that always differ."""
    fields = tuple(field for field in answer.headers.multi_items() if field[0] not in VARYING)
    return answer.status_code, fields, answer.content


@contextlib.contextmanager
def serve_in_process(
    deployment: Deployment, app: FastAPI | None = None
) -> Iterator[InProcessServer]:
    """Run an application of the world, or this one of it, in a thread's event loop."""
    running_app = create_app(deployment.settings) if app is None else app
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(running(running_app)),
        portal.wrap_async_context_manager(_client(running_app, "http://localhost")) as client,
    ):
        yield InProcessServer(
            deployment, running_app, running_app.state.agentctl.service, client, portal
        )


@contextlib.asynccontextmanager
async def _client(app: ASGIApp, base: str) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url=base) as client:
        yield client
