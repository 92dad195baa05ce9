"""An MCP server over stdio for tests, which can misbehave. It needs the standard library only.

    python tests/mcp/stdio_server.py [--noisy] [--stubborn] [--silent] [--tools FILE]

--noisy      prints text on stdout before the first message
--stubborn   ignores the end of stdin and SIGTERM
--silent     answers nothing
--tools FILE lists the tools in this JSON file instead
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

CANCELLED = "notifications/cancelled"

_lock = threading.Lock()
_sent = threading.Event()
_received: list[str] = []
_extra: list[str] = []
_cancelled: dict[Any, threading.Event] = {}
_blocked = threading.Event()


def text(value: object) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": str(value)}]}


def tool_echo(arguments: dict[str, Any], _: threading.Event) -> dict[str, Any]:
    return text(arguments.get("text", ""))


def tool_hang(arguments: dict[str, Any], cancelled: threading.Event) -> dict[str, Any] | None:
    """Stop when cancelled, and answer nothing then."""
    cancelled.wait(600)
    return None


def tool_stubborn(arguments: dict[str, Any], cancelled: threading.Event) -> dict[str, Any]:
    """Ignore a cancel, and answer late."""
    time.sleep(float(arguments.get("seconds", 1)))
    return text("late")


def tool_huge(arguments: dict[str, Any], _: threading.Event) -> dict[str, Any]:
    return text("x" * int(arguments["bytes"]))


def tool_crash(arguments: dict[str, Any], _: threading.Event) -> dict[str, Any]:
    os._exit(3)


def tool_noise(arguments: dict[str, Any], _: threading.Event) -> dict[str, Any]:
    with _lock:
        os.write(1, b"\n\x1b[31mhello\x00\n{not json}\n\xff\xfe\n[1, 2]\n")
    return text("after the noise")


def tool_grow(arguments: dict[str, Any], _: threading.Event) -> dict[str, Any]:
    _extra.append(arguments["name"])
    send({"method": "notifications/tools/list_changed"})
    return text("grown")


def tool_parts(arguments: dict[str, Any], _: threading.Event) -> dict[str, Any]:
    return {
        "content": [
            {"type": "text", "text": "first"},
            {"type": "image", "mimeType": "image/png", "data": "AAAA"},
            {"type": "resource_link", "uri": "file:///a", "name": "a"},
            {"type": "resource", "resource": {"uri": "file:///b", "text": "inside"}},
            {"type": "resource", "resource": {"uri": "file:///c", "blob": "AAA="}},
        ]
    }


def tool_structured(arguments: dict[str, Any], _: threading.Event) -> dict[str, Any]:
    return {"content": [], "structuredContent": {"answer": 42}}


def tool_fail(arguments: dict[str, Any], _: threading.Event) -> dict[str, Any]:
    return {**text("the disk is full"), "isError": True}


def tool_variable(arguments: dict[str, Any], _: threading.Event) -> dict[str, Any]:
    return text(os.environ.get(arguments["name"], "not set"))


def tool_pid(arguments: dict[str, Any], _: threading.Event) -> dict[str, Any]:
    return text(os.getpid())


def tool_child(arguments: dict[str, Any], _: threading.Event) -> dict[str, Any]:
    return text(subprocess.Popen(["sleep", "600"]).pid)


def tool_block(arguments: dict[str, Any], _: threading.Event) -> dict[str, Any]:
    """Read nothing any more."""
    _blocked.set()
    return text("blocked")


def tool_received(arguments: dict[str, Any], _: threading.Event) -> dict[str, Any]:
    return text(json.dumps(_received))


def tool_log(arguments: dict[str, Any], _: threading.Event) -> dict[str, Any]:
    print(arguments["text"], file=sys.stderr, flush=True)
    return text("logged")


def tool_flood(arguments: dict[str, Any], _: threading.Event) -> dict[str, Any]:
    """Write lines that are no messages, without an end, once the call has its answer."""
    _sent.clear()
    threading.Thread(target=flood, args=(arguments["to"],), daemon=True).start()
    return text("flooding")


def flood(number: int) -> None:
    _sent.wait()
    while True:
        with _lock:
            os.write(number, b'{"x"\n' * 4_000)


def tool_raw(arguments: dict[str, Any], _: threading.Event) -> dict[str, Any]:
    """Return a result of `RAW`."""
    return arguments


TOOLS = {name[5:]: function for name, function in globals().items() if name.startswith("tool_")}


def send(message: dict[str, Any]) -> None:
    data = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
    with _lock:
        while data:
            data = data[os.write(1, data) :]
    _sent.set()


RAW = {
    "deep": '{"content":[],"structuredContent":' + '{"a":' * 50_000 + "1" + "}" * 50_001,
    "values": '{"content":[],"structuredContent":{"a":[' + "[]," * 200_000 + "[]]}}",
    "surrogate": '{"content":[{"type":"text","text":"a\\ud83db"}]}',
}
"""Results of tools as JSON text, which the library of a client may refuse."""


def list_tools(file: str | None) -> list[dict[str, Any]]:
    if file is not None:
        listed: list[dict[str, Any]] = json.loads(Path(file).read_text())
        return listed
    return [
        {"name": name, "description": f"Tool {name}", "inputSchema": {"type": "object"}}
        for name in [*TOOLS, *_extra]
    ]


def call(request_id: Any, name: str, arguments: dict[str, Any]) -> None:
    function = TOOLS.get(name)
    if function is None:
        send({"id": request_id, "error": {"code": -32602, "message": f"Unknown tool: {name}"}})
        return
    if name == "raw":
        with _lock:
            line = f'{{"jsonrpc":"2.0","id":{request_id},"result":{RAW[arguments["name"]]}}}\n'
            sys.stdout.write(line)
            sys.stdout.flush()
        return
    result = function(arguments, _cancelled[request_id])
    if result is not None:
        send({"id": request_id, "result": result})


def handle(message: dict[str, Any], tools: str | None) -> None:
    method = message.get("method")
    request_id = message.get("id")
    parameters = message.get("params") or {}
    _received.append(str(method))
    if method == CANCELLED:
        _cancelled.setdefault(parameters["requestId"], threading.Event()).set()
    if request_id is None:
        return
    if method == "initialize":
        result: dict[str, Any] = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "test", "version": "1"},
        }
        send({"id": request_id, "result": result})
    elif method == "tools/list":
        send({"id": request_id, "result": {"tools": list_tools(tools)}})
    elif method == "tools/call":
        _cancelled[request_id] = threading.Event()
        arguments = (request_id, parameters["name"], parameters.get("arguments") or {})
        threading.Thread(target=call, args=arguments, daemon=True).start()
        if parameters["name"] == "block":
            _blocked.wait()
            time.sleep(600)
    else:
        send({"id": request_id, "error": {"code": -32601, "message": "Method not found"}})


def main(options: list[str]) -> None:
    tools = options[options.index("--tools") + 1] if "--tools" in options else None
    if "--stubborn" in options:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "--noisy" in options:
        os.write(1, b"Welcome to the test server!\n")
    for line in sys.stdin.buffer:
        if "--silent" not in options:
            handle(json.loads(line), tools)
    if "--stubborn" in options:
        time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1:])
