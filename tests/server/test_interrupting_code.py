"""KeyboardInterrupt in the code of agents: it ends their run, and not the server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kit.concurrent_callers import open_client
from tests.kit.deployment import Deploy, Deployment
from tests.kit.process import ServerProcess, serve_config

TOOL = '''
async def add() -> str:
    """Raise what Ctrl-C raises."""
    raise KeyboardInterrupt
'''

AGENTS = {
    "pydantic_ai": """
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

model = OpenAIChatModel("tool:add", provider=OpenAIProvider(base_url=URL, api_key="none"))
agent = Agent(model, tools=[add])
""",
    "agno": """
from agno.agent import Agent
from agno.models.openai.like import OpenAILike

agent = Agent(model=OpenAILike(id="tool:add", base_url=URL, api_key="none"), tools=[add])
""",
    "langgraph": """
from langgraph.graph import START, MessagesState, StateGraph


async def node(state):
    await add()


builder = StateGraph(MessagesState)
builder.add_node("node", node)
builder.add_edge(START, "node")
agent = builder.compile()
""",
}


@pytest.fixture(scope="module")
def deployment(deploy: Deploy) -> Deployment:
    """A configuration with an agent of each library, which is in a module of its own."""
    entries = ""
    files = {}
    for library, code in AGENTS.items():
        files[f"interrupting_{library}.py"] = f"URL = {deploy.url!r}\n{TOOL}\n{code}"
        entries += f'[[agents]]\nid = "{library}"\nobject = "interrupting_{library}:agent"\n'
    return deploy(entries, files=files)


@pytest.fixture(scope="module")
def served(deployment: Deployment) -> Iterator[ServerProcess]:
    with serve_config(deployment.path) as server:
        yield server


@pytest.mark.parametrize("library", AGENTS)
async def test_interrupt_in_code_of_an_agent_ends_only_its_run(
    deployment: Deployment, served: ServerProcess, library: str
) -> None:
    async with open_client(deployment, served.url) as client:
        body = {"message": "{}", "background": True, "stream": False}
        other = (await client.post("/agents/hang/runs", json=body)).json()
        body = {"message": "{}", "stream": False}
        for _ in range(2):
            run = (await client.post(f"/agents/{library}/runs", json=body)).json()
            assert run["status"] == "ERROR", run
            assert run["error"]["code"] in ("AGENT_FAILED", "TOOL_FAILED"), run
        path = f"/agents/hang/runs/{other['run_id']}?session_id={other['session_id']}"
        assert (await client.get(path)).json()["status"] == "RUNNING"
    assert served.process.poll() is None
    assert "Traceback" not in served.log_text.partition("the agent failed")[0]
