"""Agents of each library whose model makes one call again and again."""

from __future__ import annotations

from typing import Any

import agents
from agno.agent import Agent
from agno.team import Team
from langchain_core.tools import tool as langchain_tool

from tests.runtime import sample_frameworks, sample_openai_agents
from tests.runtime.polling_tools import poll, poll_in_thread


def pydantic() -> Any:
    return sample_frameworks.pydantic_agent("again:poll", tools=[poll])


def graph() -> Any:
    return sample_frameworks.graph("again:poll", langchain_tool(poll))


def graph_in_threads() -> Any:
    tool = langchain_tool(poll_in_thread)
    return sample_frameworks.graph("again:poll_in_thread", tool)


def graph_that_handles_errors() -> Any:
    """Build a graph whose node gives each exception of a tool to the model."""
    return sample_frameworks.graph("again:poll", langchain_tool(poll), handles_errors=True)


def agno() -> Any:
    return sample_frameworks.agno_agent("again:poll", tools=[poll])


def agno_in_threads() -> Any:
    return sample_frameworks.agno_agent("again:poll_in_thread", tools=[poll_in_thread])


def agno_team() -> Any:
    """Build a team whose member repeats its call."""
    leader = sample_frameworks.agno_model("delegate")
    member = Agent(model=sample_frameworks.agno_model("again:poll"), tools=[poll], name="scout")
    return Team(members=[member], model=leader, name="pair")


def openai() -> Any:
    return sample_openai_agents.build("again:poll", agents.function_tool(poll))
