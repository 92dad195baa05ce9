"""The agents of libraries whose database calls fail in the tests; see `unlucky_agents`."""

from __future__ import annotations

from typing import Annotated, Any

import agno.run
from agents import Agent as OpenAIAgent
from agents import RunContextWrapper, function_tool
from agno.agent import Agent as AgnoAgent
from agno.team import Team as AgnoTeam
from agno.tools import tool as agno_tool
from agno.workflow import Step, Workflow
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool as graph_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.prebuilt import InjectedStore
from langgraph.store.base import BaseStore
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import RunContext as Run

import agentctl
from agentctl.agno import Model as AgnoModel
from agentctl.langchain import ChatModel
from agentctl.openai_agents import Model as OpenAIModel
from agentctl.pydantic_ai import Model as PydanticModel
from tests.runs.unlucky_agents import make_note, make_payment

pydantic_payer: Any = PydanticAgent(PydanticModel("plan"), deps_type=agentctl.RunContext)


@pydantic_payer.tool(name="note")
async def pydantic_note(run: Run[agentctl.RunContext]) -> str:
    """Take a note."""
    return await make_note(run.deps)


@pydantic_payer.tool(name="pay", requires_approval=True)
async def pydantic_pay(run: Run[agentctl.RunContext], amount: int) -> str:
    """Pay an amount."""
    return make_payment(run.deps)


@graph_tool("note")
async def graph_note(config: RunnableConfig, store: Annotated[BaseStore, InjectedStore()]) -> str:
    """Take a note, also in the store of the graph."""
    context = config["configurable"]["run_context"]
    await store.aput(("notes",), "train", {"text": "night"})
    item = await store.aget(("notes",), "train")
    assert item is not None
    await store.asearch(("notes",))
    await store.alist_namespaces()
    return await make_note(context)


@graph_tool("pay")
async def graph_pay(amount: int, config: RunnableConfig) -> str:
    """Pay an amount."""
    return make_payment(config["configurable"]["run_context"])


def build_graph(**options: Any) -> Any:
    gate = HumanInTheLoopMiddleware(interrupt_on={"pay": True})
    tools = [graph_note, graph_pay]
    return create_agent(ChatModel(model="plan"), tools=tools, middleware=[gate], **options)


graph_payer: Any = build_graph()
graph_with_memory: Any = build_graph(checkpointer=InMemorySaver())
"""A graph that keeps the thread of a session itself."""


def _find_context(run_context: agno.run.RunContext) -> agentctl.RunContext:
    context: agentctl.RunContext = (run_context.dependencies or {})["run_context"]
    return context


@agno_tool(name="note")
async def agno_note(run_context: agno.run.RunContext) -> str:
    """Take a note."""
    return await make_note(_find_context(run_context))


@agno_tool(name="pay", requires_confirmation=True)
async def agno_pay(amount: int, run_context: agno.run.RunContext) -> str:
    """Pay an amount."""
    return make_payment(_find_context(run_context))


def build_agno() -> Any:
    return AgnoAgent(
        model=AgnoModel(id="plan"), tools=[agno_note, agno_pay], name="payer", telemetry=False
    )


agno_payer: Any = build_agno()
agno_team: Any = AgnoTeam(model=AgnoModel(id="delegate"), members=[build_agno()], telemetry=False)
agno_workflow: Any = Workflow(
    name="payment", steps=[Step(name="pay", agent=build_agno())], telemetry=False
)


@function_tool(name_override="note")
async def openai_note(wrapper: RunContextWrapper[agentctl.RunContext]) -> str:
    """Take a note."""
    return await make_note(wrapper.context)


@function_tool(name_override="pay", needs_approval=True)
async def openai_pay(wrapper: RunContextWrapper[agentctl.RunContext], amount: int) -> str:
    """Pay an amount."""
    return make_payment(wrapper.context)


openai_payer: Any = OpenAIAgent(
    name="payer", model=OpenAIModel("plan"), tools=[openai_note, openai_pay]
)
