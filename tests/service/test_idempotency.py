"""The same request made again: one run, whoever asks how often, wherever and whenever."""

from __future__ import annotations

import asyncio

import pytest

from agentctl import errors
from agentctl.operations import CancelRequest, RunFilter, RunRequest
from agentctl.records.times import now
from agentctl.service.service import Service
from agentctl.store.repositories import sessions
from tests.deployment import Deployment
from tests.service.doors import boss, collect, data, hosted, running, user


def keyed(message: str = "hello", key: str = "k", **more: object) -> RunRequest:
    return RunRequest(message, "s1", idempotency_key=key, **more)  # type: ignore[arg-type]


async def runs_of(service: Service) -> list[str]:
    page = (await boss(service).get_runs(RunFilter())).value
    return [run["run_id"] for run in page["data"]]


async def test_the_same_request_is_answered_with_the_same_run(deployment: Deployment) -> None:
    async with hosted(deployment) as service, hosted(deployment) as other:
        first = await user(service).create_run("agent", "echo", keyed())
        for again in (service, other):
            assert (await user(again).create_run("agent", "echo", keyed())).raw == first.raw
        assert await runs_of(service) == [first.value["run_id"]]
    async with hosted(deployment) as later:
        assert (await user(later).create_run("agent", "echo", keyed())).raw == first.raw


async def test_a_hundred_at_once_make_one_run(deployment: Deployment) -> None:
    async with hosted(deployment) as service, hosted(deployment) as other:
        ports = [user(service), user(other)] * 50
        answers = await asyncio.gather(*(p.create_run("agent", "echo", keyed()) for p in ports))
        assert len({answer.raw for answer in answers}) == 1
        assert answers[0].value["status"] == "COMPLETED"
        assert len(await runs_of(service)) == 1


async def test_a_hundred_streams_at_once_are_of_one_run(deployment: Deployment) -> None:
    async with hosted(deployment) as service, hosted(deployment) as other:
        given = {"message": "one two", "session_id": "s1", "idempotency_key": "k"}
        ports = [user(service), user(other)] * 50
        told = await asyncio.gather(*(collect(p, "agent", "echo", **given) for p in ports))
        assert all(one == told[0] for one in told)
        assert [event.seq for event in told[0]] == list(range(len(told[0])))
        assert told[0][-1].name == "RunCompleted"
        assert len(await runs_of(service)) == 1


async def test_a_background_run_is_told_as_it_stands(deployment: Deployment) -> None:
    async with hosted(deployment) as service, hosted(deployment) as other:
        port = user(service)
        first = (await port.create_run("agent", "hang", keyed(background=True))).value
        await running(port)
        again = (await user(other).create_run("agent", "hang", keyed(background=True))).value
        assert (again["run_id"], again["status"]) == (first["run_id"], "RUNNING")


@pytest.mark.parametrize("streamed", [True, False])
async def test_who_asks_again_does_not_stop_the_run_by_leaving(
    deployment: Deployment, streamed: bool
) -> None:
    async with hosted(deployment) as service, hosted(deployment) as other:
        port = user(service)

        async def ask(again: Service) -> str:
            if streamed:
                given = {"message": "hello", "session_id": "s1", "idempotency_key": "k"}
                events = await collect(user(again), "agent", "hang", **given)
                return str(data(events[0])["run_id"])
            return (await user(again).create_run("agent", "hang", keyed())).value["run_id"]

        first = asyncio.create_task(ask(service))
        run_id = (await running(port))["run_id"]
        for again in (service, other):
            leaving = asyncio.create_task(ask(again))
            await asyncio.sleep(0.1)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
        staying = asyncio.create_task(ask(other))
        await asyncio.sleep(0.1)
        assert (await port.get_run(run_id)).value["status"] == "RUNNING"
        await port.cancel_run("agent", "hang", run_id, CancelRequest("s1", 10))
        assert await first == await staying == run_id


async def test_another_request_with_the_same_key_is_refused(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        await port.create_run("agent", "echo", keyed())
        others = [
            ("echo", keyed("another")),
            ("echo", keyed(background=True)),
            ("echo", keyed(user_id="else")),
            ("echo", RunRequest("hello", None, idempotency_key="k")),
            ("history", keyed()),
        ]
        for component_id, request in others:
            with pytest.raises(errors.ValidationFailed, match="used for another request"):
                await port.create_run("agent", component_id, request)
        with pytest.raises(errors.ValidationFailed, match="used for another request"):
            await anext(port.stream_run("agent", "echo", keyed()))
        assert len(await runs_of(service)) == 1


async def test_another_callers_same_key_is_another_run(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        request = RunRequest("hello", idempotency_key="k")
        answers = [
            (await port.create_run("agent", "echo", request)).value["run_id"]
            for port in (user(service), user(service, "other"), boss(service), user(service))
        ]
        assert len(set(answers)) == 3
        assert answers[0] == answers[3]


async def test_a_request_that_was_refused_leaves_its_key_free(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        await user(service, "other").create_run("agent", "echo", RunRequest("x", "s1"))
        port = user(service)
        with pytest.raises(errors.NotFound):
            await port.create_run("agent", "echo", keyed())
        free = RunRequest("x", "s2", idempotency_key="k")
        assert (await port.create_run("agent", "echo", free)).value["status"] == "COMPLETED"


@pytest.mark.parametrize("key", ["", "a b", "ä", "a\n", "\x7f", "x" * 256])
async def test_what_is_no_key_is_refused(deployment: Deployment, key: str) -> None:
    async with hosted(deployment) as service:
        with pytest.raises(errors.ValidationFailed, match="1 to 255 visible ASCII"):
            await user(service).create_run("agent", "echo", keyed(key=key))


async def test_the_longest_key_is_one(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        request = keyed(key="!~" * 127 + "x")
        assert (await user(service).create_run("agent", "echo", request)).value["run_id"]


async def test_a_run_that_was_deleted_is_not_made_again(deployment: Deployment) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        await port.create_run("agent", "echo", keyed())
        await port.delete_session("s1")
        with pytest.raises(errors.Conflict, match="was deleted"):
            await port.create_run("agent", "echo", keyed())
        given = {"message": "x", "session_id": "s2", "idempotency_key": "streamed"}
        await collect(port, "agent", "echo", **given)
        await port.delete_session("s2")
        with pytest.raises(errors.Conflict, match="was deleted"):
            await collect(port, "agent", "echo", **given)


async def test_a_run_that_is_deleted_while_it_is_waited_for(deployment: Deployment) -> None:
    async with hosted(deployment) as service, hosted(deployment) as other:
        port = user(service)
        first = asyncio.create_task(port.create_run("agent", "hang", keyed()))
        await running(port)
        again = asyncio.create_task(user(other).create_run("agent", "hang", keyed()))
        await asyncio.sleep(0.05)
        await service.hosting.databases["main"].write(sessions.delete("s1"))
        with pytest.raises(errors.Conflict, match="was deleted"):
            await again
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_after_a_day_the_key_is_free(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with hosted(deployment) as service:
        port = user(service)
        first = (await port.create_run("agent", "echo", keyed())).value["run_id"]
        clock, day = "agentctl.runs.admission.now", 24 * 60 * 60 * 1_000_000
        monkeypatch.setattr(clock, lambda: now() + day - 10_000_000)
        assert (await port.create_run("agent", "echo", keyed())).value["run_id"] == first
        monkeypatch.setattr(clock, lambda: now() + day)
        second = (await port.create_run("agent", "echo", keyed())).value["run_id"]
        assert second != first
        assert (await port.create_run("agent", "echo", keyed())).value["run_id"] == second


async def test_a_key_is_of_the_database_of_its_run(deployment: Deployment) -> None:
    """The key and the run are written together, so each database has its own keys."""
    async with hosted(deployment) as service:
        port = user(service)
        one = (await port.create_run("agent", "echo", keyed())).value["run_id"]
        two = (await port.create_run("agent", "apart", keyed())).value["run_id"]
        assert one != two
