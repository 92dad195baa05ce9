"""The order of starts and of work when very many runs start at once."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from agentctl.interface.requests import RunRequest
from agentctl.runs.life import supervision
from agentctl.runs.life.supervision import CROWD, Starts
from tests.kit.deployment import Deployment
from tests.kit.service import open_service, user

CROWDED = range(CROWD + 1)


def begin_crowd() -> Starts:
    found = Starts()
    for number in CROWDED:
        found.begin(f"run-{number}")
    return found


async def test_work_waits_for_earlier_starts_only() -> None:
    crowd = begin_crowd()
    work = asyncio.create_task(crowd.wait_for_earlier())
    await asyncio.sleep(0)
    crowd.begin("later")
    for number in reversed(CROWDED):
        await asyncio.sleep(0)
        assert not work.done()
        crowd.end(f"run-{number}")
    await work


async def test_work_of_few_runs_begins_at_once() -> None:
    crowd = begin_crowd()
    crowd.end("run-0")
    crowd.end("unknown")
    with pytest.raises(StopIteration):
        crowd.wait_for_earlier().send(None)


async def test_cancelled_work_does_not_stop_the_others() -> None:
    crowd = begin_crowd()
    cancelled, other = (asyncio.create_task(crowd.wait_for_earlier()) for _ in range(2))
    await asyncio.sleep(0)
    cancelled.cancel()
    for number in CROWDED:
        crowd.end(f"run-{number}")
    await other
    assert cancelled.cancelled() or cancelled.cancelling()


async def test_callers_that_take_no_event_do_not_delay_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crowd = begin_crowd()
    monkeypatch.setattr(supervision, "START_LIMIT_SECONDS", -1.0)
    with pytest.raises(StopIteration):
        crowd.wait_for_earlier().send(None)


async def test_every_stream_has_its_first_event_before_work_begins(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "CROWD", 1)
    monkeypatch.setattr(supervision, "START_LIMIT_SECONDS", 60.0)
    async with open_service(deployment) as service:
        request = RunRequest("hello")
        first = user(service).runs.stream_portions("agent", "echo", request)
        second = user(service).runs.stream("agent", "echo", request)
        async with aclosing(first), aclosing(second):
            started = await anext(first)
            assert [event.name for event in started] == ["RunStarted"]
            assert (await anext(second)).name == "RunStarted"
            rest = asyncio.create_task(anext(second))
            await asyncio.wait({rest}, timeout=0.1)
            assert not rest.done()
            assert [event async for portion in first for event in portion][-1].name == (
                "RunCompleted"
            )
            assert (await rest).name == "RunContent"
