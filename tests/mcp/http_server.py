"""An MCP server with streamable HTTP for tests: sessions, JSON responses, and misbehaviour.

It runs in a thread of the test and needs the standard library only. The session of a client keeps
its request headers, so that tests see who called.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

from tests.kit.conditions import PATIENCE

TOOLS = (
    "who",
    "huge",
    "hang",
    "reset",
    "redirect",
    "compressed",
    "values",
    "streamed",
    "cut",
    "endless",
)


class State:
    """The state of a server.

    Attributes:
        url: the URL of the endpoint.
        sessions: headers of the client by session id.
        ended: ids of sessions that the client has closed.
        released: ends the hanging calls.
        status: if set, the status of each response.
    """

    def __init__(self) -> None:
        self.url = ""
        self.sessions: dict[str, dict[str, str]] = {}
        self.ended: list[str] = []
        self.methods: list[str] = []
        self.released = threading.Event()
        self.status = 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    state: State

    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        self.answer(405)

    def do_DELETE(self) -> None:
        self.state.ended.append(self.headers["mcp-session-id"])
        self.answer(200)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        method = message["method"]
        session = self.headers["mcp-session-id"]
        self.state.methods.append(method)
        if self.state.status:
            self.answer(self.state.status)
        elif method == "initialize":
            session = uuid4().hex
            self.state.sessions[session] = dict(self.headers.items())
            info = {"name": "test", "version": "1"}
            result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            self.reply(message, {**result, "serverInfo": info}, session=session)
        elif session is None:
            self.fail(message, 400)
        elif session not in self.state.sessions:
            self.answer(404)
        elif "id" not in message:
            self.answer(202)
        elif method == "tools/list":
            user = self.headers["X-User"] or "all"
            names = [*TOOLS, f"for_{user}"]
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
            self.reply(message, {"tools": tools})
        else:
            self.call(message, message["params"]["name"])

    def call(self, message: dict[str, Any], tool: str) -> None:
        text = "done"
        if tool == "who":
            text = json.dumps({name.lower(): value for name, value in self.headers.items()})
        elif tool == "huge":
            text = "x" * 1_000_000
        elif tool == "hang":
            self.state.released.wait(PATIENCE)
        elif tool == "reset":
            self.close_connection = True
            self.connection.close()
            return
        elif tool == "redirect":
            self.answer(307, Location="http://localhost:1/elsewhere")
            return
        elif tool == "compressed":
            self.answer(200, b"x", **{"Content-Type": "application/json"}, encoding="gzip")
            return
        elif tool == "cut":
            self.close_connection = True
            fields = {"Content-Type": "application/json", "Content-Length": "100"}
            self.answer(200, b'{"jsonrpc":', **fields)
            return
        elif tool == "endless":
            event = b"event: message\ndata: " + b"x" * 1_000_000
            self.answer(200, event, **{"Content-Type": "text/event-stream"})
            return
        result: dict[str, Any] = {"content": [{"type": "text", "text": text}]}
        if tool in ("values", "streamed"):
            result["structuredContent"] = {"a": [[]] * 70_000}
        if tool == "streamed":
            body = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode()
            event = b"event: message\ndata: " + body + b"\n\n"
            self.answer(200, event, **{"Content-Type": "text/event-stream"})
        else:
            self.reply(message, result)

    def reply(self, message: dict[str, Any], result: dict[str, Any], session: str = "") -> None:
        body = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        headers = {"Content-Type": "application/json"}
        if session:
            headers["Mcp-Session-Id"] = session
        self.answer(200, json.dumps(body).encode(), **headers)

    def fail(self, message: dict[str, Any], status: int) -> None:
        error = {"code": -32600, "message": "no session"}
        body = {"jsonrpc": "2.0", "id": message.get("id"), "error": error}
        self.answer(status, json.dumps(body).encode(), **{"Content-Type": "application/json"})

    def answer(self, status: int, body: bytes = b"", encoding: str = "", **headers: str) -> None:
        with contextlib.suppress(OSError):
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if encoding:
                self.send_header("Content-Encoding", encoding)
            if "Content-Length" not in headers:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)


@contextlib.contextmanager
def serve_http(port: int = 0) -> Iterator[State]:
    """Serve on a free port while the block lasts."""
    state = State()
    handler = type("BoundHandler", (Handler,), {"state": state})
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}/mcp"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.released.set()
        server.shutdown()
        server.server_close()
