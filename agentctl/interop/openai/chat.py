"""Chat completions: `POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import orjson

from agentctl.interop.openai.events import RunEvents, find_finish_reason
from agentctl.interop.openai.failures import RefusedParameter, describe_end
from agentctl.interop.openai.parameters import (
    CHAT_RULES,
    OpenAIParameters,
    check_message_count,
    is_instruction,
    read_message,
    read_schema,
)
from agentctl.records.times import parse_rfc3339, whole_seconds
from agentctl.requests import EarlierMessage, StreamEvent

_DONE = b"data: [DONE]\n\n"


class ChatCompletion:
    """The form of one chat completion.

    Args:
        parameters: those of the request.
        model: id of the component.

    Raises:
        RefusedParameter: a parameter is not valid.
    """

    rules = CHAT_RULES
    honoured = frozenset(
        {"messages", "metadata", "model", "response_format", "stream", "stream_options", "user"}
    )
    conversation: str | None = None
    previous: str | None = None

    def __init__(self, parameters: OpenAIParameters, model: str) -> None:
        self._model = model
        self._include_usage = parameters.get_include_usage()
        self.output_schema = read_schema(parameters.get("response_format", dict), "response_format")
        items = parameters.get("messages", list) or []
        check_message_count(items, "messages")
        messages = [read_message(item, f"messages[{index}]") for index, item in enumerate(items)]
        if items[-1]["role"] != "user":
            raise RefusedParameter("The last message must have the role user", "messages")
        self.message = messages[-1].content
        self.earlier = messages[:-1]
        self.instructions: list[EarlierMessage] = [
            message for item, message in zip(items, messages, strict=True) if is_instruction(item)
        ]

    def build(self, run: Mapping[str, Any]) -> dict[str, Any]:
        """Return the response for the record of a completed run."""
        message = {"role": "assistant", "content": run["content"] or "", "refusal": None}
        choice = {
            "index": 0,
            "message": message,
            "logprobs": None,
            "finish_reason": find_finish_reason(run),
        }
        return {
            "id": f"chatcmpl-{run['run_id']}",
            "object": "chat.completion",
            "created": whole_seconds(parse_rfc3339(run["created_at"])),
            "model": self._model,
            "choices": [choice],
            "usage": _build_usage(run["metrics"]),
        }

    def build_encoder(self, events: RunEvents) -> Callable[[list[StreamEvent]], bytes]:
        head = {
            "id": f"chatcmpl-{events.run_id}",
            "object": "chat.completion.chunk",
            "created": events.created_at,
            "model": self._model,
        }
        begun = False

        def encode_chunk(delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
            usage = {"usage": None} if self._include_usage else {}
            return _encode({**head, "choices": [choice], **usage})

        def encode(portion: list[StreamEvent]) -> bytes:
            nonlocal begun
            parts: list[bytes] = []
            if not begun and portion:
                begun = True
                parts.append(encode_chunk({"role": "assistant", "content": ""}))
            for item in events.read(portion):
                if isinstance(item, str):
                    parts.append(encode_chunk({"content": item}))
                elif item.status != "COMPLETED":
                    parts.append(_encode(describe_end(item.status, item.error, item.reason)))
                else:
                    parts.append(encode_chunk({}, item.finish_reason))
                    if self._include_usage:
                        usage = _build_usage(item.metrics or {})
                        parts.append(_encode({**head, "choices": [], "usage": usage}))
                    parts.append(_DONE)
            return b"".join(parts)

        return encode


def _build_usage(metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    if metrics.get("total_tokens") is None:
        return None
    return {
        "prompt_tokens": metrics["input_tokens"],
        "completion_tokens": metrics["output_tokens"],
        "total_tokens": metrics["total_tokens"],
        "prompt_tokens_details": {"cached_tokens": metrics["cache_read_tokens"]},
        "completion_tokens_details": {"reasoning_tokens": metrics["reasoning_tokens"]},
    }


def _encode(chunk: Mapping[str, Any]) -> bytes:
    return b"data: %b\n\n" % orjson.dumps(chunk)
