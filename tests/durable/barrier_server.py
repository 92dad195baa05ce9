"""A minimal MCP server (stdio) whose tools wait at a barrier, and write into the ledger.

python tests/durable/barrier_server.py FOLDER SESSION_ID
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
SESSION = sys.argv[2]
TOOLS = {"look": "barrier", "cross": "barrier", "note": "text"}

_lock = threading.Lock()


def send(message: dict[str, Any]) -> None:
    with _lock:
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        sys.stdout.flush()


def call(number: int, name: str, arguments: dict[str, str]) -> None:
    """Execute a call, and send its result."""
    barrier = arguments.get("barrier", "")
    entry = {"session_id": SESSION, "tool": f"{name} {barrier}".strip(), "call_id": None}
    with _lock, (FOLDER / "ledger.jsonl").open("a") as ledger:
        ledger.write(json.dumps(entry) + "\n")
    while barrier and (FOLDER / f"barrier-{barrier}").exists():
        time.sleep(0.02)
    text = f"{name}ed {barrier}"
    send({"id": number, "result": {"content": [{"type": "text", "text": text}]}})


def answer(message: dict[str, Any]) -> None:
    """Answer one message of the client."""
    number = message.get("id")
    method = message.get("method")
    given = message.get("params") or {}
    if method == "initialize":
        capabilities = {"tools": {}}
        info = {"name": "barriers", "version": "1"}
        version = given["protocolVersion"]
        result = {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
        send({"id": number, "result": result})
    elif method == "tools/list":
        tools = []
        for name, argument in TOOLS.items():
            schema = {"type": "object", "properties": {argument: {"type": "string"}}}
            # Each tool claims that it may be repeated.
            hints = {"readOnlyHint": True, "idempotentHint": True}
            tools.append({"name": name, "inputSchema": schema, "annotations": hints})
        send({"id": number, "result": {"tools": tools}})
    elif method == "tools/call":
        assert isinstance(number, int)
        work = (number, given["name"], given.get("arguments") or {})
        threading.Thread(target=call, args=work, daemon=True).start()
    elif number is not None:
        send({"id": number, "error": {"code": -32601, "message": "unknown method"}})


for line in sys.stdin:
    answer(json.loads(line))
