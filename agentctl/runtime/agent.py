"""Execution of an agent's run: model calls and tool calls in turn, until there are no more calls.

The model always streams, so that partial text exists even for a caller that does not stream. The
model library talks to the providers; this module runs the agent loop (docs/decisions/0026).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import httpx2
from pydantic_ai.direct import model_request_stream
from pydantic_ai.exceptions import AgentRunError, ModelAPIError, UnexpectedModelBehavior
from pydantic_ai.messages import (
    ModelMessage,
    ModelResponse,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
    ThinkingPart,
    ThinkingPartDelta,
    ToolCallPart,
)
from pydantic_ai.output import OutputObjectDefinition

from agentctl.runtime.attempts import Attempts, PreparedModel
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
from agentctl.runtime.memory_tools import add_memories
from agentctl.runtime.provider import classify_failure
from agentctl.runtime.run_threads import use_shared_threads
from agentctl.runtime.structured_output import InvalidAnswer
from agentctl.runtime.unstopped import abandon_task

if TYPE_CHECKING:
    from pydantic_ai.messages import ModelResponseStreamEvent
    from pydantic_ai.models import ModelRequestParameters

    from agentctl.runtime.catalog import Catalog
    from agentctl.runtime.component import Component
    from agentctl.runtime.context import RunEnvironment
    from agentctl.runtime.runners.configured import ConfiguredRunner
    from agentctl.runtime.structured_output import OutputSchema

_log = logging.getLogger("agentctl.runtime")

MAXIMUM_MODEL_CALLS = 50
"""Maximum model calls of one run. If the model then still calls tools, the run ends with
MODEL_REJECTED."""

_TEXT_FIELDS = ("args", "args_delta", "content", "content_delta", "tool_name_delta")
"""Attributes with the data of the parts and deltas that are not text."""

_EVENT_OVERHEAD_BYTES = 16

_UNKNOWN_REASON = "unknown"
"""Finish reason of an answer whose provider sent one that the model library does not know."""

_EMPTY_ANSWER_REASONS = {
    "length": "the answer was cut off before it began",
    "content_filter": "the answer was filtered",
}
"""Finish reasons with which an empty answer is a failure."""


async def run_agent(
    agent: Component,
    message: str,
    context: RunEnvironment,
    catalog: Catalog,
) -> None:
    """Run an agent to its end. The result is in the transcript.

    Raises:
        ExecutionError: the model or a tool ended the run.
    """
    runner = await catalog.prepare_runner(agent, context)
    output = catalog.output_schema(agent, context.output_schema)
    conversation = Conversation(context, message, runner.actions, publishes=output is None)
    conversation.add_prompt(runner.system)
    conversation.add_summary()
    await add_memories(runner.memory, conversation)
    await run_conversation(runner, message, context.history, conversation, output)


async def run_conversation(
    runner: ConfiguredRunner,
    prompt: str,
    history: Sequence[Mapping[str, Any]],
    conversation: Conversation,
    output: OutputSchema | None = None,
) -> None:
    """Let the model answer a prompt; add its texts and calls to the conversation.

    With an output schema, the text of the last answer is published when it is valid.

    Args:
        prompt: input of the model. For the leader of a broadcast it is longer than the message.
        history: neutral messages of earlier runs, oldest first.
        output: the schema of the answer; None for text.

    Raises:
        ExecutionError: the model or a tool ended the run, or its answer is not valid.
    """
    messages = [*to_model_messages(history), build_prompt(prompt, conversation.instructions)]
    if output is not None:
        runner = replace(runner, output=output)
    await _take_turns(runner, messages, conversation)


async def _take_turns(
    runner: ConfiguredRunner, messages: list[ModelMessage], conversation: Conversation
) -> None:
    corrected = False
    attempts = Attempts(conversation.context.run_id, runner.models, runner.counters)
    for turn in range(MAXIMUM_MODEL_CALLS):
        attempts.begin_call()
        response = await _call_model(runner, attempts, messages, conversation, first=turn == 0)
        calls = extract_calls(response)
        conversation.end_answer(calls, response.finish_reason or _UNKNOWN_REASON)
        if not calls:
            problem = _take_output(runner, conversation, last=corrected)
            if problem is None:
                return
            corrected = True
            messages += [response, build_prompt(problem.prompt, conversation.instructions)]
            continue
        results = await _perform_calls(calls, conversation)
        if conversation.routed_answer is not None:
            return
        messages += [response, build_tool_results(calls, results, conversation.instructions)]
    raise ExecutionError(
        "MODEL_REJECTED", f"The model did not finish within {MAXIMUM_MODEL_CALLS} model calls"
    )


def _take_output(
    runner: ConfiguredRunner, conversation: Conversation, *, last: bool
) -> InvalidAnswer | None:
    """Validate a final answer if it has a schema. Return the problem that the model can correct.

    Raises:
        ExecutionError: the answer is not valid, and the model has no further attempt.
    """
    if runner.output is None:
        return None
    try:
        conversation.context.transcript.output = runner.output.parse(conversation.held_text)
    except InvalidAnswer as problem:
        _log.warning(
            "run %s: the answer does not match the output schema: %s",
            conversation.context.run_id, problem,
        )  # fmt: skip
        if not last:
            return problem
        conversation.publish_held_text()
        raise ExecutionError("OUTPUT_INVALID") from None
    conversation.publish_held_text()
    return None


async def _call_model(
    runner: ConfiguredRunner,
    attempts: Attempts,
    messages: list[ModelMessage],
    conversation: Conversation,
    *,
    first: bool,
) -> ModelResponse:
    """Call the model, again after temporary failures while nothing of the answer has arrived.

    Raises:
        ExecutionError: the last attempt failed.
    """
    while True:
        model = attempts.model
        try:
            return await _attempt_call(runner, model, messages, conversation, first=first)
        except (AgentRunError, httpx2.HTTPError) as error:
            failure = classify_failure(error, conversation.context.run_id, model.secret)
            if conversation.has_answer_begun or not await attempts.wait_after(error, failure):
                raise failure from error


async def _attempt_call(
    runner: ConfiguredRunner,
    model: PreparedModel,
    messages: list[ModelMessage],
    conversation: Conversation,
    *,
    first: bool,
) -> ModelResponse:
    """Call the model once and return its cleaned answer.

    However the call ends, its text and usage so far are kept.

    Raises:
        UnexpectedModelBehavior: the answer is empty because the provider cut or filtered it, or it
            cannot be read.
        ModelAPIError: the stream ended before the answer was complete.
    """
    conversation.context.checkpoint()
    conversation.begin_answer(model.id)
    request = model_request_stream(
        model.model,
        messages,
        model_settings=model.first_settings if first else model.settings,
        model_request_parameters=_build_parameters(runner, model),
        instrument=False,
    )
    async with AsyncExitStack() as stack:
        with _reject_unreadable_answers(), use_shared_threads():
            stream = await stack.enter_async_context(request)
        events = aiter(stream)
        try:
            while True:
                with _reject_unreadable_answers():
                    event = await anext(events, None)
                if event is None:
                    break
                _process_event(event, conversation)
        finally:
            conversation.context.transcript.set_usage(extract_usage(stream.usage))
        with _reject_unreadable_answers():
            response = stream.get()
            clean_response(response)
    if not response.finish_reason and not (response.provider_details or {}).get("finish_reason"):
        raise ModelAPIError(stream.model_name, "the stream ended without a finish reason")
    reason = _EMPTY_ANSWER_REASONS.get(response.finish_reason or "")
    if reason and not response.tool_calls and not (response.text or "").strip():
        raise UnexpectedModelBehavior(reason)
    return response


def _build_parameters(runner: ConfiguredRunner, model: PreparedModel) -> ModelRequestParameters:
    """Return the tools of a call and, with an output schema, the schema of the answer.

    A provider that does not take a schema gets it as a part of the instructions.
    """
    parameters, output = runner.parameters, runner.output
    if output is None:
        return parameters
    native = model.model.profile.get("supports_json_schema_output", False) and (
        model.native_output == "always"
        or (model.native_output == "without_tools" and not parameters.function_tools)
    )
    return replace(
        parameters,
        output_mode="native" if native else "prompted",
        output_object=OutputObjectDefinition(
            output.json_schema, name=output.name, description=output.description
        ),
    )


@contextmanager
def _reject_unreadable_answers() -> Iterator[None]:
    """Report an exception of the model library as a fault of the provider's answer.

    The library reads most fields of an answer without a check of their types.

    Raises:
        UnexpectedModelBehavior: the library raised an exception that is not about models.
    """
    try:
        yield
    except (AgentRunError, httpx2.HTTPError):
        raise
    except Exception as error:
        reason = f"the answer cannot be read: {type(error).__name__}: {error}"
        raise UnexpectedModelBehavior(reason) from error


async def _perform_calls(calls: Sequence[dict[str, Any]], conversation: Conversation) -> list[str]:
    """Execute the calls of one answer concurrently and return their results for the model."""
    pending = [conversation.call(call["id"], call["name"], call["arguments"]) for call in calls]
    if len(pending) == 1:
        return [await pending[0]]
    tasks = [asyncio.create_task(call) for call in pending]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            abandon_task(task)
        raise


def _process_event(event: ModelResponseStreamEvent, conversation: Conversation) -> None:
    """Add text and thinking to the conversation; count the size of everything else."""
    if isinstance(event, PartDeltaEvent):
        if isinstance(event.delta, TextPartDelta):
            conversation.add_text(event.delta.content_delta)
        elif isinstance(event.delta, ThinkingPartDelta):
            conversation.count_arriving(_EVENT_OVERHEAD_BYTES)
            conversation.add_thinking(event.delta.content_delta or "")
        else:
            conversation.count_arriving(_event_size(event))
    elif isinstance(event, PartStartEvent):
        conversation.count_part(is_call=isinstance(event.part, ToolCallPart))
        if isinstance(event.part, TextPart):
            conversation.add_text(event.part.content)
        elif isinstance(event.part, ThinkingPart):
            conversation.count_arriving(_EVENT_OVERHEAD_BYTES)
            conversation.add_thinking(event.part.content)
        else:
            conversation.count_arriving(_event_size(event))


def _event_size(event: PartStartEvent | PartDeltaEvent) -> int:
    """Estimate the memory in bytes of a piece of a tool call or of reasoning."""
    piece = event.part if isinstance(event, PartStartEvent) else event.delta
    texts = (getattr(piece, name, None) for name in _TEXT_FIELDS)
    return _EVENT_OVERHEAD_BYTES + sum(len(str(text)) for text in texts if text)
