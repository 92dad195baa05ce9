"""The events of runs: their names, kinds and final statuses, and one parser.

No other module parses the name of an event (docs/contract.md "Events"). The name of an event
is the prefix of the component and the kind: `RunContent`, `TeamRunContent`, `TeamToolCallStarted`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from agentctl.errors import InvalidResponse
from agentctl.records.kinds import KINDS, ComponentKind, find_component
from agentctl.records.phase import describe_wait
from agentctl.records.runs import FinalStatus


class EventKind(Enum):
    """The kind of an event; the value is the end of its names."""

    QUEUED = "Queued"
    STARTED = "Started"
    CONTENT = "Content"
    PROGRESS = "Progress"
    COMPLETED = "Completed"
    CANCELLED = "Cancelled"
    FAILED = "Error"
    THINKING = "ReasoningContentDelta"
    TOOL_CALL_STARTED = "ToolCallStarted"
    TOOL_CALL_COMPLETED = "ToolCallCompleted"
    PAUSED = "Paused"
    CONTINUED = "Continued"
    COMPACTED = "ContextCompacted"
    FILE_SAVED = "FileSaved"
    MESSAGE_DELIVERED = "MessageDelivered"
    BUDGET_WARNED = "BudgetWarning"
    STEP_STARTED = "StepStarted"
    STEP_COMPLETED = "StepCompleted"


END_STATUSES: dict[EventKind, FinalStatus] = {
    EventKind.COMPLETED: "COMPLETED",
    EventKind.CANCELLED: "CANCELLED",
    EventKind.FAILED: "ERROR",
}
"""The kinds of the last event of a run, with its final status."""

STREAM_CUT = "The stream ended before the run"
"""Public text of a run whose stream has ended without its last event; it may still work."""

END_KINDS = {status: kind for kind, status in END_STATUSES.items()}

TEXT_KINDS = frozenset({EventKind.CONTENT, EventKind.THINKING})
"""The kinds with a new part of a text, most events of a stream."""

_RUN_KINDS = frozenset(
    {
        EventKind.QUEUED,
        EventKind.STARTED,
        EventKind.CONTENT,
        EventKind.PROGRESS,
        EventKind.PAUSED,
        EventKind.CONTINUED,
        *END_STATUSES,
    }
)
"""The kinds about a run itself; their names have the word `Run` or `Workflow` in the prefix."""

EVENT_NAMES: dict[ComponentKind, dict[EventKind, str]] = {
    component: {
        kind: (names.event_prefix if kind in _RUN_KINDS else names.part_prefix) + kind.value
        for kind in EventKind
    }
    for component, names in KINDS.items()
}
"""The names of events, by kind of component and kind of event."""

END_NAMES: dict[ComponentKind, dict[str, FinalStatus]] = {
    component: {names[kind]: status for kind, status in END_STATUSES.items()}
    for component, names in EVENT_NAMES.items()
}
"""The names of the last event of a run, with its final status, by kind of component."""

LAST_NAMES: dict[ComponentKind, frozenset[str]] = {
    component: frozenset({*END_NAMES[component], names[EventKind.PAUSED]})
    for component, names in EVENT_NAMES.items()
}
"""The names of the last event of a stream: a run that pauses ends it, too."""

CONTENT_NAMES = frozenset(names[EventKind.CONTENT] for names in EVENT_NAMES.values())
"""The names of the events with a new part of the content of a run."""

_KINDS = {name: kind for names in EVENT_NAMES.values() for kind, name in names.items()}

_TYPES: dict[str, type] = {
    **dict.fromkeys(("tool", "error", "metrics"), dict),
    **dict.fromkeys(("run_id", "parent_run_id", "session_id"), str),
    **dict.fromkeys((names.id_field for names in KINDS.values()), str),
}
"""The types of the members that readers use; each may be null or missing."""


OmissionKind = Literal[
    "failed_run", "files", "tool_result", "runs", "turns", "summarized",
    "damaged_messages", "damaged_native", "damaged_state", "damaged_summary",
]  # fmt: skip

_OMITTED: dict[OmissionKind, str] = {
    "failed_run": "earlier runs that were too large",
    "files": "files of earlier messages",
    "tool_result": "results of tools",
    "runs": "earlier runs",
    "turns": "earlier answers",
    "summarized": "earlier answers, of which there is a summary",
    "damaged_messages": "earlier runs whose stored messages are damaged",
    "damaged_native": "the library's messages of earlier runs, which are damaged",
    "damaged_state": "the stored state of the session, which is damaged",
    "damaged_summary": "the stored summary of the session, which is damaged",
}


def describe_compacted(compacted: Mapping[str, Any]) -> str:
    """Return one line about the messages that a model call does not show whole.

    Args:
        compacted: the member of an answer, or the members of an event.
    """
    parts = list[str]()
    for omission in compacted.get("omissions") or ():
        kind = _OMITTED.get(omission["kind"], omission["kind"])
        parts.append(f"{kind}: {omission['count']} ({omission['size']} bytes)")
    return f"not shown whole to the model: {', '.join(parts)}"


def describe_file(file: Mapping[str, Any]) -> str:
    """Return one line about a file that a run has saved."""
    name = file.get("name")
    version = file.get("version")
    return f"saved {name} ({file.get('media_type')}, {file.get('size')} bytes), version {version}"


def describe_budget(data: Mapping[str, Any]) -> str:
    """Return one line about the warning of a budget."""
    level = f"{data.get('warn_at'):,} of {data.get('limit'):,} {data.get('unit')}"
    return f"the budget {data.get('budget_id')} has reached {level} a {data.get('period')}"


_DESCRIPTIONS: dict[EventKind, Callable[[Mapping[str, Any]], str]] = {
    EventKind.QUEUED: lambda data: f"queued: place {data.get('queue_position')} in its session",
    EventKind.STARTED: lambda _: "started",
    EventKind.CONTINUED: lambda _: "continued",
    EventKind.COMPLETED: lambda _: "completed",
    EventKind.CANCELLED: lambda _: "was cancelled",
    EventKind.COMPACTED: describe_compacted,
    EventKind.FILE_SAVED: lambda data: describe_file(data.get("file") or {}),
    EventKind.MESSAGE_DELIVERED: lambda data: f"got the message: {data.get('content')}",
    EventKind.BUDGET_WARNED: lambda data: describe_budget(data),
    EventKind.STEP_STARTED: lambda data: f"step {data.get('step_name')}",
    EventKind.STEP_COMPLETED: lambda data: f"step {data.get('step_name')} completed",
}
"""Descriptions of the events for which their members alone are enough."""


def find_event_kind(name: str) -> EventKind | None:
    """Return the kind of an event by its name; None for an unknown event."""
    return _KINDS.get(name)


@dataclass(frozen=True, slots=True)
class Event:
    """One event of a run."""

    name: str
    """`RunStarted`, `TeamRunContent`, ..."""

    kind: EventKind | None
    """None for an unknown event of a newer server."""

    data: Mapping[str, Any]
    """The members of its JSON object."""

    seq: int = 0
    """Its number in the stream, from 0."""

    @property
    def run_id(self) -> str:
        return self.data.get("run_id") or ""

    @property
    def at(self) -> str | None:
        """The time of the event, RFC 3339."""
        return self.data.get("at")

    @property
    def text(self) -> str:
        """The new part of a text; empty for kinds without one."""
        field = "reasoning_content" if self.kind is EventKind.THINKING else "content"
        return str(self.data.get(field) or "") if self.kind in TEXT_KINDS else ""

    @property
    def tool(self) -> Mapping[str, Any]:
        """The tool call of the event; empty without one."""
        return self.data.get("tool") or {}

    @property
    def call_id(self) -> str:
        return str(self.tool.get("tool_call_id"))

    @property
    def end_status(self) -> FinalStatus | None:
        """The final status of the run, if this is its last event."""
        return END_STATUSES.get(self.kind) if self.kind is not None else None

    @property
    def is_about_run(self) -> bool:
        """True for the start and the end of a run."""
        return self.kind is EventKind.STARTED or self.kind in END_STATUSES

    @property
    def component_name(self) -> str:
        """The name of the component of the run, else its id, else the id of the run."""
        component = find_component(self.data)
        if component is None:
            return str(self.data.get("run_id"))
        return str(self.data.get(f"{component[0]}_name") or component[1])

    def describe(self) -> str | None:
        """Return the event in one line for people, None for a text or an unknown event."""
        tool = self.tool
        match self.kind:
            case EventKind.TOOL_CALL_STARTED:
                arguments = json.dumps(tool.get("tool_args") or {}, ensure_ascii=False)
                return f"calls {tool.get('tool_name')} {arguments}"
            case EventKind.TOOL_CALL_COMPLETED:
                outcome = "failed" if tool.get("tool_call_error") else "returned"
                return f"{tool.get('tool_name')} {outcome}: {tool.get('result')}"
            case EventKind.PROGRESS:
                fraction = self.data.get("fraction")
                percent = f"{fraction:.0%}" if isinstance(fraction, int | float) else None
                parts = (percent, self.data.get("text"))
                return "progress: " + " ".join(str(part) for part in parts if part)
            case EventKind.PAUSED:
                approvals = self.data.get("approvals")
                return f"paused: waits for {describe_wait(approvals) if approvals else 'a member'}"
            case EventKind.FAILED:
                error = self.data.get("error") or {}
                return f"ended as ERROR, {error.get('code')}: {error.get('detail')}"

        describe = None if self.kind is None else _DESCRIPTIONS.get(self.kind)
        return None if describe is None else describe(self.data)


def parse_event(name: str, data: bytes | str, seq: int = 0) -> Event:
    """Return an event with its data.

    Args:
        data: one JSON object.
        seq: the number of the event.

    Raises:
        InvalidResponse: the data is not a JSON object, or a member has another type.
    """
    import orjson

    try:
        parsed = orjson.loads(data)
    except orjson.JSONDecodeError:
        parsed = None

    has_types = isinstance(parsed, dict) and all(
        isinstance(parsed.get(field), expected | None) for field, expected in _TYPES.items()
    )
    if not has_types:
        raise InvalidResponse(
            "the server sent an event that is not what agentctl expects",
            cause=f"the data of event {seq} is not JSON, or has fields of another type",
            hint="check --url, including its path, and the version of the server",
        )

    return Event(name, _KINDS.get(name), parsed, seq)
