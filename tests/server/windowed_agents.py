"""Agents of each library whose model has a small context window."""

from __future__ import annotations

import os
from typing import Any

import agents
from agno.agent import Agent as AgnoAgent
from agno.models.openai.like import OpenAILike
from agno.team import Team
from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from agentctl import langchain

URL, MODEL = os.environ["MODEL_URL"], os.environ["MODEL"]


def build_langgraph() -> Any:
    return create_agent(ChatOpenAI(model=MODEL, base_url=URL, api_key="none", max_retries=0), [])


def build_pydantic_ai() -> Any:
    return PydanticAgent(
        OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=URL, api_key="none"))
    )


def build_fitted() -> Any:
    """An agent whose model has a window that the library knows."""
    model = OpenAIChatModel(
        "tokens:2000",
        provider=OpenAIProvider(base_url=URL, api_key="none"),
        profile={"context_window": 2_000},
    )
    agent = PydanticAgent(model, system_prompt="Be brief.")

    @agent.tool_plain
    def fetch(size: int, mark: str) -> str:
        """Fetch a page of some size."""
        return mark * size

    return agent


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
