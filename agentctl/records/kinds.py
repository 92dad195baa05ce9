"""The three kinds of component and their names in the interface."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

ComponentKind = Literal["agent", "team", "workflow"]


@dataclass(frozen=True, slots=True)
class KindNames:
    """The names of a kind.

    Attributes:
        kind: the kind, as in `session_type` and in operation ids (`cancel_agent_run`).
        path: plural, the first segment of its routes and the resource of its scopes (`agents`).
        noun: for people (`Agent`).
        tag: OpenAPI tag (`Agents`).
        id_field: name of its id in records and path parameters (`agent_id`).
        event_prefix: prefix of the events about its runs (`TeamRunStarted`, `RunStarted`).
        part_prefix: prefix of the events about a part of its runs (`TeamToolCallStarted`).
    """

    kind: ComponentKind
    path: str
    noun: str
    tag: str
    id_field: str
    event_prefix: str
    part_prefix: str


KINDS: dict[ComponentKind, KindNames] = {
    "agent": KindNames("agent", "agents", "Agent", "Agents", "agent_id", "Run", ""),
    "team": KindNames("team", "teams", "Team", "Teams", "team_id", "TeamRun", "Team"),
    "workflow": KindNames(
        "workflow", "workflows", "Workflow", "Workflows", "workflow_id", "Workflow", ""
    ),
}


def find_component(record: Mapping[str, Any]) -> tuple[ComponentKind, str] | None:
    """Return kind and id of the component that a session, run or event names, None without one."""
    for names in KINDS.values():
        if record.get(names.id_field):
            return names.kind, str(record[names.id_field])
    return None
