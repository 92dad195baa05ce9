"""The events that a component emits while it works.

The engine adds the first and the last event of the run, ids, numbers and times, and the names that
clients see (`agentctl.records.events`). The fields are members of the JSON of an event, except
`delta`, whose name depends on the kind of text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from agentctl.records.events import EventKind


@dataclass(frozen=True, slots=True)
class Content:
    """More text of the answer. The joined deltas of a run are its content.

    `origin` has the fields `node`, `message_id` and `member_run_id` that are known.
    """

    kind: ClassVar = EventKind.CONTENT
    delta: str
    origin: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ToolCallStarted:
    """The start of a tool call. `tool` is a copy of its entry in `Transcript.tools`."""

    kind: ClassVar = EventKind.TOOL_CALL_STARTED
    tool: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ToolCallCompleted:
    """The end of a tool call; `tool_call_error` shows a failure. `tool` is a copy of its entry."""

    kind: ClassVar = EventKind.TOOL_CALL_COMPLETED
    tool: dict[str, Any]


@dataclass(frozen=True, slots=True)
class ThinkingDelta:
    """More text of the thinking of a model or of an agent in code; not part of the answer."""

    kind: ClassVar = EventKind.THINKING
    delta: str


@dataclass(frozen=True, slots=True)
class ProgressReported:
    """Progress that a tool or an agent in code reports: a text, a fraction from 0 to 1, or both."""

    kind: ClassVar = EventKind.PROGRESS
    text: str | None
    fraction: float | None


@dataclass(frozen=True, slots=True)
class Compacted:
    """A model call that leaves out more messages than the one before (docs/models.md).

    `estimated_tokens` is None for stored data that is damaged, which no call of the run gets.
    `summary` is the summary of the first answers, in the event of the first call that has it.
    """

    kind: ClassVar = EventKind.COMPACTED
    omissions: list[dict[str, Any]]
    estimated_tokens: int | None
    window: int | None
    summary: str | None = None


@dataclass(frozen=True, slots=True)
class FileSaved:
    """A file that the code of the run has saved: its reference, with `version` and `created_at`."""

    kind: ClassVar = EventKind.FILE_SAVED
    file: dict[str, Any]


@dataclass(frozen=True, slots=True)
class MessageDelivered:
    """A message that was sent to the run while it works, and that is part of it now.

    The run takes it from `RunEnvironment.take_messages`, and publishes it as it is.
    `model_call_id` is the model call that gets it; None if the code of the run takes it.
    """

    kind: ClassVar = EventKind.MESSAGE_DELIVERED
    message_id: str
    content: str
    model_call_id: str | None


@dataclass(frozen=True, slots=True)
class BudgetWarned:
    """The run is the first one that finds a budget at the level of its warning in a period."""

    kind: ClassVar = EventKind.BUDGET_WARNED
    budget_id: str
    period: str
    unit: str
    limit: float
    warn_at: float


@dataclass(frozen=True, slots=True)
class StepStarted:
    """The start of a workflow's step; `step_index` counts from 0."""

    kind: ClassVar = EventKind.STEP_STARTED
    step_name: str
    step_index: int


@dataclass(frozen=True, slots=True)
class StepCompleted:
    """The success of a workflow's step, with its output."""

    kind: ClassVar = EventKind.STEP_COMPLETED
    step_name: str
    step_index: int
    content: str


RunEvent = (
    Content
    | ThinkingDelta
    | ProgressReported
    | ToolCallStarted
    | ToolCallCompleted
    | Compacted
    | FileSaved
    | MessageDelivered
    | BudgetWarned
    | StepStarted
    | StepCompleted
)
