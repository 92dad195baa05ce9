"""Methods of both clients, written once as coroutine functions.

`Method` and `StreamMethod` are descriptors. A method of a `Client` blocks until its result is
there; the same method of an `AsyncClient` returns a coroutine or an asynchronous generator. Type
checkers see the parameters of the function, and the result of the client. `declared` and the
functions after it make methods from the declarations of `interface.operations`, with the parameters
that are declared there.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import os
import threading
import weakref
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator
from operator import attrgetter
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from agentctl.interface.declarations import find_address
from agentctl.interface.requests.lists import read_rows
from agentctl.records.document import Document
from agentctl.remote import RemoteOperations

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F")
Mode = TypeVar("Mode")

_END = object()


class Blocking:
    """The mode of the methods of a `Client`."""


class Awaiting:
    """The mode of the methods of an `AsyncClient`."""


class Resource(Generic[Mode]):
    """The operations on one noun.

    Args:
        loop: executes the methods of a `Client`; None for methods of an `AsyncClient`.
    """

    def __init__(self, operations: RemoteOperations, loop: LoopThread | None) -> None:
        self._operations = operations
        self._loop = loop


class Method(Generic[P, R]):
    """A method that returns one result."""

    def __init__(self, function: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, resource: None, owner: object) -> Method[P, R]: ...
    @overload
    def __get__(self, resource: Resource[Blocking], owner: object) -> Callable[P, R]: ...
    @overload
    def __get__(
        self, resource: Resource[Awaiting], owner: object
    ) -> Callable[P, Coroutine[Any, Any, R]]: ...

    def __get__(self, resource: Any, owner: object) -> Any:
        if resource is None:
            return self
        method: Callable[P, Any] = self._function.__get__(resource)
        loop: LoopThread | None = resource._loop
        if loop is None:
            return method

        @functools.wraps(method, updated=())
        def call(*args: P.args, **options: P.kwargs) -> Any:
            return loop.run(method(*args, **options))

        return call


class StreamMethod(Generic[P, R]):
    """A method that returns one result after the other."""

    def __init__(self, function: Callable[Concatenate[Any, P], AsyncIterator[R]]) -> None:
        self._function = function
        self.__doc__ = function.__doc__

    @overload
    def __get__(self, resource: None, owner: object) -> StreamMethod[P, R]: ...
    @overload
    def __get__(
        self, resource: Resource[Blocking], owner: object
    ) -> Callable[P, Generator[R, None, None]]: ...
    @overload
    def __get__(
        self, resource: Resource[Awaiting], owner: object
    ) -> Callable[P, AsyncGenerator[R, None]]: ...

    def __get__(self, resource: Any, owner: object) -> Any:
        if resource is None:
            return self
        method: Callable[P, Any] = self._function.__get__(resource)
        loop: LoopThread | None = resource._loop
        if loop is None:
            return method

        @functools.wraps(method, updated=())
        def call(*args: P.args, **options: P.kwargs) -> Generator[R, None, None]:
            return loop.iterate(method(*args, **options))

        return call


class LoopThread:
    """An event loop in a thread, which executes the coroutines of blocking calls.

    Any thread may call it. It starts with the first call; a process that was forked afterwards
    starts its own.

    Args:
        start: called in the thread of a caller before each start.
    """

    def __init__(self, start: Callable[[], None]) -> None:
        self._start = start
        self._lock = threading.Lock()
        self._process = 0
        self._is_closed = False
        self._open = set[AsyncGenerator[Any, None]]()

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Execute a coroutine and return its result; an interrupt cancels it."""
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._get_loop())
        except BaseException:
            work.close()
            raise
        try:
            return future.result()
        finally:
            future.cancel()

    def iterate(self, items: AsyncGenerator[R, None]) -> Generator[R, None, None]:
        """Yield the items of an asynchronous generator, and close it at the end."""
        self._open.add(items)
        try:
            while (item := self.run(_take_next(items))) is not _END:
                yield item
        finally:
            self._open.discard(items)
            # The loop may have ended with the client, or with the interpreter.
            if not self._is_closed and self._stop.alive:
                self.run(items.aclose())

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Close open streams, execute a last coroutine and end the thread."""
        if self._is_closed:
            last.close()
            return
        for items in list(self._open):
            with contextlib.suppress(RuntimeError):  # another thread reads it
                self.run(items.aclose())
        self.run(last)
        self._is_closed = True
        self._stop()
        self._thread.join()
        self._loop.close()

    def _get_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._is_closed:
                raise RuntimeError("the client is closed")
            if self._process != os.getpid():
                self._start()
                loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=loop.run_forever, name="agentctl-client", daemon=True
                )
                self._thread.start()
                # A client that is not closed ends its thread with its last reference, or at exit.
                self._stop = weakref.finalize(self, loop.call_soon_threadsafe, loop.stop)
                self._loop = loop
                self._process = os.getpid()
        return self._loop


async def _take_next(items: AsyncGenerator[Any, None]) -> Any:
    return await anext(items, _END)


@overload
def declared(
    operation: Callable[Concatenate[Any, P], Coroutine[Any, Any, Document[R]]],
) -> Method[P, R]: ...
@overload
def declared(
    operation: Callable[Concatenate[Any, P], Coroutine[Any, Any, None]],
) -> Method[P, None]: ...


def declared(operation: Any) -> Any:
    """Return the method of an operation, with its parameters."""

    find_method = attrgetter(find_address(operation))

    async def call(self: Resource[Any], /, *args: Any, **options: Any) -> Any:
        document = await find_method(self._operations)(*args, **options)
        return None if document is None else document.value

    return Method(describe(call, operation))


def declared_stream(
    operation: Callable[Concatenate[Any, P], AsyncIterator[R]],
) -> StreamMethod[P, R]:
    """Return the method of an operation with a stream, with its parameters."""
    find_method = attrgetter(find_address(operation))

    async def call(
        self: Resource[Any], /, *args: P.args, **options: P.kwargs
    ) -> AsyncGenerator[R, None]:
        items: Any = find_method(self._operations)(*args, **options)
        async with contextlib.aclosing(items):
            async for item in items:
                yield item

    return StreamMethod(describe(call, operation))


def declared_fields(
    request: Callable[P, F], operation: Callable[[Any, F], Coroutine[Any, Any, Document[R]]]
) -> Method[P, R]:
    """Return the method of an operation, whose parameters are the fields of its request."""
    find_method = attrgetter(find_address(operation))

    async def call(self: Resource[Any], /, *args: P.args, **options: P.kwargs) -> Any:
        return (await find_method(self._operations)(request(*args, **options))).value

    return Method(describe(call, operation, request))


def declared_rows(
    request: Callable[P, F],
    operation: Callable[[Any, F], Coroutine[Any, Any, Document[Any]]],
    row: type[R],
) -> StreamMethod[P, R]:
    """Return the method that yields the rows of all pages of a list.

    Args:
        request: the filter, whose fields are the parameters.
        row: the type of a row.
    """
    find_method = attrgetter(find_address(operation))

    async def call(
        self: Resource[Any], /, *args: P.args, **options: P.kwargs
    ) -> AsyncGenerator[R, None]:
        rows: Any = read_rows(find_method(self._operations), request(*args, **options))
        async with contextlib.aclosing(rows):
            async for row_record in rows:
                yield row_record

    return StreamMethod(describe(call, operation, request))


def describe(call: Any, operation: Any, request: Any = None, *before: str) -> Any:
    """Give a method the docstring of its operation, and the parameters of its request.

    Args:
        before: the names of parameters before the parameters of the request.
    """
    call.__doc__ = operation.__doc__
    call.__name__ = operation.__name__
    signature = inspect.signature(request or operation)
    if request is not None:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        first = [inspect.Parameter(name, kind) for name in ("self", *before)]
        signature = signature.replace(parameters=[*first, *signature.parameters.values()])
    call.__signature__ = signature
    return call
