"""The process of the model endpoints and of the MCP server over HTTP, which write the ledger.

The interfaces are those of `tests.kit.model_server` over HTTP and TLS, those of
`tests.kit.vendor_server`, and `/mcp`. The last message of the user selects the behaviour:
`do-NAME-SECONDS-CALL`, for the first call of the model (0) or for that after a call of a tool (1);
`use-tool` calls a tool.

    plain    streams word by word          slow     the same, in this time
    whole    sends all in one write, after this time
    tail     sends all in one write, with something after the end of the stream
    encoded  sends all in one write, in an encoding that a caller refuses
    cut      closes the connection in the middle of the answer
    half     sends half of the answer and nothing more
    hang     never answers                 error    fails with 500 and repeats the message

    python -m tests.lab.markers.endpoint   prints its port, then serves until SIGTERM
"""

from __future__ import annotations

import json
import os
import re
import select
import ssl
import threading
import time
from collections.abc import Sequence
from typing import Any

from tests.kit.model_server import (
    Body,
    Disconnected,
    EndpointServer,
    answer_with_results,
    build_message,
    call_delegation,
    count_usage,
    encode_model_event,
    finish,
    last_user_text,
    split_message,
)
from tests.kit.vendor_server import VENDOR_ROUTES, VendorHandler
from tests.lab.markers.text import find_markers, write_entry

CERTIFICATE = "MARKERS_CERTIFICATE"
"""The environment variable with the path of the certificate of the endpoint over TLS."""

_BEHAVIOUR = re.compile(r"do-([a-z]+)-([0-9.]+)-([01])")

_EXCERPT = 2_000


class _MarkedServer(EndpointServer):
    context: ssl.SSLContext | None = None
    tls_port = 0

    def get_request(self) -> Any:
        connection, address = super().get_request()
        if self.context is not None:
            # The handshake is part of the first read, in the thread of the connection.
            connection = self.context.wrap_socket(
                connection, server_side=True, do_handshake_on_connect=False
            )
        return connection, address


class _MarkedHandler(VendorHandler):
    server: _MarkedServer

    def do_GET(self) -> None:  # noqa: N802  # named by http.server
        if self.path == "/mcp":
            self._send(405, b"{}")
        else:
            self._send(200, json.dumps({"tls": self.server.tls_port}).encode())

    def do_DELETE(self) -> None:  # noqa: N802  # named by http.server
        self._send(200, b"{}")

    def do_POST(self) -> None:  # noqa: N802  # named by http.server
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        body: Body = json.loads(text)
        try:
            if self.path == "/mcp":
                self._answer_mcp(body)
                return
            kind = "TLS" if self.server.context is not None else "HTTP"
            found = find_markers(text)
            sessions = {(each.user, each.session) for each in found}
            seen = {"text": text[:_EXCERPT]} if len(sessions) > 1 else {}
            vendor = next(
                (each for each in VENDOR_ROUTES if re.fullmatch(each.pattern, self._path)), None
            )
            if vendor is None:
                write_entry(f"model over {kind}", found, **seen)
                finish(self._answer_chat(body))
            else:
                write_entry(f"model of {type(vendor.vendor).__name__[1:]}", found, **seen)
                finish(self._answer_vendor(self.parse_body(body)))
        except (Disconnected, OSError):
            self.close_connection = True

    @property
    def _path(self) -> str:
        return self.path.partition("?")[0]

    # MCP

    def _answer_mcp(self, message: Body) -> None:
        parameters = message.get("params") or {}
        if "id" not in message:
            self._send(202, b"")
            return
        result: Body = {}
        if message["method"] == "initialize":
            result = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "markers", "version": "1"},
            }
        elif message["method"] == "tools/list":
            properties = {"text": {"type": "string"}}
            schema = {"type": "object", "properties": properties, "required": ["text"]}
            result = {"tools": [{"name": "note", "inputSchema": schema}]}
        elif message["method"] == "tools/call":
            text = str(parameters["arguments"].get("text"))
            user = [*find_markers(self.headers.get("X-User", ""))]
            write_entry("mcp over HTTP", [*find_markers(text), *user])
            result = {"content": [{"type": "text", "text": f"kept {text}"}]}
        answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
        self._send(200, json.dumps(answer).encode())

    # Models

    async def _answer_vendor(self, body: Body) -> None:
        text, _ = self.vendor.last_turn(body)
        name, seconds = self._read_behaviour(text, 0)
        if name == "hang":
            await self.hang(body)
        elif name == "error":
            self._fail(500)
        else:
            time.sleep(seconds)
            await self._stream(body["model"], "echo", self._build_answer(body, "echo", ""))

    async def _answer_chat(self, body: Body) -> None:
        asked = last_user_text(body)
        results = answer_with_results(body)
        name, seconds = self._read_behaviour(asked, int(results is not None))
        message = self._choose_answer(body, asked, results)
        if name == "hang":
            await self.hang(body)
        elif name == "error":
            self._send(500, json.dumps({"error": {"message": asked}}).encode())
        elif name == "plain":
            self._message(body, message)
        elif body.get("stream"):
            parts = [encode_model_event(chunk) for chunk in self._split(body, message)]
            await self._send_parts([*parts, b"data: [DONE]\n\n"], body, name, seconds)
        else:
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            if "tool_calls" in message:
                choice["finish_reason"] = "tool_calls"
            head = {"id": "answer", "object": "chat.completion", "created": 1, "model": "marked"}
            usage = count_usage(body, message)
            text = json.dumps({**head, "choices": [choice], "usage": usage}).encode()
            await self._send_parts([text[:80], text[80:]], body, name, seconds)

    @staticmethod
    def _split(body: Body, message: Body) -> Sequence[Body]:
        return [*split_message(body, message, count_usage(body, message))]

    @staticmethod
    def _read_behaviour(text: str, call: int) -> tuple[str, float]:
        found = _BEHAVIOUR.search(text)
        if found is None or int(found[3]) != call:
            return "plain", 0.0
        return found[1], float(found[2])

    @staticmethod
    def _choose_answer(body: Body, asked: str, results: Body | None) -> Body:
        if results is not None:
            return results
        names = [tool["function"]["name"] for tool in body.get("tools") or ()]
        if {"delegate_task_to_member", "route_to_member"}.intersection(names):
            return call_delegation(body, "")
        notes = [name for name in names if name.endswith("note")]
        if not notes or "use-tool" not in asked:
            return build_message(asked)
        # The length of the message chooses: it differs, and repeats with the seed.
        name = notes[len(asked) % len(notes)]
        call = {"name": name, "arguments": json.dumps({"text": asked})}
        made = {"id": f"call_{time.monotonic_ns()}", "type": "function", "function": call}
        return {"role": "assistant", "content": None, "tool_calls": [made]}

    async def _send_parts(self, parts: list[bytes], body: Body, name: str, seconds: float) -> None:
        """Send the parts of an answer by the name of a behaviour."""
        streamed = bool(body.get("stream"))
        middle = len(parts) // 2
        if name in ("whole", "tail", "encoded"):
            time.sleep(seconds)
            more = [b": " + parts[0].replace(b"\n", b" ") + b"\n\n"] if streamed else [b"  "]
            data = b"".join([*parts, *more] if name == "tail" else parts)
            encoding = b"gzip" if name == "encoded" else b"identity"
            self.wfile.write(self.build_head(streamed, len(data), encoding) + data)
            return
        self.wfile.write(self.build_head(streamed, sum(map(len, parts))))
        self.wfile.flush()
        for number, part in enumerate(parts):
            if name in ("cut", "half") and number == middle:
                if name == "half":
                    await self.hang(body)
                raise Disconnected
            self.wfile.write(part)
            self.wfile.flush()
            await self.pause(seconds / len(parts))

    @staticmethod
    def build_head(streamed: bool, length: int, encoding: bytes = b"identity") -> bytes:
        kind = b"text/event-stream" if streamed else b"application/json"
        return (
            b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\nContent-Length: %d\r\n"
            b"Content-Encoding: %b\r\n\r\n" % (kind, length, encoding)
        )

    def _pause(self, seconds: float | None) -> None:
        if self.server.context is None:
            super()._pause(seconds)
        elif select.select([self.connection], [], [], seconds)[0]:
            raise Disconnected  # A client sends nothing before it has the answer.


def _main() -> None:
    server = _MarkedServer(("127.0.0.1", 0), _MarkedHandler)
    tls = _MarkedServer(("127.0.0.1", 0), _MarkedHandler)
    tls.state = server.state
    tls.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.context.load_cert_chain(os.environ[CERTIFICATE])
    server.tls_port = tls.server_address[1]
    threading.Thread(target=tls.serve_forever, daemon=True).start()
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _main()
