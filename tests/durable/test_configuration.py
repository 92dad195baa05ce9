"""`durable`: the kinds that can have it, and refused ones."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from agentctl.auth.principal import local_principal
from agentctl.config.settings import Agent
from agentctl.errors import InvalidConfiguration, ValidationFailed
from agentctl.interface.requests import RunRequest
from agentctl.runtime.components.catalog import Catalog
from agentctl.service.service import Service
from tests.kit.fake_context import settings
from tests.kit.site import Site, answer

CODE = """
import agno.agent

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

library = agno.agent.Agent()

builder = StateGraph(MessagesState)
builder.add_node("node", lambda state: {})
builder.add_edge(START, "node")
graph = builder.compile()
checkpointed = builder.compile(checkpointer=InMemorySaver())


def quick(message, context):
    return message


async def slow(message, context):
    return message


async def words(message, context):
    yield message
"""


def load(tmp_path: Path, name: str) -> None:
    (tmp_path / "durable_objects.py").write_text(CODE)
    agent = Agent("a", object=f"durable_objects:{name}", durable=True)
    configured = replace(settings(agents=(agent,)), path=tmp_path / "agentctl.toml")
    Catalog.from_settings(configured).load_code()


@pytest.mark.parametrize("name", ["slow", "words", "graph"])
def test_async_functions_and_graphs_can_be_durable(tmp_path: Path, name: str) -> None:
    load(tmp_path, name)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("library", "durable has no effect for an Agent or Team of agno"),
        ("checkpointed", "durable has no effect for a graph with its own checkpointer"),
        ("quick", "durable has no effect for a function that is not asynchronous"),
    ],
)
def test_other_kinds_are_refused_at_the_start(tmp_path: Path, name: str, problem: str) -> None:
    with pytest.raises(InvalidConfiguration) as refused:
        load(tmp_path, name)
    assert refused.value.detail.endswith(problem)
    assert "remove the key durable" in (refused.value.hint or "")


async def test_dependencies_of_a_request_are_refused(site: Site) -> None:
    message = json.dumps([answer(text="done")])
    async with Service.open(site.deployment.settings, create=True) as service:
        operations = service.operations_for(local_principal("ann"))
        with pytest.raises(ValidationFailed, match="dependencies are not stored"):
            await operations.runs.create(
                "agent", "lasting", RunRequest(message, dependencies={"key": 1})
            )


def test_agents_in_code_below_a_durable_team_are_durable(site: Site) -> None:
    text = site.deployment.path.read_text()
    agent = '[[agents]]\nid = "inner"\nobject = "inner:agent"\n'
    team = '[[teams]]\nid = "{}"\nmodel = "plan"\nmembers = ["{}"]\n'
    site.deployment.path.write_text(
        f"{text}\n{agent}\n{team.format('middle', 'inner')}\n"
        f"{team.format('outer', 'middle')}durable = true\n"
    )
    with pytest.raises(InvalidConfiguration) as refused:
        _ = site.deployment.settings
    assert "teams.outer.durable" in refused.value.detail
    assert refused.value.detail.endswith("inner is not")
    assert "set durable = true for the agent inner" in (refused.value.hint or "")
