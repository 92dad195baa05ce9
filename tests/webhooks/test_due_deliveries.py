"""The next deliveries of a process: in turns between databases, and after a clock was set."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from agentctl.config.settings import Database, Settings
from agentctl.records.times import now
from agentctl.store.databases import Databases
from agentctl.store.repositories import webhooks
from agentctl.store.repositories.webhooks import NewDelivery
from agentctl.webhooks.attempts import Outcome
from agentctl.webhooks.deliveries import IN_FLIGHT, Deliveries
from tests.kit.conditions import wait_until

HOUR = 3_600_000_000

BACKLOG = 40


class SlowReceiver:
    """The endpoint `ops`, which answers one attempt when a test lets it.

    Attributes:
        waiting: the ids of the events that were sent and not answered, in their order.
    """

    webhook = SimpleNamespace(id="ops")

    def __init__(self) -> None:
        self.waiting: dict[str, asyncio.Future[Outcome]] = {}

    async def send(self, event_id: str, body: bytes) -> Outcome:
        self.waiting[event_id] = asyncio.get_running_loop().create_future()
        return await self.waiting[event_id]

    def answer(self, event_id: str) -> None:
        self.waiting.pop(event_id).set_result(Outcome(204, None))

    async def close(self) -> None:
        """Close nothing."""


@asynccontextmanager
async def open_deliveries(
    folder: Path, names: tuple[str, ...]
) -> AsyncIterator[tuple[Deliveries, Databases, SlowReceiver]]:
    """Open the deliveries of a process with some databases and one endpoint."""
    entries = tuple(Database(name, f"sqlite:///{folder / name}.db") for name in names)
    databases = Databases(Settings(databases=entries), create=True)
    await databases.open_all()
    deliveries = Deliveries(databases)
    receiver = SlowReceiver()
    receivers: Any = {"ops": receiver}
    deliveries._receivers = receivers
    try:
        yield deliveries, databases, receiver
    finally:
        await deliveries.close()
        await databases.close()


def build_delivery(name: str, created_at: int) -> NewDelivery:
    return NewDelivery(name, name, "ops", "run.failed", "r", "{}", created_at)


async def test_a_backlog_of_one_database_does_not_delay_the_events_of_another(
    tmp_path: Path,
) -> None:
    async with open_deliveries(tmp_path, ("busy", "other")) as (deliveries, databases, receiver):
        for number in range(BACKLOG):
            delivery = build_delivery(f"busy-{number}", now() - HOUR)
            await databases["busy"].write(webhooks.create(delivery))
        await databases["other"].write(webhooks.create(build_delivery("other-0", now())))

        await deliveries.start_due()
        await wait_until(lambda: len(receiver.waiting) == IN_FLIGHT)
        assert "other-0" in receiver.waiting

        # Also if its event comes when the backlog has all slots: the next free one is for it.
        receiver.answer("other-0")
        await wait_until(lambda: deliveries._in_flight["ops"] == IN_FLIGHT - 1)
        await deliveries.start_due()
        await databases["other"].write(webhooks.create(build_delivery("other-1", now())))
        receiver.answer(next(iter(receiver.waiting)))
        await wait_until(lambda: deliveries._in_flight["ops"] == IN_FLIGHT - 1)
        await deliveries.start_due()
        await wait_until(lambda: len(receiver.waiting) == IN_FLIGHT)
        assert "other-1" in receiver.waiting


async def test_one_database_has_all_slots_while_nothing_else_is_due(tmp_path: Path) -> None:
    async with open_deliveries(tmp_path, ("busy", "other")) as (deliveries, databases, receiver):
        for number in range(BACKLOG):
            delivery = build_delivery(f"busy-{number}", now() - HOUR)
            await databases["busy"].write(webhooks.create(delivery))
        await deliveries.start_due()
        await wait_until(lambda: len(receiver.waiting) == IN_FLIGHT)


async def test_deliveries_continue_when_the_clock_is_set_back(tmp_path: Path) -> None:
    """The time of an event was written by a clock that was three hours ahead."""
    async with open_deliveries(tmp_path, ("main",)) as (deliveries, databases, receiver):
        ahead = build_delivery("ahead", now() + 3 * HOUR)
        await databases["main"].write(webhooks.create(ahead))
        await deliveries.start_due()
        await wait_until(lambda: "ahead" in receiver.waiting)
