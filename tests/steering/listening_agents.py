"""Agents in code that take messages. The tests copy this module into their deployments."""

from __future__ import annotations

from typing import Any, TypedDict

import agents as openai_agents
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AnyMessage, convert_to_messages
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from pydantic_ai import Agent

from agentctl import RunContext
from agentctl.langchain import ChatModel
from agentctl.openai_agents import Model as OpenAIModel
from agentctl.pydantic_ai import Model

typed: Any = Agent(Model("steps"), deps_type=RunContext)


@typed.tool_plain
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def add_in_graph(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


add_in_graph.name = "add"

graph: Any = create_agent(ChatModel(model="steps"), tools=[add_in_graph])

# Its threads are in the memory of the process, as a database is for several.
keeping_graph: Any = create_agent(
    ChatModel(model="steps"), tools=[add_in_graph], checkpointer=InMemorySaver()
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
    tools=[add_in_graph],
    middleware=[HumanInTheLoopMiddleware(interrupt_on={"add": True})],
)

asking_keeping_graph: Any = create_agent(
    ChatModel(model="steps"),
    tools=[add_in_graph],
    middleware=[HumanInTheLoopMiddleware(interrupt_on={"add": True})],
    checkpointer=InMemorySaver(),
)


@openai_agents.function_tool(name_override="add")
def add_with_runner(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


runner: Any = openai_agents.Agent(
    name="runner", model=OpenAIModel("steps"), tools=[add_with_runner]
)


async def ask_model(prompt: str) -> str:
    """Ask the model of the stub for one step."""
    result = await Agent(Model("steps")).run(prompt)
    return str(result.output)


async def listen(message: str, context: RunContext) -> str:
    """Take the steps that a message `work N ID` asks for, and answer with what was heard."""
    heard = [message]
    words = message.split()
    # A message that became the next run of the session asks for no steps.
    steps = int(words[1]) if words[0] == "work" else 0
    for number in range(steps):
        await context.step(f"step {number}", ask_model, f"look at {number}", idempotent=True)
        heard += [sent.text for sent in await context.messages()]
    return f"done after {' | '.join(heard)}"
