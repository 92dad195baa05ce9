"""Repeated requests with an idempotency key return one run."""

from __future__ import annotations

import asyncio

import pytest

from agentctl import errors
from agentctl.interface.requests import CancelRequest, RunFilter, RunRequest
from agentctl.records.times import now
from agentctl.service.service import Service
from agentctl.store.repositories import sessions
from tests.kit.deployment import Deployment
from tests.kit.service import (
    admin,
    collect_run_events,
    event_data,
    open_service,
    user,
    wait_for_running,
)


def build_request(message: str = "hello", key: str = "k", **more: object) -> RunRequest:
    return RunRequest(message, "s1", idempotency_key=key, **more)  # type: ignore[arg-type]


async def list_run_ids(service: Service) -> list[str]:
    page = (await admin(service).runs.list(RunFilter())).value
    return [run["run_id"] for run in page["data"]]


async def test_repeated_request_returns_the_same_run(deployment: Deployment) -> None:
    async with open_service(deployment) as service, open_service(deployment) as other:
        first = await user(service).runs.create("agent", "echo", build_request())
        for again in (service, other):
            assert (
                await user(again).runs.create("agent", "echo", build_request())
            ).raw == first.raw
        assert await list_run_ids(service) == [first.value["run_id"]]
    async with open_service(deployment) as later:
        assert (await user(later).runs.create("agent", "echo", build_request())).raw == first.raw


async def test_objects_of_the_request_are_part_of_it(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        caller = user(service)
        given = {"metadata": {"a": 1}, "session_state": {"n": 1}}
        first = await caller.runs.create("agent", "echo", build_request(**given))
        assert (await caller.runs.create("agent", "echo", build_request(**given))).raw == first.raw
        for other in ({**given, "metadata": {"a": 2}}, {"metadata": {"a": 1}}, {}):
            with pytest.raises(errors.ValidationFailed):
                await caller.runs.create("agent", "echo", build_request(**other))
        session = (await caller.sessions.get("s1")).value
        assert session["session_state"] == {"n": 1}


async def test_a_hundred_concurrent_requests_create_one_run(deployment: Deployment) -> None:
    async with open_service(deployment) as service, open_service(deployment) as other:
        ports = [user(service), user(other)] * 50
        answers = await asyncio.gather(
            *(p.runs.create("agent", "echo", build_request()) for p in ports)
        )
        assert len({answer.raw for answer in answers}) == 1
        assert answers[0].value["status"] == "COMPLETED"
        assert len(await list_run_ids(service)) == 1


async def test_a_hundred_concurrent_streams_have_one_run(deployment: Deployment) -> None:
    async with open_service(deployment) as service, open_service(deployment) as other:
        given = {"message": "one two", "session_id": "s1", "idempotency_key": "k"}
        ports = [user(service), user(other)] * 50
        told = await asyncio.gather(
            *(collect_run_events(p, "agent", "echo", **given) for p in ports)
        )
        assert all(one == told[0] for one in told)
        assert [event.seq for event in told[0]] == list(range(len(told[0])))
        assert told[0][-1].name == "RunCompleted"
        assert len(await list_run_ids(service)) == 1


async def test_repeated_background_request_returns_the_current_record(
    deployment: Deployment,
) -> None:
    async with open_service(deployment) as service, open_service(deployment) as other:
        operations = user(service)
        first = (
            await operations.runs.create("agent", "hang", build_request(background=True))
        ).value
        await wait_for_running(operations)
        again = (
            await user(other).runs.create("agent", "hang", build_request(background=True))
        ).value
        assert (again["run_id"], again["status"]) == (first["run_id"], "RUNNING")


@pytest.mark.parametrize("streamed", [True, False])
async def test_repeated_caller_does_not_stop_the_run(
    deployment: Deployment, streamed: bool
) -> None:
    async with open_service(deployment) as service, open_service(deployment) as other:
        operations = user(service)

        async def ask(again: Service) -> str:
            if streamed:
                given = {"message": "hello", "session_id": "s1", "idempotency_key": "k"}
                events = await collect_run_events(user(again), "agent", "hang", **given)
                return str(event_data(events[0])["run_id"])
            return (await user(again).runs.create("agent", "hang", build_request())).value["run_id"]

        first = asyncio.create_task(ask(service))
        run_id = (await wait_for_running(operations))["run_id"]
        for again in (service, other):
            leaving = asyncio.create_task(ask(again))
            await asyncio.sleep(0.1)
            leaving.cancel()
            await asyncio.gather(leaving, return_exceptions=True)
        staying = asyncio.create_task(ask(other))
        await asyncio.sleep(0.1)
        assert (await operations.runs.get(run_id)).value["status"] == "RUNNING"
        await operations.runs.cancel("agent", "hang", run_id, CancelRequest("s1", 30))
        assert await first == await staying == run_id


async def test_other_request_with_the_same_key_is_rejected(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        await operations.runs.create("agent", "echo", build_request())
        others = [
            ("echo", build_request("another")),
            ("echo", build_request(background=True)),
            ("echo", build_request(user_id="else")),
            ("echo", RunRequest("hello", None, idempotency_key="k")),
            ("history", build_request()),
        ]
        for component_id, request in others:
            with pytest.raises(errors.ValidationFailed, match="used for another request"):
                await operations.runs.create("agent", component_id, request)
        with pytest.raises(errors.ValidationFailed, match="used for another request"):
            await anext(operations.runs.stream("agent", "echo", build_request()))
        assert len(await list_run_ids(service)) == 1


async def test_key_of_another_caller_is_another_run(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        request = RunRequest("hello", idempotency_key="k")
        answers = [
            (await operations.runs.create("agent", "echo", request)).value["run_id"]
            for operations in (user(service), user(service, "other"), admin(service), user(service))
        ]
        assert len(set(answers)) == 3
        assert answers[0] == answers[3]


async def test_rejected_request_does_not_use_its_key(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        await user(service, "other").runs.create("agent", "echo", RunRequest("x", "s1"))
        operations = user(service)
        with pytest.raises(errors.NotFound):
            await operations.runs.create("agent", "echo", build_request())
        free = RunRequest("x", "s2", idempotency_key="k")
        assert (await operations.runs.create("agent", "echo", free)).value["status"] == "COMPLETED"


@pytest.mark.parametrize("key", ["", "a b", "ä", "a\n", "\x7f", "x" * 256])
async def test_invalid_key_is_rejected(deployment: Deployment, key: str) -> None:
    async with open_service(deployment) as service:
        with pytest.raises(errors.ValidationFailed, match="1 to 255 visible ASCII"):
            await user(service).runs.create("agent", "echo", build_request(key=key))


async def test_longest_key_is_accepted(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        request = build_request(key="!~" * 127 + "x")
        assert (await user(service).runs.create("agent", "echo", request)).value["run_id"]


async def test_deleted_run_is_not_created_again(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        await operations.runs.create("agent", "echo", build_request())
        await operations.sessions.delete("s1")
        with pytest.raises(errors.Conflict, match="was deleted"):
            await operations.runs.create("agent", "echo", build_request())
        given = {"message": "x", "session_id": "s2", "idempotency_key": "streamed"}
        await collect_run_events(operations, "agent", "echo", **given)
        await operations.sessions.delete("s2")
        with pytest.raises(errors.Conflict, match="was deleted"):
            await collect_run_events(operations, "agent", "echo", **given)


async def test_run_deleted_during_the_wait_is_a_conflict(deployment: Deployment) -> None:
    async with open_service(deployment) as service, open_service(deployment) as other:
        operations = user(service)
        first = asyncio.create_task(operations.runs.create("agent", "hang", build_request()))
        await wait_for_running(operations)
        again = asyncio.create_task(user(other).runs.create("agent", "hang", build_request()))
        await asyncio.sleep(0.05)
        await service.hosting.databases["main"].write(sessions.delete("s1"))
        with pytest.raises(errors.Conflict, match="was deleted"):
            await again
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)


async def test_key_expires_after_a_day(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        first = (await operations.runs.create("agent", "echo", build_request())).value["run_id"]
        clock = "agentctl.runs.life.admission.now"
        day = 24 * 60 * 60 * 1_000_000
        monkeypatch.setattr(clock, lambda: now() + day - 10_000_000)
        assert (await operations.runs.create("agent", "echo", build_request())).value[
            "run_id"
        ] == first
        monkeypatch.setattr(clock, lambda: now() + day)
        second = (await operations.runs.create("agent", "echo", build_request())).value["run_id"]
        assert second != first
        assert (await operations.runs.create("agent", "echo", build_request())).value[
            "run_id"
        ] == second


async def test_key_of_a_request_in_another_database_is_rejected(deployment: Deployment) -> None:
    async with open_service(deployment) as service:
        operations = user(service)
        await operations.runs.create("agent", "echo", RunRequest("x", None, idempotency_key="k1"))
        await operations.runs.create("agent", "apart", RunRequest("x", None, idempotency_key="k2"))
        for component_id, key in (("apart", "k1"), ("echo", "k2")):
            request = RunRequest("x", None, idempotency_key=key)
            with pytest.raises(errors.ValidationFailed, match="used for another request"):
                await operations.runs.create("agent", component_id, request)
        assert len(await list_run_ids(service)) == 1
        again = RunRequest("x", None, idempotency_key="k2")
        assert (await operations.runs.create("agent", "apart", again)).value[
            "status"
        ] == "COMPLETED"
