"""The table of failures: what the model endpoint, the tools and the caller of a run do.

A failure is a script of the endpoint, one reply for each call of the model, and an action of the
caller. The last message of a run names its failure, and the endpoint reads the script here.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["BLAMED", "FAILURES", "OF_CALL", "Action", "Failure", "Reply"]

Reply = dict[str, Any]
"""A reply of the endpoint, by its keys:

text            an answer; with `repeat`, that many times
calls           calls of tools: pairs of a name and the text of the arguments; with `ids`
reason          the finish reason, instead of the right one
status, body    an error: its HTTP status, and an object or a text
set             pairs of a path and a value: the chunks of the answer are changed there
lines           texts that are sent in place of the chunks
cut             the connection is closed: `head` before the status, `text` in the answer, `call` in
                the arguments of a call, `done` before the end of the stream
hang            nothing more is sent: `head` or `text`
"""

Action = Literal[
    "run", "leave", "cancel-at-start", "cancel-in-work", "cancel-while-paused", "cancel-in-queue",
    "reject", "approve-others", "approve-wrongly", "respond", "expire", "refuse", "damage",
]  # fmt: skip

ANSWERS = frozenset(
    {
        "MODEL_ANSWER_INVALID",
        "MODEL_KEY_REJECTED",
        "MODEL_NOT_FOUND",
        "MODEL_REJECTED",
        "MODEL_TIMEOUT",
        "MODEL_UNAVAILABLE",
    }
)
"""Codes of a model that failed."""

SECRET = "secret of the provider"


@dataclass(frozen=True)
class Failure:
    """A failure.

    Attributes:
        replies: the script of the endpoint; the last reply is repeated.
        codes: the error codes that blame the right part; `COMPLETED` if the run may complete, as
            the failure of a tool is a result for its model; `CANCELLED`.
        variant: the variant of the agent: `output` has an output schema, `queue` a queue.
        body: fields of the request, for an action `refuse`; for `damage` the column and the way
            (`tests.lab.failures.damage`).
    """

    name: str
    replies: tuple[Reply, ...]
    codes: Collection[str] = ANSWERS
    action: Action = "run"
    variant: str = ""
    body: Any = None

    @property
    def is_slow(self) -> bool:
        """True if the run ends by a time limit."""
        slow = ("hang", "wait", "expire")
        return self.action in ("run", "expire") and any(word in self.name for word in slow)


def list_failures() -> Iterator[Failure]:
    yield from _list_statuses()
    yield from _list_refusals()
    yield from _list_broken_answers()
    yield from _list_wrong_types()
    yield from _list_calls()
    yield from _list_tools()
    yield from _list_actions()
    yield from _list_outputs()
    yield from _list_damage()


# The model endpoint

STATUSES = (400, 401, 403, 404, 408, 409, 413, 422, 425, 429, 500, 502, 503, 504, 529)


def _list_statuses() -> Iterator[Failure]:
    error = {"message": SECRET, "type": "invalid_request_error", "param": None, "code": None}
    bodies = {"form": {"error": error}, "html": f"<html>{SECRET}</html>"}
    for status in STATUSES:
        for name, body in bodies.items():
            yield Failure(f"status-{status}-{name}", ({"status": status, "body": body},))
    for name, body in {
        "empty": "",
        "null": "null",
        "list": "[]",
        "text": json.dumps({"error": SECRET}),
        "number": json.dumps({"error": {"message": 7, "code": []}}),
        "binary": "\x00\x01\x02",
    }.items():
        yield Failure(f"status-400-{name}", ({"status": 400, "body": body},))
        yield Failure(f"status-500-{name}", ({"status": 500, "body": body},))
    for status in (204, 302):
        answer = {"status": status, "body": ""}
        yield Failure(f"status-{status}", (answer,), {*ANSWERS, "COMPLETED"})
    yield Failure("status-after-a-call", ({"calls": [CALL]}, {"status": 500, "body": ""}))


def _list_refusals() -> Iterator[Failure]:
    """Yield the forms in which providers refuse a conversation."""
    long = "This model's maximum context length is 8192 tokens."
    for name, (status, error) in {
        "openai": (400, {"message": long, "code": "context_length_exceeded"}),
        "openai-code": (400, {"message": "Too long", "code": "context_length_exceeded"}),
        "anthropic": (
            400,
            {
                "type": "invalid_request_error",
                "message": "prompt is too long: 9 tokens > 8 maximum",
            },
        ),
        "google": (
            400,
            {
                "code": 400,
                "status": "INVALID_ARGUMENT",
                "message": "The input token count (9) exceeds the maximum number of tokens "
                "allowed (8).",
            },
        ),
        "llama": (400, {"message": "the request exceeds the available context size"}),
    }.items():
        reply = {"status": status, "body": {"type": "error", "error": error}}
        yield Failure(f"overflow-{name}", (reply,), {"CONTEXT_EXCEEDED"})
        yield Failure(
            f"overflow-{name}-after-a-call", ({"calls": [CALL]}, reply), {"CONTEXT_EXCEEDED"}
        )
    filtered = {"code": "content_filter", "message": SECRET, "status": 400}
    yield Failure("filter-request", ({"status": 400, "body": {"error": filtered}},))
    for reason in ("content_filter", "length", "unknown", "refusal", "error", "", "tool_calls"):
        for what, answer in {"text": {"text": "half"}, "nothing": {"text": ""}}.items():
            name = f"reason-{reason or 'empty'}-{what}"
            yield Failure(name, ({**answer, "reason": reason},), {*ANSWERS, "COMPLETED"})
        if reason != "tool_calls":
            call = {"calls": [("add", '{"a": 1, "b')], "reason": reason}
            codes = {*ANSWERS, "COMPLETED"}
            yield Failure(f"reason-{reason or 'empty'}-call", (call, call, DONE), codes)


def _list_broken_answers() -> Iterator[Failure]:
    for place in ("head", "text", "call", "done"):
        answer: Reply = {"calls": [CALL]} if place == "call" else {"text": "one two three"}
        codes = {*ANSWERS, "COMPLETED"} if place == "done" else ANSWERS
        yield Failure(f"cut-{place}", ({**answer, "cut": place},), codes)
        yield Failure(
            f"cut-{place}-after-a-call", ({"calls": [CALL]}, {**answer, "cut": place}), codes
        )
    for place in ("head", "text"):
        yield Failure(f"hang-{place}", ({"text": "one two", "hang": place},), LATE)
    for name, lines in {
        "json": ['data: {"id": "x", "choices": [{"ind\n\n'],
        "sse": ["dat: {}\n\n", "\x00\x01\n\n"],
        "html": [f"<html>{SECRET}</html>"],
        "nothing": [],
        "done": ["data: [DONE]\n\n"],
        "comment": [": still here\n\n"],
        "null": ["data: null\n\n"],
        "list": ["data: []\n\n"],
        "text": ['data: "text"\n\n'],
        "object": ["data: {}\n\n"],
        "choices": ['data: {"id": "x", "choices": []}\n\n', "data: [DONE]\n\n"],
        "error": [f'data: {{"error": {{"message": "{SECRET}", "code": 500}}}}\n\n'],
        "error-event": [f'event: error\ndata: {{"message": "{SECRET}"}}\n\n'],
        "deep": ["data: " + "[" * 20_000 + "\n\n"],
        "surrogate": [
            'data: {"id": "x", "choices": [{"index": 0, "delta": {"content": "\\ud800"}, '
            '"finish_reason": "stop"}]}\n\n',
            "data: [DONE]\n\n",
        ],
    }.items():
        yield Failure(f"malformed-{name}", ({"lines": lines},), {*ANSWERS, "COMPLETED"})
    large = {*ANSWERS, "AGENT_FAILED", "COMPLETED", "OUTPUT_TOO_LARGE", "INTERNAL"}
    yield Failure("answer-too-large", ({"text": "word " * 2_000, "repeat": 400},), large)
    yield Failure("answer-blank", ({"text": " \n"},), {*ANSWERS, "COMPLETED"})


VALUES: dict[str, Any] = {"null": None, "number": 1, "text": "x", "list": [], "object": {}}

PATHS = {
    "choices": ("choices",),
    "choice": ("choices", 0),
    "delta": ("choices", 0, "delta"),
    "content": ("choices", 0, "delta", "content"),
    "reason": ("choices", 0, "finish_reason"),
    "usage": ("usage",),
    "tokens": ("usage", "prompt_tokens"),
    "calls": ("choices", 0, "delta", "tool_calls"),
    "call": ("choices", 0, "delta", "tool_calls", 0),
    "function": ("choices", 0, "delta", "tool_calls", 0, "function"),
    "function-name": ("choices", 0, "delta", "tool_calls", 0, "function", "name"),
    "arguments": ("choices", 0, "delta", "tool_calls", 0, "function", "arguments"),
    "call-id": ("choices", 0, "delta", "tool_calls", 0, "id"),
    "call-index": ("choices", 0, "delta", "tool_calls", 0, "index"),
}

OF_CALLS = ("calls", "call", "function", "function-name", "arguments", "call-id", "call-index")

RIGHT = {("content", "null"), ("content", "text"), ("reason", "null"), ("usage", "null"),
         ("tokens", "number"), ("calls", "null"), ("calls", "list"), ("call-index", "number"),
         ("delta", "object"), ("reason", "text")}  # fmt: skip
"""Values of a right type, or of other rows."""


def _list_wrong_types() -> Iterator[Failure]:
    for field, path in PATHS.items():
        for kind, value in VALUES.items():
            if (field, kind) not in RIGHT:
                answer: Reply = {"calls": [CALL]} if field in OF_CALLS else {"text": "one two"}
                replies = ({**answer, "set": [(path, value)]}, {"text": "done"})
                # A library may read past a value that it does not need.
                yield Failure(f"type-{field}-{kind}", replies, {*ANSWERS, "COMPLETED"})
    for name, count in {"huge": 10**25, "negative": -5}.items():
        reply: Reply = {"text": "one two", "set": [(PATHS["tokens"], count)]}
        yield Failure(f"tokens-{name}", (reply,), {"COMPLETED"})


# Calls

CALL = ("add", '{"a": 1, "b": 2}')
DONE: Reply = {"text": "done"}
LATE = frozenset({*ANSWERS, "RUN_TIMEOUT"})
OF_TOOL = frozenset({"COMPLETED", "TOOL_FAILED"})
"""Codes of a tool that failed."""

OF_CALL = frozenset({*OF_TOOL, "MODEL_ANSWER_INVALID"})
"""Codes of a call that the model has made wrongly."""


def _list_calls() -> Iterator[Failure]:
    for name, arguments in {
        "no-json": "{half: ",
        "nothing": "",
        "null": "null",
        "list": "[1, 2]",
        "text": '"text"',
        "number": "7",
        "missing": '{"a": 1}',
        "more": '{"a": 1, "b": 2, "c": 3}',
        "types": '{"a": "x", "b": []}',
        "twice": '{"a": 1, "b": 2}{"a": 1, "b": 2}',
        "nan": '{"a": NaN, "b": Infinity}',
        "huge": '{"a": 1, "b": ' + "9" * 5_000 + "}",
        "surrogate": '{"a": 1, "b": "\\ud800"}',
        "deep": '{"a": ' + "[" * 2_000 + "]" * 2_000 + "}",
        "large": '{"a": 1, "b": "' + "x" * 1_500_000 + '"}',
    }.items():
        yield Failure(f"arguments-{name}", ({"calls": [("add", arguments)]}, DONE), OF_CALL)
    for name, tool in {
        "unknown": "no_such_tool",
        "blank": " ",
        "empty": "",
        "spaced": "add two numbers",
        "long": "a" * 200,
        "unicode": "añadir",
        "markup": "<|tool|>add",
        "dotted": "functions.add",
    }.items():
        yield Failure(f"name-{name}", ({"calls": [(tool, CALL[1])]}, DONE), OF_CALL)
    for name, ids in {
        "empty": ["", ""],
        "same": ["call-1", "call-1"],
        "long": ["a" * 300, "b" * 300],
        "spaced": ["call 1", "call 2"],
        "markup": ["call<1>", "call\n2"],
    }.items():
        calls = {"calls": [CALL, ("add", '{"a": 3, "b": 4}')], "ids": ids}
        yield Failure(f"ids-{name}", (calls, DONE), OF_CALL)
    again = {"calls": [CALL], "ids": ["call-1"]}
    yield Failure("ids-again", (again, again, DONE), OF_CALL)
    late = {*OF_CALL, "RUN_TIMEOUT"}
    yield Failure("calls-hundred", ({"calls": [CALL] * 100}, DONE), late)
    yield Failure("calls-two-hundred", ({"calls": [CALL] * 200}, DONE), late)
    limits = {*OF_CALL, "AGENT_FAILED", "MODEL_CALLS_EXCEEDED", "RUN_TIMEOUT"}
    yield Failure("calls-without-end", (*({"calls": [CALL]} for _ in range(60)), DONE), limits)


# Tools

ERRORS = (
    "runtime", "key", "timeout", "connection", "cancelled", "exit", "interrupt", "generator-exit",
    "stop", "stop-async", "memory", "recursion", "group", "base", "assertion", "unicode",
)  # fmt: skip
"""The errors of `tests.lab.failures.tools`."""

RESULTS = (
    "object", "bytes", "set", "nan", "none", "empty", "huge", "rows", "surrogate", "nul", "loop",
    "deep", "number", "keys", "generator", "function", "markers",
)  # fmt: skip
"""The values of `tests.lab.failures.tools`."""


def _call(name: str, **arguments: Any) -> Reply:
    return {"calls": [(name, json.dumps(arguments))]}


def _list_tools() -> Iterator[Failure]:
    for error in ERRORS:
        yield Failure(f"tool-raises-{error}", (_call("fail", error=error), DONE), OF_TOOL)
        yield Failure(f"tool-raises-late-{error}", (_call("fail_late", error=error), DONE), OF_TOOL)
    for value in RESULTS:
        yield Failure(f"tool-gives-{value}", (_call("give", value=value), DONE), OF_TOOL)
    slow = {*OF_TOOL, "RUN_TIMEOUT"}
    yield Failure("tool-waits", (_call("wait"), DONE), slow)
    yield Failure("tool-loses-its-child", (_call("lose_child"), DONE), OF_TOOL)
    calls = {"calls": [CALL, ("fail", '{"error": "runtime"}'), CALL]}
    yield Failure("tool-raises-between-others", (calls, DONE), OF_TOOL)
    error = {"status": 500, "body": SECRET}
    # Some libraries end a run with the failure of its tool.
    codes = {*ANSWERS, "TOOL_FAILED"}
    yield Failure("model-fails-after-a-failed-tool", (_call("fail", error="key"), error), codes)
    yield Failure("model-is-cut-after-a-result", (_call("add", a=1, b=2), {"cut": "head"}))


# The caller

PAY: Reply = {"calls": [("pay", '{"amount": 10, "to": "bob"}')]}


def _list_actions() -> Iterator[Failure]:
    hang = {"text": "one", "hang": "head"}
    stream = {"text": "one two", "hang": "text"}
    ended = {"CANCELLED"}
    yield Failure("cancelled-at-start", (hang,), ended, "cancel-at-start")
    for name, replies in {
        "a-model-call": (hang,),
        "a-stream": (stream,),
        "a-tool": (_call("wait"),),
        "a-second-model-call": ({"calls": [CALL]}, hang),
        "one-of-two-tools": ({"calls": [CALL, ("wait", "{}")]},),
    }.items():
        yield Failure(f"cancelled-in-{name}", replies, ended, "cancel-in-work")
        yield Failure(f"left-in-{name}", replies, ended, "leave")
    yield Failure("cancelled-while-paused", (PAY, DONE), ended, "cancel-while-paused")
    yield Failure("cancelled-in-the-queue", (hang,), ended, "cancel-in-queue", "queue")
    decided = {"COMPLETED", "TOOL_FAILED", "AGENT_FAILED"}
    yield Failure("approval-rejected", (PAY, DONE), decided, "reject")
    yield Failure("approval-edited-wrongly", (PAY, DONE), decided, "approve-others")
    yield Failure("approval-of-another-hash", (PAY, DONE), decided, "approve-wrongly")
    yield Failure("approval-answered", (PAY, DONE), decided, "respond")
    yield Failure("approval-expired", (PAY, DONE), decided, "expire")
    two = {"calls": [CALL, PAY["calls"][0]]}
    yield Failure("approval-rejected-of-two-calls", (two, DONE), decided, "reject")
    yield Failure(
        "model-fails-after-an-approval", (PAY, {"status": 500, "body": SECRET}), ANSWERS, "reject"
    )
    for name, body in {
        "empty": {"message": ""},
        "blank": {"message": " \n "},
        "large": {"message": "x" * 300_000},
        "missing": {"message": None},
        "type": {"message": 7},
        "nul": {"message": "a\x00b"},
        "surrogate": '{"message": "half \\ud800", "stream": false}',
        "no-json": "{half",
        "metadata": {"metadata": {"large": "x" * 70_000}},
        "metadata-type": {"metadata": []},
        "input": {"input": {"no": "such field"}},
        "session": {"session_id": "x" * 5_000},
        "state": {"session_state": "text"},
        "files": {"files": ["a"]},
    }.items():
        yield Failure(f"request-{name}", (DONE,), {"refused", "COMPLETED"}, "refuse", body=body)


# Structured output


def _list_outputs() -> Iterator[Failure]:
    codes = {"OUTPUT_INVALID", "MODEL_ANSWER_INVALID", "COMPLETED", "AGENT_FAILED"}
    for name, text in {
        "text": "no JSON",
        "half": '{"total": ',
        "type": '{"total": "x"}',
        "missing": "{}",
        "null": "null",
        "list": "[1]",
        "fence": '```json\n{"total": 1}\n```',
        "nothing": "",
    }.items():
        yield Failure(f"output-{name}", ({"text": text},), codes, variant="output")
        calls = [{"calls": [(tool, text)]} for tool in ("final_result", "Total") for _ in range(3)]
        yield Failure(f"output-{name}-by-a-call", (*calls, DONE), codes, variant="output")


# Stored data

DAMAGED = (
    "messages", "native_history", "history", "tools", "spans", "session_state", "summary",
    "metrics",
)  # fmt: skip
WAYS = ("cut", "text", "number", "numbers", "objects")
"""The columns and the ways of `tests.lab.failures.damage`."""


def _list_damage() -> Iterator[Failure]:
    for column in DAMAGED:
        for way in WAYS:
            name = f"damaged-{column.replace('_', '-')}-{way}"
            yield Failure(name, (DONE,), {"COMPLETED"}, "damage", body=(column, way))


BLAMED = {
    # The library takes the id, and fails when it stores the result of the call.
    "type-call-id-null": {"langgraph", "langgraph-checkpointer"},
    "type-call-id-number": {"pydantic-ai"},
    # The library sends a text that cannot be encoded; its client reports a failed connection.
    "tool-gives-surrogate": {"agno-agent", "agno-team", "agno-workflow"},
    "tool-raises-unicode": {"agno-agent", "agno-team", "agno-workflow"},
    "tool-raises-late-unicode": {"agno-agent", "agno-team", "agno-workflow"},
    "malformed-surrogate": {"agno-agent", "agno-team", "agno-workflow"},
    # The library leaves out the failed step of its workflow.
    "model-fails-after-an-approval": {"agno-workflow"},
    # The checkpointer of the library stores no integer of more than 64 bits.
    "tokens-huge": {"langgraph-checkpointer"},
    "arguments-surrogate": {"langgraph", "langgraph-checkpointer", "openai-agents"},
    "arguments-deep": {"agno-agent", "agno-team", "agno-workflow", "openai-agents"},
}
"""Kinds that blame another part for a failure, with the reason; the next message is answered."""


def set_value(chunk: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """Return a chunk with another value at a path; unchanged if it does not have the path."""
    changed = copy.deepcopy(chunk)
    place: Any = changed
    for step in path[:-1]:
        place = place[step] if _has(place, step) else None
    if _has(place, path[-1]):
        place[path[-1]] = value
    return changed


def _has(place: Any, step: Any) -> bool:
    if isinstance(place, dict):
        return step in place
    return isinstance(place, list) and isinstance(step, int) and step < len(place)


FAILURES = {failure.name: failure for failure in list_failures()}
"""The failures by name."""
