"""A database of which one call fails, at each call of a run in turn.

The real driver is SQLite. A call that fails does what PostgreSQL does when its connection is lost:

- `before`: the database has not received the call (`Unavailable`).
- `during`: it has received a write, which it has undone (`OutcomeUnknown`).
- `after`: it has committed the write, and its response was lost (`OutcomeUnknown`).

The driver of PostgreSQL finds the outcome of most lost commits itself. The runs see the others.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

from agentctl import errors
from agentctl.store.database import Database, Sql, Steps, Work, unit

Moment = Literal["before", "during", "after"]

MOMENTS: tuple[Moment, ...] = ("before", "during", "after")


class Call(NamedTuple):
    """One call of a database: a read or a write, and the name of its unit."""

    method: Literal["read", "write"]
    unit: str


class Failure(NamedTuple):
    """The call that fails.

    Attributes:
        number: its number from 0 among the calls since `FailingCalls.begin`.
        lasts: True if all later calls fail, too, until `FailingCalls.repair`.
    """

    number: int
    moment: Moment = "before"
    lasts: bool = False


class _LostConnectionError(Exception):
    """Undoes a unit whose changes are complete."""


class FailingCalls:
    """Counts the calls of some databases, and lets one of them fail.

    Attributes:
        calls: the calls since `begin`, in their order.
        has_failed: True once the call has failed.
    """

    def __init__(self, databases: Iterable[Database]) -> None:
        self.calls: list[Call] = []
        self.has_failed = False
        self._failure: Failure | None = None
        self._is_counting = False
        for database in databases:
            changed: Any = database
            changed.read = self._wrap("read", database.read)
            changed.write = self._wrap("write", database.write)

    def begin(self, failure: Failure | None = None) -> None:
        """Count from 0; the call of `failure` fails, once. None for none."""
        self.calls = []
        self.has_failed = False
        self._failure = failure
        self._is_counting = True

    def repair(self) -> None:
        """Let no further call fail."""
        self._failure = None

    def end(self) -> None:
        """Let no call fail, and count none."""
        self._is_counting = False

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Count no call of the block, which does not fail."""
        before = self._is_counting
        self._is_counting = False
        try:
            yield
        finally:
            self._is_counting = before

    def _wrap(self, method: Literal["read", "write"], call: Callable[..., Any]) -> Any:
        async def run(work: Work[Any], **options: Any) -> Any:
            moment = self._take(method, work)
            if moment is None:
                return await call(work, **options)
            if moment == "before":
                raise errors.Unavailable("The database does not respond")
            if moment == "during":
                with contextlib.suppress(_LostConnectionError):
                    await call(_lose(work), **options)
            else:
                await call(work, **options)
            raise errors.OutcomeUnknown("The connection to the database was lost")

        return run

    def _take(self, method: Literal["read", "write"], work: Work[Any]) -> Moment | None:
        """Count a call; return the moment at which it fails, or None."""
        if not self._is_counting:
            return None
        number = len(self.calls)
        self.calls.append(Call(method, _describe(work)))
        failure = self._failure
        if failure is None or number < failure.number:
            return None
        if number > failure.number:
            return "before" if failure.lasts else None
        self.has_failed = True
        # A read has no outcome that could be unknown.
        return failure.moment if method == "write" else "before"


@unit
def _lose(work: Work[Any]) -> Steps[None]:
    yield from work
    raise _LostConnectionError


def _describe(work: Work[Any]) -> str:
    if work.args and isinstance(work.args[0], Sql):
        return " ".join(work.args[0].split())[:70]
    return str(getattr(work.func, "__qualname__", work.func))
