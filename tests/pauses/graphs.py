"""A deployment with agents of LangGraph and agno that wait for decisions."""

from __future__ import annotations

import re
from pathlib import Path

from tests.deployment import create_deployment
from tests.pauses.waiting import WaitingDeployment

__all__ = ["create_graph_deployment", "create_library_deployment"]

MODULE = "waiting_graphs"

CALL = '{"amount": 10, "to": "bob"}'
"""The message for which the model of the endpoint calls a tool with these arguments."""


def create_graph_deployment(folder: Path, model_url: str) -> WaitingDeployment:
    """Create a deployment with the agents of `waiting_graphs.py`."""
    return create_library_deployment(folder, model_url, Path(__file__).with_name(f"{MODULE}.py"))


def create_library_deployment(folder: Path, model_url: str, source: Path) -> WaitingDeployment:
    """Create a deployment with the agents of a module, which are made by its functions `build`."""
    text = source.read_text()
    (folder / source.name).write_text(text)
    names = re.findall(r"^(\w+): Any = build", text, re.MULTILINE)
    tables = [f'[[agents]]\nid = "{name}"\nobject = "{source.stem}:{name}"' for name in names]
    deployment = create_deployment(folder, model_url, extra="\n\n".join(tables))
    return WaitingDeployment(deployment, model_url)
