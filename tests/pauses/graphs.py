"""A deployment with agents of LangGraph, agno and openai-agents that wait for decisions."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.kit.deployment import create_deployment
from tests.pauses.waiting import WaitingDeployment

__all__ = ["create_library_deployment"]

CALL = '{"amount": 10, "to": "bob"}'
"""The message for which the model of the endpoint calls a tool with these arguments."""


def build_calls_with_one_id(tool: str) -> str:
    """Return the message for which the model `exact` calls a tool twice, with one id."""
    calls = [
        {
            "id": "same",
            "type": "function",
            "function": {"name": tool, "arguments": json.dumps({"amount": amount, "to": "bob"})},
        }
        for amount in (1, 1_000)
    ]
    return json.dumps({"role": "assistant", "content": None, "tool_calls": calls})


def build_plan(name: str, /, **arguments: object) -> dict[str, object]:
    """Return a call in an answer of the model `plan`; its id is the name of the tool."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"id": f"call_{name}", "type": "function", "function": function}


def build_tool_calls(*tools: str) -> str:
    """Return the message for which the model `exact` calls tools without arguments at once."""
    calls = [
        {"id": f"call-{name}", "type": "function", "function": {"name": name, "arguments": "{}"}}
        for name in tools
    ]
    return json.dumps({"tool_calls": calls})


def create_library_deployment(folder: Path, model_url: str, *sources: Path) -> WaitingDeployment:
    """Create a deployment with the agents of modules, which are made by their functions `build`."""
    tables: list[str] = []
    for source in sources:
        text = source.read_text()
        (folder / source.name).write_text(text)
        names = re.findall(r"^(\w+): Any = build", text, re.MULTILINE)
        tables += [f'[[agents]]\nid = "{name}"\nobject = "{source.stem}:{name}"' for name in names]
    deployment = create_deployment(folder, model_url, extra="\n\n".join(tables))
    return WaitingDeployment(deployment, model_url)
