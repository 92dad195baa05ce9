"""Responses of providers that are too large, compressed, or made to take time."""

from __future__ import annotations

import asyncio
import json
import time
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentctl.config.settings import Limits
from agentctl.runtime.components.catalog import Catalog
from agentctl.runtime.failures import MAXIMUM_CALLS, MAXIMUM_PARTS, ExecutionError
from agentctl.runtime.models import openai_answer, provider
from agentctl.runtime.models.provider import (
    MAXIMUM_EVENT_BYTES,
    MAXIMUM_EVENT_LINES,
    MAXIMUM_EVENT_VALUES,
)
from tests.kit.conditions import PATIENCE
from tests.kit.fake_context import FakeContext, attempt, settings, with_catalog
from tests.kit.model import ModelEndpoint
from tests.runtime import sample_tools
from tests.runtime.loop_steps import STEP_LIMIT, measure_steps
from tests.runtime.provider_scripts import build_call, build_chunk, encode_event, script

STOP = build_chunk({}, "stop")


@pytest.fixture
def model_endpoint(process_endpoint: ModelEndpoint) -> ModelEndpoint:
    """An endpoint in another process: the memory and the steps of this one are measured."""
    return process_endpoint


def attempt_script(endpoint: ModelEndpoint, message: str, **limits: int) -> tuple[FakeContext, Any]:
    tools = (f"{sample_tools.TOOLS}:add",)
    configured = settings(endpoint, model="script", tools=tools, limits=Limits(**limits))
    return attempt(configured, message)


def build_calls(count: int) -> str:
    """Build an event with many tool calls."""
    calls = [
        call for number in range(count) for call in build_call("{}", index=number)["tool_calls"]
    ]
    return json.dumps(build_chunk({"tool_calls": calls}))


@pytest.mark.parametrize("status", [200, 500])
@pytest.mark.parametrize("encoding", ["gzip", "br", "x-unknown"])
def test_compressed_response_is_not_read(
    model_endpoint: ModelEndpoint, status: int, encoding: str
) -> None:
    """docs/internals/security-cases.md M04."""
    headers = {"Content-Encoding": encoding}
    answer = script(build_chunk({"content": "hi"}), STOP, status=status, headers=headers, gzip=True)

    ended, failure = attempt_script(model_endpoint, answer)

    assert failure is not None
    assert failure.code == "MODEL_ANSWER_INVALID"
    assert ended.transcript.content == ""
    assert model_endpoint.headers("script")["accept-encoding"] == "identity"


@pytest.mark.parametrize("status", [200, 500])
def test_compressed_response_does_not_fill_the_memory(
    model_endpoint: ModelEndpoint, status: int
) -> None:
    """docs/internals/security-cases.md M04: 64 MB in 64 KB."""
    bomb = script(
        'data: "',
        ["x" * 1_000_000, 64],
        gzip=True,
        status=status,
        headers={"Content-Encoding": "gzip"},
    )

    tracemalloc.start()
    _, failure = attempt_script(model_endpoint, bomb)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert failure is not None
    assert failure.code == "MODEL_ANSWER_INVALID"
    assert peak < 32_000_000


@pytest.mark.parametrize("count", [2_000, 8_000])
def test_tool_calls_of_one_event_do_not_stop_the_process(
    model_endpoint: ModelEndpoint, count: int
) -> None:
    """docs/internals/security-cases.md M05."""
    started = time.monotonic()

    ended, failure = attempt_script(model_endpoint, script(encode_event(build_calls(count)), STOP))

    assert time.monotonic() - started < PATIENCE
    assert failure is not None
    assert failure.code == "MODEL_ANSWER_INVALID"
    assert ended.transcript.tools == []


def test_tool_calls_are_counted_while_they_arrive(model_endpoint: ModelEndpoint) -> None:
    """docs/internals/security-cases.md M05."""
    calls = [
        build_chunk(build_call("{}", index=number, call_id=f"c{number}"))
        for number in range(MAXIMUM_CALLS + 1)
    ]

    _, failure = attempt_script(model_endpoint, script(*calls, [": wait\n\n", 10_000_000]))

    assert failure is not None
    assert failure.detail == "The model called too many tools at once"
    model_endpoint.wait_for_open(0)


def test_parts_of_an_answer_are_limited(model_endpoint: ModelEndpoint) -> None:
    """docs/internals/security-cases.md M05."""
    turn = encode_event(build_chunk({"reasoning_content": "hm", "content": "x"}))

    _, failure = attempt_script(model_endpoint, script([turn, MAXIMUM_PARTS], STOP))

    assert failure is not None
    assert failure.detail == "The model's answer has too many parts"


@pytest.mark.parametrize(
    "event",
    [
        '{"choices": [' + ",".join(["{}"] * MAXIMUM_EVENT_VALUES) + "]}",
        '{"choices": [], "x": ' + "[" * 5_000 + "]" * 5_000 + "}",
        '{"choices": [], "x": [NaN' + ",[]" * MAXIMUM_EVENT_VALUES + "]}",
        '{"choices": [], "x": "' + "x" * MAXIMUM_EVENT_BYTES + '"}',
        '{"choices": []\ndata: }' + "\nx" * MAXIMUM_EVENT_LINES,
    ],
    ids=["objects", "nested", "not a number", "large", "lines"],
)
def test_event_is_limited_before_it_is_parsed(model_endpoint: ModelEndpoint, event: str) -> None:
    """docs/internals/security-cases.md M06."""
    answer = script(build_chunk({"content": "almost "}), encode_event(event), STOP)

    ended, failure = attempt_script(model_endpoint, answer)

    assert failure is not None
    assert failure.code == "MODEL_ANSWER_INVALID"
    assert ended.transcript.content == "almost "


def test_large_text_in_one_event_is_an_answer(model_endpoint: ModelEndpoint) -> None:
    text = "{[" * 100_000 + "é\r\n\r\n"

    ended, failure = attempt_script(
        model_endpoint, script(build_chunk({"content": text}), STOP), run_bytes=1_000_000
    )

    assert failure is None
    assert ended.transcript.content == text


@pytest.mark.parametrize(
    "event", [encode_event(build_chunk({"content": ""})), ": comment\n\n", "data: {}\n\n"]
)
def test_events_without_text_are_counted(
    model_endpoint: ModelEndpoint, monkeypatch: pytest.MonkeyPatch, event: str
) -> None:
    """docs/internals/security-cases.md M07."""
    monkeypatch.setattr(provider, "_MINIMUM_EVENTS", 100)

    _, failure = attempt_script(model_endpoint, script([event, 1_000_000]), run_bytes=64_000)

    assert failure is not None
    assert failure.code == "MODEL_ANSWER_INVALID"
    model_endpoint.wait_for_open(0)


def test_data_that_the_library_keeps_is_limited(
    model_endpoint: ModelEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/internals/security-cases.md M07."""
    monkeypatch.setattr(provider, "_MINIMUM_EVENTS", 100)
    chunk = build_chunk({"annotations": ["x" * 50_000]})

    _, failure = attempt_script(
        model_endpoint, script([encode_event(chunk), 1_000_000]), run_bytes=64_000
    )

    assert failure is not None
    assert failure.code == "MODEL_ANSWER_INVALID"
    model_endpoint.wait_for_open(0)


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_empty_line_may_arrive_by_itself(model_endpoint: ModelEndpoint, end: str) -> None:
    """docs/internals/security-cases.md M08."""
    texts = [f"{number:07}" for number in range(1_300)]
    pieces: list[object] = []
    for chunk in [*(build_chunk({"content": text}) for text in texts), STOP]:
        pieces += [f"data: {json.dumps(chunk)}{end}", end]

    ended, failure = attempt_script(model_endpoint, script(*pieces), run_bytes=65_536)

    assert failure is None
    assert ended.transcript.content == "".join(texts)


def test_answer_may_arrive_byte_by_byte(model_endpoint: ModelEndpoint) -> None:
    events = [encode_event(chunk) for chunk in (build_chunk({"content": "é"}), STOP)]

    ended, failure = attempt_script(
        model_endpoint, script("".join(events).replace("\n", "\r\n"), chunk=1)
    )

    assert failure is None
    assert ended.transcript.content == "é"


def measure_script(endpoint: ModelEndpoint, message: str) -> tuple[float, FakeContext, Any]:
    """Return the longest step of the event loop, the context of a run, and its failure."""

    async def work(catalog: Catalog) -> tuple[float, FakeContext, Any]:
        context = FakeContext(catalog)
        failure = None
        async with measure_steps() as longest:
            try:
                await context.execute("agent", "writer", message, [])
            except ExecutionError as error:
                failure = error
        return longest.seconds, context, failure

    tools = (f"{sample_tools.TOOLS}:add",)
    return with_catalog(settings(endpoint, model="script", tools=tools), work)


def build_detail(**fields: object) -> str:
    return encode_event(build_chunk({"reasoning_details": [{"type": "t", **fields}]}))


def test_pieces_of_details_are_joined_once(model_endpoint: ModelEndpoint) -> None:
    piece = build_detail(index=0, data="x" * 27)

    longest, _, failure = measure_script(model_endpoint, script([piece, 60_000], STOP))

    assert failure is None
    assert longest < STEP_LIMIT


def test_number_of_details_is_limited(
    model_endpoint: ModelEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_answer, "MAXIMUM_DETAILS", 500)
    answer = script([build_detail(id="x"), 501], STOP)

    _, failure = attempt_script(model_endpoint, answer)

    assert failure is not None
    assert failure.code == "MODEL_ANSWER_INVALID"


@pytest.mark.parametrize(
    "piece", ["[]," * 20_000, '{"b": 0},' * 8_000, "x" * 60_000], ids=["arrays", "objects", "text"]
)
def test_arguments_of_tool_calls_are_limited(model_endpoint: ModelEndpoint, piece: str) -> None:
    more = encode_event(build_chunk(build_call(piece, name=None, call_id=None)))
    answer = script(build_chunk(build_call("[")), [more, 30], build_chunk({}, "tool_calls"))

    longest, ended, failure = measure_script(model_endpoint, answer)

    assert failure is not None
    assert failure.code == "MODEL_ANSWER_INVALID"
    assert ended.transcript.tools == []
    assert longest < STEP_LIMIT


class Chunks(httpx2.AsyncByteStream):
    def __init__(self, chunks: list[bytes]) -> None:
        self.chunks = chunks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self.chunks:
            yield chunk


@given(st.lists(st.text("a\r\n", max_size=6).map(str.encode), max_size=8))
def test_portions_are_complete_events_of_the_same_bytes(chunks: list[bytes]) -> None:
    async def read() -> list[bytes]:
        response = httpx2.Response(200, stream=Chunks(chunks))
        provider.limit_response(response, 1_000)
        return [portion async for portion in response.aiter_raw()]

    portions = asyncio.run(read())

    assert b"".join(portions) == b"".join(chunks)
    assert all(portion.endswith((b"\n", b"\r")) for portion in portions[:-1])
