"""Responses: `POST /v1/responses`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from agentctl.interop.openai.events import RunEnd, RunEvents
from agentctl.interop.openai.failures import RefusedParameter
from agentctl.interop.openai.parameters import (
    RESPONSE_RULES,
    OpenAIParameters,
    check_message_count,
    check_type,
    is_instruction,
    read_message,
    read_schema,
)
from agentctl.interop.openai.response_objects import (
    STATUSES,
    RequestFields,
    build_item,
    build_part,
    build_response,
    build_stored_response,
)
from agentctl.requests import EarlierMessage, StreamEvent


class ModelResponse:
    """The form of one response.

    Args:
        parameters: those of the request.
        model: id of the component.

    Raises:
        RefusedParameter: a parameter is not valid.
    """

    rules = RESPONSE_RULES
    honoured = frozenset(
        {
            "conversation",
            "input",
            "instructions",
            "metadata",
            "model",
            "previous_response_id",
            "stream",
            "stream_options",
            "text",
            "user",
        }
    )

    def __init__(self, parameters: OpenAIParameters, model: str) -> None:
        instructions, text_format = parameters.get("instructions"), _read_format(parameters)
        self.previous = parameters.get("previous_response_id")
        self._fields = RequestFields(
            model,
            instructions,
            parameters.get("metadata", dict),
            parameters.get("user"),
            self.previous,
            text_format,
        )
        if parameters.get_include_usage():
            raise RefusedParameter(
                "stream_options.include_usage is not supported: the last event has the usage",
                "stream_options",
            )
        self.output_schema = read_schema(text_format, "text.format")
        self.conversation = _read_conversation(parameters)
        if self.previous is not None and self.conversation is not None:
            raise RefusedParameter(
                "Only one of previous_response_id and conversation can be given",
                "previous_response_id",
            )
        value = parameters.get_any("input")
        items = [{"role": "user", "content": value}] if isinstance(value, str) else value
        items = check_type(items, list, "input")
        check_message_count(items, "input")
        messages = [_read_item(item, f"input[{index}]") for index, item in enumerate(items)]
        if items[-1]["role"] != "user":
            raise RefusedParameter("The last item must be a message of the user", "input")
        named = [EarlierMessage("user", instructions)] if instructions else []
        self.message = messages[-1].content
        self.earlier = [*named, *messages[:-1]]
        self.instructions = [
            *named,
            *(
                message
                for item, message in zip(items, messages, strict=True)
                if is_instruction(item)
            ),
        ]

    def build(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """Return the response for the record of a completed run."""
        return build_stored_response(run, self._fields.model, self._fields)

    def build_encoder(self, events: RunEvents) -> Callable[[list[StreamEvent]], bytes]:
        texts: list[str] = []
        number = -1
        item_id = f"msg_{events.run_id}"
        place = {"item_id": item_id, "output_index": 0, "content_index": 0}

        def encode_event(name: str, **fields: Any) -> bytes:
            nonlocal number
            number += 1
            body = {"type": name, "sequence_number": number, **fields}
            return b"event: %b\ndata: %b\n\n" % (name.encode(), orjson.dumps(body))

        def build(end: RunEnd | None) -> dict[str, Any]:
            run = events.run_id, events.session_id, events.created_at
            return build_response(self._fields, *run, end, "".join(texts))

        def encode_beginning() -> list[bytes]:
            item = build_item(item_id, "in_progress", [])
            return [
                encode_event("response.created", response=build(None)),
                encode_event("response.in_progress", response=build(None)),
                encode_event("response.output_item.added", output_index=0, item=item),
                encode_event("response.content_part.added", **place, part=build_part("")),
            ]

        def encode_end(end: RunEnd) -> list[bytes]:
            if end.status != "COMPLETED":
                return [encode_event("response.failed", response=build(end))]
            text = "".join(texts)
            part, status = build_part(text), STATUSES[end.finish_reason]
            item = build_item(item_id, status, [part])
            return [
                encode_event("response.output_text.done", **place, text=text, logprobs=[]),
                encode_event("response.content_part.done", **place, part=part),
                encode_event("response.output_item.done", output_index=0, item=item),
                encode_event(f"response.{status}", response=build(end)),
            ]

        def encode(portion: list[StreamEvent]) -> bytes:
            parts = encode_beginning() if portion and number < 0 else []
            for item in events.read(portion):
                if isinstance(item, str):
                    texts.append(item)
                    delta = {**place, "delta": item, "logprobs": []}
                    parts.append(encode_event("response.output_text.delta", **delta))
                else:
                    parts += encode_end(item)
            return b"".join(parts)

        return encode


def _read_format(parameters: OpenAIParameters) -> dict[str, Any] | None:
    """Return `text.format`.

    Raises:
        RefusedParameter: `text` has another option.
    """
    text = parameters.get("text", dict) or {}
    for name, value in text.items():
        if name != "format" and value is not None:
            raise RefusedParameter("Options of text other than format are not supported", "text")
    return text.get("format")


def _read_conversation(parameters: OpenAIParameters) -> str | None:
    value = parameters.get_any("conversation")
    if isinstance(value, dict):
        value = value.get("id", "")
    conversation: str | None = None if value is None else check_type(value, str, "conversation")
    return conversation


def _read_item(item: object, at: str) -> EarlierMessage:
    """Return the message of an item.

    Raises:
        RefusedParameter: the item is not a message of text.
    """
    kind = check_type(item, dict, at).get("type", "message")
    if kind != "message":
        raise RefusedParameter(f"{at} is not supported: items are messages", f"{at}.type")
    return read_message(item, at)
