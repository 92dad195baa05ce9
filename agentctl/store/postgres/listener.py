"""The listener for changes of a PostgreSQL database by any server.

Triggers send a notification for the changes that a server may wait for (see the migrations). It
names its topic, so that a change wakes only the callers that it concerns. In addition the listener
polls the current snapshot of the database, which moves with every commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from agentctl.config.settings import Database as Entry
from agentctl.records.rate_limited_log import RateLimitedLog
from agentctl.store.postgres.thread import ThreadConnection

POLL_SECONDS = 0.5
"""Seconds between two polls while callers wait for a change, and maximum duration of a poll."""

IDLE_POLL_SECONDS = 2.0
"""Seconds between two polls while no caller waits, except the sweep for dead workers."""

RETRY_SECONDS = 0.5

CLOSE_SECONDS = 1.0

CHANNEL = "agentctl"

_SCHEMA = "SELECT current_schema()"
_SNAPSHOT = "SELECT pg_current_snapshot()::text"

log = logging.getLogger("agentctl.store")
_limited_log = RateLimitedLog(log)


class _Topic:
    """Counts the notifications of a topic. Its method keeps it alive while someone watches."""

    def __init__(self) -> None:
        self.number = 0

    def count(self) -> int:
        return self.number


class Listener:
    """Counts the changes of one database, on the connection of the heartbeat.

    A connection pooler does not pass on notifications: then it only polls.

    Args:
        entry: the configuration of the database.
        connection: the connection, which the heartbeat shares.

    Attributes:
        changes: a number that grows with every detected change.
    """

    def __init__(self, entry: Entry, connection: ThreadConnection) -> None:
        self._entry = entry
        self._connection = connection
        self._warned = False
        self._task: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        self._schema: str | None = None
        self._snapshot: str | None = None
        self._failed = False
        self._asked_at = 0.0
        self._topics: WeakValueDictionary[str, _Topic] = WeakValueDictionary()
        self.changes = 0

    def count_changes(self) -> int:
        """Return `changes`. The first call starts to listen; it needs a running event loop."""
        self._start()
        self._asked_at = asyncio.get_running_loop().time()
        return self.changes

    def watch(self, topic: str) -> Callable[[], int]:
        """Return a function that counts the notifications of a topic; see `count_changes`."""
        self._start()
        watched = self._topics.get(topic)
        if watched is None:
            watched = self._topics[topic] = _Topic()
        return watched.count

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._listen())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _listen(self) -> None:
        while True:
            try:
                await self._listen_once()
            except Exception as error:
                # A single failure may come from a blocked event loop, such as during an import.
                if self._failed:
                    name = type(error).__name__
                    _limited_log.log(
                        "database %s: cannot listen for changes: %s", self._entry.id, name
                    )
                self._failed = True
            await asyncio.sleep(RETRY_SECONDS)

    async def _listen_once(self) -> None:
        connection = await self._connection.share()
        try:
            self._lost.clear()
            await connection.on_loss(lambda _: self._lost.set())
            self._schema = await connection.fetchval(_SCHEMA, timeout=POLL_SECONDS)
            if connection.is_shared:
                self._warn_about_pooler()
            else:
                await connection.listen(CHANNEL, self._on_notification)
            # Notifications may have been lost before.
            self._announce_all()
            while not self._lost.is_set():
                snapshot = await connection.fetchval(_SNAPSHOT, timeout=POLL_SECONDS)
                if snapshot != self._snapshot:
                    self._snapshot = snapshot
                    self.changes += 1
                self._failed = False
                await self._wait_for_next_poll()
        finally:
            connection.terminate()

    def _warn_about_pooler(self) -> None:
        if not self._warned:
            log.warning(
                "database %s: a connection pooler does not pass on notifications; a cancel of a run"
                " of another server waits for the next poll; set listen_url in [[databases]]",
                self._entry.id,
            )
        self._warned = True

    async def _wait_for_next_poll(self) -> None:
        now = asyncio.get_running_loop().time()
        is_awaited = now - self._asked_at <= POLL_SECONDS
        try:
            async with asyncio.timeout(POLL_SECONDS if is_awaited else IDLE_POLL_SECONDS):
                await self._lost.wait()
        except TimeoutError:
            return

    def _on_notification(self, *notification: Any) -> None:
        # The channel is shared by all schemas of the database.
        schema, _, topic = str(notification[-1]).partition(" ")
        if schema != self._schema:
            return
        self.changes += 1
        if not topic:
            self._announce_all()
        elif (watched := self._topics.get(topic)) is not None:
            watched.number += 1

    def _announce_all(self) -> None:
        for watched in list(self._topics.values()):
            watched.number += 1
