"""A deployment with agents of LangGraph and agno that wait for decisions."""

from __future__ import annotations

import re
from pathlib import Path

from tests.deployment import create_deployment
from tests.pauses.waiting import WaitingDeployment

__all__ = ["create_graph_deployment"]

MODULE = "waiting_graphs"

CALL = '{"amount": 10, "to": "bob"}'
"""The message for which the model of the endpoint calls a tool with these arguments."""


def create_graph_deployment(folder: Path, model_url: str) -> WaitingDeployment:
    """Create a deployment with the agents of `waiting_graphs.py`."""
    source = Path(__file__).with_name(f"{MODULE}.py").read_text()
    (folder / f"{MODULE}.py").write_text(source)
    names = re.findall(r"^(\w+): Any = build", source, re.MULTILINE)
    tables = [f'[[agents]]\nid = "{name}"\nobject = "{MODULE}:{name}"' for name in names]
    deployment = create_deployment(folder, model_url, extra="\n\n".join(tables))
    return WaitingDeployment(deployment, model_url)
