"""Actors: tasks that stop at a chosen point, so that another actor can run in between.

A point is the begin of a task, the return from an await (the task is suspended until then), the
time before a read or a write, and, on SQLite, the time before each statement of a write. On
PostgreSQL each statement is an await.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from agentctl.store.database import Steps, Work
from agentctl.store.postgres.database import PostgresDatabase
from agentctl.store.sqlite.database import SqliteDatabase, Writer
from tests.kit.conditions import PATIENCE

__all__ = ["Actor", "Killed", "create_task", "current_server", "install"]

PACKAGE = f"{Path(__file__).parents[2] / 'agentctl'}/"

LASTING = {"OwnerTask._own"}
"""Tasks that the first run of a library starts and that last as long as the server."""

current_server: ContextVar[Any] = ContextVar("current_server", default=None)
"""The server whose task this is; it adopts the tasks that its tasks create."""

_actor: ContextVar[Actor | None] = ContextVar("_actor", default=None)


class Killed(Exception):
    """Undoes the transaction of a server that is killed in the middle of it."""


_pending = set[asyncio.Task[Any]]()
"""The tasks that have not ended.

The garbage collection would close a task of a killed server to which nothing refers, inside a task
of another server, and break its cancel scopes.
"""


class Actor:
    """The tasks of one operation.

    Args:
        name: the operation.
        stop_at: number of the point at which it stops, from 1; None for none.
        stop_before: name of a unit of work; it stops before its write.
        stop_after: the same, after its commit.

    Attributes:
        points: number of the points that were passed or reached.
        place: description of the point at which it stopped.
        server: the server in whose tasks it was started.
    """

    def __init__(
        self,
        name: str,
        *,
        stop_at: int | None = None,
        stop_before: str | None = None,
        stop_after: str | None = None,
        occurrence: int = 1,
    ) -> None:
        self.name = name
        self.points = 0
        self.place: str | None = None
        self.is_killed = False
        self.server: Any = None
        self.reached = asyncio.Event()
        self.tasks = set[asyncio.Task[Any]]()
        self._stop_at = stop_at
        self._labels = {f"before {stop_before}", f"after {stop_after}"}
        self._occurrence = occurrence
        self._open = asyncio.Event()
        self._thread_open = threading.Event()
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()

    def start(self, work: Coroutine[Any, Any, Any], server: Any = None) -> asyncio.Task[Any]:
        """Start the operation in tasks of a server."""
        self.server = server
        tokens = _actor.set(self), current_server.set(server)
        try:
            return asyncio.get_running_loop().create_task(work)
        finally:
            _actor.reset(tokens[0])
            current_server.reset(tokens[1])

    def open(self, *, killed: bool = False) -> None:
        """Let it go on; a killed one undoes the transaction in which it stopped."""
        self.is_killed = killed
        self._stop_at = None
        self._labels = set()
        self._open.set()
        self._thread_open.set()

    @property
    def is_held(self) -> bool:
        return self.reached.is_set() and not self._open.is_set()

    @property
    def has_ended(self) -> bool:
        return all(task.done() for task in self.tasks)

    def arrive(self, label: str | None = None) -> bool:
        """Count a point; return True if the actor stops there."""
        with self._lock:
            self.points += 1
            if self._open.is_set() or self.place is not None:
                return False
            if label in self._labels:
                self._occurrence -= 1
                return self._occurrence == 0
            return self.points == self._stop_at

    async def hold(self, place: str) -> None:
        self.place = place
        self.reached.set()
        await self._open.wait()

    def hold_thread(self, place: str) -> None:
        self.place = place
        self._loop.call_soon_threadsafe(self.reached.set)
        self._thread_open.wait(PATIENCE)
        if self.is_killed:
            raise Killed


class _Stepped:
    """Awaits a coroutine step by step, with a point before each."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], actor: Actor) -> None:
        self._coroutine = coroutine
        self._actor = actor

    def __await__(self) -> Generator[Any, Any, Any]:
        coroutine = self._coroutine
        actor = self._actor
        name = getattr(coroutine, "__qualname__", "?")
        error: BaseException | None = None
        place: str | None = f"begin of {name}"
        while True:
            if actor.arrive():
                try:
                    yield from actor.hold(place or _describe(coroutine)).__await__()
                except GeneratorExit:
                    coroutine.close()
                    raise
                except BaseException as thrown:
                    # A cancel of a task that was about to go on.
                    error = thrown
            place = None
            try:
                future = coroutine.send(None) if error is None else coroutine.throw(error)
            except StopIteration as end:
                return end.value
            error = None
            try:
                yield future
            except GeneratorExit:
                coroutine.close()
                raise
            except BaseException as thrown:
                error = thrown


def _describe(coroutine: Any) -> str:
    """Return the innermost place in the package at which a coroutine is suspended."""
    found = "?"
    inner = coroutine
    while inner is not None:
        frame = next(
            (
                value
                for name in ("cr_frame", "gi_frame", "ag_frame")
                if (value := getattr(inner, name, None)) is not None
            ),
            None,
        )
        if frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
            path = frame.f_code.co_filename.removeprefix(PACKAGE)
            found = f"{path}:{frame.f_lineno} {frame.f_code.co_name}"
        inner = next(
            (
                value
                for name in ("cr_await", "gi_yieldfrom", "ag_await")
                if (value := getattr(inner, name, None)) is not None
            ),
            None,
        )
    return found


def create_task(
    loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, Any], **more: Any
) -> asyncio.Task[Any]:
    """Create a task of the current actor and server (`loop.set_task_factory`)."""
    context = more.get("context")
    actor = _actor.get() if context is None else context.get(_actor)
    server = current_server.get() if context is None else context.get(current_server)
    work = coroutine
    if actor is not None and asyncio.iscoroutine(coroutine):

        async def step() -> Any:
            return await _Stepped(coroutine, actor)

        step.__qualname__ = getattr(coroutine, "__qualname__", "step")
        work = step()
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **more)
    _pending.add(task)
    task.add_done_callback(_pending.discard)
    if actor is not None and work.__qualname__ not in LASTING:
        actor.tasks.add(task)
    if work is not coroutine:
        # A task that is cancelled before its first step never awaits it.
        task.add_done_callback(lambda _: coroutine.close())
    if server is not None:
        server.adopt(task)
    return task


def install(patch: Callable[[object, str, Any], None]) -> None:
    """Add the points of the databases.

    Args:
        patch: replaces an attribute of a class, such as `MonkeyPatch.setattr`.
    """
    for database in (SqliteDatabase, PostgresDatabase):
        patch(database, "write", _stop_around(database.write))
        patch(database, "read", _stop_around(database.read))
    patch(Writer, "submit", _stop_at_statements(Writer.submit))


def _name_unit(work: Work[Any]) -> str:
    return str(getattr(work.func, "__name__", "?"))


def _stop_around(run: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    async def stopping(database: Any, work: Work[Any], **more: Any) -> Any:
        actor = _actor.get()
        name = _name_unit(work)
        if actor is not None and actor.arrive(f"before {name}"):
            await actor.hold(f"before {name}")
        result = await run(database, work, **more)
        if actor is not None and actor.arrive(f"after {name}"):
            await actor.hold(f"after {name}")
        return result

    return stopping


def _stop_at_statements(submit: Callable[..., Any]) -> Callable[..., Any]:
    def submit_stopping(writer: Writer, work: Work[Any], future: Any) -> Any:
        actor = _actor.get()
        if actor is None:
            return submit(writer, work, future)
        name = _name_unit(work)

        def begin() -> Steps[Any]:
            steps = iter(work)
            rows: Any = None
            number = 0
            try:
                while True:
                    statement = steps.send(rows)
                    number += 1
                    if number > 1 and actor.arrive():
                        actor.hold_thread(f"statement {number} of {name}")
                    rows = yield statement
            except StopIteration as end:
                return end.value
            finally:
                steps.close()

        return submit(writer, type(work)(begin), future)

    return submit_stopping
