"""A model endpoint that counts the calls of each lane, and can say that it has counted all of them.

It is one thread with one event loop. What has arrived in the kernel before `settle` was called is
counted when `settle` returns: each of its requests is read in a later round of the loop, after all
connections that were readable before.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections import Counter
from typing import Any

import httpx2

from tests.conditions import PATIENCE

_LANE = re.compile(rb"lane-(\d+)-")
_ROUNDS = 4
"""Rounds of the loop: a connection is accepted, its request is read, and one to spare."""


class CountingEndpoint:
    """The endpoint.

    Attributes:
        calls: the number of model calls of each lane.
    """

    def __init__(self) -> None:
        self.calls = Counter[int]()
        self.url = ""
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(PATIENCE)

    def settle(self) -> None:
        """Return when all calls are counted that had arrived before."""
        for _ in range(_ROUNDS):
            httpx2.get(f"{self.url}/settle", timeout=PATIENCE)

    def stop(self) -> None:
        """Stop the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", 0, backlog=1_000)
        )
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._started.set()
        self._loop.run_forever()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"(?i)content-length: (\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                lane = _LANE.search(body)
                if lane is not None:
                    self.calls[int(lane[1])] += 1
                answer = _answer(json.loads(body)) if body else b"data: [DONE]\n\n"
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                    b"Content-Length: %d\r\n\r\n" % len(answer) + answer
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


def _answer(body: dict[str, Any]) -> bytes:
    """Call the first tool once, with the text of the user; then answer."""
    last = body["messages"][-1]
    delta: dict[str, Any] = {"role": "assistant", "content": "done"}
    reason = "stop"
    if body.get("tools") and last["role"] == "user":
        function = body["tools"][0]["function"]
        texts = dict.fromkeys(function["parameters"].get("required", ()), last["content"])
        members = function["parameters"]["properties"].get("member_id", {}).get("enum")
        if members:
            texts["member_id"] = members[0]
        call = {"name": function["name"], "arguments": json.dumps(texts)}
        call_id = f"call-{len(body['messages'])}"
        delta = {"tool_calls": [{"index": 0, "id": call_id, "type": "function", "function": call}]}
        reason = "tool_calls"

    base = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
    parts = [
        {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
    ]
    text = "".join(f"data: {json.dumps(part)}\n\n" for part in parts)
    return f"{text}data: [DONE]\n\n".encode()
