"""Breakers: failures of several servers halt what fails, once, and nothing else does."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from agentctl import errors
from agentctl.interface.requests import CancelRequest, RunRequest
from agentctl.interface.requests.administration import AuditFilter
from agentctl.interface.requests.halts import HaltFilter
from agentctl.service.service import Service
from agentctl.store.database import Sql, Steps, unit
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.service import admin, open_service, streamed_run, user

EXTRA = """
[[models]]
id = "broken"
provider = "openai"
model = "http-503"
base_url = "{url}"
retries = 0
fallbacks = ["echo"]
breaker = {{ failures = 2 }}

[[models]]
id = "refuses"
provider = "openai"
model = "http-400"
base_url = "{url}"

[[agents]]
id = "fails"
model = "http-401"
breaker = {{ failures = 3 }}

[[agents]]
id = "works"
model = "echo"
breaker = {{ failures = 1 }}

[[agents]]
id = "hangs"
model = "hang"
breaker = {{ failures = 1 }}

[[agents]]
id = "refused"
model = "refuses"
breaker = {{ failures = 1 }}

[[agents]]
id = "careful"
model = "broken"
breaker = {{ failures = 1 }}

[[teams]]
id = "leads"
model = "delegate"
members = ["fails"]
breaker = {{ failures = 1 }}

[[workflows]]
id = "steps"
steps = [{{ name = "only", agent = "fails" }}]
breaker = {{ failures = 1 }}

[[webhooks]]
id = "ops"
url = "https://ops.example.org/hook"
events = ["halt.created"]
secret_env = "OPS_SECRET"
"""

DELIVERIES = Sql("SELECT body FROM webhook_deliveries ORDER BY created_at, delivery_id")


@pytest.fixture
def breaking(
    tmp_path: Path, model_endpoint: ModelEndpoint, databases: Mapping[str, str]
) -> Deployment:
    """A deployment with breakers, on each engine."""
    model_endpoint.forget()
    url = model_endpoint.base_url
    return create_deployment(tmp_path, url, extra=EXTRA.format(url=url), databases=databases)


async def run_agent(service: Service, agent_id: str, message: str = "hello") -> dict[str, Any]:
    return dict((await user(service).runs.create("agent", agent_id, RunRequest(message))).value)


async def list_halts(service: Service) -> list[dict[str, Any]]:
    page: Any = (await admin(service).halts.list(HaltFilter())).value
    return [dict(row) for row in page["data"]]


async def test_failures_on_two_servers_write_one_halt(breaking: Deployment) -> None:
    async with open_service(breaking) as first, open_service(breaking) as second:
        for service in (first, second):
            assert (await run_agent(service, "fails"))["status"] == "ERROR"
        assert await list_halts(first) == []

        assert (await run_agent(first, "fails"))["status"] == "ERROR"
        (halt,) = await list_halts(second)
        assert (halt["scope"], halt["scope_id"], halt["state"]) == ("agent", "fails", "active")
        assert halt["reason"] == "3 of its runs failed within 10 min: MODEL_KEY_REJECTED 3"
        assert (halt["created_by"], halt["until"]) == ("system:breaker", None)

        page: Any = (await admin(first).audit.list(AuditFilter(operation="create_halt"))).value
        (entry,) = page["data"]
        assert (entry["principal"], entry["outcome"]) == ("system:breaker", "allowed")
        assert entry["resource"] == f"agent:fails,halt:{halt['halt_id']}"
        assert entry["reason"] == halt["reason"]

        (body,) = await first.hosting.databases.system.read(DELIVERIES.column())
        assert orjson.loads(body)["data"]["halt_id"] == halt["halt_id"]

        await asyncio.gather(*(service.hosting.gate.halts.refresh() for service in (first, second)))
        for service in (first, second):
            with pytest.raises(errors.Halted, match="3 of its runs failed within 10 min"):
                await run_agent(service, "fails")


async def test_failures_at_the_same_time_write_one_halt(breaking: Deployment) -> None:
    async with open_service(breaking) as first, open_service(breaking) as second:
        counts = [
            service.hosting.gate.breakers.count_failure("agent", "fails", "LOOP")
            for service in (first, second) * 5
        ]
        await asyncio.gather(*counts)
        (halt,) = await list_halts(first)
        assert halt["reason"] == "3 of its runs failed within 10 min: LOOP 3"


async def test_count_begins_anew_when_the_halt_has_ended(breaking: Deployment) -> None:
    async with open_service(breaking) as service:
        for _ in range(3):
            await run_agent(service, "fails")
        (halt,) = await list_halts(service)
        await admin(service).halts.end(halt["halt_id"])

        for _ in range(2):
            assert (await run_agent(service, "fails"))["status"] == "ERROR"
        assert len(await list_halts(service)) == 1
        await run_agent(service, "fails")
        assert [row["state"] for row in await list_halts(service)] == ["active", "ended"]


async def test_ends_that_are_no_failures_of_the_agent_do_not_count(breaking: Deployment) -> None:
    async with open_service(breaking) as service:
        assert (await run_agent(service, "works"))["status"] == "COMPLETED"
        for request in (RunRequest(""), RunRequest("x", input={"a": 1}, session_id="\0")):
            with pytest.raises(errors.ValidationFailed):
                await user(service).runs.create("agent", "works", request)

        # The provider refuses the request of a user.
        refused = await run_agent(service, "refused")
        assert refused["error"]["code"] == "MODEL_REJECTED"

        stream = streamed_run(user(service), "agent", "hangs", message="x", session_id="s1")
        async with stream as (run, events):
            cancel = CancelRequest(session_id="s1", wait=30)
            await user(service).runs.cancel("agent", "hangs", run["run_id"], cancel)
            assert (await events)[-1].name == "RunCancelled"

        assert await list_halts(service) == []


async def test_halted_model_is_passed_over_after_failed_calls(
    breaking: Deployment, model_endpoint: ModelEndpoint
) -> None:
    """The runs do not fail, because the fallback answers: their agent is not halted."""
    async with open_service(breaking) as service:
        for _ in range(4):
            assert (await run_agent(service, "careful"))["content"] == "hello"
        (halt,) = await list_halts(service)
        assert (halt["scope"], halt["scope_id"]) == ("model", "broken")
        assert halt["reason"] == "2 of its calls failed within 10 min: MODEL_UNAVAILABLE 2"
        assert len(model_endpoint.requests("http-503")) == 2
        assert len(model_endpoint.requests("echo")) == 4


async def test_members_and_steps_count_for_their_agent(breaking: Deployment) -> None:
    async with open_service(breaking) as service:
        # The leader reads that its member has failed, and its own run does not fail.
        run = (await user(service).runs.create("team", "leads", RunRequest("hello"))).value
        assert run["status"] == "COMPLETED"
        assert await list_halts(service) == []

        run = (await user(service).runs.create("workflow", "steps", RunRequest("hello"))).value
        assert run["status"] == "ERROR"
        (halt,) = await list_halts(service)
        assert (halt["scope"], halt["scope_id"]) == ("workflow", "steps")

        await run_agent(service, "fails")
        assert [row["scope"] for row in await list_halts(service)] == ["agent", "workflow"]


async def test_run_ends_although_its_failure_cannot_be_counted(
    breaking: Deployment, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    @unit
    def refuse(*_: object) -> Steps[None]:
        raise errors.Unavailable("The database is not available")
        yield

    monkeypatch.setattr("agentctl.runs.gate.breakers.record_failure", refuse)
    async with open_service(breaking) as service:
        assert (await run_agent(service, "fails"))["status"] == "ERROR"
    assert "a failure was not counted for its breaker" in caplog.text
