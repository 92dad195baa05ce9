"""One run of an agent: the model and its tools in turn, until the model has no more calls.

The model always streams, so that partial text exists whatever the caller asked for. The model
library speaks to the providers; the turns are taken here (docs/decisions/0026).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import httpx2
from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import AgentRunError, UnexpectedModelBehavior
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
)

from agentctl.runtime.conversation import Conversation
from agentctl.runtime.conversion import (
    build_prompt,
    build_tool_results,
    clean_response,
    extract_calls,
    extract_usage,
    to_model_messages,
)
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.provider import classify_failure
from agentctl.runtime.unstopped import abandon_task

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponseStreamEvent

    from agentctl.runtime.catalog import Catalog
    from agentctl.runtime.component import Component
    from agentctl.runtime.context import RunContext
    from agentctl.runtime.runners import Runner

__all__ = ["MAXIMUM_MODEL_CALLS", "run_agent", "run_conversation"]

MAXIMUM_MODEL_CALLS = 50
"""Model calls of one run; a model that still calls tools then ends the run with MODEL_REJECTED."""

_TOO_MANY_CALLS = "The model did not come to an end within the model calls that a run may make"

_TEXTS = ("args", "args_delta", "content", "content_delta", "tool_name_delta")
"""Where pieces of an answer other than text carry what arrived."""

_EVENT_OVERHEAD_BYTES = 16

_EMPTY_ANSWER_REASONS = {
    "length": "the answer was cut off before it began",
    "content_filter": "the answer was filtered",
}
"""Why an answer may be empty though the model had something to say."""


async def run_agent(
    agent: Component,
    message: str,
    history: list[dict[str, Any]],
    context: RunContext,
    catalog: Catalog,
) -> None:
    """Run an agent to its end; the result is in the transcript.

    Raises:
        RunFailure: the model or a tool ended the run.
    """
    runner = catalog.runner(agent)
    conversation = Conversation(context, message, runner.actions)
    conversation.add_prompt(runner.system)
    await run_conversation(runner, message, history, conversation)


async def run_conversation(
    runner: Runner, prompt: str, history: list[dict[str, Any]], conversation: Conversation
) -> None:
    """Let the model answer a prompt; what it says and calls goes to the conversation.

    Args:
        prompt: what the model is asked; for the leader of a broadcast more than the message.
        history: neutral messages of earlier runs, oldest first.

    Raises:
        RunFailure: the model or a tool ended the run.
    """
    try:
        await _take_turns(
            runner, [*to_model_messages(history), build_prompt(prompt, runner.system)], conversation
        )
    except (AgentRunError, httpx2.HTTPError) as error:
        raise classify_failure(error, conversation.context.run_id, runner.secret) from error


async def _take_turns(
    runner: Runner, messages: list[ModelMessage], conversation: Conversation
) -> None:
    for turn in range(MAXIMUM_MODEL_CALLS):
        response = await _call_model(runner, messages, conversation, first=turn == 0)
        clean_response(response)
        calls = extract_calls(response)
        conversation.end_answer(calls)
        if not calls:
            return
        results = await _perform_calls(calls, conversation)
        if conversation.routed_answer is not None:
            return
        messages += [response, build_tool_results(calls, results, runner.system)]
    raise ExecutionError("MODEL_REJECTED", _TOO_MANY_CALLS)


async def _call_model(
    runner: Runner, messages: list[ModelMessage], conversation: Conversation, *, first: bool
) -> ModelResponse:
    """One call of the model. Text and usage so far are kept however it ends."""
    conversation.context.checkpoint()
    conversation.begin_answer()
    async with model_request_stream(
        runner.model,
        messages,
        model_settings=runner.first_settings if first else None,
        model_request_parameters=runner.parameters,
        instrument=False,
    ) as stream:
        try:
            async for event in stream:
                _process_event(event, conversation)
        finally:
            conversation.context.transcript.set_usage(extract_usage(stream.usage))
        response = stream.get()
    _check_not_empty(response)
    return response


def _check_not_empty(response: ModelResponse) -> None:
    """An empty answer is one, unless the provider says that it is not.

    Raises:
        UnexpectedModelBehavior: the model was kept from answering.
    """
    why = _EMPTY_ANSWER_REASONS.get(response.finish_reason or "")
    if why and not response.tool_calls and not (response.text or "").strip():
        raise UnexpectedModelBehavior(why)


async def _perform_calls(calls: Sequence[dict[str, Any]], conversation: Conversation) -> list[str]:
    """Carry out the calls of one answer, all at the same time; what the model is told of each."""
    if len(calls) == 1:
        return [await _perform_call(calls[0], conversation)]
    tasks = [asyncio.create_task(_perform_call(call, conversation)) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            abandon_task(task)
        raise


async def _perform_call(call: dict[str, Any], conversation: Conversation) -> str:
    return await conversation.call(call["id"], call["name"], call["arguments"])


def _process_event(event: ModelResponseStreamEvent, conversation: Conversation) -> None:
    """Pass on what an event adds to the answer; what is not text only counts."""
    if isinstance(event, PartDeltaEvent):
        if isinstance(event.delta, TextPartDelta):
            conversation.add_text(event.delta.content_delta)
        else:
            conversation.count_arriving(_event_size(event))
    elif isinstance(event, PartStartEvent):
        if isinstance(event.part, TextPart):
            conversation.add_text(event.part.content)
        else:
            conversation.count_arriving(_event_size(event))


def _event_size(event: PartStartEvent | PartDeltaEvent) -> int:
    """Roughly the bytes that a piece of a call or of a thought takes, and some for the piece."""
    piece = event.part if isinstance(event, PartStartEvent) else event.delta
    texts = (getattr(piece, name, None) for name in _TEXTS)
    return _EVENT_OVERHEAD_BYTES + sum(len(str(text)) for text in texts if text)
