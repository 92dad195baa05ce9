"""The JSON of a structured output of pydantic-ai while a model writes it.

A model writes an output that is an object as the arguments of an output tool.
"""

from __future__ import annotations

from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic_ai import DeferredToolRequests, ToolOutput
from pydantic_ai.messages import (
    FinalResultEvent,
    PartDeltaEvent,
    PartStartEvent,
    ToolCallPart,
    ToolCallPartDelta,
)


def streams_json(output_type: Any) -> bool:
    """Return True if the arguments of each output tool of an agent are its output.

    Those of an output function are not, and the library wraps outputs that are no objects, which
    `OutputStream` sees at their tool.
    """
    outputs = output_type if isinstance(output_type, list | tuple) else [output_type]
    types = [part for each in outputs for part in _list_types(each)]
    return all(isinstance(each, type) for each in types if each is not DeferredToolRequests)


def _list_types(output: Any) -> tuple[Any, ...]:
    if isinstance(output, ToolOutput):
        return (output.output,)
    # The library creates an output tool for each type of a union.
    return get_args(output) if get_origin(output) in (Union, UnionType) else (output,)


class OutputStream:
    """The output in one answer of a model."""

    def __init__(self) -> None:
        self._parts: dict[int, ToolCallPart] = {}
        self._index: int | None = None

    def read(self, event: object, tools: Any) -> str:
        """Return the JSON that an event adds to the output; empty if it adds none.

        Args:
            tools: the tool manager of the run.
        """
        if isinstance(event, PartStartEvent) and isinstance(event.part, ToolCallPart):
            self._parts[event.index] = event.part
        elif isinstance(event, FinalResultEvent) and event.tool_name is not None:
            return self._begin(event, tools)
        elif isinstance(event, PartDeltaEvent) and event.index == self._index:
            delta = event.delta
            if isinstance(delta, ToolCallPartDelta) and isinstance(delta.args_delta, str):
                return delta.args_delta
        return ""

    def _begin(self, event: FinalResultEvent, tools: Any) -> str:
        tool = tools.get_tool_def(event.tool_name)
        if tool is None or tool.outer_typed_dict_key is not None:
            return ""
        for index, part in self._parts.items():
            is_named = part.tool_name == event.tool_name
            if is_named and event.tool_call_id in (None, part.tool_call_id):
                # Some models send their arguments as a whole and not as text.
                if isinstance(part.args, dict):
                    return ""
                self._index = index
                return part.args or ""
        return ""
