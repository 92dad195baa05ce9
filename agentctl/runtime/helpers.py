"""The tasks that the model library starts for a run, so that none outlives it.

The library works a run, and every call of a model, in tasks of its own. When a run is cancelled
in the moment between the start of such a task and its handing over, the library (2.68) lets go of
it: it would wait for ever, a call of a model with its connection open.
"""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.capabilities.abstract import WrapModelRequestHandler, WrapRunHandler
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import ModelRequestContext
from pydantic_ai.run import AgentRunResult
from pydantic_ai.tools import RunContext

from agentctl.runtime.conversation import Conversation

__all__ = ["KnownHelpers"]


class KnownHelpers(AbstractCapability[Conversation]):
    """Notes in the conversation of a run which tasks work for it."""

    async def wrap_run(
        self, ctx: RunContext[Conversation], *, handler: WrapRunHandler
    ) -> AgentRunResult[Any]:
        _note(ctx.deps)
        return await handler()

    async def wrap_model_request(
        self,
        ctx: RunContext[Conversation],
        *,
        request_context: ModelRequestContext,
        handler: WrapModelRequestHandler,
    ) -> ModelResponse:
        _note(ctx.deps)
        return await handler(request_context)


def _note(conversation: Conversation) -> None:
    task = asyncio.current_task()
    if task is not None:
        conversation.helpers.append(task)
