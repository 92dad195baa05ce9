"""The actions of a conversation as the model library's toolset."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_ai.messages import ToolCallPart
from pydantic_ai.tools import RunContext, ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool

from agentctl.runtime.actions import Action
from agentctl.runtime.conversation import Conversation

__all__ = ["ActionToolset"]


class ActionToolset(AbstractToolset[Conversation]):
    """Hands every call of a known tool to the run's conversation, whatever its arguments.

    The library would check arguments and retry by rules of its own; here the action does, with
    the same schema that the listing shows, so that each call leaves its trace.
    """

    def __init__(self, actions: Mapping[str, Action]) -> None:
        arguments = _AnyArguments()
        self._tools = {
            name: ToolsetTool(
                toolset=self,
                tool_def=_definition(action),
                max_retries=1,
                args_validator=arguments,
            )
            for name, action in actions.items()
        }

    @property
    def id(self) -> str:
        return "agentctl"

    async def get_tools(
        self, ctx: RunContext[Conversation]
    ) -> dict[str, ToolsetTool[Conversation]]:
        return dict(self._tools)

    async def call_tool(
        self,
        name: str,
        tool_args: dict[str, Any],
        ctx: RunContext[Conversation],
        tool: ToolsetTool[Conversation],
    ) -> str:
        return await ctx.deps.call(ctx.tool_call_id or "", name, tool_args)


class _AnyArguments:
    """Takes what a model sent as arguments; what is no JSON object is marked as such."""

    def validate_json(self, input: str | bytes | bytearray, **_: Any) -> dict[str, Any]:
        text = input if isinstance(input, str) else bytes(input).decode("utf-8", "replace")
        return ToolCallPart("any", text).args_as_dict()

    def validate_python(self, input: Any, **_: Any) -> Any:
        return input


def _definition(action: Action) -> ToolDefinition:
    record = action.record()
    return ToolDefinition(
        name=record["name"],
        description=record["description"],
        parameters_json_schema=record["parameters"],
    )
