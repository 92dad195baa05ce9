"""The public agents that the tests run.

The agent `NAME` of a library is the object `NAME` of the module `LIBRARY_agents.py`. Its script has
the answers of its models by role (tests/kit/scripted_models.py).
"""

from __future__ import annotations

from compat.agents.public_agent import PublicAgent
from compat.agents.tables.adk import ADK
from compat.agents.tables.agno import AGNO
from compat.agents.tables.functions import FUNCTIONS
from compat.agents.tables.langchain import LANGCHAIN
from compat.agents.tables.langgraph import LANGGRAPH
from compat.agents.tables.langgraph_shapes import LANGGRAPH_SHAPES
from compat.agents.tables.openai_agents import OPENAI_AGENTS
from compat.agents.tables.packages import PACKAGES
from compat.agents.tables.pydantic_ai import PYDANTIC_AI

__all__ = ["AGENTS", "PENDING", "PublicAgent"]

AGENTS: dict[str, dict[str, PublicAgent]] = {
    "langgraph": LANGGRAPH,
    "langgraph_shapes": LANGGRAPH_SHAPES,
    "langchain": LANGCHAIN,
    "pydantic_ai": PYDANTIC_AI,
    "agno": AGNO,
    "openai_agents": OPENAI_AGENTS,
    "adk": ADK,
    "functions": FUNCTIONS,
    "packages": PACKAGES,
}
"""Agents by library and name."""

PENDING: dict[tuple[str, str], str] = {
    ("many_tools", "*"): "it calls a method that LangGraph 1.2 does not have"
}
"""Cells by agent and case (`*`: all) that do not work, with the reason: they are skipped."""
