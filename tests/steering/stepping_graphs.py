"""Graphs whose nodes call models in other ways. The tests copy this module into a deployment."""

from __future__ import annotations

import threading
from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from agentctl.langchain import ChatModel


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


model = ChatModel(model="steps").bind_tools([add])


class LockedState(MessagesState):
    """A state with a value that nothing can serialize."""

    lock: Any


def build_loop(ask: Any, state: type[MessagesState] = MessagesState) -> Any:
    """Return a graph with a node that asks a model, and a node for its tools."""
    builder = StateGraph(state)
    builder.add_node("ask", ask)
    builder.add_node("tools", ToolNode([add]))
    builder.add_edge(START, "ask")
    builder.add_conditional_edges("ask", tools_condition)
    builder.add_edge("tools", "ask")
    return builder.compile()


async def ask_twice(state: LockedState) -> dict[str, Any]:
    """Call a model about something else first."""
    await ChatModel(model="steps").ainvoke("classify")
    return {"messages": [await model.ainvoke(state["messages"])], "lock": threading.Lock()}


def ask_in_thread(state: MessagesState) -> dict[str, Any]:
    """Call the model without await."""
    return {"messages": [model.invoke(state["messages"])]}


async def ask_with_texts(state: MessagesState) -> dict[str, Any]:
    """Write the texts of the messages of the user into one prompt."""
    messages = state["messages"]
    texts = [str(each.content) for each in messages if isinstance(each, HumanMessage)]
    rest = [each for each in messages if not isinstance(each, HumanMessage)]
    return {"messages": [await model.ainvoke([HumanMessage(" | ".join(texts)), *rest])]}


async def ask_without_later(state: MessagesState) -> dict[str, Any]:
    """Show the model only the first message of the user."""
    first, *rest = state["messages"]
    shown = [each for each in rest if not isinstance(each, HumanMessage)]
    return {"messages": [await model.ainvoke([first, *shown])]}


twice = build_loop(ask_twice, LockedState)
threaded = build_loop(ask_in_thread)
joining = build_loop(ask_with_texts)
deaf = build_loop(ask_without_later)
limited = threaded.with_config(recursion_limit=8)

_worker = create_agent(ChatModel(model="steps"), tools=[add], name="worker")


def is_done(state: MessagesState) -> str:
    """Let the worker look twice."""
    answers = [each for each in state["messages"] if each.content and each.type == "ai"]
    return "worker" if len(answers) < 2 else END


_pair = StateGraph(MessagesState)
_pair.add_node("worker", _worker)
_pair.add_edge(START, "worker")
_pair.add_conditional_edges("worker", is_done)
pair = _pair.compile()
