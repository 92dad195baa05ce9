"""Schemas and values that cost as much as they can, on every way to a check of values.

Each answer shows that the check ended at a bound, or that the value is within it.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.kit.deployment import ADMIN, create_deployment
from tests.kit.model import ModelEndpoint
from tests.kit.process import serve_config
from tests.lab.hostile.health import Target
from tests.mcp.hosting import SERVER

CODE = """
async def count(numbers: "Numbers") -> str:
    return "counted"


from typing_extensions import TypedDict


class Numbers(TypedDict):
    values: list[int | str | bool | float]
"""
OPTIONS = [{"const": -number} for number in range(1, 481)]
WIDE = {"type": "object", "properties": {"a": {"type": "array", "items": {"anyOf": OPTIONS}}}}
WRONG = {"a": list(range(1_500))}
RIGHT = {"a": [-480] * 1_500}
PATTERN = {"type": "object", "properties": {"a": {"pattern": "[ab]*a[ab]{900}c"}}}
REPEATED = {"a": ("ab" * 7 + "b" * 5 + "aab" * 3) * 2_000}


def nest_unevaluated(levels: int) -> dict[str, Any]:
    """Build a schema whose validation doubles with each level."""
    schema: dict[str, Any] = {"properties": {"a": True}}
    for _ in range(levels):
        schema = {"anyOf": [schema], "unevaluatedProperties": False}
    return {"type": "object", **schema}


RECURSIVE = {
    "type": "object",
    "$defs": {"n": {"properties": {"a": {"anyOf": [{"$ref": "#/$defs/n"}] * 2}}}},
    "$ref": "#/$defs/n",
}
MCP_TOOLS = [
    {"name": "check", "description": "", "inputSchema": WIDE},
    {"name": "recursive", "description": "", "inputSchema": RECURSIVE},
]


@pytest.fixture(scope="module")
def target(
    tmp_path_factory: pytest.TempPathFactory, model_endpoint: ModelEndpoint
) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("hostile-schemas")
    (folder / "counting.py").write_text(CODE)
    (folder / "tools.json").write_text(json.dumps(MCP_TOOLS))
    shutil.copy(SERVER, folder / "mcp_program.py")
    models = "".join(
        f'[[models]]\nid = "{name}"\nprovider = "openai"\nmodel = "tool:{tool}"\nretries = 0\n'
        f'base_url = "{model_endpoint.base_url}"\n[[agents]]\nid = "{name}"\nmodel = "{name}"\n'
        f"{extra}\n"
        for name, tool, extra in (
            ("caller", "check", ""),
            ("asker", "files_check", 'tools = ["mcp:files"]\napprove = { "*" = "user" }'),
        )
    )
    extra = (
        f'{models}[[agents]]\nid = "counter"\nobject = "counting:count"\n'
        f'[[mcp_servers]]\nid = "files"\ncommand = "{sys.executable}"\n'
        'args = ["mcp_program.py", "--tools", "tools.json"]\n'
        "[openai]\nenabled = true\n[agui]\nenabled = true\n"
        "[ai_sdk]\nenabled = true\n"
    )
    deployment = create_deployment(folder, model_endpoint.base_url, extra=extra)
    with serve_config(deployment.path) as server:
        yield Target(server, deployment.token("hostile", ADMIN, seconds=3_600))


def run(agent: str, value: Any, **fields: Any) -> tuple[str, dict[str, Any]]:
    return f"/agents/{agent}/runs", {"message": json.dumps(value), "stream": False, **fields}


def tools(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"name": "check", "description": "", "parameters": schema}]


def complete(agent: str, value: Any, **fields: Any) -> tuple[str, dict[str, Any]]:
    messages = [{"role": "user", "content": json.dumps(value)}]
    return "/v1/chat/completions", {"model": agent, "messages": messages, **fields}


def page(agent: str, value: Any, schema: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    return f"/agui/agents/{agent}", {
        "threadId": "t",
        "runId": "r",
        "tools": tools(schema),
        "context": [],
        "messages": [{"id": "m", "role": "user", "content": json.dumps(value)}],
    }


def chat(agent: str, value: Any, schema: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    part = {"type": "text", "text": json.dumps(value)}
    return f"/ai/agents/{agent}", {
        "id": "c",
        "messages": [{"id": "m", "role": "user", "parts": [part]}],
        "tools": {"check": {"description": "", "parameters": schema}},
    }


def function(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": tools(schema)[0]}]


def answer_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


CASES: dict[str, tuple[tuple[str, dict[str, Any]], bytes]] = {
    "tools of the caller": (run("caller", WRONG, client_tools=tools(WIDE)), b"too large to name"),
    "tools of the caller, right": (run("caller", RIGHT, client_tools=tools(WIDE)), b"PAUSED"),
    "tools of the caller, pattern": (
        run("caller", REPEATED, client_tools=tools(PATTERN)),
        b"not valid",
    ),
    "tools of the caller, recursive": (
        run("caller", {"a": 0}, client_tools=tools(RECURSIVE)),
        b"client_tools[0].parameters must not be recursive",
    ),
    "tools of a chat completion": (
        complete("caller", WRONG, tools=function(WIDE)),
        b"chat.completion",
    ),
    "tools of a page": (page("caller", WRONG, WIDE), b"too large to name"),
    "tools of a page of the AI SDK": (chat("caller", WRONG, WIDE), b"too large to name"),
    "output schema": (run("echo", WRONG, output_schema=WIDE), b"OUTPUT_INVALID"),
    "output schema, right": (run("echo", RIGHT, output_schema=WIDE), b"COMPLETED"),
    "output schema, unevaluated": (
        run("echo", {"a": 1}, output_schema=nest_unevaluated(18)),
        b"more than 1000 subschemas",
    ),
    "output schema, a few unevaluated": (
        run("echo", {"a": 1}, output_schema=nest_unevaluated(4)),
        b"COMPLETED",
    ),
    "response format": (complete("echo", WRONG, response_format=answer_format(WIDE)), b"HTTP/1.1 "),
    "input of a function": (
        ("/agents/counter/runs", {"input": {"values": [None] * 10_000}, "stream": False}),
        b"input.values[0] does not match its schema",
    ),
    "arguments for a tool of an MCP server": (run("asker", WRONG), b"too large to name"),
}


@pytest.mark.parametrize("name", CASES)
def test_check_of_a_value_ends_at_its_bound(target: Target, name: str) -> None:
    (path, body), expected = CASES[name]
    answer = target.send(path, json.dumps(body).encode())
    assert expected in answer, answer[-600:]
