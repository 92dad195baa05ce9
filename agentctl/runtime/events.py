"""The events that a component emits while it works.

The engine adds the first and the last event of the run, ids, numbers and times, and the names that
clients see (docs/contract.md "Events": `RunContent`, `TeamToolCallStarted`, `StepCompleted`, ...).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Content:
    """More text of the answer. The joined deltas of a run are its content."""

    delta: str


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """The start of a tool call. `tool` is a copy of its entry in `Transcript.tools`."""

    tool: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCallCompleted:
    """The end of a tool call; `tool_call_error` shows a failure. `tool` is a copy of its entry."""

    tool: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Thinking:
    """More text of the thinking of a model or of an agent in code; not part of the answer."""

    delta: str


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress that a tool or an agent in code reports: a text, a fraction from 0 to 1, or both."""

    text: str | None
    fraction: float | None


@dataclass(frozen=True, slots=True)
class StepStarted:
    """The start of a workflow's step; `step_index` counts from 0."""

    step_name: str
    step_index: int


@dataclass(frozen=True, slots=True)
class StepCompleted:
    """The success of a workflow's step, with its output."""

    step_name: str
    step_index: int
    content: str


RunEvent = (
    Content
    | Thinking
    | Progress
    | ToolCallStarted
    | ToolCallCompleted
    | StepStarted
    | StepCompleted
)
