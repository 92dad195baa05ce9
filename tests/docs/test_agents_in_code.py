"""The examples of docs/agents.md answer: served by a process, with scripted models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.deployment import create_deployment
from tests.kit.documents import page
from tests.kit.environments import find_adk
from tests.kit.process import serve_config
from tests.kit.scripted_models import Answer, Script, ScriptedModels, models
from tests.pauses.waiting import WaitingDeployment, WaitingServer

__all__ = ["models"]

PAGE = page("docs/agents.md")

POSTGRES = """
import sys
import types
from contextlib import asynccontextmanager

from langgraph.checkpoint.memory import InMemorySaver


class AsyncPostgresSaver:
    @staticmethod
    @asynccontextmanager
    async def from_conn_string(url):
        assert url.startswith("postgresql://")
        yield InMemorySaver()


for name in ("langgraph.checkpoint.postgres", "langgraph.checkpoint.postgres.aio"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["langgraph.checkpoint.postgres.aio"].AsyncPostgresSaver = AsyncPostgresSaver
"""
"""The checkpointer of the example of factories, without a database."""

ADK = "Google ADK"
"""The section whose server has another environment."""

CALL: list[Answer] = [[("list_orders", {})], "You have one order."]

SCRIPTS: dict[str, Script] = {
    "pydantic-ai": {"gpt-5.2": CALL},
    "agno": {"gpt-5.2": CALL},
    "openai-agents": {"gpt-5.2": [[("transfer_to_orders", {})]], "*": CALL},
    ADK: {"gemini-3-flash": CALL},
}
"""The answers of the models of an agent that lists orders, by its heading in the page."""


def read_blocks(title: str) -> list[str]:
    """Return the Python blocks below a heading of the second level."""
    start = PAGE.text.index(f"\n## {title}\n")
    end = PAGE.text.find("\n## ", start + 1)
    first, last = (PAGE.text.count("\n", 0, place) for place in (start, end % len(PAGE.text)))
    return [block.text for block in PAGE.blocks("python") if first < block.line <= last + 1]


def list_titles() -> list[str]:
    """Return the headings of the second level."""
    return [part.partition("\n")[0] for part in PAGE.text.split("\n## ")[1:]]


LISTING = [title for title in SCRIPTS if title in list_titles() and title != ADK]


@pytest.fixture(scope="module")
def server(
    tmp_path_factory: pytest.TempPathFactory, models: ScriptedModels
) -> Iterator[WaitingServer]:
    folder: Path = tmp_path_factory.mktemp("page")
    graph = read_blocks("LangGraph")[0]
    modules = {title.replace("-", "_"): read_blocks(title)[0] for title in LISTING}
    modules["langgraph"] = graph
    modules["factories"] = "\n".join([POSTGRES, graph, *read_blocks("Factories")])
    for name, text in modules.items():
        (folder / f"page_{name}.py").write_text(text)
    tables = [
        f'[[agents]]\nid = "{name.replace("_", "-")}"\nobject = "page_{name}:support"'
        for name in modules
    ]
    deployment = create_deployment(folder, models.url, extra="\n\n".join(tables))
    variables = {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": f"{models.url}/v1"}
    with serve_config(deployment.path, variables=variables) as process:
        yield WaitingServer(WaitingDeployment(deployment, models.url), process)


@pytest.mark.parametrize("agent", LISTING)
def test_agent_of_the_page_lists_the_orders_of_its_user(
    server: WaitingServer, models: ScriptedModels, agent: str
) -> None:
    models.begin(SCRIPTS[agent])
    run = server.start(agent, "What have I ordered?")
    assert (run["status"], run["content"]) == ("COMPLETED", "You have one order."), run["error"]
    assert "order of ann" in str(models.calls[-1].body)


def test_agent_of_google_adk_lists_the_orders_of_its_user(
    tmp_path: Path, models: ScriptedModels
) -> None:
    python, variables = find_adk()
    (tmp_path / "page_adk.py").write_text(read_blocks(ADK)[0])
    table = '[[agents]]\nid = "adk"\nobject = "page_adk:support"'
    inner = create_deployment(tmp_path, models.url, extra=table)
    variables |= {"GOOGLE_GEMINI_BASE_URL": models.url, "GOOGLE_API_KEY": "none"}
    deployment = WaitingDeployment(inner, models.url, python, variables)
    models.begin(SCRIPTS[ADK])
    with deployment.serve() as server:
        run = server.start("adk", "What have I ordered?")
    assert (run["status"], run["content"]) == ("COMPLETED", "You have one order."), run["error"]
    assert "order of ann" in str(models.calls[-1].body)


@pytest.mark.parametrize("agent", ["langgraph", "factories"])
def test_graph_of_the_page_greets_its_user(server: WaitingServer, agent: str) -> None:
    run = server.start(agent, "hi")
    assert (run["status"], run["content"]) == ("COMPLETED", "Hello ann"), run["error"]


def test_every_section_with_code_is_run() -> None:
    """A new section with Python needs a test in this module."""
    with_code = [title for title in list_titles() if read_blocks(title)]
    assert sorted(with_code) == sorted([*LISTING, ADK, "LangGraph", "Factories"])
