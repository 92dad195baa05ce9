"""The public agents that the tests run.

The agent `NAME` of a library is the object `NAME` of the module `LIBRARY_agents.py`. Its script has
the answers of its models by role (tests/scripted_models.py).
"""

from __future__ import annotations

from tests.peers.agents.public_agent import PublicAgent
from tests.peers.agents.tables.adk import ADK
from tests.peers.agents.tables.agno import AGNO
from tests.peers.agents.tables.functions import FUNCTIONS
from tests.peers.agents.tables.langchain import LANGCHAIN
from tests.peers.agents.tables.langgraph import LANGGRAPH
from tests.peers.agents.tables.langgraph_shapes import LANGGRAPH_SHAPES
from tests.peers.agents.tables.openai_agents import OPENAI_AGENTS
from tests.peers.agents.tables.packages import PACKAGES
from tests.peers.agents.tables.pydantic_ai import PYDANTIC_AI

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
