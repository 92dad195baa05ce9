"""Responses: `POST /v1/responses`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from agentctl.records.times import parse_rfc3339, whole_seconds
from agentctl.requests import EarlierMessage, StreamEvent
from agentctl.server.faces.openai.events import RunEnd, RunEvents, find_finish_reason
from agentctl.server.faces.openai.failures import RefusedParameter, describe_end
from agentctl.server.faces.openai.parameters import (
    RESPONSE_RULES,
    Parameters,
    check_message_count,
    check_type,
    is_instruction,
    read_message,
    read_schema,
)

_STATUSES = {"stop": "completed", "length": "incomplete", "content_filter": "incomplete"}
_INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}


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
            "stream",
            "stream_options",
            "text",
            "user",
        }
    )

    def __init__(self, parameters: Parameters, model: str) -> None:
        self._model = model
        self._metadata = parameters.get("metadata", dict)
        self._user = parameters.get("user")
        self._instructions = parameters.get("instructions")
        self._format = _read_format(parameters)
        if parameters.get_include_usage():
            raise RefusedParameter(
                "stream_options.include_usage is not supported: the last event has the usage",
                "stream_options",
            )
        self.output_schema = read_schema(self._format, "text.format")
        self.conversation = _read_conversation(parameters)
        given = parameters.get_any("input")
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        items = check_type(items, list, "input")
        check_message_count(items, "input")
        messages = [_read_item(each, f"input[{index}]") for index, each in enumerate(items)]
        if items[-1]["role"] != "user":
            raise RefusedParameter("The last item must be a message of the user", "input")
        named = [EarlierMessage("user", self._instructions)] if self._instructions else []
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
        """Return the response for a completed run.

        Args:
            run: the run record.
        """
        created_at = whole_seconds(parse_rfc3339(run["created_at"]))
        end = RunEnd("COMPLETED", find_finish_reason(run), run["metrics"])
        return self._build(run["run_id"], run["session_id"], created_at, end, run["content"] or "")

    def build_encoder(self, events: RunEvents) -> Callable[[list[StreamEvent]], bytes]:
        """Return the function that encodes the events of a streamed run."""
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
            text = "".join(texts)
            return self._build(events.run_id, events.session_id, events.created_at, end, text)

        def encode_beginning() -> list[bytes]:
            item = _build_item(item_id, "in_progress", [])
            return [
                encode_event("response.created", response=build(None)),
                encode_event("response.in_progress", response=build(None)),
                encode_event("response.output_item.added", output_index=0, item=item),
                encode_event("response.content_part.added", **place, part=_build_part("")),
            ]

        def encode_end(end: RunEnd) -> list[bytes]:
            if end.status != "COMPLETED":
                return [encode_event("response.failed", response=build(end))]
            text = "".join(texts)
            part = _build_part(text)
            status = _STATUSES[end.finish_reason]
            item = _build_item(item_id, status, [part])
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

    def _build(
        self, run_id: str, session_id: str, created_at: int, end: RunEnd | None, text: str
    ) -> dict[str, Any]:
        """Return the response object; `end` None: the run is in progress."""
        status, error, incomplete, output = "in_progress", None, None, list[dict[str, Any]]()
        if end is not None and end.status == "COMPLETED":
            status = _STATUSES[end.finish_reason]
            if status == "incomplete":
                incomplete = {"reason": _INCOMPLETE_REASONS[end.finish_reason]}
            output = [_build_item(f"msg_{run_id}", status, [_build_part(text)])]
        elif end is not None:
            status = "cancelled" if end.status == "CANCELLED" else "failed"
            failure = describe_end(end.status, end.error, end.reason)["error"]
            error = {"code": failure["code"], "message": failure["message"]}
            if text:
                output = [_build_item(f"msg_{run_id}", "incomplete", [_build_part(text)])]
        return {
            "id": f"resp_{run_id}",
            "object": "response",
            "created_at": created_at,
            "status": status,
            "error": error,
            "incomplete_details": incomplete,
            "instructions": self._instructions,
            "metadata": self._metadata or {},
            "model": self._model,
            "output": output,
            "conversation": {"id": session_id},
            "parallel_tool_calls": True,
            "previous_response_id": None,
            "store": True,
            "temperature": None,
            "text": {"format": self._format or {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": None,
            "truncation": "disabled",
            "usage": _build_usage((end and end.metrics) or {}),
            "user": self._user,
        }


def _read_format(parameters: Parameters) -> dict[str, Any] | None:
    """Return `text.format`.

    Raises:
        RefusedParameter: `text` has another option.
    """
    text = parameters.get("text", dict) or {}
    for name, value in text.items():
        if name != "format" and value is not None:
            raise RefusedParameter("Options of text other than format are not supported", "text")
    found: dict[str, Any] | None = text.get("format")
    return found


def _read_conversation(parameters: Parameters) -> str | None:
    """Return the session that `conversation` names: an id, or an object with it."""
    given = parameters.get_any("conversation")
    if isinstance(given, dict):
        given = given.get("id", "")
    found: str | None = None if given is None else check_type(given, str, "conversation")
    return found


def _read_item(item: object, at: str) -> EarlierMessage:
    """Return the message of an item.

    Raises:
        RefusedParameter: the item is not a message of text.
    """
    kind = check_type(item, dict, at).get("type", "message")
    if kind != "message":
        raise RefusedParameter(f"{at} is not supported: items are messages", f"{at}.type")
    return read_message(item, at)


def _build_item(item_id: str, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": item_id,
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": content,
    }


def _build_part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _build_usage(metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the usage for the metrics of a run; None if they are not known."""
    if metrics.get("total_tokens") is None:
        return None
    return {
        "input_tokens": metrics["input_tokens"],
        "input_tokens_details": {"cached_tokens": metrics["cache_read_tokens"]},
        "output_tokens": metrics["output_tokens"],
        "output_tokens_details": {"reasoning_tokens": metrics["reasoning_tokens"]},
        "total_tokens": metrics["total_tokens"],
    }
