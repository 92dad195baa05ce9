"""The cost of runs and sessions, and usage by session."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from agentctl import errors
from agentctl.auth.principal import Principal
from agentctl.interface.requests import RunFilter, RunRequest, RunView, SessionFilter
from agentctl.interface.requests.administration import UsageFilter
from agentctl.service.service import Service, ServiceOperations
from tests.kit.deployment import Deployment, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.service import ALL, open_service

EXTRA = """
[[models]]
id = "priced"
provider = "openai"
model = "echo"
base_url = "{url}"
price = {{ input = 2, output = 10 }}

[[agents]]
id = "clerk"
model = "priced"

[[teams]]
id = "shop"
model = "delegate"
members = ["clerk"]
"""


@pytest.fixture
def shop(tmp_path: Path, model_endpoint: ModelEndpoint, databases: Mapping[str, str]) -> Deployment:
    url = model_endpoint.base_url
    return create_deployment(tmp_path, url, extra=EXTRA.format(url=url), databases=databases)


def caller(service: Service) -> ServiceOperations:
    return service.operations_for(Principal(subject="me", scopes=ALL | {"usage:read"}))


async def start(operations: ServiceOperations, kind: Any, component: str, session: str) -> Any:
    request = RunRequest("some words", session_id=session)
    return (await operations.runs.create(kind, component, request)).value


def price_of(run: Any) -> float:
    """Return the cost of the tokens of a run by the price of the configuration."""
    metrics = run["metrics"]
    return (2 * metrics["input_tokens"] + 10 * metrics["output_tokens"]) / 1_000_000


async def test_cost_is_part_of_runs_and_sessions(shop: Deployment) -> None:
    async with open_service(shop) as service:
        operations = caller(service)
        first = await start(operations, "agent", "clerk", "s1")
        second = await start(operations, "agent", "clerk", "s1")
        cost = price_of(first)
        assert cost > 0
        assert (first["cost"], first["unpriced_tokens"]) == (pytest.approx(cost), 0)
        assert "cost" not in first["metrics"]

        summary = RunFilter(session_id="s1", form=RunView("summary"))
        listed = (await operations.runs.list(summary)).value["data"]
        assert [run["cost"] for run in listed] == [second["cost"], first["cost"]]

        both = pytest.approx(first["cost"] + second["cost"])
        session: Any = (await operations.sessions.get("s1")).value
        assert (session["cost"], session["unpriced_tokens"]) == (both, 0)
        assert "cost" not in session["metrics"]
        sessions = (await operations.sessions.list(SessionFilter())).value["data"]
        assert [row["cost"] for row in sessions] == [both]


async def test_cost_lacks_the_tokens_without_a_price(shop: Deployment) -> None:
    async with open_service(shop) as service:
        operations = caller(service)
        unpriced = await start(operations, "agent", "echo", "s2")
        assert (unpriced["cost"], unpriced["unpriced_tokens"]) == (None, unpriced["total_tokens"])

        # The leader has no price, its member has one.
        team = await start(operations, "team", "shop", "s3")
        member = (await operations.runs.get(team["member_runs"][0])).value
        assert team["cost"] == pytest.approx(price_of(member))
        assert team["unpriced_tokens"] == team["total_tokens"] - member["total_tokens"] > 0


async def test_usage_by_session_has_the_costs_of_the_sessions(shop: Deployment) -> None:
    async with open_service(shop) as service:
        operations = caller(service)
        for session, component in (("a", "clerk"), ("b", "echo"), ("a", "clerk")):
            await start(operations, "agent", component, session)

        report = (await operations.usage.get(UsageFilter(by=("session",)))).value
        rows = {row["session_id"]: row for row in report["data"]}
        sessions = {
            row["session_id"]: row
            for row in (await operations.sessions.list(SessionFilter())).value["data"]
        }
        assert {*rows} == {*sessions} == {"a", "b"}
        for session_id, session in sessions.items():
            row = rows[session_id]
            assert row["total_tokens"] == session["total_tokens"]
            assert row["cost"] == (None if session_id == "b" else pytest.approx(session["cost"]))
        assert (rows["a"]["runs"], report["total"]["runs"], report["groups"]) == (2, 3, 2)

        stranger = service.operations_for(Principal(subject="another", scopes=ALL | {"usage:read"}))
        assert (await stranger.usage.get(UsageFilter(by=("session",)))).value["data"] == []
        with pytest.raises(errors.ValidationFailed):
            await operations.usage.get(UsageFilter(by=("session", "day")))
