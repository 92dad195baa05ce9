"""The tools with which the leader of a team gives work to its members (docs/contract.md "Team modes
and workflows").

They follow from the configuration alone: `leadership` performs their calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentctl.runtime.tools.tool_records import build_tool

if TYPE_CHECKING:
    from agentctl.config.settings import Team
    from agentctl.records.components import ToolRecord

SET_SHARED_CONTEXT = "set_shared_context"

_SHARED_CONTEXT_TOOL = build_tool(
    SET_SHARED_CONTEXT,
    "Replace the text that every member of the team receives with its task.",
    {"state": {"type": "string", "description": "The whole text; it replaces the last one"}},
)


def delegation_tools(team: Team) -> list[ToolRecord]:
    """Return the tools of a team's leader: that of the mode, and that of the shared context.

    See docs/contract.md "Team modes and workflows".
    """
    # Here, as the items import the records of runs and events, which no list of components needs.
    from agentctl.records.items import DELEGATE, ROUTE

    shared = [_SHARED_CONTEXT_TOOL] if team.enable_agentic_context else []

    if team.mode == "broadcast":
        return shared

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

    return [build_tool(name, description, properties), *shared]
