"""What happens in a run, as the events that clients see (contract.md 5, agentos.md 2.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

from agentctl.records.kinds import KINDS
from agentctl.records.times import now, seconds
from agentctl.runtime.events import (
    Content,
    RunEvent,
    StepCompleted,
    StepStarted,
    ToolCallCompleted,
    ToolCallStarted,
)

if TYPE_CHECKING:
    from agentctl.runs.live import LiveRun
    from agentctl.runs.states import Ending

__all__ = ["ended", "happened", "started"]

_TOOL_PREFIX = {"agent": "", "team": "Team", "workflow": ""}

_ENDINGS = {"COMPLETED": "Completed", "CANCELLED": "Cancelled", "ERROR": "Error"}


def started(run: LiveRun) -> tuple[str, bytes]:
    """`RunStarted`, `TeamRunStarted` or `WorkflowStarted`: name and data."""
    return _event(run, f"{KINDS[run.component.kind].event_prefix}Started", {})


def happened(run: LiveRun, event: RunEvent) -> tuple[str, bytes]:
    """An event of the work itself: name and data."""
    match event:
        case Content(delta=delta):
            name = f"{KINDS[run.component.kind].event_prefix}Content"
            return _event(run, name, {"content": delta, "content_type": "str"})
        case ToolCallStarted(tool=tool):
            return _event(run, f"{_TOOL_PREFIX[run.component.kind]}ToolCallStarted", {"tool": tool})
        case ToolCallCompleted(tool=tool):
            name = f"{_TOOL_PREFIX[run.component.kind]}ToolCallCompleted"
            return _event(run, name, {"tool": tool})
        case StepStarted(step_name=step, step_index=index):
            return _event(run, "StepStarted", {"step_name": step, "step_index": index})
        case StepCompleted(step_name=step, step_index=index, content=content):
            fields = {"step_name": step, "step_index": index, "content": content}
            return _event(run, "StepCompleted", fields)


def ended(run: LiveRun, ending: Ending) -> tuple[str, bytes]:
    """The last event of a run: name and data. Content is what there is, partial or whole."""
    name = f"{KINDS[run.component.kind].event_prefix}{_ENDINGS[ending.status]}"
    fields: dict[str, Any] = {"content": run.transcript.content}
    if ending.status == "COMPLETED":
        fields["metrics"] = dict(run.transcript.metrics)
    elif ending.status == "CANCELLED":
        fields["reason"] = ending.reason
    else:
        fields["error"] = {"code": ending.error_code, "detail": ending.error_detail}
    return _event(run, name, fields)


def _event(run: LiveRun, name: str, fields: dict[str, Any]) -> tuple[str, bytes]:
    names = KINDS[run.component.kind]
    body: dict[str, Any] = {
        "event": name,
        "created_at": seconds(now()),
        names.id_field: run.component.id,
        f"{names.kind}_name": run.component.name,
        "run_id": run.run_id,
        "session_id": run.session_id,
    }
    if run.parent is not None:
        body["parent_run_id"] = run.parent.run_id
    return name, orjson.dumps(body | fields)
