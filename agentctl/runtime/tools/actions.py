"""Calls of configured tools, with their time limit and their failures."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from agentctl.light_dataclass import dataclass
from agentctl.runtime.context import RunHost, build_run_context
from agentctl.runtime.json_values import NotSerializable
from agentctl.runtime.pauses import CallOutcome
from agentctl.runtime.tools.functions import InvalidArguments, Tool, result_to_text
from agentctl.runtime.transcript.conversation import Conversation
from agentctl.work.event_loop import TooManyAbandonedThreads, wait_until_done
from agentctl.work.started_work import CodeScope
from agentctl.work.unstopped import abandon_task, run_in_thread

if TYPE_CHECKING:
    from agentctl.records.components import ToolRecord
    from agentctl.runtime.context import RunEnvironment

_log = logging.getLogger("agentctl.runtime")

_TOOL_GRACE_SECONDS = 0.05
"""Time that a cancelled asynchronous tool has to clean up before it is abandoned."""


class _ToolFailed(Exception):
    """A tool raised an exception; `name` is the class of that exception."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True, slots=True)
class ToolAction:
    """A configured tool as an action of a model."""

    has_effects: ClassVar[bool] = True

    tool: Tool

    @property
    def idempotent(self) -> bool:
        return self.tool.options.idempotent

    def record(self) -> ToolRecord:
        return self.tool.record()

    async def perform(
        self, arguments: Mapping[str, Any], conversation: Conversation
    ) -> CallOutcome:
        return await self._attempt(arguments, conversation.context)

    async def check(
        self, arguments: Mapping[str, Any], conversation: Conversation
    ) -> CallOutcome | None:
        """Return the failure of a call whose arguments do not match the signature, or None."""
        outcome = await self._attempt(arguments, conversation.context, checks_only=True)
        return outcome if outcome.failed else None

    async def _attempt(
        self, arguments: Mapping[str, Any], context: RunEnvironment, *, checks_only: bool = False
    ) -> CallOutcome:
        name = self.tool.name
        try:
            return CallOutcome(await self._call(arguments, context, checks_only))
        except InvalidArguments as error:
            text = f"The arguments of {name} are not valid: {error}"
        except TimeoutError:
            text = f"The tool {name} did not end within {context.spec.tool_timeout:g} seconds"
        except TooManyAbandonedThreads:
            text = f"The tool {name} was not called: too many earlier calls never ended"
        except NotSerializable:
            text = f"The tool {name} gave a result without a JSON form"
        except _ToolFailed as failure:
            text = f"The tool {name} failed ({failure.name})"
        return CallOutcome(text, failed=True)

    async def _call(
        self, arguments: Mapping[str, Any], context: RunEnvironment, checks_only: bool
    ) -> str:
        """Call the function within the time limit of tools.

        The wait is bounded here, not with `asyncio.timeout`: that would wait for ever for a tool
        that ignores its cancellation.
        """
        name, unstopped = self.tool.name, context.transcript.unstopped
        host, scope = RunHost(context), CodeScope(unstopped, name)
        call = self._call_guarded(arguments, context, host, checks_only)
        task = asyncio.create_task(_call_inside(scope, call), name=f"tool {name}")
        try:
            done, _ = await asyncio.wait({task}, timeout=context.spec.tool_timeout)
            if not done:
                raise TimeoutError
        except (asyncio.CancelledError, TimeoutError):
            host.abandoned = True
            abandon_task(task)
            try:
                await wait_until_done({task}, _TOOL_GRACE_SECONDS)
            finally:
                unstopped.add(task, name)
                scope.cancel()
            raise
        if task.cancelled():
            raise _ToolFailed("CancelledError")
        if isinstance(task.exception(), GeneratorExit):
            raise _ToolFailed("GeneratorExit")
        return task.result()

    async def _call_guarded(
        self,
        arguments: Mapping[str, Any],
        context: RunEnvironment,
        host: RunHost,
        checks_only: bool,
    ) -> str:
        tool, limit = self.tool, context.limits.tool_result_bytes
        filled = {name: build_run_context(context, host) for name in tool.contexts}
        try:
            if tool.is_async:
                values = tool.convert(arguments)
                if checks_only:
                    return ""
                return result_to_text(await tool.function(**values, **filled), limit)

            def call() -> str:
                values = tool.convert(arguments)
                return (
                    "" if checks_only else result_to_text(tool.function(**values, **filled), limit)
                )

            return await run_in_thread(call, tool.name, context.transcript.unstopped)
        except (asyncio.CancelledError, GeneratorExit, InvalidArguments, TooManyAbandonedThreads):
            raise
        except NotSerializable as error:
            _log.warning("tool %s: no JSON form", tool.name, exc_info=error)
            context.keep_cause(error, tool.name)
            raise
        except BaseException as error:
            # The text of the exception may contain secrets: it goes to the log, not to the model.
            _log.warning("tool %s failed", tool.name, exc_info=error)
            context.keep_cause(error, tool.name)
            raise _ToolFailed(type(error).__name__) from None


async def _call_inside(scope: CodeScope, call: Awaitable[str]) -> str:
    with scope.enter():
        return await call
