"""Durable agents of libraries. The tests copy this module into the folder of their deployment."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import ledger_tools  # type: ignore[import-not-found]  # next to its copy
from crossings import wait_at  # type: ignore[import-not-found]
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import ToolMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import InjectedToolCallId, tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode, tools_condition
from langgraph.runtime import Runtime
from langgraph.types import Command, interrupt
from pydantic_ai import Agent, ModelRetry
from pydantic_ai import RunContext as Run

from agentctl import RunContext, read_tool_result
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

tasks: Any = create_agent(ChatModel(model="plan"), tools=[*TOOLS, read_tool_result])
"""A graph in which each call is a task."""


async def answer(state: MessagesState) -> dict[str, Any]:
    """Call the model."""
    model = ChatModel(model="plan").bind_tools(TOOLS)
    return {"messages": [await model.ainvoke(state["messages"])]}


@tool("note")
def agreed_note(
    text: str,
    config: RunnableConfig,
    state: Annotated[dict[str, Any], InjectedState],
    tool_call_id: Annotated[str, InjectedToolCallId],
) -> Command[Any]:
    """Write a note; ask about one in the middle of the call. The last one lists all others."""
    context: RunContext = config["configurable"]["run_context"]
    if text == "between":
        interrupt("Between what?")
    ledger_tools.record(context, "note")
    artifacts = [getattr(message, "artifact", None) for message in state["messages"]]
    result = f"noted {text}"
    if text == "end":
        result = f"{sorted(filter(None, artifacts))} {sorted(context.state)}"
    context.state[text] = True
    message = ToolMessage(result, tool_call_id=tool_call_id, artifact=text)
    return Command(update={"messages": [message]})


AGREED_TOOLS = [graph_cross, graph_look, agreed_note]
GATE: Any = HumanInTheLoopMiddleware(interrupt_on={"cross": True, "look": True, "note": True})


async def ask(state: MessagesState, runtime: Runtime) -> Any:
    """Ask for the approval of the calls of an answer."""
    return await GATE.aafter_model(state, runtime)


def build_nodes(*, is_gated: bool) -> Any:
    """Build a graph in which one node makes all calls of an answer."""
    builder: Any = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_node("tools", ToolNode(AGREED_TOOLS if is_gated else TOOLS))
    builder.add_edge(START, "answer")
    last = "answer"
    if is_gated:
        last = "ask"
        builder.add_node(last, ask)
        builder.add_edge("answer", last)
    builder.add_conditional_edges(last, tools_condition)
    builder.add_edge("tools", "answer")
    return builder.compile()


nodes: Any = build_nodes(is_gated=False)

gated: Any = create_agent(ChatModel(model="plan"), tools=AGREED_TOOLS, middleware=[GATE])
"""A graph in which each call is a task, and which asks for the approval of some."""

gated_nodes: Any = build_nodes(is_gated=True)


async def call_all(barrier: str, config: RunnableConfig) -> dict[str, Any]:
    """Make the calls at a barrier after a person has answered."""
    way = interrupt(f"Which way to the {barrier}?")
    given = {"barrier": barrier}
    _, crossed, _ = await asyncio.gather(
        graph_look.ainvoke(given, config),
        graph_cross.ainvoke(given, config),
        graph_note.ainvoke({"text": barrier}, config),
    )
    return {"messages": [("ai", f"{way} {crossed}")]}


async def call_at_first(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
    return await call_all("first", config)


async def call_at_second(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
    return await call_all("second", config)


asking: Any = StateGraph(MessagesState)
asking.add_node("first", call_at_first)
asking.add_node("second", call_at_second)
asking.add_edge(START, "first")
asking.add_edge("first", "second")
questions: Any = asking.compile()
"""A graph whose nodes ask a question each, and call tools themselves."""
