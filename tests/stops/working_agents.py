"""Agents of libraries whose tools start work of every form. The server imports this module."""

from __future__ import annotations

import json
import os
from typing import Any

import agents
from agno.agent import Agent as AgnoAgent
from agno.models.openai.like import OpenAILike
from agno.team import Team as AgnoTeam
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from work import Work, start, touch

URL = os.environ["MODEL_URL"]

# pydantic-ai

pydantic_ai = PydanticAgent(
    OpenAIChatModel("tool:start", provider=OpenAIProvider(base_url=URL, api_key="not-needed")),
    tools=[start],
)

# LangGraph


def build_graph() -> Any:
    options: dict[str, Any] = {"base_url": URL, "api_key": "not-needed"}
    tools = [langchain_tool(start, description="Start")]
    chat = ChatOpenAI(model="tool:start", stream_usage=True, **options).bind_tools(tools)

    async def call_model(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await chat.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", call_model)
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges(
        "model",
        lambda state: "tools" if getattr(state["messages"][-1], "tool_calls", None) else END,
        ["tools", END],
    )
    graph.add_edge("tools", "model")
    return graph.compile()


def build_branches() -> Any:
    """Build a graph with two nodes that work at the same time, and one whose model hangs."""
    options: dict[str, Any] = {"base_url": URL, "api_key": "not-needed"}
    chat = ChatOpenAI(model="hang", stream_usage=True, **options)

    async def first(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", await start(**json.loads(state["messages"][0].text)))]}

    async def second(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await chat.ainvoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    for name, node in {"first": first, "other": first, "second": second}.items():
        graph.add_node(name, node)
        graph.add_edge(START, name)
        graph.add_edge(name, END)
    return graph.compile()


langgraph = build_graph()
langgraph_branches = build_branches()

# agno


def like(model: str) -> Any:
    return OpenAILike(id=model, base_url=URL, api_key="not-needed")


def build_member(model: str) -> Any:
    return AgnoAgent(model=like(model), id="helper", name="helper", tools=[start])


def build_team(member: Any) -> Any:
    return AgnoTeam(model=like("delegate"), members=[member], id="crew", name="crew")


agno_agent = build_member("tool:start")
agno_team_hang = build_team(build_member("hang"))
agno_team_tool = build_team(build_member("tool:start"))
agno_team_again = build_team(build_member("again:touch"))
agno_nested_hang = build_team(build_team(build_member("hang")))
agno_nested_tool = build_team(build_team(build_member("tool:start")))


for team in (agno_team_again,):
    team.members[0].tools = [touch]


# openai-agents


def build_openai_agent(model: str, *tools: Any) -> Any:
    client = AsyncOpenAI(base_url=URL, api_key="not-needed", max_retries=0)
    return agents.Agent(
        name="worker", model=agents.OpenAIChatCompletionsModel(model, client), tools=[*tools]
    )


def build_caller(worker: Any) -> Any:
    """Build an agent that calls another one as a tool."""
    tool = worker.as_tool("ask_worker", "Ask it.", parameters=Work)
    return build_openai_agent("tool:ask_worker", tool)


openai_agent = build_openai_agent("tool:start", agents.function_tool(start, strict_mode=False))
openai_called = build_caller(openai_agent)
openai_hang = build_caller(build_openai_agent("hang"))
