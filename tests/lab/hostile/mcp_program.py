"""An MCP program that sends as much as it can. It needs the standard library only.

    python mcp_program.py BEHAVIOUR [SECONDS]

The behaviours `lines`, `log` and so on begin when the tool `start` is called, and last for ever or
for some seconds; the others are the result of that tool, or the list of tools.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

SCHEMA = {"type": "object"}
DEEP = 50_000
NOTIFICATION = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}}\n'

FLOODS: dict[str, tuple[int, bytes]] = {
    "lines": (1, b"x\n" * 32_000),
    "empty-lines": (1, b"\n" * 65_536),
    "almost-messages": (1, b'{"jsonrpc":"2.0"}\n' * 4_000),
    "log": (2, b"x\n" * 32_000),
    "long-log": (2, b"x" * 1_900 + b"\n"),
    "one-line": (1, b"x" * 65_536),
    "notifications": (1, NOTIFICATION * 1_000),
    "responses": (1, b'{"jsonrpc":"2.0","id":999999,"result":{}}\n' * 1_000),
    "requests": (1, b'{"jsonrpc":"2.0","id":7,"method":"ping"}\n' * 1_000),
}

RESULTS: dict[str, Callable[[], bytes]] = {
    "deep": lambda: b'{"content":[],"structuredContent":{"a":' + b"[" * DEEP + b"]" * DEEP + b"}}",
    "many-values": lambda: (
        b'{"content":[],"structuredContent":{"a":[' + b"[]," * 1_300_000 + b"0]}}"
    ),
    "many-parts": lambda: (
        b'{"content":[' + b'{"type":"text","text":""},' * 150_000 + b'{"type":"text","text":"x"}]}'
    ),
    "surrogate": lambda: b'{"content":[{"type":"text","text":"a\\ud83d"}]}',
    # The emoji makes each character four times as large.
    "large-text": lambda: (
        b'{"content":[{"type":"text","text":"\xf0\x9f\x98\x80' + b"x" * 4_000_000 + b'"}]}'
    ),
}

LISTS: dict[str, Callable[[], list[dict[str, Any]]]] = {
    "many-tools": lambda: [
        {"name": f"t{number}", "inputSchema": SCHEMA} for number in range(60_000)
    ],
    "large-schemas": lambda: [
        {"name": f"t{n}", "inputSchema": {**SCHEMA, "x": [[]] * 30_000}} for n in range(25)
    ],
    "wrong-tool": lambda: [{"name": "bad", "inputSchema": {"type": "array"}}],
}

_lock = threading.Lock()


def send(request_id: object, result: bytes) -> None:
    data = b'{"jsonrpc":"2.0","id":%b,"result":%b}\n' % (json.dumps(request_id).encode(), result)
    with _lock:
        write(1, data)


def write(number: int, data: bytes) -> None:
    while data:
        data = data[os.write(number, data) :]


def flood(number: int, data: bytes, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        write(number, data)


def main(behaviour: str, seconds: float = math.inf) -> None:
    """Answer the requests on stdin."""
    pages = 0
    for line in sys.stdin.buffer:
        message = json.loads(line)
        method = message.get("method")
        request_id = message.get("id")
        if method == "initialize":
            answer = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "hostile", "version": "1"},
            }
            send(request_id, json.dumps(answer).encode())
        elif method == "tools/list":
            pages += 1
            tools = [*LISTS.get(behaviour, list)(), {"name": "start", "inputSchema": SCHEMA}]
            page: dict[str, Any] = {"tools": tools}
            if behaviour == "large-schemas" and pages < 10:
                page = {"tools": [{**tool, "name": f"p{pages}{tool['name']}"} for tool in tools]}
                page["nextCursor"] = str(pages)
            send(request_id, json.dumps(page).encode())
        elif method == "tools/call" and behaviour in RESULTS:
            send(request_id, RESULTS[behaviour]())
        elif method == "tools/call":
            send(request_id, b'{"content":[{"type":"text","text":"started"}]}')
            if behaviour in FLOODS:
                flooding = (*FLOODS[behaviour], seconds)
                threading.Thread(target=flood, args=flooding, daemon=True).start()
        elif request_id is not None:
            send(request_id, b"{}")


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
