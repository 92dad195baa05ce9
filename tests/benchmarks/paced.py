"""A model endpoint for very many calls at once, as a process: `python -m tests.benchmarks.paced`.

It prints its port, then serves until it is told to end. `POST /v1/chat/completions` answers as the
last user message says, a JSON object: `words` pieces of text of `size` characters each, streamed
one every `seconds`, or all at once to who does not ask for a stream. With `gate` true the first
piece waits until `POST /open`; `GET /waiting` tells how many calls wait.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

__all__ = ["build_word"]

_USAGE = {"prompt_tokens": 20, "completion_tokens": 40, "total_tokens": 60}


def build_word(number: int, size: int) -> str:
    """A piece of the answer."""
    return f"w{number} ".ljust(size, ".")


class _Endpoint:
    """What the process remembers: calls that wait, and the gate that they wait for."""

    def __init__(self) -> None:
        self.waiting = 0
        self.gate = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, request after request."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(found[1])) if found else b""
                await self._answer(head.split()[1].decode(), body, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def _answer(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if path == "/v1/chat/completions":
            request: dict[str, Any] = json.loads(body)
            asked: dict[str, Any] = json.loads(_read_text(request["messages"][-1]["content"]))
            if request.get("stream"):
                await self._stream(writer, **asked)
            else:
                await self._whole(writer, **asked)
            return
        if path == "/open":
            self.gate.set()
            self.gate = asyncio.Event()
        await self._send(writer, {"waiting": self.waiting})

    async def _send(self, writer: asyncio.StreamWriter, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(data), data)
        )
        await writer.drain()

    async def _whole(
        self, writer: asyncio.StreamWriter, words: int, size: int, seconds: float, gate: bool
    ) -> None:
        if gate:
            await self._wait()
        text = "".join(build_word(number, size) for number in range(words))
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        await self._send(
            writer, _build_head("chat.completion") | {"choices": [choice], "usage": _USAGE}
        )

    async def _stream(
        self, writer: asyncio.StreamWriter, words: int, size: int, seconds: float, gate: bool
    ) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        if gate:
            await self._wait()
        for number in range(words):
            writer.write(_encode_delta({"role": "assistant", "content": build_word(number, size)}))
            await writer.drain()
            await asyncio.sleep(seconds)
        end = _encode_event(_build_head("chat.completion.chunk") | {"choices": [], "usage": _USAGE})
        writer.write(
            _encode_delta({}, "stop")
            + end
            + _encode_chunk(b"data: [DONE]\n\n")
            + _encode_chunk(b"")
        )
        await writer.drain()

    async def _wait(self) -> None:
        self.waiting += 1
        try:
            await self.gate.wait()
        finally:
            self.waiting -= 1


def _encode_delta(delta: dict[str, str], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return _encode_event(_build_head("chat.completion.chunk") | {"choices": [choice]})


def _build_head(kind: str) -> dict[str, Any]:
    return {"id": "a", "object": kind, "created": 1, "model": "paced"}


def _encode_event(chunk: dict[str, Any]) -> bytes:
    return _encode_chunk(b"data: %s\n\n" % json.dumps(chunk).encode())


def _read_text(content: Any) -> str:
    """The text of a message, which may come in parts."""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _encode_chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


async def _main() -> None:
    server = await asyncio.start_server(
        _Endpoint().serve, "127.0.0.1", 0, backlog=4096, limit=1_048_576
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
