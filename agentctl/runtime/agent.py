"""One run of an agent: the model and its tools in turn, until the model has no more calls.

The model always streams, so that partial text exists whatever the caller asked for.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

import httpx2
from pydantic_ai import Agent as LibraryAgent
from pydantic_ai.exceptions import AgentRunError
from pydantic_ai.messages import (
    AgentStreamEvent,
    FunctionToolResultEvent,
    PartDeltaEvent,
    PartStartEvent,
    TextPart,
    TextPartDelta,
)
from pydantic_ai.usage import UsageLimits

from agentctl.runtime.classify import classified
from agentctl.runtime.conversation import Conversation
from agentctl.runtime.conversion import calls_of, clean_response, counters, to_model
from agentctl.runtime.leftovers import leave

if TYPE_CHECKING:
    from pydantic_ai.agent import CallToolsNode, ModelRequestNode
    from pydantic_ai.run import AgentRun

    from agentctl.runtime.catalog import Catalog, Component
    from agentctl.runtime.context import RunContext
    from agentctl.runtime.runners import Runner

    LibraryRun = AgentRun[Conversation, str | None]

__all__ = ["MAXIMUM_MODEL_CALLS", "converse", "run_agent"]

MAXIMUM_MODEL_CALLS = 50
"""Model calls of one run; a model that still calls tools then ends the run with MODEL_REJECTED."""


_TEXTS = ("args", "args_delta", "content", "content_delta", "tool_name_delta")
"""Where pieces of an answer other than text carry what arrived."""

_PIECE_BYTES = 16


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
    runner = catalog.runners.runner(agent)
    conversation = Conversation(context, message, runner.actions)
    conversation.begin(runner.system)
    await converse(runner, message, history, conversation)


async def converse(
    runner: Runner, prompt: str, history: list[dict[str, Any]], conversation: Conversation
) -> None:
    """Let the model answer a prompt; what it says and calls goes to the conversation.

    Args:
        prompt: what the model is asked; for the leader of a broadcast more than the message.
        history: neutral messages of earlier runs, oldest first.

    Raises:
        RunFailure: the model or a tool ended the run.
    """
    limits = UsageLimits(request_limit=MAXIMUM_MODEL_CALLS)
    try:
        async with runner.agent.iter(
            prompt, message_history=to_model(history), deps=conversation, usage_limits=limits
        ) as run:
            await _drive(run, conversation)
    except (AgentRunError, httpx2.HTTPError) as error:
        raise classified(error, conversation.context.run_id, runner.secret) from error
    finally:
        for task in conversation.helpers:
            leave(task)


async def _drive(run: LibraryRun, conversation: Conversation) -> None:
    async for node in run:
        if LibraryAgent.is_model_request_node(node):
            await _listen(run, node, conversation)
        elif LibraryAgent.is_call_tools_node(node):
            await _act(run, node, conversation)
            if conversation.routed is not None:
                return


async def _listen(
    run: LibraryRun, node: ModelRequestNode[Conversation, str | None], conversation: Conversation
) -> None:
    """One call of the model. Text and usage so far are kept however it ends."""
    conversation.context.checkpoint()
    conversation.begin_answer()
    before = copy(run.usage)
    async with node.stream(run.ctx) as stream:
        try:
            async for event in stream:
                _heard(event, conversation)
        finally:
            conversation.context.transcript.set_usage(counters(stream.usage, before))


async def _act(
    run: LibraryRun, node: CallToolsNode[Conversation, str | None], conversation: Conversation
) -> None:
    """The calls of one answer. Known tools note themselves, unknown ones are noted here."""
    clean_response(node.model_response)
    conversation.end_answer(calls_of(node.model_response))
    calls = {part.tool_call_id: part for part in node.model_response.tool_calls}
    async with node.stream(run.ctx) as events:
        async for event in events:
            if not isinstance(event, FunctionToolResultEvent):
                continue
            call = calls.get(event.tool_call_id)
            if call is not None and call.tool_name not in conversation.actions:
                conversation.refuse_call(call.tool_call_id, call.tool_name, call.args_as_dict())


def _heard(event: AgentStreamEvent, conversation: Conversation) -> None:
    """Pass on what an event adds to the answer; what is not text only counts."""
    if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
        conversation.say(event.part.content)
    elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
        conversation.say(event.delta.content_delta)
    elif isinstance(event, PartStartEvent | PartDeltaEvent):
        conversation.hear(_size(event))


def _size(event: PartStartEvent | PartDeltaEvent) -> int:
    """Roughly the bytes that a piece of a call or of a thought takes, and some for the piece."""
    piece = event.part if isinstance(event, PartStartEvent) else event.delta
    texts = (getattr(piece, name, None) for name in _TEXTS)
    return _PIECE_BYTES + sum(len(str(text)) for text in texts if text)
