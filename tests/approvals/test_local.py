"""Approvals without a server, and runs that another process continues."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agentctl.auth.principal import Principal, local_principal
from agentctl.errors import Conflict, FourEyes
from agentctl.interface.operations import Operations
from agentctl.interface.requests import RunRequest
from agentctl.interface.requests.administration import Erasure
from agentctl.interface.requests.approvals import ApprovalFilter, ContinueRequest, Ruling
from agentctl.service.service import Service, ServiceOperations
from tests.approvals.conftest import AGENTS
from tests.kit.conditions import wait_for_run, wait_until
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.service import open_service
from tests.kit.user_modules import forget_user_modules


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Deployment]:
    """A configuration of one test, whose agent writes into the folder of its module."""
    shutil.copy(Path(__file__).with_name("paying_agent.py"), tmp_path)
    (tmp_path / "ledger.jsonl").touch()
    yield create_deployment(tmp_path, "http://127.0.0.1:9/v1", extra=AGENTS)
    forget_user_modules()


def command(service: Service, name: str = "ann") -> ServiceOperations:
    return service.operations_for(local_principal(name))


async def start(operations: Operations, words: str) -> Any:
    return (await operations.runs.create("agent", "payer", RunRequest(words))).value


def build(run: Any, **more: Any) -> ContinueRequest:
    decisions = tuple(
        Ruling("approve", each["arguments_hash"], approval_id=each["approval_id"])
        for each in run["approvals"]
    )
    return ContinueRequest(decisions, **more)


async def approve(operations: Operations, run: Any) -> Any:
    (approval,) = (await operations.approvals.list(ApprovalFilter(run_id=run["run_id"]))).value[
        "data"
    ]
    request = Ruling("approve", approval["arguments_hash"])
    decided = await operations.approvals.decide("agent", "payer", approval["approval_id"], request)
    return decided.value


async def test_command_continues_a_run_in_its_process(alone: Deployment) -> None:
    async with open_service(alone) as service:
        run = await start(command(service), "user | user")
        paused = await command(service).runs.continue_run(
            "agent", "payer", run["run_id"], build(run)
        )
        assert paused.value["status"] == "PAUSED"
        request = build({"approvals": paused.value["approvals"][1:]})
        events = command(service).runs.stream_continued("agent", "payer", run["run_id"], request)
        names = [event.name async for event in events]
        assert names == ["RunContinued", "RunContent", "RunCompleted"]


async def test_decision_of_a_command_is_continued_by_a_server(alone: Deployment) -> None:
    async with open_service(alone) as service:
        run = await start(command(service), "other")
        with pytest.raises(FourEyes):
            await approve(command(service), run)
        assert (await approve(command(service, "eve"), run))["decided_by"] == "local:eve"
        state = (await command(service).runs.get(run["run_id"])).value
        assert state["status"] == "PENDING"
        assert not service.hosting.engine.live_runs()
    async with open_service(alone) as server:
        await server.prepare()
        await wait_for_run(command(server), run["run_id"], "COMPLETED")


async def test_continuation_follows_the_leg_of_another_server(alone: Deployment) -> None:
    async with open_service(alone) as first, open_service(alone) as second:
        caller = first.operations_for(local_principal("ann"))
        plain = await start(caller, "user")
        streamed = await start(caller, "user")
        first.hosting.engine.draining = True  # it claims no leg
        await second.prepare()
        ended = await caller.runs.continue_run("agent", "payer", plain["run_id"], build(plain))
        assert (ended.value["status"], ended.value["content"]) == ("COMPLETED", "Results: paid")
        events = caller.runs.stream_continued("agent", "payer", streamed["run_id"], build(streamed))
        names = [event.name async for event in events]
        assert names == ["RunContinued", "RunContent", "RunCompleted"]


async def test_call_of_a_removed_agent_is_rejected_and_not_approved(alone: Deployment) -> None:
    async with open_service(alone) as service:
        run = await start(command(service), "other")
    configuration = alone.path.read_text().replace('id = "payer"', 'id = "new-payer"')
    alone.path.write_text(configuration)
    async with open_service(alone) as service:
        with pytest.raises(Conflict, match="The tool pay does not exist any more"):
            await approve(command(service, "eve"), run)
        (approval,) = run["approvals"]
        decided = await command(service, "eve").approvals.decide(
            "agent", "payer", approval["approval_id"], Ruling("reject")
        )
        assert decided.value["status"] == "rejected"


async def test_approver_may_decide_about_its_own_run_if_configured(alone: Deployment) -> None:
    alone.path.write_text(f"{alone.path.read_text()}\n[approvals]\nown = true\n")
    async with open_service(alone) as service:
        run = await start(command(service), "other")
        assert (await approve(command(service), run))["status"] == "approved"


async def test_expired_approval_is_not_decided(alone: Deployment) -> None:
    alone.path.write_text(f"{alone.path.read_text()}\n[approvals]\nexpire_seconds = 1\n")
    async with open_service(alone) as service:
        run = await start(command(service), "other")

        async def is_refused() -> bool:
            request = Ruling("reject", note="x" * 501)  # invalid until it has expired
            (approval,) = run["approvals"]
            with pytest.raises(Exception, match=r"expired|note must be") as refused:
                await command(service, "eve").approvals.decide(
                    "agent", "payer", approval["approval_id"], request
                )
            return isinstance(refused.value, Conflict)

        await wait_until(is_refused)


async def test_principal_that_acts_for_a_user_sees_and_decides_as_that_user(
    alone: Deployment,
) -> None:
    async with open_service(alone) as service:
        as_ann = service.operations_for(local_principal("root", acting_for="ann"))
        as_ben = service.operations_for(local_principal("root", acting_for="ben"))
        run = await start(as_ann, "other")
        assert run["user_id"] == "ann"
        assert len((await as_ann.approvals.list(ApprovalFilter())).value["data"]) == 1
        assert (await as_ben.approvals.list(ApprovalFilter())).value["data"] == []
        with pytest.raises(FourEyes):
            await approve(as_ann, run)


async def test_anonymous_callers_are_nobody_else(alone: Deployment) -> None:
    everyone = Principal(None, admin=True, sees_all_users=True)
    async with open_service(alone) as service:
        anonymous = service.operations_for(everyone)
        run = await start(anonymous, "other")
        with pytest.raises(FourEyes):
            await approve(anonymous, run)


async def test_erasure_cancels_paused_runs_on_request(alone: Deployment) -> None:
    async with open_service(alone) as service:
        run = await start(service.operations_for(Principal("ada", admin=True)), "user | user")
        assert run["status"] == "PAUSED"
        with pytest.raises(Conflict, match="live or paused"):
            await command(service).users.erase(Erasure("ada"))
        done = await command(service).users.erase(Erasure("ada", cancel=True))
        rows = {row["table"]: row["rows"] for row in done.value["erased"]}
        assert (rows["sessions"], rows["runs"], rows["approvals"]) == (1, 1, 1)
        left = (await command(service).users.get_data("ada")).value
        assert not [row for row in left["tables"] if row["rows"] and row["erasure"] != "keep"]
