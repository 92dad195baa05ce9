"""Execution of an agent's run: model calls and tool calls in turn, until there are no more calls.

The model always streams, so that partial text exists even for a caller that does not stream. A
connection (`runtime.models.calls`) talks to the provider; this module runs the agent loop
(docs/decisions/0026).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from agentctl.runtime.conversation import Conversation
from agentctl.runtime.failures import ExecutionError
from agentctl.runtime.models.attempts import Attempts, PreparedModel
from agentctl.runtime.models.calls import (
    UNKNOWN_REASON,
    Message,
    ModelAnswer,
    ModelCall,
    ModelFailure,
)
from agentctl.runtime.models.provider import classify_failure
from agentctl.runtime.models.structured_output import InvalidAnswer
from agentctl.runtime.tools.memories import add_memories
from agentctl.runtime.transcript import complete_history
from agentctl.runtime.unstopped import abandon_task

if TYPE_CHECKING:
    from agentctl.runtime.component import Component
    from agentctl.runtime.components.catalog import Catalog
    from agentctl.runtime.components.configured import ConfiguredRunner
    from agentctl.runtime.context import RunEnvironment
    from agentctl.runtime.models.structured_output import OutputSchema

_log = logging.getLogger("agentctl.runtime")

MAXIMUM_MODEL_CALLS = 50
"""Maximum model calls of one run. If the model then still calls tools, the run ends with
MODEL_REJECTED."""

_EMPTY_ANSWER_REASONS = {
    "length": "the answer was cut off before it began",
    "content_filter": "the answer was filtered",
    "tool_call": "the answer ends with tool calls and has none",
}
"""Finish reasons with which an empty answer is a failure."""


async def run_agent(agent: Component, context: RunEnvironment, catalog: Catalog) -> None:
    """Run an agent to its end. The result is in the transcript.

    Raises:
        ExecutionError: the model or a tool ended the run.
    """
    runner = await catalog.prepare_runner(agent, context)
    output = catalog.output_schema(agent, context.spec.output_schema)
    conversation = Conversation(context, runner.actions, publishes=output is None)
    conversation.add_prompt(runner.system)
    conversation.add_summary()
    await add_memories(runner.memory, conversation)
    await run_conversation(runner, conversation.message, conversation, output)


async def run_conversation(
    runner: ConfiguredRunner,
    prompt: str,
    conversation: Conversation,
    output: OutputSchema | None = None,
) -> None:
    """Let the model answer a prompt; add its texts and calls to the conversation.

    With an output schema, the text of the last answer is published when it is valid.

    Args:
        prompt: input of the model. For the leader of a broadcast it is longer than the message.
        output: the schema of the answer; None for text.

    Raises:
        ExecutionError: the model or a tool ended the run, or its answer is not valid.
    """
    messages = [*complete_history(conversation.context.history), _build_prompt(prompt)]
    if output is not None:
        runner = replace(runner, output=output)
    await _take_turns(runner, messages, conversation)


async def _take_turns(
    runner: ConfiguredRunner, messages: list[Message], conversation: Conversation
) -> None:
    corrected = False
    attempts = Attempts(conversation.context.spec.run_id, runner.models, runner.counters)
    for turn in range(MAXIMUM_MODEL_CALLS):
        attempts.begin_call()
        requires_tool = runner.routes and turn == 0
        answer = await _call_model(
            runner, attempts, messages, conversation, requires_tool=requires_tool
        )
        conversation.end_answer(answer.calls, answer.finish_reason or UNKNOWN_REASON)
        messages.append(answer.message)
        if not answer.calls:
            problem = _take_output(runner, conversation, last=corrected)
            if problem is None:
                return
            corrected = True
            messages.append(_build_prompt(problem.prompt))
            continue
        results = await _perform_calls(answer.calls, conversation)
        if conversation.routed_answer is not None:
            return
        messages += [
            {
                "role": "tool",
                "content": result,
                "tool_call_id": call["id"],
                "tool_name": call["name"],
            }
            for call, result in zip(answer.calls, results, strict=True)
        ]
    raise ExecutionError(
        "MODEL_REJECTED", f"The model did not finish within {MAXIMUM_MODEL_CALLS} model calls"
    )


def _build_prompt(text: str) -> Message:
    return {"role": "user", "content": text}


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
            conversation.context.spec.run_id, problem,
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
    messages: Sequence[Message],
    conversation: Conversation,
    *,
    requires_tool: bool,
) -> ModelAnswer:
    """Call the model, again after temporary failures while nothing of the answer has arrived.

    Raises:
        ExecutionError: the last attempt failed.
    """
    while True:
        model = attempts.model
        call = ModelCall(
            conversation.instructions,
            messages,
            runner.tools,
            model.settings,
            requires_tool,
            runner.output,
        )
        try:
            return await _attempt_call(model, call, conversation)
        except ModelFailure as error:
            secret = model.connection.secret
            failure = classify_failure(error, conversation.context.spec.run_id, secret)
            if conversation.has_answer_begun or not await attempts.wait_after(error):
                raise failure from error


async def _attempt_call(
    model: PreparedModel, call: ModelCall, conversation: Conversation
) -> ModelAnswer:
    """Call the model once. However the call ends, its text and usage so far are kept.

    Raises:
        ModelFailure: the call failed, the answer is not complete, or it is empty because the
            provider cut or filtered it.
    """
    conversation.context.checkpoint()
    conversation.begin_answer(model.id)
    try:
        answer = await model.connection.answer(call, conversation)
    except ModelFailure:
        conversation.context.transcript.fail_answer()
        raise
    if answer.finish_reason is None:
        raise ModelFailure("MODEL_UNAVAILABLE", "the stream ended without a finish reason")
    if answer.finish_reason == "error":
        raise ModelFailure("MODEL_UNAVAILABLE", "the provider ended the answer with an error")
    reason = _EMPTY_ANSWER_REASONS.get(answer.finish_reason)
    if reason and not answer.calls and not answer.text.strip():
        raise ModelFailure("MODEL_REJECTED", reason)
    return answer


async def _perform_calls(calls: Sequence[dict[str, Any]], conversation: Conversation) -> list[str]:
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
