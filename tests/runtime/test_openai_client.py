"""The client of OpenAI-compatible endpoints and the model library on the same streams.

Both read recorded and hostile answers from a local endpoint. Differences are listed with both
results; docs/models.md "OpenAI-compatible endpoints" states them. Random streams are read in the
same way: AGENTCTL_TEST_LONG=1 has a thousand of them, AGENTCTL_TEST_SEED selects others.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import warnings
from collections.abc import Mapping
from typing import Any

import pytest

from agentctl.config.settings import Model, ModelSettings
from agentctl.records.text import replace_unstorable
from agentctl.runtime.models.calls import ModelCall, ModelConnection, ModelFailure
from agentctl.runtime.models.library_model import LibraryConnection
from agentctl.runtime.models.openai_chat import OpenAIConnection
from agentctl.runtime.models.provider import build_http_client
from tests.differential.comparison import report
from tests.kit import clock
from tests.kit.loop_model import open_loop_endpoint
from tests.kit.model import ModelEndpoint
from tests.kit.tables import every_row
from tests.runtime.provider_scripts import build_call, build_chunk, encode_event, script

RUN_BYTES = 1_000_000
CONCURRENT = 8
DONE = encode_event("[DONE]")
STOP = build_chunk({}, "stop")
TEXT = build_chunk({"content": "almost "})
CALLED = build_chunk({}, "tool_calls")
USAGE = {
    "prompt_tokens": 7,
    "completion_tokens": 5,
    "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 3, "audio_tokens": 1, "cache_write_tokens": 2},
    "completion_tokens_details": {"reasoning_tokens": 4, "audio_tokens": 1},
}


class Sink:
    """Everything that a connection passes on."""

    def __init__(self) -> None:
        self.text = self.thinking = ""
        self.usage: dict[str, int] = {}

    def add_text(self, text: str) -> None:
        self.text += text

    def add_thinking(self, text: str) -> None:
        self.thinking += text

    def count_part(self, *, is_call: bool) -> None: ...

    def count_arriving(self, size: int) -> None: ...

    def set_usage(self, usage: Mapping[str, int]) -> None:
        self.usage = {name: count for name, count in usage.items() if count}


class Library(LibraryConnection):
    """A model of the library, with the client of the vendor."""

    def __init__(self, url: str) -> None:
        from openai import AsyncOpenAI
        from pydantic_ai.models.openai import OpenAIChatModel
        from pydantic_ai.providers.openai import OpenAIProvider

        self._http = build_http_client(RUN_BYTES)
        client = AsyncOpenAI(base_url=url, api_key="k", max_retries=0, http_client=self._http)
        # Without it the library reports a stream that was cut off as complete.
        profile: Any = {"openai_chat_streaming_requires_finish_reason": True}
        provider = OpenAIProvider(openai_client=client)
        super().__init__(OpenAIChatModel("script", provider=provider, profile=profile))

    async def close(self) -> None:
        await self._http.aclose()


def connect_client(url: str) -> OpenAIConnection:
    return OpenAIConnection(Model("m", "openai", "script", base_url=url), "k", RUN_BYTES)


async def observe(connection: ModelConnection, message: str) -> dict[str, Any]:
    """Return everything that comes out of a call, without ids that were made up."""
    sink = Sink()
    found: dict[str, Any] = {}
    call = ModelCall("", [{"role": "user", "content": message}], [], ModelSettings())
    try:
        answer = await connection.answer(call, sink)
        calls = [(each["name"], each["arguments"]) for each in answer.calls]
        given = [each["id"] for each in answer.calls if each["id"].startswith("c")]
        found |= {"text": answer.text, "calls": calls, "ids": given, "end": answer.finish_reason}
        if answer.finish_reason is None:
            found = {"failure": "MODEL_UNAVAILABLE", "repeatable": True, "wait": None}
    except ModelFailure as failure:
        found["failure"] = failure.code
        found["repeatable"] = failure.is_repeatable
        found["wait"] = None if failure.retry_after is None else round(failure.retry_after)
    return {
        "received": _join_surrogates(sink.text),
        "thinking": sink.thinking,
        "usage": sink.usage,
        "failure": None,
        **found,
    }


def _join_surrogates(text: str) -> str:
    """Return a text as it can be stored: the library passes on what the pieces of a stream have."""
    joined = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return replace_unstorable(joined)


Results = dict[str, tuple[dict[str, Any], dict[str, Any]]]


async def observe_all(url: str, messages: Mapping[str, str]) -> Results:
    """Return the results of this client and of the library for each message."""
    client = connect_client(url)
    library = Library(url)
    turns = asyncio.Semaphore(CONCURRENT)

    async def observe_both(message: str) -> tuple[dict[str, Any], dict[str, Any]]:
        async with turns:
            return await observe(client, message), await observe(library, message)

    try:
        found = await asyncio.gather(*map(observe_both, messages.values()))
        return dict(zip(messages, found, strict=True))
    finally:
        await client.close()
        await library.close()


@pytest.fixture(scope="module")
def results() -> Results:
    """The results for all messages, which share their connections."""
    messages = SAME | {name: message for name, (message, _, _) in DIFFERENT.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with open_loop_endpoint() as endpoint:
            return clock.run(observe_all(endpoint.base_url, messages))


def text_events(*texts: str) -> list[object]:
    return [*(build_chunk({"content": text}) for text in texts), STOP, DONE]


def calls(*pieces: Mapping[str, Any]) -> list[object]:
    return [*(build_chunk({"tool_calls": [piece]}) for piece in pieces), CALLED, DONE]


def piece(index: int | None, arguments: object, **fields: Any) -> dict[str, Any]:
    function = {"arguments": arguments, **{k: v for k, v in fields.items() if k == "name"}}
    return {"index": index, "function": function} | ({"id": fields["id"]} if "id" in fields else {})


def error(**fields: Any) -> str:
    return encode_event({"error": {"message": "secret of the provider", **fields}})


def lines(event: Mapping[str, Any], end: str) -> str:
    return f"data: {json.dumps(event)}{end}{end}"


SPLIT = json.dumps(build_chunk({"content": "in two lines"})).replace(
    ', "choices"', ',\ndata: "choices"'
)

STATUSES = {
    **dict.fromkeys((302, 400, 405, 413, 422, 451), "MODEL_REJECTED"),
    **dict.fromkeys((401, 403), "MODEL_KEY_REJECTED"),
    **dict.fromkeys((404, 410), "MODEL_NOT_FOUND"),
    **dict.fromkeys((402, 409, 425, 429, 500, 503, 529), "MODEL_UNAVAILABLE"),
    **dict.fromkeys((408, 504), "MODEL_TIMEOUT"),
}
"""The failure of each status; a rejected request is not repeated (docs/models.md)."""

SAME: dict[str, str] = {
    "plain": script(*text_events("one ", "two")),
    "role first": script(build_chunk({"role": "assistant", "content": ""}), *text_events("x")),
    "no space": script("data:" + json.dumps(TEXT) + "\n\n", STOP, DONE),
    "crlf": script(*(lines(event, "\r\n") for event in (TEXT, STOP)), DONE),
    "cr": script(*(lines(event, "\r") for event in (TEXT, STOP)), DONE),
    "comments": script(": OPENROUTER PROCESSING\n\n", TEXT, ": x\n: y\n\n", STOP, DONE),
    "comment inside": script(": x\n" + lines(TEXT, "\n"), STOP, DONE),
    "several lines": script(f"data: {SPLIT}\n\n", STOP, DONE),
    "other fields": script("event: message\nid: 7\n" + lines(TEXT, "\n"), STOP, DONE),
    "fragments": script(*text_events("ä€😀", "\u2028 漢字"), bytes=1),
    "pairs of bytes": script(*text_events("ä€😀 漢字"), bytes=3),
    "surrogates": script(*text_events("\ud83d", "\ude00", "a\ud800b"), TEXT),
    "zero bytes": script(*text_events("a\0b")),
    "done is missing": script(TEXT, STOP),
    "closed at the end": script(TEXT, STOP, framing="close"),
    "events after done": script(TEXT, STOP, DONE, build_chunk({"content": "late"})),
    "half an event at the end": script(TEXT, STOP, lines(TEXT, "\n")[:-9]),
    "no finish reason": script(TEXT, DONE),
    "cut": script(TEXT, cut=True),
    "unknown finish reason": script(TEXT, build_chunk({}, "eos"), DONE),
    "length": script(TEXT, build_chunk({}, "length"), DONE),
    "finish with the text": script(build_chunk({"content": "all"}, "stop"), DONE),
    "usage at the end": script(
        TEXT, STOP, {"choices": [], "usage": USAGE, "created": 1, "model": "m", "id": "x"}, DONE
    ),
    "usage with the end": script(TEXT, {**STOP, "usage": USAGE}, DONE),
    "usage is null": script({**TEXT, "usage": None}, {**STOP, "usage": None}, DONE),
    "usage without details": script(
        TEXT, {**STOP, "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}}
    ),
    "one call": script(
        build_chunk(build_call("", name="add")),
        build_chunk({"tool_calls": [piece(0, '{"a"')]}),
        build_chunk({"tool_calls": [piece(0, ": 1}")]}),
        CALLED,
        DONE,
    ),
    "text and a call": script(TEXT, *calls(piece(0, "{}", name="add", id="c1"))),
    "interleaved calls": script(
        *calls(
            piece(0, "", name="add", id="c1"),
            piece(1, "", name="sub", id="c2"),
            piece(0, '{"a": '),
            piece(1, '{"b": '),
            piece(1, "2}"),
            piece(0, "1}"),
        )
    ),
    "calls without an index": script(
        *calls(piece(None, '{"a": 1}', name="add", id="c1"), piece(None, "{}", name="b", id="c2"))
    ),
    "calls without an index and an id": script(
        *calls(piece(None, '{"a": 1}', name="add"), piece(None, "{}", name="b"))
    ),
    "piece without an index": script(
        *calls(piece(None, '{"a"', name="add", id="c1"), piece(None, ": 1}"))
    ),
    "call without arguments": script(*calls({"index": 0, "id": "c", "function": {"name": "now"}})),
    "call without an id": script(*calls(piece(0, "{}", name="add"))),
    "call with broken arguments": script(*calls(piece(0, '{"a": ', name="add", id="c1"))),
    "call with an object": script(*calls(piece(0, {"a": 1}, name="add", id="c1"))),
    "function_call": script(
        build_chunk({"tool_calls": [piece(0, "{}", name="add", id="c1")]}),
        build_chunk({}, "function_call"),
    ),
    "refusal": script(build_chunk({"refusal": "No"}), build_chunk({"refusal": "."}), STOP, DONE),
    "refusal after text": script(TEXT, build_chunk({"refusal": "No."}), STOP, DONE),
    "content filter": script(TEXT, build_chunk({}, "content_filter"), DONE),
    "rate limit": script(TEXT, error(code="rate_limit_exceeded", type="tokens")),
    "server error": script(TEXT, error(type="server_error", code=None)),
    "overloaded": script(error(code="server_is_overloaded")),
    "context": script(error(code="context_length_exceeded", type="invalid_request_error")),
    "context by its text": script(error(message="maximum context length is 8192 tokens")),
    "quota": script(error(code="insufficient_quota", type="insufficient_quota")),
    "status as code": script(TEXT, error(code=502)),
    "rejected status as code": script(error(code=400)),
    "timeout as code": script(error(code=504)),
    "error without a code": script(TEXT, error()),
    "error is a text": script(TEXT, encode_event({"error": "gone"})),
    "half a document": script(TEXT, 'data: {"id": "x", "choices": [{"ind\n\n', STOP),
    "invalid utf-8": script(TEXT, {"hex": b'data: {"id": "\xff"}\n\n'.hex()}, STOP),
    "vllm": script(
        build_chunk({"role": "assistant", "content": "", "reasoning_content": None}),
        build_chunk({"reasoning": "hm ", "reasoning_content": "hm "}),
        build_chunk({"reasoning_content": "ok"}),
        build_chunk({"content": "7"}),
        {**STOP, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "stop_reason": 2}]},
        DONE,
    ),
    "ollama": script(
        build_chunk({"role": "assistant", "content": "", "reasoning": "hm"}),
        build_chunk({"content": "", "tool_calls": [piece(0, '{"a":1}', name="add", id="c1")]}),
        CALLED,
        DONE,
    ),
    "azure": script(
        {"choices": [], "created": 0, "id": "", "model": "", "prompt_filter_results": [{}]},
        {**TEXT, "choices": [{**TEXT["choices"][0], "content_filter_results": {"hate": {}}}]},
        STOP,
        DONE,
    ),
    "openrouter": script(
        ": OPENROUTER PROCESSING\n\n",
        {**TEXT, "provider": "X", "system_fingerprint": None},
        {**STOP, "native_finish_reason": "end_turn"},
        {"choices": [], "usage": {**USAGE, "cost": 0.01, "cost_details": {"x": 1}}, "id": "x"},
        DONE,
    ),
    "mistral": script(
        build_chunk({"content": [{"type": "text", "text": "one "}, {"type": "text", "text": "2"}]}),
        build_chunk({"content": [{"type": "reference", "reference_ids": [1]}]}),
        build_chunk({"content": "."}, "stop"),
    ),
    "tags": script(*text_events("<think>", "hm ", "ok", "</think>", "\n\n", "seven")),
    "tags inside a piece": script(*text_events("<think>hm</think>", "seven")),
    "thinking between texts": script(
        TEXT, build_chunk({"reasoning": "hm"}), build_chunk({"content": "there"}), STOP, DONE
    ),
    "several choices": script(
        {**TEXT, "choices": [*TEXT["choices"], {"index": 1, "delta": {"content": "no"}}]}, STOP
    ),
    "content is a number": script(TEXT, build_chunk({"content": 7}), STOP),
    "no choices": script(TEXT, {"id": "x", "choices": None, "created": 1}, STOP, DONE),
    "choices are a text": script(TEXT, {"choices": "text"}, STOP),
    "choice is null": script(TEXT, {"choices": [None]}, STOP),
    "delta is a text": script(TEXT, build_chunk("text"), STOP),
    "calls are a text": script(TEXT, build_chunk({"tool_calls": "text"}), STOP),
    "function is a number": script(TEXT, build_chunk({"tool_calls": [{"function": 7}]}), STOP),
    "refusal is a number": script(TEXT, build_chunk({"refusal": 7}), STOP),
    "event is a list": script(TEXT, encode_event("[1]"), STOP),
    "event is null": script(TEXT, encode_event("null"), STOP),
    **{
        f"status {status}": script('{"error": {"message": "secret"}}', status=status)
        for status in STATUSES
    },
    "text of an error": script("<html>Bad gateway</html>", status=502),
    "exhausted": script('{"error": {"code": "insufficient_quota"}}', status=429),
    "overload by its code": script('{"error": {"code": "overloaded_error"}}', status=400),
    "context by status": script('{"error": {"message": "maximum context length"}}', status=500),
    "wait in seconds": script("{}", status=429, headers={"Retry-After": "7"}),
    "wait in milliseconds": script("{}", status=503, headers={"retry-after-ms": "2500"}),
    "no wait": script("{}", status=429, headers={"Retry-After": "soon"}),
    "not again": script("{}", status=500, headers={"x-should-retry": "false"}),
}
"""Answers that both read in the same way."""


ONE_CALL = [("add", {"a": 1})]

DIFFERENT: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "event without data": (
        script(TEXT, "event: ping\n\n", STOP),
        {"text": "almost "},
        {"failure": "MODEL_ANSWER_INVALID"},
    ),
    "retry time": (
        script("retry: 100\n\n", TEXT, STOP),
        {"text": "almost "},
        {"failure": "MODEL_ANSWER_INVALID"},
    ),
    "nothing": (script(), {"failure": "MODEL_UNAVAILABLE"}, {"failure": "MODEL_ANSWER_INVALID"}),
    "not a stream": (
        script(
            json.dumps(
                {
                    "choices": [{"message": {"content": "whole"}, "finish_reason": "stop"}],
                    "usage": USAGE,
                }
            ),
            headers={"Content-Type": "application/json"},
        ),
        {"text": "whole", "end": "stop"},
        {"failure": "MODEL_ANSWER_INVALID"},
    ),
    "usage in every chunk": (
        script({**TEXT, "usage": USAGE}, {**STOP, "usage": USAGE}),
        {"usage.input_tokens": 7},
        {"usage.input_tokens": 14},
    ),
    "finish reason without a delta": (
        script(TEXT, {"choices": [{"index": 0, "delta": None, "finish_reason": "stop"}]}),
        {"end": "stop", "text": "almost "},
        {"failure": "MODEL_UNAVAILABLE"},
    ),
    "one index for all calls": (
        script(*calls(piece(0, '{"a": 1}', name="add", id="c1"), piece(0, "", name="b", id="c2"))),
        {"calls": [*ONE_CALL, ("b", {})]},
        {"calls": [("addb", {"a": 1})]},
    ),
    "name in every piece": (
        script(
            *calls(piece(0, '{"a"', name="add", id="c1"), piece(0, ": 1}", name="add", id="c1"))
        ),
        {"calls": ONE_CALL},
        {"calls": [("addadd", {"a": 1})]},
    ),
    "call without a name": (
        script(*calls(piece(0, "{}", id="c1"))),
        {"failure": "MODEL_ANSWER_INVALID"},
        {"text": "", "end": "tool_call"},
    ),
    "created is a text": (
        script({**TEXT, "created": "now"}, STOP),
        {"text": "almost "},
        {"failure": "MODEL_ANSWER_INVALID"},
    ),
    "usage is a number": (
        script({**TEXT, "usage": 7}, STOP),
        {"failure": "MODEL_ANSWER_INVALID"},
        {"failure": "MODEL_ANSWER_INVALID"},
    ),
}
"""Answers that this client reads in another way, with its result and that of the library."""


@every_row("name", SAME)
def test_answer_is_read_as_by_the_library(results: Results, name: str) -> None:
    here, library = results[name]
    assert here == library


@pytest.mark.parametrize(("status", "failure"), STATUSES.items())
def test_only_a_temporary_status_is_repeated(results: Results, status: int, failure: str) -> None:
    for found in results[f"status {status}"]:
        assert found["failure"] == failure


@pytest.mark.parametrize("name", DIFFERENT)
def test_answer_is_read_in_another_way(results: Results, name: str) -> None:
    for found, expected in zip(results[name], DIFFERENT[name][1:], strict=True):
        flat = found | {f"usage.{key}": count for key, count in found["usage"].items()}
        assert {key: flat.get(key) for key in expected} == expected


SEED = int(os.environ.get("AGENTCTL_TEST_SEED") or 48)
RANDOM_STREAMS = 1_000 if os.environ.get("AGENTCTL_TEST_LONG") == "1" else 30
TEXTS = ("one ", "two", "ä€😀", "\u2028 x", "", "\n\n", '"', "data: no\n\n", "[DONE]", "x" * 300)
ENDS = ("stop", "length", "tool_calls", "content_filter")
FAULTS = (
    encode_event({"error": {"message": "secret", "code": "rate_limit_exceeded"}}),
    encode_event({"error": {"message": "secret", "type": "server_error"}}),
    'data: {"id": "x", "choices": [{"ind\n\n',
    "",
)


def write_stream(chance: random.Random) -> str:
    """Return a random answer: texts, thinking, calls in pieces, usage, its end or a fault."""
    pending: list[list[object]] = []
    deltas = [
        build_chunk({chance.choice(["content", "content", "reasoning_content"]): text})
        for text in chance.choices(TEXTS, k=chance.randrange(6))
    ]
    pending.append([*deltas])
    for index in range(chance.choice([0, 0, 1, 2, 3])):
        arguments = json.dumps({"text": chance.choice(TEXTS), "n": chance.random()})
        places = sorted(chance.choices(range(len(arguments)), k=chance.randrange(4)))
        cuts = zip([0, *places], [*places, len(arguments)], strict=True)
        first, *more = [arguments[start:end] for start, end in cuts]
        pieces = [piece(index, first, name=f"tool_{index}", id=f"c{index}")]
        pieces += [piece(index, each) for each in more]
        pending.append([build_chunk({"tool_calls": [each]}) for each in pieces])
    events: list[object] = []
    while pending := [each for each in pending if each]:
        # The pieces of each call stay in order; calls and texts are mixed.
        events.append(chance.choice(pending).pop(0))
        if chance.random() < 0.1:
            events.append(chance.choice([": comment\n\n", ": a\r\n\r\n"]))
    fault = chance.random()
    if fault < 0.15:
        # An answer without any event is one of `DIFFERENT`.
        events = events or [build_chunk({"content": "one "})]
        return script(*events, chance.choice(FAULTS), cut=chance.random() < 0.5)
    if fault < 0.2:
        status = chance.choice([400, 401, 404, 429, 500, 503])
        return script(json.dumps({"error": {"message": "secret"}}), status=status)
    events.append(build_chunk({}, chance.choice(ENDS)))
    if chance.random() < 0.6:
        events.append({"choices": [], "usage": USAGE, "created": 1, "model": "m", "id": "x"})
    if chance.random() < 0.8:
        events.append(DONE)
    width = chance.choice([None, None, 7, 100])
    framing = chance.choice(["chunked", "close"])
    return script(*events, framing=framing, **({"bytes": width} if width else {}))


async def test_random_streams_are_read_as_by_the_library(model_endpoint: ModelEndpoint) -> None:
    chance = random.Random(SEED)
    messages = {str(number): write_stream(chance) for number in range(RANDOM_STREAMS)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = await observe_all(model_endpoint.base_url, messages)
    different = [
        f"AGENTCTL_TEST_SEED={SEED}, stream {name}\n{messages[name]}\n{here}\n{library}"
        for name, (here, library) in results.items()
        if here != library
    ]
    report("model client", len(messages), len(different), seed=SEED)
    assert not different, f"{len(different)} differences\n" + "\n\n".join(different[:3])
