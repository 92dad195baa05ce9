"""Turns: bounds of what begins at the same time, the work of root runs and the runs of members.

When very many runs start at once, each caller would otherwise wait for the model calls of the runs
before its own. So the work of a run waits until the starts that began before it are complete: all
callers have their first event, or the row of a run without events, before the first model call. The
row is committed before that, and a cancel ends this wait as it ends work (docs/decisions/0067).

A leader may call 128 members at once, and each of them may be a team that does the same. Without a
bound one root run would become thousands of live runs. So a member waits for a slot before its row
is written: of its root (`limits.members_per_run`) and of the process
(`limits.concurrent_members`).

Members that wait for their own members keep their slots. So that this is never a deadlock, each run
can always execute one child without a slot: the child uses the turn of its parent, which waits for
it (docs/decisions/0039).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, OrderedDict, deque
from collections.abc import AsyncIterator
from typing import NamedTuple

from agentctl.config.settings import Limits
from agentctl.runs.live import LiveRun

CROWD = 32
"""Number of incomplete starts up to which work begins at once: they delay each other little."""

LIMIT_SECONDS = 5.0
"""Maximum wait of work, and the time after which an incomplete start no longer counts."""


class _Start(NamedTuple):
    number: int
    began: float


class Starts:
    """The incomplete starts of a process, by the ids of their runs, in order."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, _Start] = OrderedDict()
        self._number = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    def begin(self, run_id: str) -> None:
        self._number += 1
        self._open[run_id] = _Start(self._number, asyncio.get_running_loop().time())

    def end(self, run_id: str) -> None:
        """Complete a start. Work that waits for no other start continues."""
        if self._open.pop(run_id, None) is None:
            return
        oldest = next(iter(self._open.values())).number if self._open else self._number + 1
        while self._waiting and self._waiting[0][0] < oldest:
            _, turn = self._waiting.popleft()
            turn.set_result(None)

    async def wait_for_earlier(self) -> None:
        """Wait until the starts that are incomplete now are complete, if they are many."""
        latest = asyncio.get_running_loop().time() - LIMIT_SECONDS
        while self._open and next(iter(self._open.values())).began < latest:
            self._open.popitem(last=False)
        if len(self._open) <= CROWD:
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((self._number, turn))
        await asyncio.wait({turn}, timeout=LIMIT_SECONDS)


class _Slot(NamedTuple):
    """A slot of a member's run.

    Attributes:
        root: the root run, if the slot counts for the limits; None for the turn of the parent.
    """

    parent: LiveRun
    root: LiveRun | None


class MemberSlots:
    """The slots of the members' runs of a process."""

    def __init__(self, limits: Limits) -> None:
        self._per_run = limits.members_per_run
        self._free = limits.concurrent_members
        self._used: Counter[LiveRun] = Counter()
        self._lending: set[LiveRun] = set()
        # By parent, in the order in which the parents get their turns.
        self._queues: dict[LiveRun, deque[asyncio.Future[_Slot]]] = {}

    @property
    def waiting(self) -> int:
        return sum(map(len, self._queues.values()))

    @contextlib.asynccontextmanager
    async def hold(self, parent: LiveRun) -> AsyncIterator[None]:
        """Wait for a slot for a child of `parent`, and hold it while the block lasts.

        The wait can be cancelled at any time.
        """
        slot = self._try_take(parent) or await self._wait(parent)
        try:
            yield
        finally:
            self._release(slot)

    def _try_take(self, parent: LiveRun) -> _Slot | None:
        root = parent.root
        if parent not in self._lending:
            self._lending.add(parent)
            return _Slot(parent, None)
        if self._free > 0 and self._used[root] < self._per_run:
            self._free -= 1
            self._used[root] += 1
            return _Slot(parent, root)
        return None

    async def _wait(self, parent: LiveRun) -> _Slot:
        granted: asyncio.Future[_Slot] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(parent, deque()).append(granted)
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                self._forget(parent, granted)
            else:
                # Granted and cancelled in one step of the event loop.
                self._release(granted.result())
            raise

    def _forget(self, parent: LiveRun, waiting: asyncio.Future[_Slot]) -> None:
        queue = self._queues[parent]
        queue.remove(waiting)
        if not queue:
            del self._queues[parent]

    def _release(self, slot: _Slot) -> None:
        if slot.root is None:
            self._lending.discard(slot.parent)
            self._grant(slot.parent)
            return
        self._free += 1
        self._used[slot.root] -= 1
        if not self._used[slot.root]:
            del self._used[slot.root]
        for parent in list(self._queues):
            if self._grant(parent):
                return

    def _grant(self, parent: LiveRun) -> bool:
        queue = self._queues.get(parent, ())
        waiting = next((future for future in queue if not future.done()), None)
        slot = self._try_take(parent) if waiting is not None else None
        if waiting is None or slot is None:
            return False
        self._forget(parent, waiting)
        if parent in self._queues:
            # The next free slot is for a child of another parent.
            self._queues[parent] = self._queues.pop(parent)
        waiting.set_result(slot)
        return True
