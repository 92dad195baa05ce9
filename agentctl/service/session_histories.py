"""Histories of long sessions, kept in memory, so that a second read needs only their new runs.

The history of a run is stored once, when the run ends, and never changes, and `history_bytes` of a
session counts the bytes of all its histories. So the kept text is that of the first runs of a
session if its bytes and those of the runs after it add up to `history_bytes`, and the session was
not deleted and imported again. Each read asks the database for the session, with the visibility of
the caller, before it asks here (docs/decisions/0029).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from agentctl.records.runs import StoredHistory
from agentctl.records.sessions import SessionRow
from agentctl.runtime.bounds import convert
from agentctl.service.json_texts import check_array
from agentctl.store.database import Database, ReadSize
from agentctl.store.repositories import run_reads, sessions

MAXIMUM_BYTES = 16_777_216
"""Bytes of all kept histories of a process; those that were not read for longest are dropped."""

ENTRY_BYTES = 512
"""Bytes of a kept history without its text."""

KEPT_SECONDS = 60.0
"""Seconds after its last read for which a history is kept at least, and half of the maximum."""

LARGE_BYTES = 262_144
"""Bytes of stored histories that are read in a thread and not on the event loop."""

JOIN_BYTES = 1_048_576
"""Bytes that the event loop joins at once, in less than a millisecond."""


class _Kept(NamedTuple):
    """The history of the first runs of a session.

    Attributes:
        identity: that of the session, which a later one with the same id does not have.
        last_seq: the number of the last run.
        stored_bytes: bytes of the stored histories, with their brackets.
        text: the joined histories, without brackets.
    """

    identity: str | None
    last_seq: int
    stored_bytes: int
    text: bytes


class SessionHistories:
    """The histories of sessions, by database and session id. Use one object on one event loop."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str], _Kept] = OrderedDict()
        self._size = 0
        self._used = set[tuple[str, str]]()
        self._timer: asyncio.TimerHandle | None = None

    async def read(
        self, database: Database, row: SessionRow, identity: str | None = None
    ) -> list[bytes]:
        """Return the history of a session that was just read, in pieces without brackets.

        Args:
            identity: that of the session, if it was read with the row (`get_with_history`).

        Raises the errors of `Database.read`, and Unavailable for a history that is no JSON.
        """
        if identity is None:
            identity = await database.read(sessions.get_identity(row.session_id))
        key = database.id, row.session_id
        kept = self._kept.get(key)
        if kept is not None and kept.identity == identity:
            missing = row.history_bytes - kept.stored_bytes
            if missing == 0:
                return [await self._keep(key, row, (), kept)]
            if missing > 0:
                runs = await _read_runs(database, row, kept.last_seq, missing)
                if _count_bytes(runs) == missing:
                    return [await self._keep(key, row, runs, kept)]
        runs = await _read_runs(database, row, 0, row.history_bytes)
        if _count_bytes(runs) != row.history_bytes or row.history_bytes > MAXIMUM_BYTES:
            # A run has ended since the row was read, or the history is too long.
            return [run.text for run in runs]
        return [await self._keep(key, row, runs, _Kept(identity, 0, 0, b""))]

    async def _keep(
        self, key: tuple[str, str], row: SessionRow, runs: Sequence[StoredHistory], before: _Kept
    ) -> bytes:
        """Keep the history with its new runs, and return it."""
        text = before.text
        if runs:
            pieces = [piece for piece in (text, *(run.text for run in runs)) if piece]
            text = await convert(partial(b",".join, pieces), row.history_bytes, JOIN_BYTES)
        self._drop(key)
        self._kept[key] = _Kept(
            before.identity, runs[-1].seq if runs else before.last_seq, row.history_bytes, text
        )
        self._size += ENTRY_BYTES + len(text)
        self._used.add(key)
        while self._size > MAXIMUM_BYTES:
            self._drop(next(iter(self._kept)))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._drop_unused)
        return text

    def _drop(self, key: tuple[str, str]) -> None:
        kept = self._kept.pop(key, None)
        self._size -= 0 if kept is None else ENTRY_BYTES + len(kept.text)

    def _drop_unused(self) -> None:
        for key in [key for key in self._kept if key not in self._used]:
            self._drop(key)
        self._used.clear()
        self._timer = None
        if self._kept:
            self._timer = asyncio.get_running_loop().call_later(KEPT_SECONDS, self._drop_unused)


async def _read_runs(
    database: Database, row: SessionRow, after_seq: int, size: int
) -> list[StoredHistory]:
    kind: ReadSize = "large" if size > LARGE_BYTES else "small"
    runs = await database.read(run_reads.list_histories(row.session_id, after_seq), size=kind)
    # A kept history is checked once.
    await convert(partial(check_array, [run.text for run in runs]), size, JOIN_BYTES)
    return runs


def _count_bytes(runs: Sequence[StoredHistory]) -> int:
    """Return the bytes of the histories as they are stored, with two brackets each."""
    return sum(len(run.text) + 2 for run in runs)
