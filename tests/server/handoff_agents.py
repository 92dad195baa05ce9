"""Agents that hand a conversation to each other and back, in the ways of their libraries."""

from __future__ import annotations

import os
from typing import Annotated, Any

import agents
from agents.extensions.handoff_filters import remove_all_tools
from agno.agent import Agent as AgnoAgent
from agno.models.openai.like import OpenAILike
from agno.team import Team
from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langchain_core.tools import InjectedToolCallId, StructuredTool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState
from langgraph.types import Command
from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

URL = os.environ["MODEL_URL"]


def look_up(question: str) -> str:
    """Answer a frequent question."""
    return f"about {question}: one bag"


def book(seat: str) -> str:
    """Book a seat."""
    return f"seat {seat} is booked"


# openai-agents: a desk that hands off to two others, which hand back to it.


def _build_desks(**options: Any) -> Any:
    client = AsyncOpenAI(base_url=URL, api_key="none", max_retries=0)
    model = agents.OpenAIChatCompletionsModel("plan", client)
    triage: Any = agents.Agent("Triage Agent", model=model)
    questions = agents.Agent("FAQ Agent", model=model, tools=[agents.function_tool(look_up)])
    seats = agents.Agent("Seat Booking Agent", model=model, tools=[agents.function_tool(book)])
    triage.handoffs = [agents.handoff(each, **options) for each in (questions, seats)]
    questions.handoffs = [agents.handoff(triage, **options)]
    seats.handoffs = [agents.handoff(triage, **options)]
    return triage


def build_desks() -> Any:
    return _build_desks()


def build_filtered_desks() -> Any:
    """Build desks whose conversation loses its calls at each handoff."""
    return _build_desks(input_filter=remove_all_tools)


# LangGraph: agents that are nodes, with tools that go to another node of the graph around them.


def build_handoff(name: str) -> Any:
    def hand_off(
        state: Annotated[Any, InjectedState], tool_call_id: Annotated[str, InjectedToolCallId]
    ) -> Any:
        done = ToolMessage(f"Transferred to {name}", tool_call_id=tool_call_id, name=f"to_{name}")
        update = {"messages": [*state["messages"], done]}
        return Command(goto=name, graph=Command.PARENT, update=update)

    return StructuredTool.from_function(hand_off, name=f"to_{name}", description=f"Go to {name}")


def build_swarm() -> Any:
    model: Any = ChatOpenAI(model="plan", base_url=URL, api_key="none", max_retries=0)
    tools = {
        "triage": [build_handoff("questions"), build_handoff("seats")],
        "questions": [look_up, build_handoff("triage")],
        "seats": [book, build_handoff("triage")],
    }
    graph = StateGraph(MessagesState)
    for name, given in tools.items():
        graph.add_node(name, create_agent(model, given, name=name))
    graph.add_edge(START, "triage")
    return graph.compile()


# agno: a team whose leader delegates.


def build_team() -> Any:
    def build_model() -> Any:
        return OpenAILike(id="plan", base_url=URL, api_key="none", max_retries=0)

    members = [
        AgnoAgent(name="questions", model=build_model(), tools=[look_up], telemetry=False),
        AgnoAgent(name="seats", model=build_model(), tools=[book], telemetry=False),
    ]
    return Team(name="desk", model=build_model(), members=members, telemetry=False)


# pydantic-ai: a tool that asks another agent.


def build_delegating() -> Any:
    model = OpenAIChatModel("plan", provider=OpenAIProvider(base_url=URL, api_key="none"))
    seats = PydanticAgent(model, tools=[book])

    async def ask_seats(task: str) -> str:
        """Ask the agent for seats."""
        return (await seats.run(task)).output

    return PydanticAgent(model, tools=[look_up, ask_seats])
