"""The answer of a model while it arrives, and the texts at which it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agentctl.records import times
from agentctl.records.sessions import TOKEN_COUNTERS
from agentctl.runtime.tracing import Span, SpanStatus


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
        self.created_at = times.now_in_seconds()

    @property
    def is_empty(self) -> bool:
        return not any(self.pieces)

    def end_span(self, status: SpanStatus, error_code: str | None = None) -> None:
        if self.span is not None:
            self.span.input_tokens = self.usage["input_tokens"]
            self.span.output_tokens = self.usage["output_tokens"]
            self.span.error_code = self.span.error_code or error_code
            self.span.end(status)

    def end(self, tool_calls: list[dict[str, Any]], finish_reason: str | None) -> dict[str, Any]:
        """End the answer, and return its message; its span has the message, too."""
        self.finish_reason = finish_reason or self.finish_reason
        self.end_span("failed" if self.finish_reason is None else "completed")
        message = self.message(tool_calls)
        if self.span is not None:
            self.span.answer = message
        return message

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


MAXIMUM_TEXTS = 4
MAXIMUM_CHARACTERS = 256
"""Maximum number of the texts of a request, and their length: each piece is compared with all."""

AddText = Callable[[str], None]


class StopTexts:
    """Cuts the text of a run before the first of its stop texts, and completes the run there.

    The end of a piece that may be the beginning of a stop text is held back until the next piece,
    or the end of the answer, decides.

    Args:
        texts: the stop texts.
        complete: completes the run; it raises asyncio.CancelledError.
    """

    def __init__(self, texts: Sequence[str], complete: Callable[[], None]) -> None:
        self._texts = texts
        self._complete = complete
        self._held = ""
        self._add: AddText | None = None

    def take(self, piece: str, add: AddText) -> None:
        """Give the part of a piece that is surely no stop text to `add`.

        Raises:
            asyncio.CancelledError: the answer has reached a stop text.
        """
        text = self._held + piece
        self._held = ""
        self._add = add

        if (before := self.cut(text)) != text:
            _add_some(before, add)
            self._complete()
            return

        end = len(text) - self._count_held(text)
        # First: the first text of an answer completes an open one, and releases the held text.
        _add_some(text[:end], add)
        self._held = text[end:]

    def release(self) -> None:
        """Add the text that was held back: the answer ends."""
        text = self._held
        self._held = ""
        if self._add is not None:
            _add_some(text, self._add)

    def cut(self, text: str) -> str:
        """Return the text before the first stop text in it; all of it without one."""
        starts = [at for stop_text in self._texts if (at := text.find(stop_text)) >= 0]

        return text[: min(starts, default=len(text))]

    def _count_held(self, text: str) -> int:
        """Return the length of the longest end of a text that begins a stop text."""
        return max(
            (
                size
                for stop_text in self._texts
                for size in range(1, min(len(stop_text), len(text) + 1))
                if text.endswith(stop_text[:size])
            ),
            default=0,
        )


def _add_some(text: str, add: AddText) -> None:
    if text:
        add(text)
