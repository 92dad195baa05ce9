"""What a model may call: a configured tool, or a member of its team. All have one shape."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from agentctl.runtime.leftovers import leave
from agentctl.runtime.threads import TooManyLeft, in_thread

if TYPE_CHECKING:
    from agentctl.records.components import ToolRecord
    from agentctl.runtime.context import RunContext
    from agentctl.runtime.conversation import Conversation
    from agentctl.runtime.leftovers import Leftovers
    from agentctl.runtime.tools import Tool

__all__ = ["Action", "Outcome", "ToolAction"]

_log = logging.getLogger("agentctl.runtime")

_GRACE_SECONDS = 0.05
"""How long a cancelled asynchronous tool may take to clean up before it is left behind."""


@dataclass(frozen=True, slots=True)
class Outcome:
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

    async def perform(self, arguments: Mapping[str, Any], conversation: Conversation) -> Outcome:
        """Do it. Failures are outcomes; raises RunFailure and asyncio.CancelledError only."""
        ...


@dataclass(frozen=True, slots=True)
class ToolAction:
    """A configured tool."""

    tool: Tool

    def record(self) -> ToolRecord:
        return self.tool.record()

    async def perform(self, arguments: Mapping[str, Any], conversation: Conversation) -> Outcome:
        from agentctl.runtime.tools import BadArguments

        context = conversation.context
        try:
            values = self.tool.convert(arguments)
        except BadArguments as error:
            return Outcome(f"The arguments of {self.tool.name} do not fit: {error}", failed=True)
        try:
            result = await self._call(values, context)
        except TimeoutError:
            seconds = context.tool_timeout
            return Outcome(
                f"The tool {self.tool.name} did not end within {seconds:g} seconds", failed=True
            )
        except TooManyLeft:
            return Outcome(
                f"The tool {self.tool.name} was not called: too many earlier calls never ended",
                failed=True,
            )
        except _Failed as failure:
            return Outcome(f"The tool {self.tool.name} failed ({failure.name})", failed=True)
        return self._told(result, context.limits.tool_result_bytes)

    async def _call(self, values: Mapping[str, Any], context: RunContext) -> Any:
        """Call the function, for at most the time of a tool.

        Waiting is bounded here and not with asyncio.timeout, which would wait for ever for a tool
        that swallows its cancellation.
        """
        name, leftovers = self.tool.name, context.transcript.leftovers
        task = asyncio.create_task(self._work(values, leftovers), name=f"tool {name}")
        try:
            done, _ = await asyncio.wait({task}, timeout=context.tool_timeout)
            if not done:
                raise TimeoutError
        except (asyncio.CancelledError, TimeoutError):
            leave(task)
            try:
                await asyncio.wait({task}, timeout=_GRACE_SECONDS)
            finally:
                leftovers.add(task, name)
            raise
        if task.cancelled():
            raise _Failed("CancelledError")
        if isinstance(task.exception(), GeneratorExit):
            raise _Failed("GeneratorExit")
        return task.result()

    async def _work(self, values: Mapping[str, Any], leftovers: Leftovers) -> Any:
        try:
            if self.tool.is_async:
                return await self.tool.function(**values)
            return await in_thread(lambda: self.tool.function(**values), self.tool.name, leftovers)
        except (asyncio.CancelledError, GeneratorExit, TooManyLeft):
            raise
        except BaseException as error:
            # The text of the exception may hold secrets: the log has it, the model does not.
            _log.warning("tool %s failed", self.tool.name, exc_info=error)
            raise _Failed(type(error).__name__) from None

    def _told(self, result: object, limit: int) -> Outcome:
        """The result as text: a string as it is, anything else as JSON, cut at the limit."""
        if isinstance(result, str):
            return Outcome(_cut(result, limit))
        from pydantic_core import PydanticSerializationError, to_jsonable_python

        try:
            value = to_jsonable_python(result)
            text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
            return Outcome(_cut(text, limit))
        except (PydanticSerializationError, ValueError, RecursionError) as error:
            _log.warning(
                "tool %s gave a result without a JSON form", self.tool.name, exc_info=error
            )
            return Outcome(
                f"The tool {self.tool.name} gave a result without a JSON form", failed=True
            )


class _Failed(Exception):
    """A tool raised; `name` is the class of what it raised."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def _cut(text: str, limit: int) -> str:
    """At most `limit` bytes of UTF-8, never half a character."""
    data = text.encode("utf-8", "replace")
    return text if len(data) <= limit else data[:limit].decode("utf-8", "ignore")
