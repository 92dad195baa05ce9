"""A model endpoint that logs the calls of each path, in a process of its own.

`GET /log?from=N` returns the calls from number N on, all of which had arrived before the request:
after `SETTLE_ROUNDS` of such requests, one after another, a call that is not in the log has arrived
later. A run of the path `takeover` hangs in its second call until its process dies; the call that
repeats it is answered. After `GET /release` nothing hangs any more.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx2

from tests.conditions import PATIENCE

WORK = re.compile(r"work-([a-z]+)-(\d+)")
"""The message of a run: its path, and a number that no other message has."""

SETTLE_ROUNDS = 4
"""Rounds of the loop: a connection is accepted, its request is read, and one to spare."""

TAKEOVER = "takeover"

TAKEOVER_TOOLS = 3
"""Calls of the tool by a run that another process takes over."""

MOST_TOOLS = 6
"""Largest number of calls of the tool by any other run."""

ANSWER_SECONDS = 0.3
"""Longest time until an answer: at each moment, some runs are in a call, and make the next one."""

NOT_AVAILABLE = "not available"
"""Begin of the result that a model reads instead of the call of a halted tool."""


class Call(NamedTuple):
    """A call of the model, or of the tool."""

    at: float
    """Seconds on the monotonic clock of the machine.

    When the endpoint has read the request, or when the tool has begun.
    """

    kind: str
    """`model` or `tool`."""

    path: str
    number: int

    is_told: bool = False
    """True if the call reports to the model that its tool is halted."""


def count_tool_calls(path: str, number: int) -> int:
    """Return how often an agent calls the tool before it answers a message.

    Long runs are halted in many of their calls, short ones more often before the first one.
    """
    if path == TAKEOVER:
        return TAKEOVER_TOOLS
    # Each further call would ask for another decision.
    return 1 if path == "decided" else 1 + number % MOST_TOOLS


class EndpointClient:
    """A running endpoint.

    Attributes:
        url: its URL.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._place = 0
        self._client = httpx2.Client(base_url=url, timeout=PATIENCE)

    def settle(self) -> list[Call]:
        """Return all calls that have arrived before, but for those that were returned already."""
        calls: list[Call] = []
        for _ in range(SETTLE_ROUNDS):
            found = self._client.get("/log", params={"from": self._place}).json()
            self._place += len(found)
            calls += [Call(*call) for call in found]
        return calls

    def close(self) -> None:
        self._client.close()


def count_hanging_runs(url: str) -> int:
    """Return the number of runs that hang in a call at an endpoint."""
    return int(httpx2.get(f"{url}/hanging", timeout=PATIENCE).text)


def release_hanging_runs(url: str) -> None:
    """Answer the runs that hang, and let none hang from now on."""
    httpx2.get(f"{url}/release", timeout=PATIENCE)


@contextmanager
def run_counting_endpoint() -> Iterator[EndpointClient]:
    """Run an endpoint until the end of the block."""
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        client = EndpointClient(process.stdout.readline().strip())
        try:
            yield client
        finally:
            client.close()
            process.kill()


class _Endpoint:
    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._second_calls = Counter[int]()
        self._hanging = 0
        self._released = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"(?i)content-length: (\d+)", head)
                body = await reader.readexactly(int(length[1])) if length else b""
                if head.startswith(b"GET "):
                    answer = self._report(head.split()[1].decode())
                else:
                    answer = await self._answer(json.loads(body), reader)
                if answer is None:
                    return
                writer.write(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                    b"Content-Length: %d\r\n\r\n" % len(answer) + answer
                )
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _report(self, target: str) -> bytes:
        if target.startswith("/hanging"):
            return b"%d" % self._hanging
        if target == "/release":
            self._released.set()
            return b""
        first = int(target.rpartition("=")[2])
        return json.dumps(self._calls[first:]).encode()

    async def _answer(self, body: dict[str, Any], reader: asyncio.StreamReader) -> bytes | None:
        """Log a call and return its answer; None if its caller has left."""
        at = time.monotonic()
        messages = body["messages"]
        # Those before are of earlier runs of the session.
        last = max(n for n, message in enumerate(messages) if message["role"] == "user")
        work = WORK.search(str(messages[last]["content"]))
        results = [str(each["content"]) for each in messages[last:] if each["role"] == "tool"]
        if work is None:
            return format_answer(body["model"], {"role": "assistant", "content": "done"}, "stop")

        path = work[1]
        number = int(work[2])
        is_told = bool(results) and results[-1].startswith(NOT_AVAILABLE)
        self._calls.append(Call(at, "model", path, number, is_told))
        if path == TAKEOVER and len(results) == 1:
            self._second_calls[number] += 1
            if self._second_calls[number] == 1 and not await self._hang(reader):
                return None

        await asyncio.sleep(random.uniform(0.0, ANSWER_SECONDS))
        function = body["tools"][0]["function"]
        # A team asks its member once.
        tool_calls = count_tool_calls(path, number) if function["name"] == "mark" else 1
        if len(results) >= tool_calls:
            message = {"role": "assistant", "content": f"done {work[0]}"}
            return format_answer(body["model"], message, "stop")
        call = _build_call(function, work[0], f"call-{number}-{len(results)}")
        return format_answer(body["model"], {"tool_calls": [call]}, "tool_calls")

    async def _hang(self, reader: asyncio.StreamReader) -> bool:
        """Wait until the caller has left, or nothing hangs any more; return True then."""
        left = asyncio.create_task(reader.read())
        released = asyncio.create_task(self._released.wait())
        self._hanging += 1
        await asyncio.wait([left, released], return_when=asyncio.FIRST_COMPLETED)
        self._hanging -= 1
        if left.done():
            released.cancel()
            return False
        # The next request of the connection is read by its loop.
        left.cancel()
        await asyncio.wait([left])
        return True


def _build_call(function: dict[str, Any], text: str, call_id: str) -> dict[str, Any]:
    """Build the call of a tool, or of a member, with a text for everything that it requires."""
    parameters = function["parameters"]
    texts = dict.fromkeys(parameters.get("required", ()), text)
    members = parameters["properties"].get("member_id", {}).get("enum")
    if members:
        texts["member_id"] = members[0]
    call = {"name": function["name"], "arguments": json.dumps(texts)}
    return {"index": 0, "id": call_id, "type": "function", "function": call}


def format_answer(model: str, delta: dict[str, Any], reason: str) -> bytes:
    """Return an answer as a stream of chunks."""
    base = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": model}
    parts = [
        {**base, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]},
    ]
    text = "".join(f"data: {json.dumps(part)}\n\n" for part in parts)
    return f"{text}data: [DONE]\n\n".encode()


async def _main() -> None:
    server = await asyncio.start_server(_Endpoint().serve, "127.0.0.1", 0, backlog=1_000)
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_main())
