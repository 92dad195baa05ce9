"""Runs, and their records, when a database does not answer."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from agentctl import errors
from agentctl.interface.requests import RunRequest
from agentctl.runs.desk.waiting import cancel_run
from agentctl.runs.life import supervision
from agentctl.runs.states import Ending
from agentctl.runtime.components import execute
from agentctl.service.service import Service
from agentctl.work.event_loop import RETRY_LIMIT_SECONDS
from tests.kit.deployment import Deployment
from tests.kit.service import open_service, user
from tests.runs.test_legs import Payer, approval_of, database_of, decide, start, wait_for_status
from tests.runs.unlucky_runs import quick_retries

__all__ = ["quick_retries"]


@pytest.fixture
def payer(monkeypatch: pytest.MonkeyPatch) -> Payer:
    payer = Payer()
    monkeypatch.setattr(execute, "_execute", payer.run)
    return payer


def cancel_after_a_lost_begin(
    service: Service, run_id: str, monkeypatch: Any, *, is_known: bool
) -> None:
    """Commit the begin of the approved call, lose the response, and cancel the run then.

    Args:
        is_known: True if the process hears of the cancel before it can look the begin up.
    """
    database = database_of(service)
    write = database.write
    lost = list[str]()

    async def write_and_lose(work: Any) -> Any:
        result = await write(work)
        if work.func.__qualname__ == "_begin_call" and not lost:
            lost.append(run_id)
            # As another server does.
            await write(cancel_run(database.outbox, run_id, "boss", "not now"))
            if is_known:
                [run] = service.hosting.engine.root_runs()
                run.stop(Ending.cancelled("boss", "not now"))
            raise errors.OutcomeUnknown("The connection was lost")
        return result

    monkeypatch.setattr(database, "write", write_and_lose)


@pytest.mark.parametrize("is_known", [False, True], ids=["looked up", "stopped before"])
async def test_cancel_after_a_begin_with_an_unknown_outcome_prevents_the_call(
    deployment: Deployment,
    payer: Payer,
    quick_retries: None,
    monkeypatch: pytest.MonkeyPatch,
    is_known: bool,
) -> None:
    async with open_service(deployment) as service:
        run = await start(service)
        await decide(service, run["run_id"], "approve")
        cancel_after_a_lost_begin(service, run["run_id"], monkeypatch, is_known=is_known)
        await service.hosting.engine.claims.claim(database_of(service), run["run_id"])
        ended = await wait_for_status(service, run["run_id"], "CANCELLED")
        row = await approval_of(service, run["run_id"])

    assert payer.ledger == []
    assert ended["cancel_reason"] == "not now"
    # The record says that the call was not made: nothing about it is unknown.
    assert (row.status, row.execution, row.executing_at) == ("approved", None, None)


@pytest.mark.parametrize(
    ("failure", "detail"),
    [
        (errors.Unavailable("no answer"), "The database was unavailable for too long"),
        (errors.OutcomeUnknown("no answer"), "The database was unavailable for too long"),
        (errors.BytesMissing("The bytes are gone"), "The bytes are gone"),
        # The failure of a client of another server, in the code of the run.
        (errors.NotConnected("no server"), "The run failed inside the service"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
async def test_end_of_a_run_says_what_was_unavailable(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, failure: Exception, detail: str
) -> None:
    async def fail(component: Any, context: Any, catalog: Any) -> None:
        raise failure

    monkeypatch.setattr(execute, "_execute", fail)
    async with open_service(deployment) as service:
        run = await user(service).runs.create("agent", "echo", RunRequest("hello"))

    assert run.value["status"] == "ERROR"
    assert run.value["error"] == {"code": "INTERNAL", "detail": detail}


async def test_end_of_abandoned_work_is_stored_after_an_outage(quick_retries: None) -> None:
    outcomes = [errors.Unavailable("no answer"), errors.OutcomeUnknown("no answer"), None]
    stored = list[Any]()

    async def write(work: Any) -> None:
        if (failure := outcomes.pop(0)) is not None:
            raise failure
        stored.append(work)

    run: Any = SimpleNamespace(run_id="r1", database=SimpleNamespace(write=write))
    work: Any = "the end of the work"
    await supervision._record_stopped_work(run, work, "its abandoned work")

    assert stored == ["the end of the work"]


async def test_end_of_abandoned_work_is_not_retried_after_the_shutdown(
    deployment: Deployment,
) -> None:
    async with open_service(deployment) as service:
        database = database_of(service)
    run: Any = SimpleNamespace(run_id="r1", database=database)
    work: Any = "the end of the work"

    async with asyncio.timeout(RETRY_LIMIT_SECONDS / 2):
        await supervision._record_stopped_work(run, work, "its abandoned work")
