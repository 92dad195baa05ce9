"""The starts of runs: the work of a run waits for the starts that began before it.

When very many runs start at once, each caller would otherwise wait for the model calls of the runs
before its own. So the work of a run waits until the starts that began before it are complete: all
callers have their first event, or the row of a run without events, before the first model call. The
row is committed before that, and a cancel ends this wait as it ends work (docs/decisions/0051).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from typing import NamedTuple

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
