"""Agents that look at a picture before and after a call of a tool. Tests copy this module."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import agents
from agno.agent import Agent as AgnoAgent
from agno.tools import tool as agno_tool
from langchain.agents import create_agent
from langchain_core.tools import tool as graph_tool
from pydantic_ai import Agent as PydanticAgent

import agentctl
from agentctl import agno, langchain, openai_agents, pydantic_ai

FOLDER = Path(__file__).parent


@agentctl.tool(idempotent=True)
def hold(who: str) -> str:
    """Wait while there is a file."""
    (FOLDER / f"held-{who}").touch()
    while (FOLDER / "hold").exists():
        time.sleep(0.01)
    return f"held {who}"


durable_graph: Any = create_agent(langchain.ChatModel(model="holding"), [graph_tool("hold")(hold)])
typed: Any = PydanticAgent(pydantic_ai.Model("holding"))
typed.tool_plain(metadata={"idempotent": True})(hold)


@agno_tool(requires_confirmation=True, name="hold")
def hold_confirmed(who: str) -> str:
    """Answer, if a person has confirmed it."""
    return f"held {who}"


@agents.function_tool(needs_approval=True, name_override="hold")
def hold_approved(who: str) -> str:
    """Answer, if a person has approved it."""
    return f"held {who}"


confirming = AgnoAgent(
    name="agno", model=agno.Model(id="holding"), tools=[hold_confirmed], telemetry=False
)
asking: Any = agents.Agent("code", model=openai_agents.Model("holding"), tools=[hold_approved])
