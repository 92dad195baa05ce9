"""Approved calls in a database that was restored from a backup."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from agentctl.admin.databases import back_up
from agentctl.admin.restores import restore
from agentctl.interface.requests.approvals import ApprovalFilter, Ruling
from agentctl.runs.workers.recovery import RESTORED_QUESTION
from agentctl.service.service import Service
from agentctl.store.database import Sql
from agentctl.store.repositories import steps
from tests.approvals.test_local import alone, command, start
from tests.kit.conditions import wait_for_run
from tests.kit.deployment import Deployment
from tests.kit.service import open_service

__all__ = ["alone"]


async def list_approvals(service: Service, run: Any, status: str | None = None) -> list[Any]:
    chosen = ApprovalFilter(run_id=run["run_id"], status=status)  # type: ignore[arg-type]
    document = await command(service).approvals.list(chosen)
    return list(reversed(document.value["data"]))


async def decide(service: Service, approval: Any, verb: Any, **fields: Any) -> None:
    request = Ruling(verb, approval["arguments_hash"], **fields)
    await command(service).approvals.decide("agent", "payer", approval["approval_id"], request)


async def restore_now(deployment: Deployment) -> dict[str, object]:
    """Back the database up, and restore it from the backup."""
    entry = deployment.settings.databases[0]
    copy = deployment.folder / "copy.db"
    files = deployment.settings.files
    await back_up(entry, copy, lambda *_: None, files)
    restored, _ = await restore(
        entry, copy, replace=True, sha256=None, files=files, report=lambda *_: None
    )
    return restored


def count_payments() -> int:
    """Return the number of calls that were made; the module may be that of an earlier test."""
    return len(sys.modules["paying_agent"].LEDGER.read_text().splitlines())


@pytest.mark.parametrize(
    ("verb", "fields", "result", "payments"),
    [
        ("complete", {"result": "seen by a person"}, "seen by a person", 1),
        ("fail", {"note": "never paid"}, "never paid", 1),
        ("retry", {}, "paid", 2),
    ],
)
async def test_approved_call_of_a_restored_paused_run_is_asked_about(
    alone: Deployment, verb: str, fields: dict[str, Any], result: str, payments: int
) -> None:
    async with open_service(alone) as service:
        run = await start(command(service), "user user")
        first, _ = await list_approvals(service, run)
        await decide(service, first, "approve")
    restored = await restore_now(alone)
    assert (restored["ended_runs"], restored["unknown_calls"]) == (0, 1)
    before = count_payments()
    async with open_service(alone) as service:
        known, waits, asked = await list_approvals(service, run)
        assert (known["approval_id"], known["execution"]) == (first["approval_id"], "unknown")
        assert (asked["kind"], asked["question"]) == ("outcome", RESTORED_QUESTION)
        await decide(service, waits, "approve")
        (asked,) = await list_approvals(service, run, "pending")
        assert count_payments() == before
        await decide(service, asked, verb, **fields)
        hosting = service.hosting
        await hosting.engine.claims.claim(hosting.databases.system, run["run_id"])
        await wait_for_run(command(service), run["run_id"], "COMPLETED")
        record = (await command(service).runs.get(run["run_id"])).value
    assert record["content"] == f"Results: {result}, paid"
    assert count_payments() == before + payments


async def test_retry_that_was_decided_before_the_restore_is_asked_about_again(
    alone: Deployment,
) -> None:
    """The call of a durable run that needed no approval, and whose server had died."""
    async with open_service(alone) as service:
        run = await start(command(service), "lost user")
        lost, _ = await list_approvals(service, run)
        database = service.hosting.databases.system
        await database.write(
            Sql(
                "INSERT INTO run_steps (run_id, seq, attempt, kind, call_id, name, state,"
                " idempotent, started_at) VALUES (:run_id, 0, 1, 'tool', :call_id, 'pay',"
                " 'unknown', 0, 1)"
            ).execute(run_id=run["run_id"], call_id=lost["tool_call_id"])
        )
        request = Ruling("retry", lost["arguments_hash"])
        eve = command(service, "eve")
        await eve.approvals.decide("agent", "payer", lost["approval_id"], request)
        (step,) = await database.read(steps.list_of_run(run["run_id"]))
        assert step.state == "again"
    assert (await restore_now(alone))["unknown_calls"] == 1
    async with open_service(alone) as service:
        (step,) = await service.hosting.databases.system.read(steps.list_of_run(run["run_id"]))
        assert step.state == "unknown"
        asked = (await list_approvals(service, run, "pending"))[-1]
        assert (asked["kind"], asked["question"]) == ("outcome", RESTORED_QUESTION)


async def test_second_restore_of_a_paused_run_asks_once(alone: Deployment) -> None:
    async with open_service(alone) as service:
        run = await start(command(service), "user user")
        first, _ = await list_approvals(service, run)
        await decide(service, first, "approve")
    Path(str((await restore_now(alone))["moved_to"])).unlink()
    (alone.folder / "copy.db").unlink()
    assert (await restore_now(alone))["unknown_calls"] == 0
    async with open_service(alone) as service:
        assert [each["kind"] for each in await list_approvals(service, run)] == [
            "approval", "approval", "outcome",
        ]  # fmt: skip
