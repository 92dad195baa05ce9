"""The cost to read a streamed token: this client next to libraries.

`python -m tests.benchmarks.reasons.model_client` reads the same stream of tokens, one event in each
read of the socket or all at once, and prints the CPU microseconds of a token. Medians of rounds
that alternate between the readers.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import httpx2
import orjson
from openai import AsyncOpenAI
from pydantic_ai.direct import model_request_stream
from pydantic_ai.messages import ModelRequest, PartDeltaEvent, PartStartEvent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from agentctl.runtime.models.openai_answer import OpenAIAnswer
from agentctl.runtime.models.provider import iterate_events, limit_response

TOKENS = 2_000
ROUNDS = 7
URL = "http://model/v1"
REQUEST = [ModelRequest.user_text_prompt("go")]


def build_event(content: str, reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": {"content": content}, "finish_reason": reason}
    head = {"id": "a", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return b"data: %s\n\n" % json.dumps(head | {"choices": [choice]}).encode()


EVENTS = [build_event(f"w{number} ") for number in range(TOKENS)]
EVENTS += [build_event("", "stop") + b"data: [DONE]\n\n"]
ANSWER = "".join(f"w{number} " for number in range(TOKENS))


class Body(httpx2.AsyncByteStream):
    def __init__(self, reads: list[bytes]) -> None:
        self.reads = reads

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for read in self.reads:
            yield read


class Endpoint(httpx2.AsyncBaseTransport):
    """A transport that answers each request with the stream."""

    def __init__(self, reads: list[bytes]) -> None:
        self.reads = reads

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        headers = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=headers, stream=Body(self.reads))


class Sink:
    def __init__(self) -> None:
        self.texts: list[str] = []

    def add_text(self, text: str) -> None:
        self.texts.append(text)

    def add_thinking(self, text: str) -> None: ...

    def count_part(self, *, is_call: bool) -> None: ...

    def count_arriving(self, size: int) -> None: ...

    def set_usage(self, usage: Mapping[str, int]) -> None: ...


async def read_here(http: httpx2.AsyncClient) -> str:
    sink = Sink()
    answer = OpenAIAnswer(sink)
    async with http.stream("POST", URL) as response:
        async for events in iterate_events(response):
            answer.add_events(events)
    return "".join(sink.texts)


async def read_event_source(http: httpx2.AsyncClient) -> str:
    texts = []
    async with http.stream("POST", URL) as response:
        async for event in httpx2.EventSource(response):
            if event.data != "[DONE]":
                texts.append(orjson.loads(event.data)["choices"][0]["delta"]["content"])
    return "".join(texts)


def build_vendor(http: httpx2.AsyncClient) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=URL, api_key="k", http_client=http)


async def read_vendor(http: httpx2.AsyncClient) -> str:
    message: Any = {"role": "user", "content": "go"}
    stream = await build_vendor(http).chat.completions.create(
        model="m", messages=[message], stream=True
    )
    return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def read_library(http: httpx2.AsyncClient) -> str:
    model = OpenAIChatModel("m", provider=OpenAIProvider(openai_client=build_vendor(http)))
    texts: list[str] = []
    async with model_request_stream(model, [*REQUEST], instrument=False) as stream:
        async for event in stream:
            part: Any = event
            if isinstance(event, PartStartEvent):
                texts.append(part.part.content)
            elif isinstance(event, PartDeltaEvent):
                texts.append(part.delta.content_delta)
    return "".join(texts)


READERS: dict[str, Callable[[httpx2.AsyncClient], Awaitable[str]]] = {
    "this client": read_here,
    "EventSource and orjson": read_event_source,
    "client of the vendor": read_vendor,
    "model library": read_library,
}


async def limit(response: httpx2.Response) -> None:
    limit_response(response, 1_000_000)


async def measure(reads: list[bytes]) -> None:
    spent: dict[str, list[float]] = {name: [] for name in READERS}
    for _ in range(ROUNDS):
        for name, read in READERS.items():
            hooks: Any = {"response": [limit]}
            transport = Endpoint(reads)
            async with httpx2.AsyncClient(transport=transport, event_hooks=hooks) as http:
                start = time.process_time()
                text = await read(http)
                spent[name].append(time.process_time() - start)
                assert text == ANSWER
    for name, seconds in spent.items():
        print(f"  {name:<24}{statistics.median(seconds) / TOKENS * 1_000_000:8.1f} us a token")


if __name__ == "__main__":
    print("one event in a read")
    asyncio.run(measure(EVENTS))
    print("all events in one read")
    asyncio.run(measure([b"".join(EVENTS)]))
