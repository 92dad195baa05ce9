"""A model endpoint whose answers cost their reader as much as possible, in its own process.

The name of the model selects the answer. `python -m tests.lab.hostile.endpoint` prints its port.
"""

from __future__ import annotations

import json
import socketserver
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

MEGABYTE = 1_000_000
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"
END = b"data: [DONE]\n\n"

Bytes = Iterator[bytes]


def event(delta: dict[str, Any], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return b"data: " + json.dumps({"choices": [choice]}, separators=(",", ":")).encode() + b"\n\n"


STOP = event({}, "stop") + END


def stream(*parts: tuple[bytes, int]) -> Bytes:
    """Yield a chunked stream: each part as often as its number, then the end of an answer."""
    yield CHUNKED
    for part, count in parts:
        at_once = max(1, 262_144 // len(part))
        for first in range(0, count, at_once):
            yield _chunk(part * min(at_once, count - first))
    yield _chunk(STOP) + b"0\r\n\r\n"


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def detail(text: str) -> bytes:
    return event({"reasoning_details": [{"index": 0, "type": "reasoning.text", "text": text}]})


def encrypted(text: str) -> bytes:
    return event({"reasoning_details": [{"index": 0, "type": "e", "data": text}]})


def call(arguments: str, name: str | None = None) -> bytes:
    function = {"name": name, "arguments": arguments}
    return event({"tool_calls": [{"index": 0, "id": "c", "function": function}]})


def called(*pieces: tuple[str, int]) -> Bytes:
    """Yield a tool call with these pieces of arguments, each as often as its number."""
    parts = [(call(piece), count) for piece, count in pieces]
    return stream((call("", "add"), 1), *parts, (event({}, "tool_calls"), 1))


def many_calls() -> Bytes:
    """Yield as many tool calls as an answer may have, with arguments that take long to check."""
    arguments = json.dumps({"a": "ab" * 400 + "c"})
    calls = [
        {"index": n, "id": f"c{n}", "function": {"name": "check", "arguments": arguments}}
        for n in range(128)
    ]
    return stream((event({"tool_calls": calls}), 1), (event({}, "tool_calls"), 1))


def endless_line(start: bytes) -> Bytes:
    yield start
    yield from [b"x" * 65_536] * 3_000


def endless_fields(start: bytes) -> Bytes:
    yield start
    yield from [b"a: b\r\n" * 10_000] * 1_000


def refusal(body: bytes) -> Bytes:
    yield b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(body)
    yield body


SCRIPTS: dict[str, Callable[[], Bytes]] = {
    "echo": lambda: stream((event({"content": "x"}), 1)),
    "details": lambda: stream((encrypted("x" * 27), 200_000)),
    "details-with-text": lambda: stream((detail("x" * 20), 180_000)),
    "details-without-text": lambda: stream(
        (event({"reasoning_details": [{"index": 0, "type": "t", "n": 1}]}), 250_000)
    ),
    "head-line": lambda: endless_line(b"HTTP/1.1 200 OK\r\nX: "),
    "head-name": lambda: endless_line(b"HTTP/1.1 200 OK\r\nX"),
    "head-fields": lambda: endless_fields(b"HTTP/1.1 200 OK\r\n"),
    "status-line": lambda: endless_line(b"HTTP/1.1 200 "),
    "trailer-line": lambda: endless_line(CHUNKED + _chunk(event({"content": "x"})) + b"0\r\nX: "),
    "trailer-fields": lambda: endless_fields(CHUNKED + b"0\r\n"),
    "chunk-extension": lambda: endless_line(CHUNKED + b"1;"),
    "interim": lambda: iter([b"HTTP/1.1 103 Early\r\nA: b\r\n\r\n" * 2_500] * 1_000),
    "large-text": lambda: stream((event({"content": "x" * 900_000}), 15)),
    "small-texts": lambda: stream((event({"content": "x"}), 250_000)),
    "texts-and-thoughts": lambda: stream(
        (event({"content": "x"}) + event({"reasoning": "y"}), 100_000)
    ),
    "surrogates": lambda: stream((event({"content": "\ud800" * 150_000}), 30)),
    "wide-text": lambda: stream((event({"content": "é" * 150_000}), 40)),
    "long-thinking": lambda: stream((event({"reasoning": "x" * 900_000}), 15)),
    "arguments-many-values": lambda: called(("[[", 1), ("0,[]," * 10_000, 150), ("0]]", 1)),
    "arguments-object": lambda: called(('{"a":[', 1), ('{"b":0},' * 10_000, 150), ("0]}", 1)),
    "arguments-small-pieces": lambda: called(('{"a":"', 1), ("x", 240_000), ('"}', 1)),
    "arguments-surrogates": lambda: called(('{"a":"', 1), ("\\ud800" * 20_000, 100), ('"}', 1)),
    "long-refusal": lambda: refusal(b'{"error": {"message": "' + b"a " * 500_000 + b'"}}'),
    "event-of-values": lambda: stream(
        (b'data: {"choices":[],"x":[' + b"0," * 500_000 + b"0]}\n\n", 30)
    ),
    "event-of-names": lambda: stream((event({f"n{number}": 0 for number in range(60_000)}), 30)),
    "comments": lambda: stream((b":\n\n", 260_000)),
    "one-byte-lines": lambda: stream((b"a\n" * 100_000 + b"\n", 40)),
    "data-lines": lambda: stream((b"data: {\n" + b"data:\n" * 100_000 + b"data: }\n\n", 20)),
    "checked-calls": many_calls,
    "parts": lambda: stream((event({"content": "x"}) + event({"reasoning": "y"}), 512)),
    "structured": lambda: stream(
        (event({"content": json.dumps({"a": list(range(45_000))})[:-2]}), 1),
        (event({"content": "]}"}), 1),
    ),
    "usage": lambda: stream((b'data: {"usage":{"prompt_tokens":1%b}}\n\n' % (b"0" * 4_000), 200)),
}
"""The answers by the name of the model."""


def answer(body: dict[str, Any]) -> Bytes:
    """Return the answer to a request. The model `call:NAME` calls a tool once."""
    _, _, tool = body["model"].partition(":")
    if not tool:
        return SCRIPTS[body["model"]]()
    if body["messages"][-1]["role"] == "tool":
        return SCRIPTS["echo"]()
    return stream((call("{}", tool), 1), (event({}, "tool_calls"), 1))


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        with suppress(OSError):
            while line := self.rfile.readline():
                length = 0
                while line.strip():
                    name, _, value = line.partition(b":")
                    if name.lower() == b"content-length":
                        length = int(value)
                    line = self.rfile.readline()
                body = json.loads(self.rfile.read(length))
                for data in answer(body):
                    self.wfile.write(data)
                if body["model"] in ("interim", "head-fields", "trailer-fields"):
                    time.sleep(1)
                    return


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True


def main() -> None:
    """Serve until the process is ended."""
    with _Server(("127.0.0.1", 0), _Handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
