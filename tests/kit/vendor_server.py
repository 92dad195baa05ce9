"""The process of `tests.vendors`: an endpoint with the interfaces of three vendors on a free port.

    POST /v1/messages                                    Anthropic Messages
    POST /v1beta/models/MODEL:streamGenerateContent      Gemini; generateContent for no stream
    POST /model/MODEL/converse-stream                    Amazon Bedrock Converse

The shapes are those of the vendors' documentation. The name of the model selects the behaviour:

    echo                answers with the last user message
    thinks              streams thinking before it answers like echo
    thinks:NAME         streams thinking before it calls the tool NAME
    tool:NAME           calls the tool NAME with the JSON object found in the last user message,
                        then answers with the tool's result
    cut                 ends the stream in the middle of a text, without an error
    cut:NAME            ends the stream in the middle of a call of the tool NAME
    http-<status>       fails with that status
    long                refuses the conversation because it is too large for the model
    later:SECONDS       fails with 429 and asks to wait, then answers like echo, and so on
    overloaded          reports a failure within the stream, before the answer
    key                 fails with 401 and repeats the credential of the request
    redirect            redirects the request to the model echo
    endless             sends one event that never ends
    hang, ...           see `tests.kit.model_server`

`GET /open`, `/requests` and `/headers` are those of `tests.kit.model_server`.

    python -m tests.kit.vendor_server   prints its port, then serves until SIGTERM
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from tests.kit.model_server import Body, Disconnected, EndpointServer, ModelHandler

THOUGHTS = ("Let me ", "think.")

INPUT_TOKENS = 7


@dataclass
class VendorAnswer:
    """An answer in a neutral form. `cut`: the stream ends without its last events."""

    text: str = ""
    thoughts: tuple[str, ...] = ()
    call: tuple[str, str] | None = None
    cut: bool = False

    @property
    def words(self) -> list[str]:
        return re.findall(r"\S+\s*|\s+", self.text)

    @property
    def halves(self) -> tuple[str, ...]:
        """The arguments of the call in two pieces; only the first if the answer is cut."""
        arguments = self.call[1] if self.call else ""
        return (arguments[:4],) if self.cut else (arguments[:4], arguments[4:])

    @property
    def output_tokens(self) -> int:
        return len(self.words) + len(self.thoughts) + (self.call is not None)


class Vendor:
    """The interface of one vendor."""

    content_type = "text/event-stream"
    too_long = "prompt is too long: 250000 tokens > 200000 maximum"

    def last_turn(self, body: Body) -> tuple[str, list[str]]:
        """Return the last user text and the tool results of the last message."""
        raise NotImplementedError

    def events(self, model: str, answer: VendorAnswer) -> Iterator[bytes]:
        """Yield the events of an answer."""
        raise NotImplementedError

    def failure_event(self) -> bytes:
        """Return the event of a failure within a stream."""
        raise NotImplementedError

    def error(self, status: int, wait: str) -> tuple[Body, dict[str, str]]:
        """Return the body and the header fields of a failure."""
        raise NotImplementedError


class Anthropic(Vendor):
    def last_turn(self, body: Body) -> tuple[str, list[str]]:
        blocks = body["messages"][-1]["content"]
        if isinstance(blocks, str):
            return blocks, []
        results = [_joined(each) for each in blocks if each["type"] == "tool_result"]
        return "".join(each.get("text", "") for each in blocks), results

    def events(self, model: str, answer: VendorAnswer) -> Iterator[bytes]:
        usage = {"input_tokens": INPUT_TOKENS, "output_tokens": 1}
        head = {"id": "msg_1", "type": "message", "role": "assistant", "model": model}
        rest = {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield self._event("message_start", message={**head, **rest})
        index = 0
        if answer.thoughts:
            block: Body = {"type": "thinking", "thinking": "", "signature": ""}
            deltas: list[Body] = [
                {"type": "thinking_delta", "thinking": text} for text in answer.thoughts
            ]
            deltas.append({"type": "signature_delta", "signature": "c2lnbmVk"})
            yield from self._block(index, block, deltas)
            index += 1
        if answer.text:
            deltas = [{"type": "text_delta", "text": word} for word in answer.words]
            yield from self._block(
                index, {"type": "text", "text": ""}, deltas, open=answer.cut and not answer.call
            )
            index += 1
        if answer.call:
            block = {"type": "tool_use", "id": "toolu_1", "name": answer.call[0], "input": {}}
            deltas = [{"type": "input_json_delta", "partial_json": half} for half in answer.halves]
            yield from self._block(index, block, deltas, open=answer.cut)
        if not answer.cut:
            reason = "tool_use" if answer.call else "end_turn"
            delta = {"stop_reason": reason, "stop_sequence": None}
            usage = {"output_tokens": answer.output_tokens}
            yield self._event("message_delta", delta=delta, usage=usage)
            yield self._event("message_stop")

    def _block(
        self, index: int, block: Body, deltas: list[Body], *, open: bool = False
    ) -> Iterator[bytes]:
        yield self._event("content_block_start", index=index, content_block=block)
        for delta in deltas:
            yield self._event("content_block_delta", index=index, delta=delta)
        if not open:
            yield self._event("content_block_stop", index=index)

    def _event(self, name: str, **fields: Any) -> bytes:
        return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode()

    def failure_event(self) -> bytes:
        return self._event("error", error={"type": "overloaded_error", "message": "Overloaded"})

    def error(self, status: int, wait: str) -> tuple[Body, dict[str, str]]:
        kind = {429: "rate_limit_error", 529: "overloaded_error"}.get(status, "api_error")
        error = {"type": kind, "message": "secret of the provider"}
        return {"type": "error", "error": error}, {"retry-after": wait} if wait else {}


class Gemini(Vendor):
    too_long = "The input token count (1250000) exceeds the maximum number of tokens allowed"

    def last_turn(self, body: Body) -> tuple[str, list[str]]:
        parts = body["contents"][-1]["parts"]
        results = [
            str(next(iter(part["functionResponse"]["response"].values())))
            for part in parts
            if "functionResponse" in part
        ]
        return "".join(part.get("text", "") for part in parts), results

    def events(self, model: str, answer: VendorAnswer) -> Iterator[bytes]:
        parts: list[Body] = [{"text": text, "thought": True} for text in answer.thoughts]
        parts += [{"text": word} for word in answer.words]
        if answer.call:
            call = {"name": answer.call[0], "args": json.loads(answer.call[1])}
            parts.append({"functionCall": call})
        for number, part in enumerate(parts, start=1):
            candidate: Body = {"content": {"parts": [part], "role": "model"}, "index": 0}
            if number == len(parts) and not answer.cut:
                candidate["finishReason"] = "STOP"
            usage = {
                "promptTokenCount": INPUT_TOKENS,
                "candidatesTokenCount": number,
                "totalTokenCount": INPUT_TOKENS + number,
            }
            chunk = {"candidates": [candidate], "usageMetadata": usage, "modelVersion": model}
            yield f"data: {json.dumps({**chunk, 'responseId': 'r1'})}\r\n\r\n".encode()

    def failure_event(self) -> bytes:
        return f"data: {json.dumps(self.error(503, '')[0])}\r\n\r\n".encode()

    def error(self, status: int, wait: str) -> tuple[Body, dict[str, str]]:
        names = {
            400: "INVALID_ARGUMENT",
            401: "UNAUTHENTICATED",
            404: "NOT_FOUND",
            429: "RESOURCE_EXHAUSTED",
            503: "UNAVAILABLE",
        }
        name = names.get(status, "INTERNAL")
        error: Body = {"code": status, "message": "secret of the provider", "status": name}
        if wait:
            kind = "type.googleapis.com/google.rpc.RetryInfo"
            error["details"] = [{"@type": kind, "retryDelay": f"{wait}s"}]
        return {"error": error}, {}


class Bedrock(Vendor):
    content_type = "application/vnd.amazon.eventstream"
    too_long = "Input is too long for requested model."

    def last_turn(self, body: Body) -> tuple[str, list[str]]:
        blocks = body["messages"][-1]["content"]
        results = [_joined(each["toolResult"]) for each in blocks if "toolResult" in each]
        return "".join(each.get("text", "") for each in blocks), results

    def events(self, model: str, answer: VendorAnswer) -> Iterator[bytes]:
        yield self._event("messageStart", {"role": "assistant"})
        blocks: list[list[Body]] = []
        if answer.thoughts:
            blocks.append([{"reasoningContent": {"text": text}} for text in answer.thoughts])
        if answer.text:
            blocks.append([{"text": word} for word in answer.words])
        for index, deltas in enumerate(blocks):
            for delta in deltas:
                yield self._delta(index, delta)
            yield self._event("contentBlockStop", {"contentBlockIndex": index})
        if answer.call:
            index = len(blocks)
            start = {"toolUse": {"toolUseId": "tooluse_1", "name": answer.call[0]}}
            yield self._event("contentBlockStart", {"contentBlockIndex": index, "start": start})
            for half in answer.halves:
                yield self._delta(index, {"toolUse": {"input": half}})
            if not answer.cut:
                yield self._event("contentBlockStop", {"contentBlockIndex": index})
        if not answer.cut:
            reason = "tool_use" if answer.call else "end_turn"
            yield self._event("messageStop", {"stopReason": reason})
            total = INPUT_TOKENS + answer.output_tokens
            usage = {"inputTokens": INPUT_TOKENS, "outputTokens": answer.output_tokens}
            metadata = {"usage": {**usage, "totalTokens": total}, "metrics": {"latencyMs": 1}}
            yield self._event("metadata", metadata)

    def _delta(self, index: int, delta: Body) -> bytes:
        return self._event("contentBlockDelta", {"contentBlockIndex": index, "delta": delta})

    def _event(self, name: str, fields: Body, kind: str = "event") -> bytes:
        """Encode a message of the event stream: prelude, headers, payload, checksums."""
        payload = json.dumps(fields).encode()
        names = {f":{kind}-type": name, ":content-type": "application/json", ":message-type": kind}
        headers = b"".join(
            struct.pack("!B", len(key))
            + key.encode()
            + struct.pack("!BH", 7, len(value))
            + value.encode()
            for key, value in names.items()
        )
        prelude = struct.pack("!II", len(headers) + len(payload) + 16, len(headers))
        prelude += struct.pack("!I", zlib.crc32(prelude))
        message = prelude + headers + payload
        return message + struct.pack("!I", zlib.crc32(message))

    def failure_event(self) -> bytes:
        error = {"message": "secret of the provider"}
        return self._event("serviceUnavailableException", error, "exception")

    def error(self, status: int, wait: str) -> tuple[Body, dict[str, str]]:
        names = {
            400: "ValidationException",
            401: "UnrecognizedClientException",
            404: "ResourceNotFoundException",
            429: "ThrottlingException",
            500: "InternalServerException",
        }
        kind = names.get(status, "ServiceUnavailableException")
        headers = {"x-amzn-ErrorType": kind, **({"Retry-After": wait} if wait else {})}
        return {"message": "secret of the provider"}, headers


@dataclass
class _Route:
    pattern: str
    vendor: Vendor = field(default_factory=Vendor)


VENDOR_ROUTES = (
    _Route(r"/v1/messages", Anthropic()),
    _Route(r"/v1beta/models/(?P<model>[^/]+):(?:streamG|g)enerateContent", Gemini()),
    _Route(r"/model/(?P<model>[^/]+)/converse-stream", Bedrock()),
)


class VendorHandler(ModelHandler):
    vendor: Vendor

    def parse_body(self, body: Body) -> Body:
        path = self.path.partition("?")[0]
        for route in VENDOR_ROUTES:
            if found := re.fullmatch(route.pattern, path):
                self.vendor = route.vendor
                return {**body, "model": unquote(found.groupdict().get("model") or body["model"])}
        raise Disconnected

    async def answer(self, body: Body) -> None:
        model = body["model"]
        name, _, argument = model.partition(":")
        if name.startswith("http-"):
            self._fail(int(name.removeprefix("http-")))
        elif name == "long":
            body, headers = self.vendor.error(400, "")
            text = json.dumps(body).replace("secret of the provider", self.vendor.too_long)
            self._send(400, text.encode(), headers)
        elif name == "later" and self.number % 2:
            self._fail(429, argument)
        elif name == "key":
            fields = "authorization", "x-api-key", "x-goog-api-key"
            keys = [self.headers.get(field, "") for field in fields]
            self._send(401, json.dumps({"message": f"what is {' '.join(keys)}?"}).encode())
        elif name == "redirect":
            self._send(307, b"", {"Location": self.path.replace("redirect", "echo")})
        elif name == "hang":
            await self.hang(body)
        else:
            await self._stream(model, name, self._build_answer(body, name, argument))

    def _fail(self, status: int, wait: str = "") -> None:
        body, headers = self.vendor.error(status, wait)
        self._send(status, json.dumps(body).encode(), headers)

    async def _stream(self, model: str, name: str, answer: VendorAnswer) -> None:
        if ":generateContent" in self.path:
            self._send(200, _join_chunks(self.vendor.events(model, answer)))
            return
        self.send_response(200)
        self.send_header("Content-Type", self.vendor.content_type)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if name == "endless":
            self._chunk(b'data: {"type": "')
            await self._for_ever(b"x" * 8_192)
        if name == "overloaded" and self.number % 2:
            self._chunk(self.vendor.failure_event())
        else:
            for event in self.vendor.events(model, answer):
                self._chunk(event)
        self._chunk(b"")

    def _build_answer(self, body: Body, name: str, argument: str) -> VendorAnswer:
        text, results = self.vendor.last_turn(body)
        if results:
            return VendorAnswer(" | ".join(results))
        thoughts = THOUGHTS if name == "thinks" else ()
        cut = name == "cut"
        if argument and name in ("tool", "cut", "thinks"):
            found = re.search(r"\{.*\}", text, re.DOTALL)
            return VendorAnswer(
                "Wait. ", thoughts, (argument, found.group() if found else "{}"), cut
            )
        return VendorAnswer(text, thoughts, cut=cut)


def _join_chunks(events: Iterator[bytes]) -> bytes:
    """Return the chunks of a stream of Gemini as one answer."""
    chunks = [json.loads(event.removeprefix(b"data: ")) for event in events]
    contents = [chunk["candidates"][0]["content"] for chunk in chunks]
    contents[-1]["parts"] = [part for content in contents for part in content["parts"]]
    return json.dumps(chunks[-1]).encode()


def _joined(result: Body) -> str:
    """Return the text of a tool result."""
    content = result["content"]
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", part.get("json", ""))) for part in content)


def _main() -> None:
    server = EndpointServer(("127.0.0.1", 0), VendorHandler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


if __name__ == "__main__":
    _main()
