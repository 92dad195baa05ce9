"""The process of `tests.kit.model`: an OpenAI-compatible endpoint on a free port.

`POST /v1/chat/completions` behaves by the name of the model:

    echo                answers with the last user message
    whole               answers like echo in one write: after `late SECONDS` in the message, or with
                        a header field for which a caller refuses the body if it has `compressed`
    hang                reads the request and never answers
    trickle             streams one word at a time, without end
    drip                sends comments and no event, without end
    endless             sends one event that never ends
    arguments           calls the tool `add` with arguments that never end
    thoughts            streams reasoning without end
    half                streams three words, then sends nothing with the connection open
    no-usage            like echo, without reporting usage
    http-<status>       fails with that status
    http-key            fails with 401 and repeats the credential of the request
    flaky               fails with 429, then answers like echo, fails with 529, and so on
    later:SECONDS       fails with 429 and Retry-After, then answers like echo, and so on;
                        later:date has the date 20 seconds later
    http-long           fails with 500 and a text that never ends
    garbage             answers with half a JSON document
    reset               streams a little, then resets the connection
    tool:NAME           calls the tool NAME with the last JSON object in the last user message,
                        then answers with the tool's result
    tools:NAME          calls the tool twice at once, then answers with both results
    broken:NAME         calls the tool with invalid JSON as arguments, then answers with the result
    again:NAME          calls the tool without end
    delegate            calls delegate_task_to_member (or route_to_member), for the member named in
                        the last user message, else the first; then answers with the result
    history             answers with the roles and texts of the request, as JSON
    window:N            refuses a request whose texts have more than N characters, and answers
                        others like history
    tokens:N            refuses a request of more than N tokens, which are four bytes of texts,
                        calls and tools; for the message `work K S` it calls the tool `fetch` K
                        times for S characters, or `read_tool_result`, then answers `done`;
                        for `work K S L` each answer has the text `step NUMBER` and L characters,
                        and so have its arguments; without the tool it answers with the steps; for
                        `read ID` it reads that result, and answers with it
    drafts              parses the newest user message that is a JSON list of texts and answers with
                        the first, then with the next one, and so on
    facts               answers with JSON, in a code block, that adds the question of the last user
                        message as a memory, with invalid changes around it
    exact               parses the last user message as JSON and answers with that message, then
                        with the results of its calls
    plan                parses the last user message as a JSON list of messages and sends the one
                        whose number is that of the answers since then; after the last one it
                        answers with the results of its last calls
    script              parses the last user message as JSON and sends that response, byte by byte:
                        `status`, `headers`, `pieces` (texts, pairs of a text and a number of
                        repetitions, or objects with bytes in `hex`), `gzip` (compress them),
                        `chunk` or `bytes` (number of characters or of bytes of each write),
                        `framing` (`chunked`, or `close` for a body that ends with the
                        connection) and `cut` (close the connection before the last chunk); a
                        request with results of tools is answered with them

`GET /open` returns the number of open model calls, `GET /requests` the request bodies, newest last,
and `GET /headers` their header fields; `DELETE /requests` forgets both. A call is closed when its
client has disconnected. `POST /ports` opens another port, which behaves in the same way and counts
only its own calls, and returns its number.

    python -m tests.kit.model_server   prints its port, then serves until SIGTERM
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import socket
import struct
import threading
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

__all__ = [
    "Body",
    "Disconnected",
    "EndpointServer",
    "EndpointState",
    "ModelHandler",
    "answer_with_results",
    "build_chunk",
    "build_head",
    "build_message",
    "call_delegation",
    "count_usage",
    "encode_model_event",
    "finish",
    "last_user_text",
    "reset_at_close",
    "split_message",
]

TRICKLE_SECONDS = 0.02

_LEFT_OUT = r"\[Result \d+ is left out[^]]*read_tool_result, (number|id) (\S+), offset"

Body = dict[str, Any]
"""A request, a message or an answer: a JSON object."""


class EndpointState:
    """The requests that a port has received."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open = 0
        self.requests: list[Body] = []
        self.counts = Counter[str]()
        self.headers: list[Body] = []


class Disconnected(Exception):
    """The client has closed the connection."""


class EndpointServer(ThreadingHTTPServer):
    """The endpoint at a port, with a thread for each connection."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self.state = EndpointState()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Write no traceback: in many tests the client disconnects."""


class ModelHandler(BaseHTTPRequestHandler):
    """The answers to requests for models, and to those of tests for what the endpoint has seen."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: EndpointServer

    def log_message(self, format: str, *arguments: Any) -> None:
        """Write no log."""

    def do_GET(self) -> None:
        state = self.server.state
        with state.lock:
            answer: Body = {
                "/open": {"open": state.open},
                "/requests": {"requests": state.requests},
                "/headers": {"headers": state.headers},
            }
            data = json.dumps(answer.get(self.path, {})).encode()
        self._send(200 if self.path in answer else 404, data)

    def do_DELETE(self) -> None:
        with self.server.state.lock:
            self.server.state.requests.clear()
            self.server.state.headers.clear()
            self.server.state.counts.clear()
        self._send(200, b"{}")

    def do_POST(self) -> None:
        if self.path == "/ports":
            another = EndpointServer(("127.0.0.1", 0), type(self))
            threading.Thread(target=another.serve_forever, daemon=True).start()
            self._send(200, json.dumps({"port": another.server_port}).encode())
            return
        finish(self.respond())

    async def respond(self) -> None:
        """Record a request, and answer it."""
        body = self.parse_body(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        state = self.server.state
        with state.lock:
            state.open += 1
            state.requests.append(body)
            state.counts[body["model"]] += 1
            self.number = state.counts[body["model"]]
            fields = {name.lower(): ", ".join(self.headers.get_all(name)) for name in self.headers}
            state.headers.append({"model": body["model"], "fields": fields})
        try:
            await self.answer(body)
        except (Disconnected, OSError):
            self.close_connection = True
        finally:
            with state.lock:
                state.open -= 1

    def parse_body(self, body: Body) -> Body:
        """Return the body of a request with the name of the model."""
        return body

    async def answer(self, body: Body) -> None:
        """Answer a request by the name of its model."""
        name, _, argument = body["model"].partition(":")
        if name.startswith("http-") and name not in _MISBEHAVIOURS:
            self._refuse(int(name.removeprefix("http-")))
        elif name in ("flaky", "later") and self.number % 2:
            status = 529 if name == "flaky" and self.number % 4 == 3 else 429
            wait = formatdate(time.time() + 20, usegmt=True) if argument == "date" else argument
            self._refuse(status, {"Retry-After": wait} if wait else {})
        elif name == "window" and sum(len(_read_text(m)) for m in body["messages"]) > int(argument):
            error = {"message": "Input tokens exceed the limit", "code": "context_length_exceeded"}
            self._send(400, json.dumps({"error": error}).encode())
        elif name == "tokens" and _count_tokens(body) > int(argument):
            body["refused"] = True
            error = {
                "message": f"This model's maximum context length is {argument} tokens.",
                "type": "invalid_request_error",
                "param": "messages",
                "code": "context_length_exceeded",
            }
            self._send(400, json.dumps({"error": error}).encode())
        elif name == "tokens":
            self._message(body, self._work(body), {"prompt_tokens": _count_tokens(body)})
        elif name in _MISBEHAVIOURS:
            await _MISBEHAVIOURS[name](self, body)
        else:
            message = _ANSWERS.get(name, _answer_echo)(body, argument)
            if message.pop("hang", False):
                await self.hang(body)
            self._message(body, message)

    def _refuse(self, status: int, headers: dict[str, str] | None = None) -> None:
        error = {"message": "secret of the provider", "type": "test", "code": None}
        self._send(status, json.dumps({"error": error}).encode(), headers)

    def _work(self, body: Body) -> Body:
        names = {tool["function"]["name"] for tool in body.get("tools", ())}
        if asked := re.search(r"read (\S+)$", last_user_text(body)):
            call = ("read_tool_result", json.dumps({"id": asked[1]}))
            return answer_with_results(body) or _build_calls(call)
        wanted = re.search(r"work (\d+) (\d+)(?: (\d+)\b)?", last_user_text(body))
        if wanted is None or "fetch" not in names:
            steps = sorted(set(map(int, re.findall(r"step (\d+)", last_user_text(body)))))
            return build_message(" ".join(f"step {number}" for number in steps) or "done")
        with self.server.state.lock:
            counts = self.server.state.counts
            counts[wanted.string] += 1
            number = counts[wanted.string]
        if number > int(wanted[1]):
            return build_message("done")
        mark = str(number)
        length = int(wanted[3] or 0)
        text = f"step {number} {'t' * length}" if length else None
        arguments = {"size": int(wanted[2]), "mark": f"{mark} {'m' * length}" if length else mark}
        call = "fetch", json.dumps(arguments)
        omitted = re.search(_LEFT_OUT, json.dumps(body["messages"]))
        if omitted and number % 3 == 0:
            value = int(omitted[2]) if omitted[1] == "number" else omitted[2]
            call = "read_tool_result", json.dumps({omitted[1]: value})
        return {**_build_calls(call), "content": text}

    def _message(self, body: Body, message: Body, counted: Body | None = None) -> None:
        usage = None if body["model"] == "no-usage" else count_usage(body, message)
        usage = usage and {**usage, **(counted or {})}
        if body.get("stream"):
            self._start_stream()
            for chunk in split_message(body, message, usage):
                self._event(json.dumps(chunk))
            self._event("[DONE]")
            self._chunk(b"")
            return
        reason = "tool_calls" if "tool_calls" in message else "stop"
        answer = {**build_head(body, "chat.completion"), "usage": usage}
        answer["choices"] = [{"index": 0, "message": message, "finish_reason": reason}]
        self._send(200, json.dumps(answer).encode())

    async def hang(self, body: Body) -> None:
        """Wait until the client disconnects."""
        while True:
            await self.pause(None)

    async def trickle(self, body: Body) -> None:
        self._start_stream()
        number = 0
        while True:
            self._event(json.dumps(build_chunk(body, {"content": f"w{number} "})))
            number += 1
            await self.pause(TRICKLE_SECONDS)

    async def whole(self, body: Body) -> None:
        text = last_user_text(body)
        late = re.search(r"late ([0-9.]+)", text)
        await self.pause(float(late.group(1)) if late else 0)
        chunks = [*split_message(body, build_message(text), count_usage(body, {}))]
        events = b"".join(map(encode_model_event, chunks)) + b"data: [DONE]\n\n"
        encoding = b"gzip" if "compressed" in text else b"identity"
        self.wfile.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n"
            b"Content-Encoding: %b\r\n\r\n%b" % (len(events), encoding, events)
        )

    async def drip(self, body: Body) -> None:
        self._start_stream()
        while True:
            self._chunk(b": still here\n\n")
            await self.pause(TRICKLE_SECONDS)

    async def endless(self, body: Body) -> None:
        self._start_stream()
        self._chunk(b'data: {"id": "')
        await self._for_ever(b"x" * 8_192)

    async def refuse_the_key(self, body: Body) -> None:
        error = {"message": f"what is {self.headers['Authorization']}?", "type": "test"}
        self._send(401, json.dumps({"error": error}).encode())

    async def refuse_at_length(self, body: Body) -> None:
        self.send_response(500)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        await self._for_ever(b'"secret of the provider"\n\n' * 300)

    async def arguments(self, body: Body) -> None:
        self._start_stream()
        call: Body = {"index": 0, "id": "c", "type": "function"}
        call["function"] = {"name": "add", "arguments": '{"a": "'}
        self._event(json.dumps(build_chunk(body, {"role": "assistant", "tool_calls": [call]})))
        more = {"index": 0, "function": {"arguments": "1" * 4_096}}
        await self._for_ever(encode_model_event(build_chunk(body, {"tool_calls": [more]})))

    async def thoughts(self, body: Body) -> None:
        self._start_stream()
        await self._for_ever(
            encode_model_event(build_chunk(body, {"reasoning_content": "hm " * 1_000}))
        )

    async def _for_ever(self, data: bytes) -> None:
        while True:
            self._chunk(data)
            await self.pause(0)

    async def half(self, body: Body) -> None:
        self._start_stream()
        for word in ("one ", "two ", "three"):
            delta = build_chunk(body, {"content": word})
            delta["usage"] = {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8}
            self._event(json.dumps(delta if word == "one " else {**delta, "usage": None}))
        await self.hang(body)

    async def garbage(self, body: Body) -> None:
        if body.get("stream"):
            self._start_stream()
            self._event('{"id": "x", "choices": [{"ind')
            self._chunk(b"")
        else:
            self._send(200, b'{"id": "x", "choi')

    async def reset(self, body: Body) -> None:
        self._start_stream()
        self._event(json.dumps(build_chunk(body, {"content": "almost "})))
        await self.pause(0.05)
        self.reset_connection()
        raise Disconnected

    def reset_connection(self) -> None:
        """Close the connection so that its client gets a reset."""
        reset_at_close(self.connection)
        self.connection.close()

    async def script(self, body: Body) -> None:
        answer = answer_with_results(body)
        if answer is not None:
            self._message(body, answer)
            return
        script: Body = json.loads(last_user_text(body))
        self.send_response(script.get("status", 200))
        for name, value in {"Content-Type": "text/event-stream", **script["headers"]}.items():
            self.send_header(name, value)
        framed = script.get("framing", "chunked") == "chunked"
        self.send_header(*(("Transfer-Encoding", "chunked") if framed else ("Connection", "close")))
        self.end_headers()
        for data in _read_pieces(script):
            self._chunk(data) if framed else self.wfile.write(data)
            await self.pause(0)
        if framed and not script.get("cut"):
            self._chunk(b"")
        self.close_connection = not framed or script.get("cut", False)

    def _send(self, status: int, data: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _start_stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _event(self, data: str) -> None:
        self._chunk(f"data: {data}\n\n".encode())

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    async def pause(self, seconds: float | None) -> None:
        """Wait for `seconds`, or for ever.

        Raises:
            Disconnected: the client has closed the connection.
        """
        self._pause(seconds)

    def _pause(self, seconds: float | None) -> None:
        """As `pause`, for a handler with a thread of its own."""
        readable, _, _ = select.select([self.connection], [], [], seconds)
        if readable and not self.connection.recv(1, socket.MSG_PEEK):
            raise Disconnected


_MISBEHAVIOURS: dict[str, Callable[[ModelHandler, Body], Awaitable[None]]] = {
    "whole": ModelHandler.whole,
    "hang": ModelHandler.hang,
    "trickle": ModelHandler.trickle,
    "drip": ModelHandler.drip,
    "endless": ModelHandler.endless,
    "http-key": ModelHandler.refuse_the_key,
    "http-long": ModelHandler.refuse_at_length,
    "arguments": ModelHandler.arguments,
    "thoughts": ModelHandler.thoughts,
    "half": ModelHandler.half,
    "garbage": ModelHandler.garbage,
    "reset": ModelHandler.reset,
    "script": ModelHandler.script,
}


def reset_at_close(connection: Any) -> None:
    """Let the end of a connection reset it, instead of telling its client that all was sent."""
    linger = struct.pack("ii", 1, 0)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)


def finish(work: Coroutine[Any, Any, None]) -> None:
    """Execute a coroutine that waits in its thread, so that it never returns to an event loop."""
    with contextlib.suppress(StopIteration):
        work.send(None)
        raise AssertionError("a handler with a thread of its own waits for an event loop")


def _read_pieces(script: Body) -> Iterator[bytes]:
    """Yield the writes of a scripted body; equal pieces are encoded once."""
    encoder = zlib.compressobj(wbits=31) if script.get("gzip") else None
    for piece in script["pieces"]:
        if isinstance(piece, dict):
            yield bytes.fromhex(piece["hex"])
            continue
        text, count = (piece, 1) if isinstance(piece, str) else piece
        if width := script.get("bytes"):
            data = text.encode()
            yield from (data[start : start + width] for start in range(0, len(data), width))
            continue
        size = script.get("chunk") or len(text) or 1  # An empty text has no write.
        parts = [text[start : start + size].encode() for start in range(0, len(text), size)]
        for part in parts * count:
            data = encoder.compress(part) if encoder else part
            if data:
                yield data
    if encoder:
        yield encoder.flush()


def _answer_echo(body: Body, _: str = "") -> Body:
    return build_message(last_user_text(body))


def _answer_history(body: Body, _: str) -> Body:
    return build_message(
        json.dumps([[item["role"], _read_text(item)] for item in body["messages"]])
    )


def _answer_drafts(body: Body, _: str) -> Body:
    turns = body["messages"]
    start = max(
        number
        for number, message in enumerate(turns)
        if message["role"] == "user" and _read_text(message).startswith("[")
    )
    given = sum(message["role"] == "assistant" for message in turns[start:])
    return build_message(json.loads(_read_text(turns[start]))[given])


def _answer_facts(body: Body, _: str) -> Body:
    question = last_user_text(body).rpartition("User:\n")[2].partition("\n\nAssistant:")[0]
    changes = {
        "add": [{"memory": question, "topics": ["food", "a,b", 1]}, {"memory": 1}, "x", {}],
        "update": [{"memory_id": "nothing", "memory": "x"}, {"memory_id": 1}],
        "forget": ["nothing", 1],
        "other": None,
    }
    return build_message(f"Here you are:\n```json\n{json.dumps(changes)}\n```")


def _answer_exactly(body: Body, _: str) -> Body:
    message: Body = json.loads(last_user_text(body))
    return answer_with_results(body) or {"role": "assistant", "content": None, **message}


def _answer_planned(body: Body, _: str) -> Body:
    turns = body["messages"]
    asked = [number for number, turn in enumerate(turns) if turn["role"] == "user"]
    # Some libraries send the results of calls as messages of the user.
    start = next((n for n in reversed(asked) if "[" in _read_text(turns[n])), asked[-1])
    plan: list[Body] = json.loads(_find_plan(_read_text(turns[start])))
    given = sum(turn["role"] == "assistant" for turn in turns[start:])
    if given < len(plan):
        return {"role": "assistant", "content": None, **plan[given]}
    return answer_with_results(body) or build_message("done")


def _find_plan(text: str) -> str:
    last = text.rstrip().rpartition("\n")[2]
    # Some libraries send the messages of earlier runs before the plan.
    found = re.fullmatch(r"\[.*\]", last) or re.search(r"\[.*\]", text, re.DOTALL)
    return found.group() if found else "[]"


def _call_tool(body: Body, name: str) -> Body:
    return answer_with_results(body) or _build_calls((name, _find_json(last_user_text(body))))


def _call_tool_twice(body: Body, name: str) -> Body:
    call = (name, _find_json(last_user_text(body)))
    return answer_with_results(body) or _build_calls(call, call)


def _call_with_invalid_json(body: Body, name: str) -> Body:
    return answer_with_results(body) or _build_calls((name, '{"half": '))


def _call_forever(body: Body, name: str) -> Body:
    return _build_calls((name, _find_json(last_user_text(body))))


def call_delegation(body: Body, _: str) -> Body:
    results = answer_with_results(body)
    if results:
        return results
    wanted = {"delegate_task_to_member", "route_to_member"}
    tool = next(tool["function"] for tool in body["tools"] if tool["function"]["name"] in wanted)
    properties = tool["parameters"]["properties"]
    # AgentOS names the members in the system message instead.
    system = _read_text(body["messages"][0])
    members = properties["member_id"].get("enum") or re.findall(r'<member id="([^"]+)"', system)
    asked = last_user_text(body)
    arguments = {"member_id": next((name for name in members if name in asked), members[0])}
    if "task" in properties:
        arguments["task"] = asked
    return _build_calls((tool["name"], json.dumps(arguments)))


_ANSWERS: dict[str, Callable[[Body, str], Body]] = {
    "history": _answer_history,
    "window": _answer_history,
    "drafts": _answer_drafts,
    "facts": _answer_facts,
    "exact": _answer_exactly,
    "plan": _answer_planned,
    "tool": _call_tool,
    "tools": _call_tool_twice,
    "broken": _call_with_invalid_json,
    "again": _call_forever,
    "delegate": call_delegation,
}


def build_message(text: str) -> Body:
    return {"role": "assistant", "content": text or None}


def _build_calls(*calls: tuple[str, str]) -> Body:
    made = [
        {
            "id": f"call_{time.monotonic_ns()}_{number}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        for number, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def answer_with_results(body: Body) -> Body | None:
    """Return an answer with the results of tools, if these are the last messages."""
    texts: list[str] = []
    for message in reversed(body["messages"]):
        if message["role"] != "tool":
            break
        texts.insert(0, _read_text(message))
    return build_message(" | ".join(texts)) if texts else None


def last_user_text(body: Body) -> str:
    users = [message for message in body["messages"] if message["role"] == "user"]
    return _read_text(users[-1]) if users else ""


def _read_text(message: Body) -> str:
    content = message.get("content") or ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content)


def _count_tokens(body: Body) -> int:
    calls = [call for message in body["messages"] for call in message.get("tool_calls") or ()]
    texts = [_read_text(message) for message in body["messages"]]
    texts += [call["function"]["name"] + call["function"]["arguments"] for call in calls]
    texts += [json.dumps(body["tools"])] if body.get("tools") else []
    return sum(len(text.encode()) for text in texts) // 4 + 4 * len(body["messages"])


def _find_json(text: str) -> str:
    """Return the last JSON object of a text: an agent may put earlier messages before it."""
    decoder = json.JSONDecoder()
    last = "{}"
    start = text.find("{")
    while start >= 0:
        try:
            end = decoder.raw_decode(text, start)[1]
        except ValueError:
            end = start + 1
        else:
            last = text[start:end]
        start = text.find("{", end)
    return last


def count_usage(body: Body, message: Body) -> Body:
    asked = sum(len(_read_text(item).split()) for item in body["messages"])
    said = len(_read_text(message).split()) + len(message.get("tool_calls", ()))
    return {
        "prompt_tokens": asked,
        "completion_tokens": said,
        "total_tokens": asked + said,
        "prompt_tokens_details": {"cached_tokens": 1},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }


def build_head(body: Body, kind: str) -> Body:
    return {"id": "answer-1", "object": kind, "created": int(time.time()), "model": body["model"]}


def build_chunk(body: Body, delta: Body, reason: str | None = None) -> Body:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {**build_head(body, "chat.completion.chunk"), "choices": [choice]}


def encode_model_event(chunk: Body) -> bytes:
    return f"data: {json.dumps(chunk)}\n\n".encode()


def split_message(body: Body, message: Body, usage: Body | None) -> Iterator[Body]:
    """Yield a message as chunks: words or calls, and the usage last if it was requested."""
    calls = message.get("tool_calls", [])
    for word in re.findall(r"\S+\s*|\s+", _read_text(message)):
        yield build_chunk(body, {"role": "assistant", "content": word})
    for index, call in enumerate(calls):
        text = call["function"]["arguments"]
        first = {**call, "index": index, "function": {**call["function"], "arguments": text[:5]}}
        yield build_chunk(body, {"role": "assistant", "tool_calls": [first]})
        rest = {"index": index, "function": {"arguments": text[5:]}}
        yield build_chunk(body, {"tool_calls": [rest]})
    yield build_chunk(body, {}, "tool_calls" if calls else "stop")
    if usage is not None and (body.get("stream_options") or {}).get("include_usage"):
        yield {**build_head(body, "chat.completion.chunk"), "choices": [], "usage": usage}


def _main() -> None:
    server = EndpointServer(("127.0.0.1", 0), ModelHandler)
    print(server.server_port, flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _main()
