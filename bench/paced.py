"""A model endpoint for very many concurrent calls: `python -m bench.paced`.

The process prints its port and serves until SIGTERM. The last user message of a call of
`POST /v1/chat/completions` is a JSON object: `words` pieces of text of `size` characters are
streamed, one every `seconds`, or returned at once without a stream. With `hold` true the first
piece waits until `POST /open`; `GET /waiting` returns the number of calls that wait. With `stamp`
true a piece is the time at which it is sent: `time.monotonic_ns()` in twenty digits, which all
processes share. A piece costs this process a fraction of what it costs the server.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any

import uvloop

__all__ = ["build_word"]

_USAGE = {"prompt_tokens": 20, "completion_tokens": 40, "total_tokens": 60}


def build_word(number: int, size: int) -> str:
    """Build a piece of text."""
    return f"w{number} ".ljust(size, ".")


class _Endpoint:
    """The calls that wait, and the event that releases them."""

    def __init__(self) -> None:
        self.waiting = 0
        self.hold = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, one request after the other."""
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
                body = await reader.readexactly(int(found[1])) if found else b""
                await self._answer(head.split()[1].decode(), body, writer)
        except (OSError, RuntimeError, asyncio.IncompleteReadError):
            # uvloop raises RuntimeError where a client has closed the connection.
            pass
        finally:
            writer.close()

    async def _answer(self, path: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if path == "/v1/chat/completions":
            request: dict[str, Any] = json.loads(body)
            reply: dict[str, Any] = json.loads(_read_text(request["messages"][-1]["content"]))
            if request.get("stream"):
                await self._stream(writer, **reply)
            else:
                await self._whole(writer, **reply)
            return
        if path == "/open":
            self.hold.set()
            self.hold = asyncio.Event()
        await self._send(writer, {"waiting": self.waiting})

    async def _send(self, writer: asyncio.StreamWriter, answer: dict[str, Any]) -> None:
        data = json.dumps(answer).encode()
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(data), data)
        )
        await writer.drain()

    async def _whole(
        self, writer: asyncio.StreamWriter, words: int, size: int, seconds: float, hold: bool
    ) -> None:
        if hold:
            await self._wait()
        text = "".join(build_word(number, size) for number in range(words))
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        await self._send(
            writer, _build_head("chat.completion") | {"choices": [choice], "usage": _USAGE}
        )

    async def _stream(
        self,
        writer: asyncio.StreamWriter,
        words: int,
        size: int,
        seconds: float,
        hold: bool,
        stamp: bool = False,
    ) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        if hold:
            await self._wait()
        for number in range(words):
            word = f"{time.monotonic_ns():020} " if stamp else build_word(number, size)
            writer.write(_encode_word(word))
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
            await self.hold.wait()
        finally:
            self.waiting -= 1


def _encode_delta(delta: dict[str, str], reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return _encode_event(_build_head("chat.completion.chunk") | {"choices": [choice]})


def _encode_word(word: str) -> bytes:
    """Encode a delta with a word that needs no escapes, without the cost of JSON."""
    return _encode_chunk(b"".join((_WORD[0], word.encode(), _WORD[1])))


def _build_head(kind: str) -> dict[str, Any]:
    return {"id": "a", "object": kind, "created": 1, "model": "paced"}


def _encode_event(chunk: dict[str, Any]) -> bytes:
    return _encode_chunk(_format_event(chunk))


def _format_event(chunk: dict[str, Any]) -> bytes:
    return b"data: %s\n\n" % json.dumps(chunk).encode()


def _read_text(content: Any) -> str:
    """Return the text of a message, which may come in parts."""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def _encode_chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


_WORD = _format_event(
    _build_head("chat.completion.chunk")
    | {
        "choices": [
            {"index": 0, "delta": {"role": "assistant", "content": "WORD"}, "finish_reason": None}
        ]
    }
).split(b"WORD")
"""The bytes before and after the text of a delta."""


async def _main() -> None:
    server = await asyncio.start_server(
        _Endpoint().serve, "127.0.0.1", 0, backlog=4096, limit=1_048_576
    )
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_main())
