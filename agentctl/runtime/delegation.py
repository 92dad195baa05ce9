"""The tool that a team's mode gives its leader, as records show it and the model gets it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentctl.config.settings import Team, TeamMode
    from agentctl.records.components import ToolRecord

__all__ = ["DELEGATE", "ROUTE", "delegation_tools"]

DELEGATE = "delegate_task_to_member"
ROUTE = "route_to_member"

_MEMBER = "Id of the member"


def delegation_tools(team: Team) -> list[ToolRecord]:
    """The tools that the mode of a team gives its leader (contract.md 5): one, or none."""
    tools: dict[TeamMode, list[ToolRecord]] = {
        "coordinate": [_delegate_record(team.members)],
        "route": [_route_record(team.members)],
        "broadcast": [],
    }
    return tools[team.mode]


def _delegate_record(members: Sequence[str]) -> ToolRecord:
    return {
        "name": DELEGATE,
        "description": "Give a task to a member of the team and get the member's answer.",
        "parameters": _parameters(
            members, task={"type": "string", "description": "What the member is to do"}
        ),
    }


def _route_record(members: Sequence[str]) -> ToolRecord:
    return {
        "name": ROUTE,
        "description": "Pass the user's message to the member who answers it for the team.",
        "parameters": _parameters(members),
    }


def _parameters(members: Sequence[str], **others: dict[str, Any]) -> dict[str, Any]:
    member = {"type": "string", "enum": list(members), "description": _MEMBER}
    properties = {"member_id": member, **others}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
