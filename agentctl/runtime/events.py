"""What a run tells while it works. The engine numbers these and puts them on the wire.

The engine adds the start and the end of the run, the ids and the times, and gives each its wire
name (contract.md 5: `RunContent`, `TeamToolCallStarted`, `StepCompleted`, ...).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = [
    "Content",
    "RunEvent",
    "StepCompleted",
    "StepStarted",
    "ToolCallCompleted",
    "ToolCallStarted",
]


@dataclass(frozen=True, slots=True)
class Content:
    """More text of the answer. All deltas of a run, joined, are its content."""

    delta: str


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """A tool is about to run. `tool` is a copy of its entry in `Transcript.tools`."""

    tool: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCallCompleted:
    """A tool has ended, well or not (`tool_call_error`). `tool` is a copy of its entry."""

    tool: dict[str, Any]


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A workflow begins a step; `step_index` counts from 0."""

    step_name: str
    step_index: int


@dataclass(frozen=True, slots=True)
class StepCompleted:
    """A step of a workflow has ended well, with this output."""

    step_name: str
    step_index: int
    content: str


RunEvent = Content | ToolCallStarted | ToolCallCompleted | StepStarted | StepCompleted
