"""Agents in which one part fails while another one is at work."""

from __future__ import annotations

import os
from typing import Any

import agents
import httpx
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

URL = os.environ["MODEL_URL"]
NOBODY = "http://127.0.0.1:9/"


async def fetch(path: str) -> str:
    """Request something of a server that does not answer."""
    async with httpx.AsyncClient() as client:
        return (await client.get(NOBODY + path)).text


async def wait(path: str) -> str:
    """Fail only after the other call."""
    import asyncio

    await asyncio.sleep(60)
    return path


def build_chat(model: str) -> Any:
    return ChatOpenAI(model=model, base_url=URL, api_key="none", max_retries=0)


def build_graph(*nodes: Any) -> Any:
    graph = StateGraph(MessagesState)
    graph.add_sequence(nodes)
    graph.add_edge(START, nodes[0][0])
    return graph.compile()


async def ask(state: MessagesState) -> Any:
    call = {"id": "call_1", "name": "fetch", "args": {"path": "x"}}
    return {"messages": [AIMessage("", tool_calls=[call])]}


async def check(state: MessagesState) -> Any:
    return {"messages": [await build_chat("http-500").ainvoke("is this call allowed?")]}


async def load(state: MessagesState) -> Any:
    await fetch("before the model")


def build_checked() -> Any:
    """A model that checks a call fails before the tool."""
    return build_graph(("ask", ask), ("check", check), ("tools", ToolNode([tool(fetch)])))


def build_loading() -> Any:
    """A node fails with an HTTP request while a call is open."""
    return build_graph(("ask", ask), ("load", load), ("tools", ToolNode([tool(fetch)])))


def build_langgraph() -> Any:
    return create_agent(build_chat("plan"), [tool(fetch), tool(wait)])


def build_pydantic_ai() -> Any:
    model = OpenAIChatModel("plan", provider=OpenAIProvider(base_url=URL, api_key="none"))
    return PydanticAgent(model, tools=[fetch, wait])


def build_openai_agents() -> Any:
    client = AsyncOpenAI(base_url=URL, api_key="none", max_retries=0)
    tools = [agents.function_tool(each, failure_error_function=None) for each in (fetch, wait)]
    model = agents.OpenAIChatCompletionsModel("plan", client)
    return agents.Agent("code", model=model, tools=[*tools])
