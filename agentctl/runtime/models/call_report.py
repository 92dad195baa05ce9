"""Reports a call of a configured model by the code of an agent: its attempts and its tokens.

The runner of a library reports the calls that its library makes. All other calls report themselves:
those of functions that are agents, of tools, and of another library in the code of an agent
(docs/decisions/0132).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentctl.runtime.context import RunEnvironment
    from agentctl.runtime.transcript.spans import Span


class CallReport:
    """The spans and the tokens of one call, for the run whose code makes it.

    Args:
        environment: the run.
    """

    def __init__(self, environment: RunEnvironment) -> None:
        self._environment = environment
        self._span: Span | None = None

    def begin(self, model: str) -> Span:
        """Start the span of an attempt.

        Args:
            model: id of the model.
        """
        self._span = self._environment.transcript.spans.start_model_call(model)
        return self._span

    def mark_first_token(self) -> None:
        if self._span is not None:
            self._span.mark_first_token()

    def fail(self, code: str) -> None:
        """End the span of an attempt that has failed."""
        if self._span is not None:
            self._span.error_code = code
            self._span.end("failed")

    def end(self, usage: Mapping[str, int] | None, work: asyncio.Task[Any]) -> None:
        """End the call and count its tokens, also those of an answer that is not complete.

        Args:
            usage: the nine counters; None if the provider reported none.
            work: the task of the call, which has ended.
        """
        span, environment = self._span, self._environment
        if span is None or environment.has_ended:
            return
        if usage is not None:
            span.input_tokens, span.output_tokens = usage["input_tokens"], usage["output_tokens"]
            span.answer = {"metrics": usage}
            environment.transcript.add_usage(usage, span.name)
            environment.watch_budgets()
        failed = not work.cancelled() and work.exception() is not None
        span.end("cancelled" if work.cancelled() else "failed" if failed else "completed")
