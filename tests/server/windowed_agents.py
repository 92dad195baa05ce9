"""Agents of each library whose model has a small context window."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from typing import Any

import agents
from agno.agent import Agent as AgnoAgent
from agno.models.openai.like import OpenAILike
from agno.team import Team
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

import agentctl
from agentctl import agno, langchain, openai_agents, pydantic_ai

URL = os.environ["MODEL_URL"]
MODEL = os.environ["MODEL"]


def build_langgraph() -> Any:
    return create_agent(ChatOpenAI(model=MODEL, base_url=URL, api_key="none", max_retries=0), [])


def build_pydantic_ai() -> Any:
    return PydanticAgent(
        OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL, api_key="none"))
    )


def fetch(size: int, mark: str) -> str:
    """Fetch a page of some size."""
    return mark * size


TOOLS: list[Any] = [fetch, agentctl.read_tool_result]


def build_with_window(window: int, tools: Any) -> Any:
    """An agent whose model has a window that the library knows."""
    model = OpenAIChatModel(
        f"tokens:{window}",
        provider=OpenAIProvider(base_url=URL, api_key="none"),
        profile={"context_window": window},
    )
    return PydanticAgent(model, system_prompt="Be brief.", tools=tools)


def build_agno() -> Any:
    model = OpenAILike(id=MODEL, base_url=URL, api_key="none", max_retries=0)
    return AgnoAgent(name="agno", model=model, telemetry=False)


def build_agno_team() -> Any:
    model = OpenAILike(id=MODEL, base_url=URL, api_key="none", max_retries=0)
    return Team(name="team", model=model, members=[build_agno()], telemetry=False)


def build_openai_agents() -> Any:
    client = AsyncOpenAI(base_url=URL, api_key="none", max_retries=0)
    return agents.Agent("code", model=agents.OpenAIChatCompletionsModel(MODEL, client))


def build_model_in_code() -> Any:
    """A graph whose model is that of the configuration."""
    return create_agent(langchain.ChatModel(model="window"), [])


def build_fitted() -> Any:
    return build_with_window(2_000, TOOLS[:1])


def build_reading_fitted() -> Any:
    return build_with_window(2_800, TOOLS)


def build_reading_langgraph() -> Any:
    return create_agent(langchain.ChatModel(model="small"), TOOLS)


def build_reading_thread() -> Any:
    return create_agent(langchain.ChatModel(model="small"), TOOLS, checkpointer=InMemorySaver())


def build_reading_agno() -> Any:
    return AgnoAgent(model=agno.Model(id="small"), tools=TOOLS, telemetry=False)


def build_reading_team() -> Any:
    member = AgnoAgent(name="reader", model=agno.Model(id="plan"), tools=TOOLS, telemetry=False)
    return Team(model=agno.Model(id="plan"), members=[member], telemetry=False)


def build_reading_pydantic_ai() -> Any:
    return PydanticAgent(pydantic_ai.Model("small"), tools=TOOLS)


def build_reading_openai_agents() -> Any:
    tools: list[Any] = [agents.function_tool(each) for each in TOOLS]
    return agents.Agent("reader", model=openai_agents.Model("small"), tools=tools)


async def read_in_function(message: str, context: agentctl.RunContext) -> AsyncIterator[Any]:
    """Read the result that the message names, or one of its calls."""
    name = message.removeprefix("read ")
    if name == "own":
        yield agentctl.ToolStarted("own", "fetch", {})
        yield agentctl.ToolCompleted("own", "a" * 8_000 + "b")
    try:
        yield await context.read_tool_result(name)
        yield "/" + await context.read_tool_result(name, offset=7_999)
        await context.read_tool_result(name, offset=-1)
    except (LookupError, ValueError) as error:
        yield f"/{error}"


def build_reading_function() -> Any:
    return read_in_function
