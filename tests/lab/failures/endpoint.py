"""The process of the model endpoint: it plays the failures of the table, and is strict.

The last marker `[[FAILURE#KEY]]` in the messages of the user names the failure (`hi` for the
message that has to be answered) and the run. A request that breaks a rule of
`tests.lab.failures.strict` is refused, as a strict provider does.

`GET /seen/KEY` returns the number of accepted requests with a key, and the violations.

    python -m tests.lab.failures.endpoint   prints its port, then serves until SIGTERM
"""

from __future__ import annotations

import json
import re
from typing import Any

from tests.kit.model_server import (
    Body,
    Disconnected,
    EndpointServer,
    ModelHandler,
    build_chunk,
    build_head,
    count_usage,
    last_user_text,
    split_message,
)
from tests.lab.failures.strict import find_violations, read_text
from tests.lab.failures.table import FAILURES, Reply, set_value

MARKER = re.compile(r"\[\[([\w-]+)#(\w+)\]\]")

HI = "hi"

RESULT = '{"total": 7}'
"""The structured answer to a request that needs one."""


NOTHING_SEEN: Body = {"accepted": 0, "violations": []}


class _StrictServer(EndpointServer):
    seen: dict[str, Body] = {}  # noqa: RUF012  # of the process


class _StrictHandler(ModelHandler):
    server: _StrictServer

    def do_GET(self) -> None:  # noqa: N802  # named by http.server
        key = self.path.removeprefix("/seen/")
        with self.server.state.lock:
            data = json.dumps(self.server.seen.get(key, NOTHING_SEEN)).encode()
        self._send(200, data)

    async def answer(self, body: Body) -> None:
        name, key, given = find_marker(body["messages"])
        violations = find_violations(body)
        with self.server.state.lock:
            self.server.state.requests.clear()
            self.server.state.headers.clear()
            seen = self.server.seen.setdefault(key, {"accepted": 0, "violations": []})
            seen["violations"] += violations
            seen["accepted"] += not violations
        if violations:
            error = {"message": violations[0], "type": "invalid_request_error", "code": None}
            self._send(400, json.dumps({"error": error}).encode())
        elif name == HI:
            self._message(body, build_answer(body, f"hello {key}"))
        elif name:
            replies = FAILURES[name].replies
            # An agent that runs again from its beginning gets the same ids.
            await self.play(
                body, {**replies[min(given, len(replies) - 1)], "key": f"{key}_{given}"}
            )
        else:
            self._message(body, build_answer(body, last_user_text(body)[:80] or "nothing"))

    async def play(self, body: Body, reply: Reply) -> None:
        """Send a reply of the table."""
        if "status" in reply:
            content = reply["body"]
            text = content if isinstance(content, str) else json.dumps(content)
            self._send(reply["status"], text.encode(), {"Location": "/elsewhere"})
        elif reply.get("cut") == "head":
            raise Disconnected
        elif reply.get("hang") == "head":
            await self.hang(body)
        elif body.get("stream"):
            await self._stream(body, reply)
        else:
            await self._send_whole(body, reply)

    async def _stream(self, body: Body, reply: Reply) -> None:
        lines = reply.get("lines")
        if lines is None:
            chunks = [*_build_chunks(body, reply)]
            lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
            lines.append("data: [DONE]\n\n")
        cut = reply.get("cut")
        hang = reply.get("hang")
        sent = {"text": 1, "call": 1, "done": len(lines) - 1}.get(cut or hang or "", len(lines))
        self._start_stream()
        for line in lines[:sent]:
            self._chunk(line.encode())
        if hang:
            await self.hang(body)
        if cut:
            raise Disconnected
        self._chunk(b"")

    async def _send_whole(self, body: Body, reply: Reply) -> None:
        if "lines" in reply:
            text = "".join(reply["lines"]).removeprefix("data: ")
        else:
            message = build_message(reply)
            reason = "tool_calls" if "tool_calls" in message else "stop"
            choice = {"index": 0, "message": message, "finish_reason": reply.get("reason", reason)}
            answer = {**build_head(body, "chat.completion"), "choices": [choice]}
            answer["usage"] = count_usage(body, message)
            for path, value in reply.get("set", ()):
                whole = tuple("message" if step == "delta" else step for step in path)
                answer = set_value(answer, whole, value)
            text = json.dumps(answer)
        if not reply.get("cut") and not reply.get("hang"):
            self._send(200, text.encode())
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode()[: len(text) // 2])
        self.wfile.flush()
        if reply.get("hang"):
            await self.hang(body)
        raise Disconnected


def find_marker(messages: list[Body]) -> tuple[str, str, int]:
    """Return the failure and the key of the last marker, and the number of answers since then."""
    given = 0
    for message in reversed(messages):
        given += message.get("role") == "assistant"
        if message.get("role") == "user" and (found := MARKER.findall(read_text(message))):
            return (*found[-1], given)
    return "", "", 0


def build_answer(body: Body, text: str) -> Body:
    """Return an answer in the form that a request needs: text, or a structured result."""
    names = [tool["function"]["name"] for tool in body.get("tools") or ()]
    if result := next((name for name in names if name in ("final_result", "Total")), None):
        return build_message({"calls": [(result, RESULT)], "key": "result"})
    if (body.get("response_format") or {}).get("type") in ("json_object", "json_schema"):
        text = RESULT
    return {"role": "assistant", "content": text}


def build_message(reply: Reply) -> Body:
    if "calls" not in reply:
        return {"role": "assistant", "content": reply["text"] * reply.get("repeat", 1)}
    ids = reply.get("ids") or [f"{reply['key']}_{number}" for number in range(len(reply["calls"]))]
    calls = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, (name, arguments) in zip(ids, reply["calls"], strict=True)
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def _build_chunks(body: Body, reply: Reply) -> list[Body]:
    message = build_message(reply)
    usage = count_usage(body, message)
    if reply.get("repeat"):
        parts = [build_chunk(body, {"content": reply["text"]})] * reply["repeat"]
        chunks: list[Any] = [*parts, build_chunk(body, {}, "stop")]
    elif "tool_calls" not in message and not message["content"].strip():
        delta = {"role": "assistant", "content": message["content"]}
        chunks = [build_chunk(body, delta), build_chunk(body, {}, "stop")]
    else:
        chunks = [*split_message(body, message, usage)]
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["finish_reason"] and "reason" in reply:
                choice["finish_reason"] = reply["reason"]
    for path, value in reply.get("set", ()):
        chunks = [set_value(chunk, path, value) for chunk in chunks]
    return chunks


def main() -> None:
    server = _StrictServer(("127.0.0.1", 0), _StrictHandler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
