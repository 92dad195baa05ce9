"""Blocking calls in threads, which a cancel abandons."""

from __future__ import annotations

import asyncio
import threading
import time

from agentctl.store.threads import open_in_thread
from tests.kit.conditions import wait_until


class Opened:
    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


async def test_what_an_abandoned_thread_opens_is_closed() -> None:
    may_open = threading.Event()
    opened = Opened()

    def open_late() -> Opened:
        may_open.wait()
        return opened

    opening = asyncio.create_task(open_in_thread(open_late))
    await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait([opening])
    may_open.set()

    await wait_until(lambda: opened.is_closed)


async def test_what_is_opened_at_the_moment_of_the_cancel_is_closed() -> None:
    opened = Opened()
    has_opened = threading.Event()

    def open_now() -> Opened:
        has_opened.set()
        return opened

    opening = asyncio.create_task(open_in_thread(open_now))
    await asyncio.sleep(0)
    # The result is delivered by the next step of the event loop, which this thread holds up.
    has_opened.wait()
    time.sleep(0.01)
    asyncio.get_running_loop().call_soon(opening.cancel)
    await asyncio.wait([opening])

    assert opened.is_closed


def test_what_a_thread_opens_after_the_end_of_the_event_loop_is_closed() -> None:
    may_open = threading.Event()
    opened = Opened()

    def open_late() -> Opened:
        may_open.wait()
        return opened

    async def abandon() -> None:
        opening = asyncio.create_task(open_in_thread(open_late))
        await asyncio.sleep(0)
        opening.cancel()

    asyncio.run(abandon())
    may_open.set()

    asyncio.run(wait_until(lambda: opened.is_closed))


async def test_what_is_opened_in_time_stays_open() -> None:
    opened = await open_in_thread(Opened)

    assert not opened.is_closed
