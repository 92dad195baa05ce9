"""What a model may call: a configured tool, or a member of its team. All have one shape."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from agentctl.runtime.tools import NotSerializable, result_to_text
from agentctl.runtime.unstopped import (
    TooManyAbandonedThreads,
    abandon_task,
    run_in_thread,
    wait_until_done,
)

if TYPE_CHECKING:
    from agentctl.records.components import ToolRecord
    from agentctl.runtime.context import RunContext
    from agentctl.runtime.conversation import Conversation
    from agentctl.runtime.tools import Tool

__all__ = ["Action", "CallOutcome", "ToolAction"]

_log = logging.getLogger("agentctl.runtime")

_TOOL_GRACE_SECONDS = 0.05
"""How long a cancelled asynchronous tool may take to clean up before it is left behind."""


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What a call came to: the text that the model gets.

    Attributes:
        failed: the call did not do what it was asked to.
        counts: a failure that counts towards giving up on the tool.
    """

    text: str
    failed: bool = False
    counts: bool = True


class Action(Protocol):
    """Something that a model may call by name."""

    def record(self) -> ToolRecord: ...

    async def perform(
        self, arguments: Mapping[str, Any], conversation: Conversation
    ) -> CallOutcome:
        """Do it. Failures are outcomes; raises RunFailure and asyncio.CancelledError only."""
        ...


@dataclass(frozen=True, slots=True)
class ToolAction:
    """A configured tool."""

    tool: Tool

    def record(self) -> ToolRecord:
        return self.tool.record()

    async def perform(
        self, arguments: Mapping[str, Any], conversation: Conversation
    ) -> CallOutcome:
        from agentctl.runtime.tools import InvalidArguments

        name, context = self.tool.name, conversation.context
        try:
            return CallOutcome(await self._call(arguments, context))
        except InvalidArguments as error:
            told = f"The arguments of {name} do not fit: {error}"
        except TimeoutError:
            told = f"The tool {name} did not end within {context.tool_timeout:g} seconds"
        except TooManyAbandonedThreads:
            told = f"The tool {name} was not called: too many earlier calls never ended"
        except NotSerializable:
            told = f"The tool {name} gave a result without a JSON form"
        except _ToolFailed as failure:
            told = f"The tool {name} failed ({failure.name})"
        return CallOutcome(told, failed=True)

    async def _call(self, arguments: Mapping[str, Any], context: RunContext) -> str:
        """Call the function, for at most the time of a tool.

        Waiting is bounded here and not with asyncio.timeout, which would wait for ever for a tool
        that swallows its cancellation.
        """
        name, leftovers = self.tool.name, context.transcript.unstopped
        task = asyncio.create_task(self._call_guarded(arguments, context), name=f"tool {name}")
        try:
            done, _ = await asyncio.wait({task}, timeout=context.tool_timeout)
            if not done:
                raise TimeoutError
        except (asyncio.CancelledError, TimeoutError):
            abandon_task(task)
            try:
                await wait_until_done({task}, _TOOL_GRACE_SECONDS)
            finally:
                leftovers.add(task, name)
            raise
        if task.cancelled():
            raise _ToolFailed("CancelledError")
        if isinstance(task.exception(), GeneratorExit):
            raise _ToolFailed("GeneratorExit")
        return task.result()

    async def _call_guarded(self, arguments: Mapping[str, Any], context: RunContext) -> str:
        """The call itself. Whatever the tool raises is its failure, also what ends a program."""
        from agentctl.runtime.tools import InvalidArguments

        try:
            return await self._work(arguments, context)
        except (asyncio.CancelledError, GeneratorExit, InvalidArguments, TooManyAbandonedThreads):
            raise
        except NotSerializable as error:
            _log.warning("tool %s: no JSON form", self.tool.name, exc_info=error)
            raise
        except BaseException as error:
            # The text of the exception may hold secrets: the log has it, the model does not.
            _log.warning("tool %s failed", self.tool.name, exc_info=error)
            raise _ToolFailed(type(error).__name__) from None

    async def _work(self, arguments: Mapping[str, Any], context: RunContext) -> str:
        tool, limit = self.tool, context.limits.tool_result_bytes
        if tool.is_async:
            return result_to_text(await tool.function(**tool.convert(arguments)), limit)

        def call() -> str:
            return result_to_text(tool.function(**tool.convert(arguments)), limit)

        return await run_in_thread(call, tool.name, context.transcript.unstopped)


class _ToolFailed(Exception):
    """A tool raised; `name` is the class of what it raised."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
