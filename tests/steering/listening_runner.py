"""An agent of openai-agents, which takes no messages. The tests copy this module."""

from __future__ import annotations

from typing import Any

import agents as openai_agents

from agentctl.openai_agents import Model


@openai_agents.function_tool(name_override="add")
def add_with_runner(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


runner: Any = openai_agents.Agent(name="runner", model=Model("steps"), tools=[add_with_runner])
