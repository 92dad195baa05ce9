"""The summary of the oldest steps of a run under way, which its model calls leave out.

The model that summarizes the sessions of the component makes it. The call is one of the run: its
tokens, its budgets, its record and its cancel are those of every model call.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import orjson

from agentctl.runtime.failures import MODEL_FAILURES, ExecutionError
from agentctl.runtime.models.access import get_access
from agentctl.runtime.models.answering import AnswerRequest, fetch_answer
from agentctl.runtime.models.call_fitting import leave_answer
from agentctl.runtime.models.listed_models import find_window
from agentctl.runtime.transcript.context_window import Message
from agentctl.runtime.transcript.history import (
    MAXIMUM_INPUT,
    MAXIMUM_OUTPUT_TOKENS,
    MAXIMUM_SUMMARY,
    SUMMARY_INSTRUCTIONS,
    cut_turn,
)

MAXIMUM_STEP_RESULT = 1_000
"""Characters of the result of a tool in the input of a summary; the rest is left out."""

_log = logging.getLogger("agentctl.runtime")


class StepSummary(NamedTuple):
    """The summary of the first steps of a run.

    Attributes:
        text: the summary; `""` for none.
        before: index of the first message that it does not cover.
    """

    text: str
    before: int


def find_summary(messages: Sequence[Message]) -> tuple[str, str]:
    """Return the last summary in the messages of a run, and the last call that it covers."""
    for message in reversed(messages):
        compacted = message.get("compacted") or {}
        if summary := compacted.get("summary"):
            covered = (each for each in compacted["omissions"] if each["kind"] == "summarized")
            return summary, next((each["last"] for each in covered), "")
    return "", ""


async def summarize_steps(
    model_id: str, summary: StepSummary, task: str, messages: Sequence[Message]
) -> StepSummary:
    """Return a summary that covers all messages.

    If they are larger than the input of one call, each call gets the summary of the calls before.
    A failure of the model is no failure of the run: the summary covers then what it could.

    Args:
        model_id: the model that summarizes; the input fits into its context window.
        summary: that of the messages before.
        task: the message that the run answers.
        messages: those of the run up to the last one to cover.

    Raises:
        ExecutionError: a budget of the run is used up.
        asyncio.CancelledError: the run has to stop.
    """
    try:
        maximum = await _find_maximum(model_id)
        while summary.before < len(messages):
            prompt, end = _build_prompt(summary, task, messages, maximum)
            try:
                summary = StepSummary(await _fetch_summary(model_id, prompt), end)
            except ExecutionError as failure:
                if failure.code != "CONTEXT_EXCEEDED" or maximum <= MAXIMUM_STEP_RESULT:
                    raise
                maximum //= 2
    except ExecutionError as failure:
        if failure.code not in MODEL_FAILURES:
            raise
        _log.warning("steps of a run were not summarized: %s: %s", failure.code, failure.detail)
    return summary


async def _find_maximum(model_id: str) -> int:
    """Return the characters of an input that the model and its fallbacks can take."""
    attempts = get_access().prepare(model_id, None)
    maximum = MAXIMUM_INPUT
    for model in attempts.models:
        if (window := await find_window(model.source)) is not None:
            # A character has at most four bytes, and a token about three.
            maximum = min(maximum, leave_answer(window, MAXIMUM_OUTPUT_TOKENS) // 2)
        if refused := attempts.bounds.find(model.id):
            maximum = min(maximum, refused // 4)
    return maximum


def _build_prompt(
    summary: StepSummary, task: str, messages: Sequence[Message], maximum: int
) -> tuple[str, int]:
    """Return an input, and the index of the first message that it leaves to the next call."""
    parts = [f"Summary so far:\n{cut_turn(summary.text, maximum // 2)}"] if summary.text else []
    parts.append(f"User:\n{cut_turn(task, maximum // 4)}")
    size, end = sum(map(len, parts)), summary.before
    for message in messages[summary.before :]:
        part = "\n\n".join(_list_texts(message, maximum // 4))
        size += len(part) + 2
        if end > summary.before and size > maximum:
            break
        parts.append(part)
        end += 1
    return "\n\n".join(parts)[:maximum], end


def _list_texts(message: Message, maximum: int) -> Iterator[str]:
    content = message["content"]
    if message["role"] == "tool":
        shown = cut_turn(content, min(maximum, MAXIMUM_STEP_RESULT))
        yield f"Result of {message['tool_name']}:\n{shown}"
    elif content:
        yield f"{message['role'].capitalize()}:\n{cut_turn(content, maximum)}"
    for call in message.get("tool_calls", ()):
        arguments = orjson.dumps(call["arguments"]).decode()
        yield f"Call of {call['name']}:\n{cut_turn(arguments, maximum)}"


async def _fetch_summary(model_id: str, prompt: str) -> str:
    request = AnswerRequest(
        model_id,
        SUMMARY_INSTRUCTIONS,
        [{"role": "user", "content": prompt}],
        settings={"max_tokens": MAXIMUM_OUTPUT_TOKENS},
    )
    _, answered = await fetch_answer(request)
    text = answered.answer.text.strip()
    if not text or len(text) > MAXIMUM_SUMMARY:
        raise ExecutionError("MODEL_REJECTED", f"The summary has {len(text)} characters")
    return text
