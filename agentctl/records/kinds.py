"""The three kinds of component and their names in the interface; states and outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from agentctl.errors import UsageError

ComponentKind = Literal["agent", "team", "workflow"]
ComponentRef = tuple[ComponentKind, str]
"""The kind and the id of a component."""

Record = Mapping[str, Any]
"""A parsed record; its reader needs only some fields."""

RunStatus = Literal["PENDING", "RUNNING", "PAUSED", "COMPLETED", "ERROR", "CANCELLED"]

OnBusy = Literal["allow", "reject", "enqueue", "steer"]
"""The handling of a request for a run while an earlier run of its session is open."""

ApprovalPolicy = Literal["user", "other"]
"""The deciders: the user of the run, or an approver; or only an approver who is not that user (four
eyes)."""

AuditOutcome = Literal["allowed", "denied", "failed"]


@dataclass(frozen=True, slots=True)
class KindNames:
    """The names of a kind."""

    kind: ComponentKind
    """The kind, as in `session_type` and in operation ids (`cancel_agent_run`)."""

    path: str
    """Plural, the first segment of its routes and the resource of its scopes (`agents`)."""

    noun: str
    """Name in messages (`Agent`)."""

    tag: str
    """OpenAPI tag (`Agents`)."""

    id_field: str
    """Name of its id in records and path parameters (`agent_id`)."""

    event_prefix: str
    """Prefix of the events about its runs (`TeamRunStarted`, `RunStarted`)."""

    part_prefix: str
    """Prefix of the events about a part of its runs (`TeamToolCallStarted`)."""


KINDS: dict[ComponentKind, KindNames] = {
    "agent": KindNames("agent", "agents", "Agent", "Agents", "agent_id", "Run", ""),
    "team": KindNames("team", "teams", "Team", "Teams", "team_id", "TeamRun", "Team"),
    "workflow": KindNames(
        "workflow", "workflows", "Workflow", "Workflows", "workflow_id", "Workflow", ""
    ),
}


def find_component(record: Mapping[str, Any]) -> ComponentRef | None:
    """Return the component that the record of a session or run names, None if it names none."""
    for names in KINDS.values():
        if record.get(names.id_field):
            return names.kind, cast(str, record[names.id_field])
    return None


def component_of_run(run: Mapping[str, Any]) -> ComponentRef:
    """Return the component that the record of a run names.

    Raises:
        UsageError: it names none.
    """
    component = find_component(run)
    if component is not None:
        return component
    raise UsageError(
        "the server did not report the component of the run",
        hint="pass --agent ID, --team ID or --workflow ID, and --session ID",
    )
