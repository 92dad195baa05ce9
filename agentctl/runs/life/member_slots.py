"""Slots of members: bounds of the members that execute at the same time.

A leader may call 128 members at once, and each of them may be a team that does the same. Without a
bound one root run would become thousands of live runs. So a member waits for a slot before its row
is written: of its root (`limits.members_per_run`) and of the process
(`limits.concurrent_members`).

Members that wait for their own members keep their slots. So that this is never a deadlock, each run
can always execute one child without a slot: the child takes the place of its parent, which waits
for it (docs/decisions/0039).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator
from typing import NamedTuple

from agentctl.config.settings import Limits
from agentctl.runs.life.live import LiveRun


class _Slot(NamedTuple):
    """A slot of a member's run.

    Attributes:
        root: the root run, if the slot counts for the limits; None for the place of the parent.
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
