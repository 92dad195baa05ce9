"""A client of a server, for Python programs: `Client`, and `AsyncClient` with the same methods.

    from agentctl.client import Client

    with Client("http://127.0.0.1:7777", token=token) as client:
        for event in client.runs.stream(agent="writer", message="Hello"):
            print(event.text, end="")

Errors are those of `agentctl.errors`. docs/client.md has the guarantees; the methods are listed in
docs/reference/client.md. This package imports no module of the server.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, TypeVar

from agentctl.client.calls import Awaiting, Blocking, LoopThread, Mode, Resource
from agentctl.client.resources import (
    ApprovalMethods,
    ComponentMethods,
    FileMethods,
    MemoryMethods,
    RunMethods,
    RunOptions,
    SessionMethods,
    SystemMethods,
)
from agentctl.interface.operations import Operations
from agentctl.interface.requests.approvals import Ruling, build_ruling
from agentctl.records.document import Document
from agentctl.records.events import Event, EventKind
from agentctl.remote import RemoteOperations
from agentctl.remote.address import check_credential, check_transport, parse_address
from agentctl.remote.connection import Timeouts

__all__ = [
    "AsyncClient",
    "Client",
    "Event",
    "EventKind",
    "Ruling",
    "RunOptions",
    "Timeouts",
    "Token",
    "build_ruling",
]

R = TypeVar("R")

Token = str | Callable[[], str | Awaitable[str]]
"""A bearer token; or a function that returns one, called again after the server refuses it."""


class BaseClient(Resource[Mode]):
    """The methods of both clients.

    Args:
        base_url: the URL of the server, with the path under which it is mounted, if any.
        token: sent to this server only; None sends none.
        timeout: seconds to wait for the next bytes of a response, or all times. A run in the
            foreground and a stream that sends comments have no limit.
        retries: the number of times that a failed request is sent again, if that is safe; a stream
            that was interrupted is resumed more often.
        allow_insecure: send the token over plain http to another machine.

    Raises:
        errors.UsageError: the URL is not valid, or the token must not or cannot be sent.
    """

    def __init__(
        self,
        base_url: str,
        token: Token | None = None,
        *,
        timeout: float | Timeouts = 30.0,
        retries: int = 3,
        allow_insecure: bool = False,
    ) -> None:
        source = None
        if token is not None and not isinstance(token, str):
            check_transport(parse_address(base_url), allow_insecure=allow_insecure)
            source = _CallableToken(token, base_url)
            token = None

        operations = RemoteOperations(
            base_url,
            token,
            timeouts=timeout if isinstance(timeout, Timeouts) else Timeouts(read=timeout),
            allow_insecure=allow_insecure,
            source=source,
            retries=retries,
        )

        loop = self._create_loop(operations)
        super().__init__(operations, loop)

        self.runs: RunMethods[Mode] = RunMethods(operations, loop)
        self.approvals: ApprovalMethods[Mode] = ApprovalMethods(operations, loop)
        self.sessions: SessionMethods[Mode] = SessionMethods(operations, loop)
        self.files: FileMethods[Mode] = FileMethods(operations, loop)
        self.memories: MemoryMethods[Mode] = MemoryMethods(operations, loop)
        self.components: ComponentMethods[Mode] = ComponentMethods(operations, loop)
        self.system: SystemMethods[Mode] = SystemMethods(operations, loop)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._operations.connection.address.base!r})"

    def _create_loop(self, operations: RemoteOperations) -> LoopThread | None:
        raise NotImplementedError


class Client(BaseClient[Blocking]):
    """A client whose methods block. Several threads can use it; see `BaseClient`."""

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections and end the thread of the client."""
        if self._loop is not None:
            self._loop.close(self._operations.connection.close())

    def call(self, operation: Callable[[Operations], Awaitable[Document[R]]]) -> R:
        """Return the record of any operation.

        For example `client.call(lambda server: server.system.get_config())`.
        """

        async def execute() -> R:
            return (await operation(self._operations)).value

        assert self._loop is not None
        return self._loop.run(execute())

    def _create_loop(self, operations: RemoteOperations) -> LoopThread:
        return LoopThread(operations.connection.open)


class AsyncClient(BaseClient[Awaiting]):
    """A client whose methods are coroutines and asynchronous generators; see `BaseClient`.

    It belongs to the event loop in which its first request is sent.
    """

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._operations.connection.close()

    async def call(self, operation: Callable[[Operations], Awaitable[Document[R]]]) -> R:
        """Return the record of any operation.

        For example `await client.call(lambda server: server.system.get_config())`.
        """
        return (await operation(self._operations)).value

    def _create_loop(self, operations: RemoteOperations) -> None:
        operations.connection.open()


class _CallableToken:
    """The token of a function of the caller, kept until the server refuses it."""

    def __init__(self, get: Callable[[], str | Awaitable[str]], base_url: str) -> None:
        self._get = get
        self._address = parse_address(base_url)
        self._token: str | None = None

    async def read(self) -> str:
        return self._token or await self.renew("")

    async def renew(self, refused: str) -> str:
        token: Any = self._get()
        self._token = str(await token if inspect.isawaitable(token) else token)
        check_credential(self._address, self._token, allow_insecure=True)
        return self._token
