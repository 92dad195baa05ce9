"""Budgets that ask a person at their limit, and budgets that warn before it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentctl import errors
from agentctl.config import load_settings
from agentctl.interface.requests import RunRequest
from agentctl.interface.requests.approvals import ApprovalFilter, Ruling
from agentctl.records.kinds import ComponentKind
from agentctl.runs.desk.decisions import BUDGET_TOOL
from agentctl.service.service import Service
from agentctl.store.database import Sql
from tests.kit.command import stay_in_hour
from tests.kit.model import ModelEndpoint
from tests.kit.service import admin, collect_run_events, open_service
from tests.service.test_budgets import CALL, budget, deploy, list_budgets, run_agent, user

WEBHOOK = """
[[webhooks]]
id = "ops"
url = "https://ops.example.org/hook"
events = ["budget.warning"]
secret_env = "OPS_SECRET"
"""

DELIVERIES = Sql("SELECT body FROM webhook_deliveries ORDER BY created_at, delivery_id")


@pytest.fixture(autouse=True)
def one_day() -> Iterator[None]:
    """Let no day begin in a test: the period of a budget ends at midnight UTC."""
    with stay_in_hour():
        yield


async def list_questions(service: Service) -> list[dict[str, Any]]:
    page: Any = (await admin(service).approvals.list(ApprovalFilter(status="pending"))).value
    assert {row["tool_name"] for row in page["data"]} <= {BUDGET_TOOL}
    return [dict(row) for row in page["data"]]


async def decide(
    service: Service, question: dict[str, Any], verb: Any = "approve", **fields: Any
) -> None:
    place = question["component_type"], question["component_id"], question["approval_id"]
    bound = question["arguments_hash"] if verb == "approve" else None
    await admin(service).approvals.decide(*place, Ruling(verb, bound, **fields))


async def go_on(service: Service, run: dict[str, Any]) -> dict[str, Any]:
    """Let this process execute the next leg of a run, and return its record after that."""
    database = service.hosting.databases.system
    live = await service.hosting.engine.claims.claim(database, run["run_id"])
    assert live is not None
    await asyncio.wait({live.ended})
    return dict((await admin(service).runs.get(run["run_id"])).value)


def read_error(run: dict[str, Any]) -> tuple[str, str | None]:
    return run["status"], (run["error"] or {}).get("code")


async def test_person_raises_the_limit_before_the_run_begins(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    deployment = deploy(tmp_path, model_endpoint, budget(per="user", tokens=5, on_exceed="ask"))
    async with open_service(deployment) as service:
        await run_agent(user(service, "ann"), "echo", "one two three")
        model_endpoint.forget()
        run = await run_agent(user(service, "ann"), "echo", "four")
        assert run["status"] == "PAUSED"
        (question,) = await list_questions(service)
        assert (question["policy"], question["run_id"]) == ("other", run["run_id"])
        assert "Continue with a further 5 tokens?" in question["question"]
        assert question["arguments"]["further"] == question["arguments"]["limit"] == 5

        # Its own user cannot raise it, and no further run waits for the same decision.
        own = user(service, "ann")
        ruling = Ruling("approve", question["arguments_hash"])
        with pytest.raises(errors.Forbidden):
            await own.approvals.decide("agent", "echo", question["approval_id"], ruling)
        with pytest.raises(errors.BudgetExceeded, match="a person was asked to continue"):
            await run_agent(own)
        assert (await run_agent(user(service, "ben")))["status"] == "COMPLETED"
        assert len(model_endpoint.requests("echo")) == 1

        await decide(service, question)
        ended = await go_on(service, run)
        assert (ended["status"], ended["content"]) == ("COMPLETED", "four")
        assert ended["messages"][1]["content"] == "four"
        rows = {row["user_id"]: row for row in await list_budgets(admin(service))}
        assert (rows["ann"]["limit"], rows["ben"]["limit"]) == (10, 5)


async def test_run_waits_between_two_calls_of_its_model(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    deployment = deploy(tmp_path, model_endpoint, budget(per="agent", tokens=1, on_exceed="ask"))
    async with open_service(deployment) as service:
        model_endpoint.forget()
        run = await run_agent(user(service), "tool-add", CALL)
        assert run["status"] == "PAUSED"
        assert [tool["result"] for tool in run["tools"]] == ["3"]
        (question,) = await list_questions(service)
        arguments = {**question["arguments"], "further": 5_000}
        await decide(service, question, arguments=arguments)
        ended = await go_on(service, run)
        assert (ended["status"], ended["content"]) == ("COMPLETED", "3")
        assert len(ended["tools"]) == 1
        assert len(model_endpoint.requests("tool:add")) == 2
        (row,) = [row for row in await list_budgets(admin(service)) if row["used"]]
        assert row["limit"] == 5_001

        tampered = {**question["arguments"], "limit": 9}
        with pytest.raises(errors.Conflict):
            await decide(service, question, arguments=tampered)


async def test_rejection_ends_the_run_and_refuses_others_until_the_next_period(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    deployment = deploy(tmp_path, model_endpoint, budget(per="server", tokens=1, on_exceed="ask"))
    async with open_service(deployment) as service:
        first = await run_agent(user(service, "ann"), "tool-add", CALL)
        (question,) = await list_questions(service)
        await decide(service, question, "reject", note="enough")
        ended = await go_on(service, first)
        assert read_error(ended) == ("ERROR", "BUDGET_EXCEEDED")
        assert "a person has refused" in ended["error"]["detail"]
        assert len(ended["tools"]) == 1
        with pytest.raises(errors.BudgetExceeded, match="a person has refused to continue"):
            await run_agent(user(service, "ben"))
        assert await list_questions(service) == []


async def test_several_runs_at_one_level_raise_the_limit_once(
    databases: Mapping[str, str], tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    table = budget(per="server", tokens=1, on_exceed="ask")
    deployment = deploy(tmp_path, model_endpoint, table, databases=databases)
    async with open_service(deployment) as one, open_service(deployment) as other:
        starts = (run_agent(user(place, "ann"), "tool-add", CALL) for place in (one, other))
        runs = await asyncio.gather(*starts)
        assert [run["status"] for run in runs] == ["PAUSED", "PAUSED"]
        questions = await list_questions(one)
        assert {question["arguments"]["limit"] for question in questions} == {1}
        for place, question in zip((other, one), questions, strict=True):
            arguments = {**question["arguments"], "further": 5_000}
            await decide(place, question, arguments=arguments)
        # Each run goes on in the process of the other one.
        ended = await asyncio.gather(go_on(other, runs[0]), go_on(one, runs[1]))
        assert [run["status"] for run in ended] == ["COMPLETED", "COMPLETED"]
        (row,) = await list_budgets(admin(one))
        assert row["limit"] == 5_001


@pytest.mark.parametrize(("kind", "name"), [("team", "crew"), ("workflow", "line")])
async def test_members_and_steps_wait_with_their_parent(
    tmp_path: Path, model_endpoint: ModelEndpoint, kind: ComponentKind, name: str
) -> None:
    table = budget(per="agent", component="echo", tokens=1, on_exceed="ask")
    deployment = deploy(tmp_path, model_endpoint, table)
    async with open_service(deployment) as service:
        await run_agent(user(service), "echo", "one two three")
        started: Any = await user(service).runs.create(kind, name, RunRequest("hello"))
        run = dict(started.value)
        assert run["status"] == "PAUSED"
        (question,) = await list_questions(service)
        assert question["component_id"] == "echo"
        assert question["root_run_id"] == run["run_id"]
        arguments = {**question["arguments"], "further": 1_000}
        await decide(service, question, arguments=arguments)
        ended = await go_on(service, run)
        assert ended["status"] == "COMPLETED"


async def test_agent_in_code_asks_before_its_first_step_only(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    table = budget(per="agent", tokens=200, on_exceed="ask")
    deployment = deploy(tmp_path, model_endpoint, table)
    async with open_service(deployment) as service:
        # It cannot wait in the middle: there the budget ends it, as with "stop".
        end = tmp_path / "end"
        first = await run_agent(user(service), "spender", str(end))
        assert read_error(first) == ("ERROR", "BUDGET_EXCEEDED")
        end.touch()
        second = await run_agent(user(service), "spender", str(end))
        assert second["status"] == "PAUSED"
        (question,) = await list_questions(service)
        arguments = {**question["arguments"], "further": 100_000}
        await decide(service, question, arguments=arguments)
        ended = await go_on(service, second)
        assert (ended["status"], ended["content"]) == ("COMPLETED", "done")


async def test_call_after_a_question_is_not_made_twice_when_its_server_dies(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    """The first leg of the component is the second one of the run."""
    deployment = deploy(tmp_path, model_endpoint, budget(per="server", tokens=1, on_exceed="ask"))
    async with open_service(deployment) as service:
        await run_agent(user(service), "echo", "one two")
        run = await run_agent(user(service), "tool-add", CALL)
        (question,) = await list_questions(service)
        await decide(service, question, arguments={**question["arguments"], "further": 5_000})
        await go_on(service, run)
        effects = Sql("SELECT leg_effects FROM runs WHERE run_id = :run_id")
        database = service.hosting.databases.system
        assert await database.read(effects.value(run_id=run["run_id"])) == 1


async def test_budget_warns_once_in_a_period(
    tmp_path: Path, model_endpoint: ModelEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPS_SECRET", "whsec_" + "A" * 32)
    table = budget(per="user", tokens=100, warn_at=0.05)
    deployment = deploy(tmp_path, model_endpoint, f"{table}\n{WEBHOOK}")
    async with open_service(deployment) as service:
        async with open_service(deployment) as other:
            events = []
            for place in (service, other, service):
                message = {"message": "one two three"}
                events += await collect_run_events(user(place, "ann"), "agent", "echo", **message)
        warnings = [event for event in events if event.name == "BudgetWarning"]
        assert len(warnings) == 1
        assert orjson.loads(warnings[0].data)["warn_at"] == 5
        bodies = await service.hosting.databases.system.read(DELIVERIES.column())
        (body,) = [orjson.loads(body) for body in bodies]
        assert body["type"] == "budget.warning"
        assert (body["data"]["user_id"], body["data"]["limit"]) == ("ann", 100)


def test_warning_at_the_limit_is_a_configuration_error(
    tmp_path: Path, model_endpoint: ModelEndpoint
) -> None:
    deployment = deploy(tmp_path, model_endpoint, budget(per="user", tokens=10, warn_at=10))
    with pytest.raises(errors.InvalidConfiguration, match="warn_at: must be less than the limit"):
        load_settings(deployment.path, {})
