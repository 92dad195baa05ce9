"""The listener of a process compared with `add_listener` of asyncpg, on one server.

The same random notifications are sent to both: in transactions that are rolled back, several times
in one transaction, with Unicode, of the maximum size, and between cuts of the connection of the
listener. Each topic must count the payloads that asyncpg receives for it. After a cut the listener
counts once more for every topic, because messages may have been lost.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from agentctl.store.postgres.listener import CHANNEL, Listener
from agentctl.store.postgres.thread import ThreadConnection
from agentctl.store.threads import call_in_thread
from tests.differential.comparison import Comparison, Outcome
from tests.kit.conditions import PATIENCE
from tests.kit.postgres import ConnectedTo, postgres_database

MAXIMUM_BYTES = 7_999
"""PostgreSQL takes payloads below 8,000 bytes."""
END = "end"
TOPICS = (
    "run a", "run b", "worker w", "plans", "\u00e4\U0001f600 x", "a  b", "run run", "'", "$1",
    "x" * 7_900,
)  # fmt: skip


def pick_payloads(chance: Random, schema: str) -> list[str]:
    """Return the payloads of one transaction."""
    payloads = [f"{schema} {chance.choice(TOPICS)}" for _ in range(chance.randrange(1, 5))]
    strange = (
        "",
        schema,
        f"{schema} ping",
        f"{schema}x run a",
        "run a",
        f"{schema} runs a b",
        f"{schema} runs b",
        f"other {schema} run a",
        f"{schema} " + "y" * (MAXIMUM_BYTES - 50),
    )
    return [*payloads, *chance.choices(strange, k=chance.randrange(3))]


def count_topics(payloads: list[str], schema: str) -> Counter[str]:
    """Return how often each topic must be counted for payloads that asyncpg has received."""
    counts = Counter[str]()
    for payload in payloads:
        if payload == schema:
            counts.update((*TOPICS, END))
        elif payload.startswith(f"{schema} runs "):
            counts.update(f"run {name}" for name in payload.split(" ")[2:])
        elif payload.startswith(f"{schema} "):
            counts[payload[len(schema) + 1 :]] += 1
    return counts


class Sides:
    """A listener, and a connection of asyncpg that receives the same notifications."""

    def __init__(self, under_test: Any, sender: Any, receiver: Any) -> None:
        self.schema: str = under_test.entry.search_path
        self.sender = sender
        self.receiver = receiver
        self.thread = ThreadConnection(under_test.entry)
        self.listener = Listener(under_test.entry, self.thread)
        self.changed = asyncio.Event()
        self.counts: dict[str, Callable[[], int]] = {}
        self.payloads: list[str] = []

    def watch(self) -> None:
        for topic in (*TOPICS, END):
            self.counts[topic] = self.listener.watch(topic, self.changed.set)

    def receive(self, *notification: Any) -> None:
        self.payloads.append(str(notification[-1]))
        self.changed.set()

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                self.changed.clear()
                await self.changed.wait()

    def read(self) -> Counter[str]:
        return Counter({topic: count() for topic, count in self.counts.items()})

    async def send(self, chance: Random) -> tuple[Counter[str], Counter[str]]:
        """Send random transactions, and return what each side has counted of them."""
        before = self.read()
        first = len(self.payloads)
        for _ in range(chance.randrange(1, 5)):
            transaction = self.sender.transaction()
            await transaction.start()
            for payload in pick_payloads(chance, self.schema):
                await self.sender.execute("SELECT pg_notify($1, $2)", CHANNEL, payload)
            await (transaction.rollback() if chance.random() < 0.3 else transaction.commit())
        end = f"{self.schema} {END}"
        await self.sender.execute("SELECT pg_notify($1, $2)", CHANNEL, end)
        await self.wait_until(lambda: end in self.payloads[first:])
        counted = count_topics(self.payloads[first:], self.schema)
        # Its last message is the last one of all.
        await self.wait_until(lambda: self.counts[END]() - before[END] >= counted[END])
        watched = Counter({topic: counted[topic] for topic in self.counts})
        return self.read() - before, +watched

    async def cut(self) -> Counter[str]:
        """Cut the connection of the listener; return the counts after it listens again."""
        before = self.read()
        await self.sender.execute("SELECT pg_terminate_backend($1)", self.find_session())
        await self.wait_until(lambda: self.read() != before)
        return self.read() - before

    def find_session(self) -> int:
        connection = self.thread._connection
        assert connection is not None
        return connection.get_server_pid()

    async def check_state(self) -> None:
        """Check that the session of the listener only listens, once."""
        shared = await self.thread.share()
        listening = "SELECT array_agg(c) FROM pg_listening_channels() AS c"
        state = await shared.use(lambda own: own.fetchval(listening, timeout=PATIENCE))
        assert state == [CHANNEL]
        # Its setting of `synchronous_commit` ends with each transaction.
        changed = "SELECT count(*) FROM pg_settings WHERE source = 'session'"
        assert await shared.use(lambda own: own.fetchval(changed, timeout=PATIENCE)) == 0


async def compare(sides: Sides, comparison: Comparison) -> None:
    await sides.receiver.add_listener(CHANNEL, sides.receive)
    sides.watch()
    await sides.wait_until(lambda: sides.counts[END]() > 0)
    for number in comparison.rounds(60):
        watched, received = await sides.send(comparison.chance)
        comparison.compare(
            number, Outcome(sorted(watched.items())), Outcome(sorted(received.items()))
        )
        if number % 30 == 0:
            session = sides.find_session()
            assert await sides.cut() == Counter(dict.fromkeys(sides.counts, 1))
            assert sides.find_session() != session
    await sides.check_state()


def test_topics_count_the_payloads_of_asyncpg(postgres_url: str) -> None:

    async def run(under_test: Any, comparison: Comparison) -> None:
        async with (
            ConnectedTo(under_test.entry) as sender,
            ConnectedTo(under_test.entry) as receiver,
        ):
            sides = Sides(under_test, sender, receiver)
            try:
                await compare(sides, comparison)
            finally:
                await sides.listener.close()
                await call_in_thread(sides.thread.close)
            sides.counts.clear()
            gc.collect()
            assert not sides.listener._topics

    with (
        postgres_database(postgres_url) as under_test,
        Comparison("PostgreSQL listener") as comparison,
    ):
        under_test.runner.run(run(under_test, comparison))
