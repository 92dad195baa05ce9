"""Chat completions: `POST /v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from agentctl.interface.requests import StreamEvent
from agentctl.interop.openai.calls import build_tool_calls, read_tools, select_handed
from agentctl.interop.openai.events import Answer, AnswerEnd, RunEvents
from agentctl.interop.openai.failures import describe_end
from agentctl.interop.openai.messages import read_chat_messages
from agentctl.interop.openai.parameters import CHAT_RULES, OpenAIParameters, read_schema, read_stop

_DONE = b"data: [DONE]\n\n"


class ChatCompletion:
    """The form of one chat completion of a component."""

    rules = CHAT_RULES
    paused_code = "run_paused"
    conversation: str | None = None
    previous: str | None = None
    background = False

    def __init__(self, parameters: OpenAIParameters, model: str) -> None:
        self._model = model
        self._include_usage = parameters.get_include_usage()

        self.output_schema = read_schema(parameters.get("response_format", dict), "response_format")
        self.tools = read_tools(parameters, nested=True)
        self.stop = read_stop(parameters)

        if self.stop and self.output_schema is not None:
            # A text in an answer that matches a schema is no end of it.
            self.stop = ()
            parameters.ignored.append("stop")

        self.messages = read_chat_messages(parameters.get("messages", list) or [])

    def build(self, answer: Answer) -> dict[str, Any] | None:
        """Return the response for an answer; None if it is an error (`describe_end`)."""
        end = answer.end
        if end is None:
            return None
        approvals = self._select_calls(end)
        if end.status != "COMPLETED" and not approvals:
            return None

        message: dict[str, Any] = {"role": "assistant", "content": answer.text, "refusal": None}
        finish_reason = end.finish_reason
        if approvals:
            message["content"] = answer.text or None
            message["tool_calls"] = build_tool_calls(approvals)
            finish_reason = "tool_calls"

        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}

        return {
            "id": _format_id(answer.run_id, answer.leg),
            "object": "chat.completion",
            "created": answer.created_at,
            "model": self._model,
            "system_fingerprint": answer.version,
            "choices": [choice],
            "usage": _build_usage(end.metrics or {}),
        }

    def _select_calls(self, end: AnswerEnd) -> list[Mapping[str, Any]]:
        """Return the approvals of the calls that the caller has to make."""
        return select_handed(end.waiting, one_by_one=self.tools.one_by_one, with_approvals=False)

    def build_encoder(self, events: RunEvents) -> Callable[[list[StreamEvent]], bytes]:
        """Return the function that encodes each portion of the events of a run."""
        head = {
            "id": _format_id(events.run_id, events.leg),
            "object": "chat.completion.chunk",
            "created": events.created_at,
            "model": self._model,
            "system_fingerprint": events.version,
        }
        has_begun = False

        def encode_chunk(delta: Mapping[str, Any], finish_reason: str | None = None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
            usage = {"usage": None} if self._include_usage else {}
            return _encode({**head, "choices": [choice], **usage})

        def encode(portion: list[StreamEvent]) -> bytes:
            nonlocal has_begun
            parts: list[bytes] = []
            if not has_begun and portion:
                has_begun = True
                parts.append(encode_chunk({"role": "assistant", "content": ""}))

            for item in events.read(portion):
                if isinstance(item, str):
                    parts.append(encode_chunk({"content": item}))
                else:
                    parts += encode_end(item)
            return b"".join(parts)

        def encode_end(end: AnswerEnd) -> Iterator[bytes]:
            approvals = self._select_calls(end)
            if end.status != "COMPLETED" and not approvals:
                yield _encode(describe_end(end))
                return

            yield from map(encode_chunk, _build_call_deltas(approvals))
            yield encode_chunk({}, "tool_calls" if approvals else end.finish_reason)
            if self._include_usage:
                usage = _build_usage(end.metrics or {})
                yield _encode({**head, "choices": [], "usage": usage})
            yield _DONE

        return encode


def _format_id(run_id: str, leg: int) -> str:
    return f"chatcmpl-{run_id}" if leg == 1 else f"chatcmpl-{run_id}-{leg}"


def _build_call_deltas(approvals: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield two deltas for each call: its id and name, then its arguments."""
    for index, call in enumerate(build_tool_calls(approvals)):
        function = call["function"]
        begun_call = {**call, "index": index, "function": {**function, "arguments": ""}}

        yield {"tool_calls": [begun_call]}
        yield {"tool_calls": [{"index": index, "function": {"arguments": function["arguments"]}}]}


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
