"""The answer of one model call while it arrives."""

from __future__ import annotations

from typing import Any

from agentctl.records import times
from agentctl.records.sessions import TOKEN_COUNTERS
from agentctl.runtime.transcript.spans import Span, SpanStatus


class AnswerInProgress:
    """An answer of the model while it arrives.

    Args:
        model: id of the model; None if it is not known.
        count: the first value of each token counter: 0, or None if nothing reports it.
        span: the span of the call; None without one.
    """

    def __init__(self, model: str | None, count: int | None, span: Span | None) -> None:
        self.model = model
        self.span = span
        self.pieces: list[str] = []
        self.usage: dict[str, int | None] = dict.fromkeys(TOKEN_COUNTERS, count)
        self.finish_reason: str | None = None
        self.created_at = times.whole_seconds(times.now())

    @property
    def is_empty(self) -> bool:
        """True if it has no text."""
        return not any(self.pieces)

    def end_span(self, status: SpanStatus, error_code: str | None = None) -> None:
        """End the span of the call, with its tokens."""
        if self.span is not None:
            self.span.input_tokens = self.usage["input_tokens"]
            self.span.output_tokens = self.usage["output_tokens"]
            self.span.error_code = self.span.error_code or error_code
            self.span.end(status)

    def message(self, tool_calls: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the message of the assistant, as a transcript has it."""
        message = {
            "role": "assistant",
            "content": "".join(self.pieces),
            "created_at": self.created_at,
            "metrics": dict(self.usage),
            "finish_reason": self.finish_reason,
            "model": self.model,
        }
        return {**message, "tool_calls": tool_calls} if tool_calls else message
