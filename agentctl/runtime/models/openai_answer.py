"""Answers of the chat completions interface, read from the events of a stream.

The texts that arrive in one read are joined: one read is one delta of the run. The deviations of
servers from the interface of OpenAI are in docs/models.md "OpenAI-compatible endpoints". Fields
that are not used are not checked.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import orjson

from agentctl.records.text import PieceJoiner, read_name
from agentctl.runtime.models.calls import UNKNOWN_REASON, AnswerSink, ModelFailure, build_usage
from agentctl.runtime.models.openai_errors import build_stream_failure
from agentctl.runtime.tracing import bound_count

EVENT_OVERHEAD_BYTES = 16
"""Size of a piece of a tool call or of thinking without its text, for `limits.run_bytes`."""

THINKING_FIELDS = ("reasoning", "reasoning_content")
"""Fields with the thinking of a model; the first one with text counts."""

THINKING_TAGS = ("<think>", "</think>")
"""Texts of a single delta between which the content is thinking."""

_FINISH_REASONS = {
    "stop": "stop",
    "length": "length",
    "tool_calls": "tool_call",
    "function_call": "tool_call",
    "content_filter": "content_filter",
    "error": "error",
}

_DETAIL_TEXTS = ("text", "summary", "data")
"""Members of a detail of thinking that arrive in pieces."""

MAXIMUM_DETAILS = 65_536
"""Maximum number of details of thinking in one answer, after their pieces are joined. Each takes
about a microsecond for each call of the model that follows."""

_LINE_END = re.compile(rb"\r\n|\r|\n")
_DONE = b"[DONE]"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

PartKind = Literal["text", "thinking", "call", ""]


class UnreadableAnswer(ModelFailure):
    """An answer in a form that the interface does not have."""

    def __init__(self, reason: str) -> None:
        super().__init__("MODEL_ANSWER_INVALID", f"the answer cannot be read: {reason}")


class CallPieces:
    """A tool call while it arrives."""

    __slots__ = ("arguments", "extra", "id", "name")

    def __init__(self) -> None:
        self.id = ""
        self.name = ""

        self.arguments: list[str] | dict[str, Any] = []
        """Pieces of JSON text, or an object."""

        self.extra: Any = None
        """Data of the provider that a later request has to repeat with the call."""

    @property
    def is_empty(self) -> bool:
        """True for a call without any content, which some servers send."""
        return not (self.id or self.name or self.given_arguments)

    @property
    def given_arguments(self) -> Any:
        """The arguments so far, as a text or an object."""
        return "".join(self.arguments) if isinstance(self.arguments, list) else self.arguments


class DetailPieces:
    """Details of thinking while they arrive, the pieces with one index and type together.

    Adding a piece costs as much as the piece is long. The texts are joined once, at the end.
    """

    def __init__(self) -> None:
        self._fields: dict[object, dict[str, Any]] = {}
        self._texts: dict[object, dict[str, list[str]]] = {}

    def add(self, detail: Mapping[str, Any]) -> None:
        """Add a piece.

        Raises:
            UnreadableAnswer: there are more than `MAXIMUM_DETAILS` details.
        """
        index = detail.get("index")
        key = len(self._fields) if index is None else f"{index} {detail.get('type')}"
        if len(self._fields) == MAXIMUM_DETAILS and key not in self._fields:
            raise UnreadableAnswer("it has too many details of thinking")

        fields = self._fields.setdefault(key, {})
        texts = self._texts.setdefault(key, {})

        for name, value in detail.items():
            if name in _DETAIL_TEXTS and isinstance(value, str):
                texts.setdefault(name, []).append(value)
            elif value is not None or name not in fields:
                fields[name] = value

    def join(self) -> list[dict[str, Any]]:
        """Return the details as they have to be sent back."""
        details = list[dict[str, Any]]()
        for key, fields in self._fields.items():
            texts = {name: "".join(pieces) for name, pieces in self._texts[key].items()}
            details.append({**fields, **texts})
        return details


class OpenAIAnswer:
    """One answer while it arrives.

    Attributes:
        done: True after the marker of the end, `[DONE]`.
        finish_reason: the neutral finish reason so far, if any.
        texts, thinking: pieces of the answer, made storable; the thinking by its field, `""` for
            tags in the text.
        details: thinking that may be signed or encrypted.
        calls: the tool calls in their order.
        model, id: the name of the model and the id of the answer; None before they arrive.
    """

    def __init__(self, sink: AnswerSink) -> None:
        self.done = False
        self.model: str | None = None
        self.id: str | None = None
        self.finish_reason: str | None = None
        self.texts: list[str] = []
        self.thinking: dict[str, list[str]] = {}
        self.details = DetailPieces()
        self.calls: list[CallPieces] = []

        self._by_index: dict[int, CallPieces] = {}
        self._sink = sink

        self._has_begun = False
        self._refused = False
        # True between two THINKING_TAGS.
        self._tagged = False

        # The kind of the part that arrives, and its texts that the sink does not have yet.
        self._kind: PartKind = ""
        self._pending: list[str] = []

        # The list of pieces that is added to, and half of a character at its end.
        self._open_texts: list[str] = []
        self._pieces = PieceJoiner()

    def add_events(self, events: Iterable[bytes]) -> None:
        """Add the events of one read, and pass their text to the sink."""
        try:
            for event in events:
                if not self._has_begun:
                    self._has_begun = True
                    event = event.removeprefix(_BYTE_ORDER_MARK)

                data = read_data(event)
                if not data:
                    continue

                if data.startswith(_DONE):
                    self._end_piece()
                    self.done = True
                    return
                self.add_chunk(parse_json(data))
        finally:
            self._flush()

    def add_completion(self, data: bytes) -> None:
        """Add an answer that is not a stream."""
        completion = parse_json(data.removeprefix(_BYTE_ORDER_MARK))
        choices = completion.get("choices")
        if isinstance(choices, list) and all(isinstance(choice, dict) for choice in choices):
            for choice in choices[:1]:
                choice["delta"] = choice.get("message")

        try:
            self.add_chunk(completion)
        finally:
            self._end_piece()
            self._flush()

    def add_chunk(self, chunk: dict[str, Any]) -> None:
        """Add the first choice and the usage of a chunk."""
        if chunk.get("error"):
            raise build_stream_failure(chunk["error"])

        if self.model is None:
            self.model = read_name(chunk.get("model"))
            self.id = read_name(chunk.get("id"))

        usage = chunk.get("usage")
        if usage:
            self._sink.set_usage(read_usage(usage))

        choices = chunk.get("choices")
        if not choices:
            return

        if type(choices) is not list or type(choices[0]) is not dict:
            raise UnreadableAnswer("its choices are not objects")
        choice: dict[str, Any] = choices[0]

        reason = choice.get("finish_reason")
        if reason and not isinstance(reason, str):
            raise UnreadableAnswer("its finish reason is not a text")

        if reason and not self._refused:
            self.finish_reason = _FINISH_REASONS.get(reason, UNKNOWN_REASON)

        delta = choice.get("delta")
        if delta:
            self._add_delta(delta)

        if reason:
            self._end_piece()

        if choice.get("error"):
            raise build_stream_failure(choice["error"])

    def _add_delta(self, fields: Any) -> None:
        if type(fields) is not dict:
            raise UnreadableAnswer("a delta is not an object")

        refusal = fields.get("refusal")
        if refusal:
            if not isinstance(refusal, str):
                raise UnreadableAnswer("a refusal is not a text")
            self._refused = True
            self.finish_reason = "content_filter"
            return

        has_thinking = False
        for name in THINKING_FIELDS:
            thought = fields.get(name)
            if thought and type(thought) is str:
                self._add_thinking(name, thought)
                has_thinking = True
                break

        details = fields.get("reasoning_details")
        if details:
            self._add_details(details, shows=not has_thinking)

        content = fields.get("content")
        if content:
            text = content if type(content) is str else _join_parts(content)
            if text:
                self._add_content(text)

        calls = fields.get("tool_calls")
        if calls:
            self._add_calls(calls)

    def _add_calls(self, calls: object) -> None:
        if not isinstance(calls, list):
            raise UnreadableAnswer("its tool calls are not a list")
        for piece in calls:
            if not isinstance(piece, dict):
                raise UnreadableAnswer("a tool call is not an object")
            self._add_call(piece)

    def _begin_part(self, kind: PartKind) -> None:
        self._end_piece()
        self._flush()
        self._kind = kind
        if kind != "call":
            self._sink.count_part(is_call=False)

    def _add_content(self, text: str) -> None:
        if text == THINKING_TAGS[self._tagged]:
            self._tagged = not self._tagged
            if not self._tagged:
                self._flush()
                self._kind = ""
            return

        if self._tagged:
            self._add_thinking("", text)
            return

        if self._kind != "text":
            self._begin_part("text")

        self._add_piece(text, self.texts)

    def _add_thinking(self, field: str, text: str) -> None:
        if self._kind != "thinking":
            self._begin_part("thinking")
        self._add_piece(text, self.thinking.setdefault(field, []))

    def _add_piece(self, piece: str, texts: list[str]) -> None:
        if texts is not self._open_texts:
            self._end_piece()
            self._open_texts = texts

        text = self._pieces.add(piece)
        if text:
            texts.append(text)
            self._pending.append(text)

    def _end_piece(self) -> None:
        """End the text that is open: half of a character gets no other half any more."""
        text = self._pieces.end()
        if text:
            self._open_texts.append(text)
            self._pending.append(text)

    def _add_details(self, details: object, *, shows: bool) -> None:
        """Keep thinking that may be signed or encrypted, which some providers need back.

        Args:
            shows: True if its text is not in another field.
        """
        if not isinstance(details, list) or not all(isinstance(detail, dict) for detail in details):
            return

        self._sink.count_arriving(len(json.dumps(details)))
        for detail in details:
            self.details.add(detail)
            text = detail.get("text") or detail.get("summary")
            if shows and isinstance(text, str) and text:
                self._add_thinking("reasoning", text)

    def _flush(self) -> None:
        """Pass the texts of the part so far to the sink."""
        pending = self._pending
        if not pending:
            return

        text = pending[0] if len(pending) == 1 else "".join(pending)
        pending.clear()

        if self._kind == "text":
            self._sink.add_text(text)
        else:
            self._sink.count_arriving(EVENT_OVERHEAD_BYTES)
            self._sink.add_thinking(text)

    def _add_call(self, piece: dict[str, Any]) -> None:
        function = piece.get("function") or {}
        index = piece.get("index")
        call_id = piece.get("id") or ""

        if not isinstance(function, dict):
            raise UnreadableAnswer("a function is not an object")

        name = function.get("name") or ""
        arguments = function.get("arguments")

        if not (isinstance(name, str) and isinstance(call_id, str)):
            raise UnreadableAnswer("the name or the id of a tool call is not a text")

        if index is not None and type(index) is not int:
            raise UnreadableAnswer("the index of a tool call is not a number")

        if self._kind != "call":
            self._begin_part("call")

        call = self._find_call(index, call_id, name)
        call.id = call.id or call_id
        call.name = call.name or name
        call.extra = piece.get("extra_content") or call.extra

        size = EVENT_OVERHEAD_BYTES + len(name)
        if isinstance(arguments, str) and isinstance(call.arguments, list):
            call.arguments.append(arguments)
            size += len(arguments)
        elif isinstance(arguments, dict) and not call.arguments:
            call.arguments = arguments
            size += len(json.dumps(arguments))
        elif arguments is not None:
            raise UnreadableAnswer("the arguments of a tool call are not a text")

        self._sink.count_arriving(size)

    def _find_call(self, index: int | None, call_id: str, name: str) -> CallPieces:
        """Return the call to which a piece belongs.

        Some servers send all calls with the index 0, or without an index. A piece with a name and
        another id is a new call there.
        """
        earlier_call = None
        if index is not None:
            earlier_call = self._by_index.get(index)
        elif self.calls and not name:
            earlier_call = self.calls[-1]

        if earlier_call is not None:
            has_names = bool(name and earlier_call.name)
            has_ids = bool(call_id and earlier_call.id)
            is_new = has_names and has_ids and call_id != earlier_call.id
            if not is_new:
                return earlier_call

        self._sink.count_part(is_call=True)
        call = CallPieces()
        self.calls.append(call)
        if index is not None:
            self._by_index[index] = call

        return call


def read_data(event: bytes) -> bytes:
    """Return the data of an event of a stream, without comments and other fields.

    An event without its empty line is incomplete and has no data, as the format defines.
    """
    if event.startswith(b"data: ") and event.endswith(b"\n\n"):
        end = len(event) - 2
        if event.find(b"\n", 6, end) < 0 and event.find(b"\r", 6, end) < 0:
            return event[6:end]

    lines = _LINE_END.split(event)
    if len(lines) < 3 or lines[-1] or lines[-2]:
        return b""

    values: list[bytes] = []
    for line in lines:
        name, colon, value = line.partition(b":")
        if name == b"data" and colon:
            values.append(value.removeprefix(b" "))

    return b"\n".join(values)


def parse_json(data: bytes) -> dict[str, Any]:
    """Parse an object.

    orjson refuses what JSON text of servers may have: lone surrogates, numbers that are not
    finite, and integers of more than 64 bits.
    """
    try:
        value: Any = orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            value = json.loads(data)
        except (ValueError, RecursionError):
            raise UnreadableAnswer("an event is not a JSON document") from None

    if type(value) is not dict:
        raise UnreadableAnswer("an event is not an object")
    document: dict[str, Any] = value
    return document


def read_usage(usage: object) -> dict[str, int]:
    """Return the nine counters of a usage, each from 0 to `MAXIMUM_TOKENS`."""
    if not isinstance(usage, dict):
        raise UnreadableAnswer("its usage is not an object")

    prompt = _read_object(usage.get("prompt_tokens_details"))
    completion = _read_object(usage.get("completion_tokens_details"))

    return build_usage(
        input_tokens=bound_count(usage.get("prompt_tokens")),
        output_tokens=bound_count(usage.get("completion_tokens")),
        audio_input_tokens=bound_count(prompt.get("audio_tokens")),
        audio_output_tokens=bound_count(completion.get("audio_tokens")),
        cache_read_tokens=bound_count(prompt.get("cached_tokens")),
        cache_write_tokens=bound_count(prompt.get("cache_write_tokens")),
        reasoning_tokens=bound_count(completion.get("reasoning_tokens")),
    )


def _read_object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _join_parts(content: object) -> str:
    if not isinstance(content, list):
        return ""
    texts = [
        part if isinstance(part, str) else part.get("text")
        for part in content
        if isinstance(part, str) or (isinstance(part, dict) and part.get("type") == "text")
    ]
    return "".join(text for text in texts if isinstance(text, str))
