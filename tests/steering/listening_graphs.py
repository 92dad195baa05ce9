"""Graphs that take messages. The tests copy this module into their deployments."""

from __future__ import annotations

from typing import Any, TypedDict

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AnyMessage, convert_to_messages
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from agentctl.langchain import ChatModel


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


graph: Any = create_agent(ChatModel(model="steps"), tools=[add])

# Its threads are in the memory of the process, as a database is for several.
keeping_graph: Any = create_agent(
    ChatModel(model="steps"), tools=[add], checkpointer=InMemorySaver()
)


class ListingState(TypedDict):
    """A state whose messages have no reducer: an update replaces all of them."""

    messages: list[AnyMessage]


async def answer_list(state: ListingState) -> ListingState:
    """Ask the model once."""
    messages = convert_to_messages(state["messages"])
    return {"messages": [*messages, await ChatModel(model="steps").ainvoke(messages)]}


_listing = StateGraph(ListingState)
_listing.add_node("answer", answer_list)
_listing.add_edge(START, "answer")
listing_graph: Any = _listing.compile()

asking_graph: Any = create_agent(
    ChatModel(model="steps"),
    tools=[add],
    middleware=[HumanInTheLoopMiddleware(interrupt_on={"add": True})],
)

asking_keeping_graph: Any = create_agent(
    ChatModel(model="steps"),
    tools=[add],
    middleware=[HumanInTheLoopMiddleware(interrupt_on={"add": True})],
    checkpointer=InMemorySaver(),
)
