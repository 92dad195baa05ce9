"""The delegation tool of a team's leader, for records and for the model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentctl.config.settings import Team
    from agentctl.records.components import ToolRecord

DELEGATE = "delegate_task_to_member"
ROUTE = "route_to_member"


def delegation_tools(team: Team) -> list[ToolRecord]:
    """Return the tools that the mode of a team gives its leader: one, or none for broadcast.

    See docs/contract.md "Team modes and workflows".
    """
    if team.mode == "broadcast":
        return []
    properties: dict[str, Any] = {
        "member_id": {
            "type": "string",
            "enum": list(team.members),
            "description": "Id of the member",
        }
    }
    if team.mode == "coordinate":
        name = DELEGATE
        description = "Give a task to a member of the team and get the member's answer."
        properties["task"] = {"type": "string", "description": "What the member is to do"}
    else:
        name = ROUTE
        description = "Pass the user's message to the member who answers it for the team."
    return [
        {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": list(properties),
                "additionalProperties": False,
            },
        }
    ]
