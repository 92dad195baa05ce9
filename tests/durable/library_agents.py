"""Durable agents of libraries. The tests copy this module into the folder of their deployment."""

from __future__ import annotations

from typing import Any

import ledger_tools  # type: ignore[import-not-found]  # next to its copy
from crossings import wait_at  # type: ignore[import-not-found]
from langchain.agents import create_agent
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from pydantic_ai import Agent, ModelRetry
from pydantic_ai import RunContext as Run

from agentctl import RunContext
from agentctl.langchain import ChatModel
from agentctl.pydantic_ai import Model

typed: Any = Agent(Model("plan"), deps_type=RunContext)


@typed.tool
async def cross(run: Run[RunContext], barrier: str) -> dict[str, str]:
    """Cross a barrier."""
    ledger_tools.record(run.deps, f"cross {barrier}")
    await wait_at(barrier)
    return {"crossed": barrier}


@typed.tool(metadata={"idempotent": True})
async def look(run: Run[RunContext], barrier: str) -> str:
    """Look through a barrier."""
    ledger_tools.record(run.deps, f"look {barrier}")
    await wait_at(barrier)
    return f"looked {barrier}"


@typed.tool
def note(run: Run[RunContext], text: str) -> str:
    """Write a note."""
    ledger_tools.record(run.deps, "note")
    if text == "bad":
        raise ModelRetry("not this text")
    return f"noted {text}"


@tool("cross")
async def graph_cross(barrier: str, config: RunnableConfig) -> str:
    """Cross a barrier."""
    ledger_tools.record(config["configurable"]["run_context"], f"cross {barrier}")
    await wait_at(barrier)
    return f"crossed {barrier}"


@tool("look")
async def graph_look(barrier: str, config: RunnableConfig) -> str:
    """Look over a barrier."""
    ledger_tools.record(config["configurable"]["run_context"], f"look {barrier}")
    await wait_at(barrier)
    return f"looked {barrier}"


@tool("note")
def graph_note(text: str, config: RunnableConfig) -> str:
    """Write a note."""
    ledger_tools.record(config["configurable"]["run_context"], "note")
    return f"noted {text}"


graph_look.metadata = {"idempotent": True}
TOOLS = [graph_cross, graph_look, graph_note]

tasks: Any = create_agent(ChatModel(model="plan"), tools=TOOLS)
"""A graph in which each call is a task."""


async def answer(state: MessagesState) -> dict[str, Any]:
    """Call the model."""
    model = ChatModel(model="plan").bind_tools(TOOLS)
    return {"messages": [await model.ainvoke(state["messages"])]}


builder: Any = StateGraph(MessagesState)
builder.add_node("answer", answer)
builder.add_node("tools", ToolNode(TOOLS))
builder.add_edge(START, "answer")
builder.add_conditional_edges("answer", tools_condition)
builder.add_edge("tools", "answer")
nodes: Any = builder.compile()
"""A graph in which one node makes all calls of an answer."""
