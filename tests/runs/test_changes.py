"""Hearing of what another process writes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import pytest

from agentctl import errors
from agentctl.runs import changes as module
from agentctl.runs.changes import DatabaseChanges
from agentctl.store.database import Database
from agentctl.store.repositories import sessions
from tests.loops import wait_until
from tests.runs.rig import Rig
from tests.store.made import a_session


@contextlib.asynccontextmanager
async def two(rig: Rig) -> AsyncIterator[tuple[DatabaseChanges, Database, Database]]:
    """Two processes' view of one file, and what the first one hears."""
    async with rig.open() as ours, rig.open() as theirs:
        yield DatabaseChanges(), ours["main"], theirs["main"]


async def write(database: Database, name: str = "s1") -> None:
    await database.write(sessions.create(a_session(name)))


async def test_a_write_of_another_process_is_heard_at_once(rig: Rig) -> None:
    async with two(rig) as (changes, ours, theirs):
        look = changes.track(ours)
        waiting = asyncio.create_task(look.wait_for_change(10))
        await asyncio.sleep(0.05)
        started = time.monotonic()
        await write(theirs)
        assert await waiting
        assert time.monotonic() - started < 1


async def test_what_was_written_before_the_wait_is_not_missed(rig: Rig) -> None:
    async with two(rig) as (changes, ours, theirs):
        look = changes.track(ours)
        await write(theirs)
        assert await look.wait_for_change(10)
        assert not await look.wait_for_change(0.05)


async def test_everybody_hears_of_every_change_with_one_poller(rig: Rig) -> None:
    async with two(rig) as (changes, ours, theirs):
        looks = [changes.track(ours) for _ in range(50)]
        before = len(asyncio.all_tasks())
        waiting = [asyncio.create_task(look.wait_for_change(10)) for look in looks]
        await asyncio.sleep(0.03)
        assert len(asyncio.all_tasks()) == before + len(waiting) + 1
        await write(theirs)
        assert all(await asyncio.gather(*waiting))
        await wait_until(lambda: len(asyncio.all_tasks()) == before)


async def test_a_wait_that_is_given_up_polls_no_more(rig: Rig) -> None:
    async with two(rig) as (changes, ours, _):
        waiting = asyncio.create_task(changes.track(ours).wait_for_change(10))
        await asyncio.sleep(0.03)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await wait_until(lambda: len(asyncio.all_tasks()) == 1)


async def test_a_database_that_goes_away_is_told_to_who_waits(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "RETRY_SECONDS", 0.01)
    async with two(rig) as (changes, ours, _):
        waiting = asyncio.create_task(changes.track(ours).wait_for_change(10))
        await asyncio.sleep(0.03)
        await ours.close()
        with pytest.raises(errors.Unavailable):
            await waiting
