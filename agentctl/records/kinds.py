"""The three kinds of component and their names in the interface; states and outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ComponentKind = Literal["agent", "team", "workflow"]

RunStatus = Literal["PENDING", "RUNNING", "COMPLETED", "ERROR", "CANCELLED"]

AuditOutcome = Literal["allowed", "denied", "failed"]


@dataclass(frozen=True, slots=True)
class KindNames:
    """The names of a kind.

    Attributes:
        kind: the kind, as in `session_type` and in operation ids (`cancel_agent_run`).
        path: plural, the first segment of its routes and the resource of its scopes (`agents`).
        noun: for people (`Agent`).
        tag: OpenAPI tag (`Agents`).
        id_field: name of its id in records and path parameters (`agent_id`).
        event_prefix: prefix of its stream events (`TeamRunStarted`, `RunStarted`).
    """

    kind: ComponentKind
    path: str
    noun: str
    tag: str
    id_field: str
    event_prefix: str


KINDS: dict[ComponentKind, KindNames] = {
    "agent": KindNames("agent", "agents", "Agent", "Agents", "agent_id", "Run"),
    "team": KindNames("team", "teams", "Team", "Teams", "team_id", "TeamRun"),
    "workflow": KindNames(
        "workflow", "workflows", "Workflow", "Workflows", "workflow_id", "Workflow"
    ),
}
