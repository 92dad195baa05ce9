"""The answer of a model while it arrives, and its message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentctl.records import times
from agentctl.records.sessions import TOKEN_COUNTERS
from agentctl.runtime.transcript.spans import Span, SpanStatus


class AnswerInProgress:
    """The answer of a model while it arrives.

    Args:
        count: the first value of its counters.
        about_call: further members of its message, about its call.
    """

    def __init__(
        self, model: str | None, count: int | None, span: Span | None, about_call: Mapping[str, Any]
    ) -> None:
        self.model = model
        self.about_call = about_call
        self.span = span
        self.pieces: list[str] = []
        self.usage: dict[str, int | None] = dict.fromkeys(TOKEN_COUNTERS, count)
        self.finish_reason: str | None = None
        self.created_at = times.whole_seconds(times.now())

    @property
    def is_empty(self) -> bool:
        return not any(self.pieces)

    def end_span(self, status: SpanStatus, error_code: str | None = None) -> None:
        if self.span is not None:
            self.span.input_tokens = self.usage["input_tokens"]
            self.span.output_tokens = self.usage["output_tokens"]
            self.span.error_code = self.span.error_code or error_code
            self.span.end(status)

    def message(self, tool_calls: list[dict[str, Any]]) -> dict[str, Any]:
        message = {
            "role": "assistant",
            "content": "".join(self.pieces),
            "created_at": self.created_at,
            "metrics": dict(self.usage),
            "finish_reason": self.finish_reason,
            "model": self.model,
            **self.about_call,
        }
        if self.span is not None and self.span.response_model is not None:
            message["response_model"] = self.span.response_model
        return {**message, "tool_calls": tool_calls} if tool_calls else message
