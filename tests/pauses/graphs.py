"""A deployment with agents of LangGraph, agno and openai-agents that wait for decisions."""

from __future__ import annotations

import re
from pathlib import Path

from tests.deployment import create_deployment
from tests.pauses.waiting import WaitingDeployment

__all__ = ["create_graph_deployment"]

MODULES = ("waiting_graphs", "waiting_agents")

CALL = '{"amount": 10, "to": "bob"}'
"""The message for which the model of the endpoint calls a tool with these arguments."""


def create_graph_deployment(folder: Path, model_url: str) -> WaitingDeployment:
    """Create a deployment with the agents of `waiting_graphs.py` and `waiting_agents.py`."""
    tables: list[str] = []
    for module in MODULES:
        source = Path(__file__).with_name(f"{module}.py").read_text()
        (folder / f"{module}.py").write_text(source)
        names = re.findall(r"^(\w+): Any = build", source, re.MULTILINE)
        tables += [f'[[agents]]\nid = "{name}"\nobject = "{module}:{name}"' for name in names]
    deployment = create_deployment(folder, model_url, extra="\n\n".join(tables))
    return WaitingDeployment(deployment, model_url)
