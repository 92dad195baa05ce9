"""The listener of a process: notifications from and to the other servers of a PostgreSQL database.

A notification is a message on one channel: the schema, a kind and names. Triggers and listeners
send them:

    run ID                  the status of a run has changed
    runs ID ...             events of these runs were stored
    worker ID               a cancel of a run of this worker, or a message to it, was stored
    followers OWNER ID ...  this worker shall announce the stored events of these runs
    ping                    nothing

Other topics pass unchanged to their watchers. A message without a topic concerns everyone.

Stored events are announced after their commit, for runs with followers in other processes only, and
at most once per `SEND_SECONDS` for all runs together. The commit of a message waits for the commits
of all other messages in the cluster, so it does not wait for the disk (decision 93).

A message may be lost: a caller must read again after some time. A pooler in transaction mode
loses all of them. So a listener that has received nothing for a while sends a ping, and if that
does not arrive it reports itself as deaf.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from agentctl.config.settings import Database as Entry
from agentctl.records.jitter import jitter
from agentctl.records.logs import RateLimitedLog
from agentctl.store.database import run_topic, worker_topic
from agentctl.store.postgres.connection import PooledConnection
from agentctl.store.postgres.thread import ThreadConnection

SEND_SECONDS = 0.1
"""Mean time between two messages of a process; a few may follow each other at once."""

BURST = 2
"""Number of messages that may follow each other at once."""

INTEREST_SECONDS = 60.0
"""Time for which the stored events of a run are announced after a request."""

PING_SECONDS = 60.0
"""Maximum time without a message until a listener sends a ping.

Half of it is random, so that one ping of any server is enough for all.
"""

PING_WAIT_SECONDS = 5.0
"""Time in which a ping must arrive."""

COMMAND_SECONDS = 5.0
"""Maximum time of a statement of the listener."""

RETRY_SECONDS = 0.5
"""Pause before the listener connects again."""

MAXIMUM_MESSAGE = 7_900
"""Maximum size of a message in bytes: PostgreSQL takes less than 8,000."""

CHANNEL = "agentctl"
"""The channel of all messages. The schemas of a database share it."""

_SCHEMA = "SELECT current_schema()"
_SEND = f"""
SELECT set_config('synchronous_commit', 'off', true), pg_notify('{CHANNEL}', message)
FROM unnest($1::text[]) AS message
"""

_log = logging.getLogger("agentctl.store")
_limited_log = RateLimitedLog(_log)


class _Topic:
    """Counts the messages of a topic. Its method keeps it alive while someone watches."""

    def __init__(self) -> None:
        self.number = 0
        # Called after each message.
        self.callbacks = set[Callable[[], None]]()

    def count(self) -> int:
        return self.number

    def wake(self) -> None:
        self.number += 1
        for notify in self.callbacks:
            notify()


class Listener:
    """Receives and sends the messages of one process, on the connection of the heartbeat.

    It connects when it is first needed, on the running event loop.
    """

    def __init__(self, entry: Entry, connection: ThreadConnection) -> None:
        self._entry = entry
        self._connection = connection

        self._task: asyncio.Task[None] | None = None
        self._is_lost = False
        self._changed = asyncio.Event()
        self._schema: str | None = None
        self._failed = False

        self._topics: WeakValueDictionary[str, _Topic] = WeakValueDictionary()
        # By run: the time until which its events are announced, on the clock of the event loop.
        self._interest: dict[str, float] = {}
        # What is sent with the next messages: the runs with stored events, and the runs whose
        # announcements are requested, by their worker.
        self._stored: set[str] = set()
        self._requested: defaultdict[str, set[str]] = defaultdict(set)

        self._next_send = 0.0
        self._received_at = 0.0
        self._pinged_at: float | None = None
        self._next_ping = 0.0

        self.is_heard: bool | None = None
        """False if the messages of this process do not arrive; None while that is not known."""

    def watch(self, topic: str, notify: Callable[[], None] | None = None) -> Callable[[], int]:
        """Return a function that counts the messages of a topic; call `notify` after each."""
        self._start()
        watched_topic = self._topics.get(topic)
        if watched_topic is None:
            watched_topic = _Topic()
            self._topics[topic] = watched_topic
        if notify is not None:
            watched_topic.callbacks.add(notify)
        return watched_topic.count

    def announce(self, run_id: str) -> None:
        """Announce stored events of a run, if another process has requested that."""
        if run_id in self._interest:
            self._stored.add(run_id)
            self._changed.set()

    def request_announcements(self, owner: str, run_ids: Iterable[str]) -> None:
        """Request the announcements of runs from their worker, for `INTEREST_SECONDS`."""
        self._start()
        self._requested[owner].update(run_ids)
        self._changed.set()

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
                    self.is_heard = False
                self._failed = True
            await asyncio.sleep(RETRY_SECONDS)

    async def _listen_once(self) -> None:
        clock = asyncio.get_running_loop().time
        shared = await self._connection.share()
        on_loss = shared.on_own_loop(self._on_loss)
        on_message = shared.on_own_loop(self._on_message)

        async def listen(connection: PooledConnection) -> bool:
            connection.add_termination_listener(on_loss)
            if connection.is_closed():
                on_loss(connection)

            self._schema = await connection.fetchval(_SCHEMA, timeout=COMMAND_SECONDS)
            if not connection.is_shared:
                await connection.add_listener(CHANNEL, on_message)
            return connection.is_shared

        try:
            self._is_lost = False
            self._pinged_at = None
            self._next_ping = 0.0
            if await shared.use(listen):
                self._report_pooler()

            # Messages may have been lost before.
            self._wake_all()

            while not self._is_lost:
                self._changed.clear()
                self._judge_ping(clock())
                messages = self._take_messages(clock())
                if messages:
                    await shared.use(partial(_send, messages=messages))
                    self._failed = False
                await self._wait_for_change(clock())
        finally:
            if self.is_heard:
                # Nothing is heard before the next connection: cancel requests are read more often.
                self.is_heard = None
            shared.terminate()

    def _report_pooler(self) -> None:
        if self.is_heard is not False:
            _log.warning(
                "database %s: a connection pooler does not pass on notifications; this process"
                " polls instead; set listen_url in [[databases]]",
                self._entry.id,
            )
        # A ping could return, because a pooler may use the same session again.
        self.is_heard = False
        self._next_ping = math.inf

    def _on_loss(self, _: object) -> None:
        self._is_lost = True
        self._changed.set()

    async def _wait_for_change(self, now: float) -> None:
        """Wait for something to send, or until the next ping or its end is due."""
        if self._stored or self._requested:
            await asyncio.sleep(self._next_send - now)
            return

        until = self._next_ping
        if self._pinged_at is not None:
            until = self._pinged_at + PING_WAIT_SECONDS
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(until - now):
                await self._changed.wait()

    def _take_messages(self, now: float) -> list[str]:
        """Return the messages that are due: a ping, and what waits if it may be sent now."""
        messages = []
        if self._next_ping <= now:
            self._pinged_at = now
            self._next_ping = now + PING_SECONDS * jitter(0.5, 1)
            messages.append(f"{self._schema} ping")

        if self._next_send > now or not (self._stored or self._requested):
            return messages

        # An idle listener has saved up `BURST` messages, not more.
        self._next_send = max(self._next_send, now - BURST * SEND_SECONDS) + SEND_SECONDS
        followed_runs = [run_id for run_id in self._stored if self._interest.get(run_id, 0.0) > now]

        for run_id in self._stored.difference(followed_runs):
            self._interest.pop(run_id, None)
        self._stored.clear()

        messages += _pack_names(f"{self._schema} runs", followed_runs)
        for owner, run_ids in self._requested.items():
            messages += _pack_names(f"{self._schema} followers {owner}", run_ids)
        self._requested.clear()
        return messages

    def _judge_ping(self, now: float) -> None:
        """Set `is_heard` if a ping has arrived, or has not arrived in time."""
        if self._pinged_at is None:
            return

        if self._received_at >= self._pinged_at:
            if self.is_heard is False:
                _log.warning("database %s: notifications arrive again", self._entry.id)
            self.is_heard = True
            self._pinged_at = None
        elif now >= self._pinged_at + PING_WAIT_SECONDS:
            if self.is_heard is not False:
                _log.warning(
                    "database %s: notifications do not arrive, as through a connection pooler in"
                    " transaction mode; this process polls instead",
                    self._entry.id,
                )
            self.is_heard = False
            self._pinged_at = None

    def _on_message(self, *notification: Any) -> None:
        now = asyncio.get_running_loop().time()
        # A message of any server shows that this one would be received as well.
        self._received_at = now
        if self._pinged_at is None:
            self._next_ping = now + PING_SECONDS * jitter(0.5, 1)
        else:
            self._changed.set()

        # The channel is shared by all schemas of the database, whose names may have spaces.
        message = str(notification[-1])
        schema = str(self._schema)
        if message != schema and not message.startswith(f"{schema} "):
            return

        topic = message.removeprefix(schema).removeprefix(" ")
        kind, _, names = topic.partition(" ")

        if not topic:
            self._wake_all()
        elif kind == "runs":
            for run_id in names.split():
                self._wake(run_topic(run_id))
        elif kind == "followers":
            owner, *run_ids = names.split()
            # Each worker watches its cancel requests.
            if worker_topic(owner) in self._topics:
                lasting_interest = {
                    run_id: until for run_id, until in self._interest.items() if until > now
                }
                new_interest = dict.fromkeys(run_ids, now + INTEREST_SECONDS)
                self._interest = lasting_interest | new_interest
        else:
            self._wake(topic)

    def _wake(self, topic: str) -> None:
        watched_topic = self._topics.get(topic)
        if watched_topic is not None:
            watched_topic.wake()

    def _wake_all(self) -> None:
        for watched_topic in list(self._topics.values()):
            watched_topic.wake()


async def _send(connection: PooledConnection, messages: list[str]) -> None:
    await connection.execute(_SEND, messages, timeout=COMMAND_SECONDS)


def _pack_names(beginning: str, names: Iterable[str]) -> Iterator[str]:
    """Yield messages with a beginning and all names, none of them longer than the maximum."""
    message = beginning
    for name in names:
        if len(message.encode()) + len(name) >= MAXIMUM_MESSAGE:
            yield message
            message = beginning
        message += f" {name}"
    if message != beginning:
        yield message
