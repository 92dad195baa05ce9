"""Agents of Google ADK whose tools start work of every form. Their server imports this module."""

from __future__ import annotations

from typing import Any

from google.adk.agents import Agent, ParallelAgent
from google.adk.models import Gemini
from google.adk.tools.agent_tool import AgentTool
from pydantic import create_model
from work import run_command, start


def build_agent(model: str, *tools: Any, **options: Any) -> Agent:
    options = {"name": "worker", **options}
    return Agent(model=Gemini(model=model), tools=[*tools], **options)


def build_caller(model: str, *tools: Any) -> Agent:
    """Build an agent that calls another one as a tool."""
    fields: Any = {"tag": (str, ...), "form": (str, ""), "seconds": (float, 600.0)}
    worker = build_agent(model, *tools, input_schema=create_model("Work", **fields))
    return build_agent("tool:worker", AgentTool(worker), name="caller")


adk_agent = build_agent("tool:start", start)
adk_command = build_agent("tool:run_command", run_command)
adk_called = build_caller("tool:start", start)
adk_hang = build_caller("hang")
adk_branches = ParallelAgent(
    name="branches",
    sub_agents=[build_agent("tool:start", start, name=name) for name in ("first", "second")],
)
