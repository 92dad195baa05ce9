"""Responses: `POST /v1/responses`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from agentctl.interface.requests import EarlierMessage, StreamEvent
from agentctl.interop.openai.calls import read_tools
from agentctl.interop.openai.events import Answer, AnswerEnd, RunEvents
from agentctl.interop.openai.failures import RefusedParameter
from agentctl.interop.openai.messages import read_input_items
from agentctl.interop.openai.parameters import (
    RESPONSE_RULES,
    OpenAIParameters,
    check_type,
    read_schema,
)
from agentctl.interop.openai.response_objects import (
    PAUSED_CODE,
    STATUSES,
    RequestFields,
    build_item,
    build_part,
    build_response,
    format_item_id,
    select_items,
)


class ModelResponse:
    """The form of one response of a component."""

    rules = RESPONSE_RULES
    honoured = frozenset(
        {
            "background",
            "conversation",
            "input",
            "instructions",
            "metadata",
            "model",
            "parallel_tool_calls",
            "previous_response_id",
            "stream",
            "stream_options",
            "text",
            "tool_choice",
            "tools",
            "user",
        }
    )
    paused_code = PAUSED_CODE

    def __init__(self, parameters: OpenAIParameters, model: str) -> None:
        instructions, text_format = parameters.get("instructions"), _read_format(parameters)
        self.previous = parameters.get("previous_response_id")
        self.background = bool(parameters.get("background", bool))
        self.tools = read_tools(parameters, nested=False)
        self._fields = RequestFields(
            model,
            instructions,
            parameters.get("metadata", dict),
            parameters.get("user"),
            self.previous,
            text_format,
            self.tools,
            self.background,
        )

        if parameters.get_include_usage():
            raise RefusedParameter(
                "stream_options.include_usage is not supported: the last event has the usage",
                "stream_options",
            )
        self.output_schema = read_schema(text_format, "text.format")

        value = parameters.get_any("conversation")
        if isinstance(value, dict):
            value = value.get("id", "")
        self.conversation = None if value is None else check_type(value, str, "conversation")
        if self.previous is not None and self.conversation is not None:
            raise RefusedParameter(
                "Only one of previous_response_id and conversation can be given",
                "previous_response_id",
            )

        value = parameters.get_any("input")
        items = [{"role": "user", "content": value}] if isinstance(value, str) else value
        messages = read_input_items(check_type(items, list, "input"))
        named = [EarlierMessage("user", instructions)] if instructions else []
        self.messages = messages._replace(
            earlier=[*named, *messages.earlier], instructions=[*named, *messages.instructions]
        )

    def build(self, answer: Answer) -> dict[str, Any] | None:
        """Return the response for an answer; None if it is an error (`describe_end`)."""
        end = answer.end
        if end is None or end.status == "COMPLETED" or select_items(end, self.tools):
            return build_response(self._fields, answer)
        return None

    def build_encoder(self, events: RunEvents) -> Callable[[list[StreamEvent]], bytes]:
        return _Encoder(self._fields, events).encode


class _Encoder:
    """Encodes the events of a run as those of a response."""

    def __init__(self, fields: RequestFields, events: RunEvents) -> None:
        self._fields = fields
        self._events = events
        self._texts: list[str] = []
        self._number = -1
        self._item_id = format_item_id(events)
        self._place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        self._has_message = False

    def encode(self, portion: list[StreamEvent]) -> bytes:
        """Return the events of a portion; an empty one is the end of the stream."""
        parts: list[bytes] = []
        if portion and self._number < 0:
            parts.append(self._event("response.created", response=self._build(None)))
            parts.append(self._event("response.in_progress", response=self._build(None)))
        for item in self._events.read(portion):
            if isinstance(item, str):
                parts += self._open_message()
                self._texts.append(item)
                delta = {**self._place, "delta": item, "logprobs": []}
                parts.append(self._event("response.output_text.delta", **delta))
            else:
                parts += self._encode_end(item)
        return b"".join(parts)

    def _event(self, name: str, /, **fields: Any) -> bytes:
        self._number += 1
        body = {"type": name, "sequence_number": self._number, **fields}
        return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(body))

    def _build(self, end: AnswerEnd | None) -> dict[str, Any]:
        return build_response(self._fields, self._events.build_answer("".join(self._texts), end))

    def _open_message(self) -> list[bytes]:
        if self._has_message:
            return []
        self._has_message = True
        item = build_item(self._item_id, "in_progress", [])
        return [
            self._event("response.output_item.added", output_index=0, item=item),
            self._event("response.content_part.added", **self._place, part=build_part("")),
        ]

    def _encode_end(self, end: AnswerEnd) -> list[bytes]:
        items = select_items(end, self._fields.tools)
        if end.status != "COMPLETED" and not items:
            return [self._event("response.failed", response=self._build(end))]
        parts = [] if items else self._open_message()
        status = STATUSES[end.finish_reason]
        if self._has_message:
            text = "".join(self._texts)
            part = build_part(text)
            item = build_item(self._item_id, status, [part])
            parts += [
                self._event("response.output_text.done", **self._place, text=text, logprobs=[]),
                self._event("response.content_part.done", **self._place, part=part),
                self._event("response.output_item.done", output_index=0, item=item),
            ]
        for index, item in enumerate(items, start=int(self._has_message)):
            parts += self._encode_item(item, index)
        return [*parts, self._event(f"response.{status}", response=self._build(end))]

    def _encode_item(self, item: Mapping[str, Any], index: int) -> list[bytes]:
        place = {"item_id": item["id"], "output_index": index}
        arguments = item["arguments"]
        begun, pieces = item, list[bytes]()
        if item["type"] == "function_call":
            begun = {**item, "status": "in_progress", "arguments": ""}
        added = self._event("response.output_item.added", output_index=index, item=begun)
        if begun is not item:
            name = "response.function_call_arguments"
            pieces.append(self._event(f"{name}.delta", **place, delta=arguments))
            done = {"name": item["name"], "arguments": arguments}
            pieces.append(self._event(f"{name}.done", **place, **done))
        done_item = self._event("response.output_item.done", output_index=index, item=item)
        return [added, *pieces, done_item]


def _read_format(parameters: OpenAIParameters) -> dict[str, Any] | None:
    """Return `text.format`; another option of `text` is refused."""
    text = parameters.get("text", dict) or {}
    for name, value in text.items():
        if name != "format" and value is not None:
            raise RefusedParameter("Options of text other than format are not supported", "text")
    return text.get("format")
