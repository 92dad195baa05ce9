"""A model endpoint that logs the calls of each path, in a process of its own.

`GET /log?from=N` returns the calls from number N on.

The operator sends `GET /near` shortly before a halt: the calls that wait for their answer are
answered around it. After its end follows `GET /wait?from=N&paths=P,Q&seconds=S`: calls that wait
then are answered at once, but for those of the path `takeover`, and the request when each of these
paths has made a call after number N, or after some seconds. So a run makes a few calls between two
halts, and most halts meet it where it goes on to the next one.

`GET /finish` follows the last halt: from then on every call is answered at once.

A run of the path `takeover` hangs in its second call until its process dies, if that process calls
the models below `/victim`. Other processes do not, and their repetition of the call is answered.
`GET /hanging` returns the number of calls that hang.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import random
import re
import time
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from tests.kit.conditions import PATIENCE
from tests.lab.halts.timed_connection import Request, TimedConnection, serve

WORK = re.compile(r"work-([a-z]+)-(\d+)")
"""The message of a run: its path, and a number that no other message has."""

TAKEOVER = "takeover"

VICTIM = "victim"
"""The first part of the path of a call whose process is to die in it."""

TAKEOVER_TOOLS = range(20, 80)
"""Numbers of calls of the tool by a run that another process takes over.

It is halted many times after the takeover, which costs the start of a server.
"""

TOOLS = range(1, 7)
"""Numbers of calls of the tool by any other run."""

NEAR_SECONDS = 0.2
"""Longest time from `/near` to the answers of the calls that wait.

It is hardly longer than a halt and the time after it in which the experiment looks for calls: what
is answered after the halt would go on then.
"""

ALONE_SECONDS = (0.4, 0.8)
"""Shortest and longest time until an answer while there are no halts."""

WAIT_SECONDS = 0.004
"""Pause between two looks for the calls that `/wait` waits for."""

NOT_AVAILABLE = "not available"
"""Begin of the result that a model reads instead of the call of a halted tool."""


class Call(NamedTuple):
    """A call of the model, or of the tool."""

    at: float
    """Seconds on the monotonic clock of the machine.

    When the request was sent to the endpoint, or when the tool has begun.
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
    # Each further call would ask for another decision.
    if path == "decided":
        return 1
    # Runs that were begun one after the other end at different times.
    if path == TAKEOVER:
        return TAKEOVER_TOOLS[number * 23 % len(TAKEOVER_TOOLS)]
    return TOOLS[number % len(TOOLS)]


class EndpointClient:
    """A client of a running endpoint, for its log.

    Args:
        url: the URL of the endpoint, without a path.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._place = 0
        # Requests are many and small: this client takes a fifth of the time of others.
        self._connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE)

    def read_calls(self) -> list[Call]:
        """Return the calls that it has read, but for those that were returned already."""
        calls = [Call(*call) for call in json.loads(self._get("/log", {"from": self._place}))]
        self._place += len(calls)
        return calls

    def wait_for_calls(self, paths: Collection[str], seconds: float) -> None:
        """Answer the calls that wait, until each of some paths makes a call.

        A call that was made after the last one that `read_calls` has returned is one, too.

        Args:
            seconds: the longest time of the wait.
        """
        query = {"from": self._place, "paths": ",".join(paths), "seconds": seconds}
        self._get("/wait", query)

    def announce_halt(self) -> None:
        """Let the calls that wait be answered around a halt that follows."""
        self._get("/near")

    def finish(self) -> None:
        """Let every call be answered at once from now on."""
        self._get("/finish")

    def count_hanging_runs(self) -> int:
        """Return the number of runs that hang in a call."""
        return int(self._get("/hanging"))

    def close(self) -> None:
        self._connection.close()

    def _get(self, path: str, query: Mapping[str, Any] | None = None) -> bytes:
        self._connection.request("GET", f"{path}?{urlencode(query or {})}")
        return self._connection.getresponse().read()


class _Endpoint:
    def __init__(self) -> None:
        self._calls: list[Call] = []
        self._hanging = 0
        self._is_finishing = False
        self._near = asyncio.Event()
        self._after = asyncio.Event()

    async def handle(self, connection: TimedConnection) -> None:
        """Answer the requests of a connection until its end."""
        while request := await connection.read_request():
            if request.method == "GET":
                await connection.answer(await self._report(request.target))
                continue

            answer = await self._answer(request)
            if answer is None:
                await self._hang(connection)
                return
            await connection.answer(answer)

    async def _report(self, target: str) -> bytes:
        name, _, query = target.partition("?")
        values = dict(parse_qsl(query))
        if name == "/hanging":
            return b"%d" % self._hanging
        if name == "/near":
            # A call that arrives from now on waits for the next halt.
            self._near.set()
            self._near = asyncio.Event()
            return b""
        if name == "/finish":
            self._is_finishing = True
            self._near.set()
            return b""
        if name == "/wait":
            self._after.set()
            self._after = asyncio.Event()
            paths = set(values["paths"].split(",")) if "paths" in values else set()
            await self._wait_for_calls(int(values["from"]), paths, float(values["seconds"]))
            return b""
        return json.dumps(self._calls[int(values["from"]) :]).encode()

    async def _wait_for_calls(self, first: int, paths: set[str], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if paths <= {call.path for call in self._calls[first:]}:
                return
            await asyncio.sleep(WAIT_SECONDS)

    async def _hang(self, connection: TimedConnection) -> None:
        """Wait until the process of a call has died."""
        self._hanging += 1
        try:
            while await connection.receive():
                pass
        finally:
            self._hanging -= 1

    async def _answer(self, request: Request) -> bytes | None:
        """Log a call and return its answer; None for a call whose process is to die in it."""
        body = json.loads(request.body)
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
        self._calls.append(Call(request.arrived_at, "model", path, number, is_told))
        if request.target.startswith(f"/{VICTIM}/") and len(results) == 1:
            return None

        await self._pause(path)
        function = body["tools"][0]["function"]
        # A team asks its member once.
        tool_calls = count_tool_calls(path, number) if function["name"] == "mark" else 1
        if len(results) >= tool_calls:
            message = {"role": "assistant", "content": f"done {work[0]}"}
            return format_answer(body["model"], message, "stop")
        call = _build_call(function, work[0], f"call-{number}-{len(results)}")
        return format_answer(body["model"], {"tool_calls": [call]}, "tool_calls")

    async def _pause(self, path: str) -> None:
        """Wait until a call may be answered."""
        if self._is_finishing:
            return
        near = asyncio.create_task(self._near.wait())
        waits = [near]
        # Runs of a takeover are to last: they go on around each halt only.
        if path != TAKEOVER:
            waits.append(asyncio.create_task(self._after.wait()))
        seconds = random.uniform(*ALONE_SECONDS)
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        is_near = near.done()
        for task in waits:
            task.cancel()
        if is_near and not self._is_finishing:
            await asyncio.sleep(random.uniform(0.0, NEAR_SECONDS))


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


if __name__ == "__main__":
    asyncio.run(serve(_Endpoint().handle))
