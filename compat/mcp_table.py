"""The clients of MCP that use the endpoint, and their table in docs/reference/programs.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

__all__ = ["CLIENTS", "McpClient", "build_table", "list_operations"]

HERE = Path(__file__).parent

_SENDS_NOTHING = "the client sends nothing; the run ends when it leaves the session"

_BY_DECISION = "the origin is not checked where a token is needed"


class McpClient(NamedTuple):
    """A client.

    Attributes:
        name: its name in the table.
        program: the module with its operations, in this folder.
        part: the name of its operations in the module.
        differences: operations that do not have the result that is due, with the reason.
    """

    name: str
    program: str
    part: str
    differences: Mapping[str, str] = MappingProxyType({})


CLIENTS = (
    McpClient("TypeScript SDK 1.32.2", "mcp_client.mjs", "operations", {"origin": _BY_DECISION}),
    McpClient(
        "Python SDK 1.30, `ClientSession`",
        "mcp_session.py",
        "SESSION",
        dict.fromkeys(("cancelled_call", "timed_out_call"), _SENDS_NOTHING),
    ),
    McpClient("Python SDK 2.3, `ClientSession`", "mcp_session.py", "SESSION"),
    McpClient("Python SDK 2.3, `Client` (2026-07-28)", "mcp_session.py", "MODERN"),
    McpClient("Inspector CLI 0.16.8", "test_mcp_clients.py", "INSPECTED"),
    McpClient("langchain-mcp-adapters 0.3.2", "mcp_libraries.py", "langchain"),
    McpClient("fastmcp 3.4.10", "mcp_libraries.py", "fastmcp", {"fastmcp_timeout": _SENDS_NOTHING}),
    McpClient("pydantic-ai 2.68, `MCPToolset`", "mcp_libraries.py", "pydantic-ai"),
    McpClient("agno 3.1.10, `MCPTools`", "mcp_libraries.py", "agno"),
)


def list_operations(client: McpClient) -> list[str]:
    """Return the names of the operations of a client, read from its program."""
    source = (HERE / client.program).read_text(encoding="utf-8")
    if client.program.endswith(".mjs"):
        body = source.split(f"const {client.part} = {{\n")[1].split("\n};\n")[0]
        return re.findall(r"^  (\w+): ", body, re.MULTILINE)
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if name == client.part:
                return _read_names(value)
            case ast.Dict(keys=keys, values=values):
                for key, value in zip(keys, values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == client.part:
                        return _read_names(value)
    raise ValueError(client.part)


def _read_names(value: ast.expr) -> list[str]:
    """Return the names in a tuple of functions, or the keys of a dictionary."""
    match value:
        case ast.Tuple(elts=items):
            return [item.id for item in items if isinstance(item, ast.Name)]
        case ast.Dict(keys=keys):
            return [str(key.value) for key in keys if isinstance(key, ast.Constant)]
    raise ValueError(ast.dump(value))


def build_table() -> str:
    """Return the table, with the operations of each cell as its title."""
    lines = ["| client | tried | as due | not |", "| --- | --- | --- | --- |"]
    total = due = 0
    for client in CLIENTS:
        tried = list_operations(client)
        right = [name for name in tried if name not in client.differences]
        total = total + len(tried)
        due = due + len(right)
        place = f"../../compat/{client.program}"
        shown = f'[{len(right)}]({place} "{", ".join(right)}")'
        reasons = dict.fromkeys(client.differences.values())
        missing = "; ".join(
            f"{', '.join(name for name, why in client.differences.items() if why == reason)}:"
            f" {reason}"
            for reason in reasons
        )
        lines.append(f"| {client.name} | {len(tried)} | {shown} | {missing} |")
    lines.append(f"| sum | {total} | {due} | |")
    return "\n".join(lines)
