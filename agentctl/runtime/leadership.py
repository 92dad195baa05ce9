"""What a team's leader is told and may do (contract.md 5, team modes)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agentctl.config.settings import Team
from agentctl.runtime.conversation import Action, CallOutcome
from agentctl.runtime.delegation import DELEGATE, delegation_tools

if TYPE_CHECKING:
    from agentctl.records.components import ToolRecord
    from agentctl.runtime.component import Component
    from agentctl.runtime.context import MemberResult
    from agentctl.runtime.conversation import Conversation

__all__ = ["build_leader_instructions", "build_member_actions", "build_member_outcome"]

_DUTIES = {
    "coordinate": "You lead a team. Give tasks to its members where that helps, and answer the "
    "user from what they report.",
    "route": "You lead a team. Pass the user's message to the one member who is best suited to "
    "answer it.",
    "broadcast": "You lead a team. Every member was given the user's message. Answer the user "
    "from what they report.",
}


def build_leader_instructions(team: Component, members: Mapping[str, Component]) -> str:
    """The team's own instructions, what its mode asks of the leader, and who the members are."""
    assert isinstance(team.spec, Team)
    roster = "\n".join(_describe_member(member) for member in members.values())
    parts = [team.spec.instructions, _DUTIES[team.spec.mode], f"Members:\n{roster}"]
    return "\n\n".join(part for part in parts if part)


def build_member_actions(team: Component, members: Mapping[str, Component]) -> list[Action]:
    """What the mode of a team lets its leader call."""
    assert isinstance(team.spec, Team)
    return [
        _Delegate(tool, members) if tool["name"] == DELEGATE else _Route(tool, members)
        for tool in delegation_tools(team.spec)
    ]


def build_member_outcome(member: Component, result: MemberResult) -> CallOutcome:
    """How a member's run ended, as the leader is told. It never counts as a tool that is broken."""
    if result.status == "COMPLETED":
        return CallOutcome(result.content)
    if result.status == "CANCELLED":
        return CallOutcome(
            f"The member {member.id} was cancelled", failed=True, counts_as_failure=False
        )
    why = result.error_detail or "no reason is known"
    return CallOutcome(
        f"The member {member.id} failed: {why}", failed=True, counts_as_failure=False
    )


@dataclass(frozen=True, slots=True)
class _MemberAction(ABC):
    """A tool of a leader that has a member do something."""

    tool: ToolRecord
    members: Mapping[str, Component]

    def record(self) -> ToolRecord:
        return self.tool

    async def perform(
        self, arguments: Mapping[str, Any], conversation: Conversation
    ) -> CallOutcome:
        member_id = arguments.get("member_id")
        member = self.members.get(member_id) if isinstance(member_id, str) else None
        if member is None:
            names = ", ".join(self.members)
            return CallOutcome(f"The argument member_id is one of: {names}", failed=True)
        return await self.ask(member, arguments, conversation)

    @abstractmethod
    async def ask(
        self, member: Component, arguments: Mapping[str, Any], conversation: Conversation
    ) -> CallOutcome:
        """Have the member do it."""


class _Delegate(_MemberAction):
    """Mode coordinate: a member does a task and the leader gets its answer."""

    async def ask(
        self, member: Component, arguments: Mapping[str, Any], conversation: Conversation
    ) -> CallOutcome:
        task = arguments.get("task")
        if not isinstance(task, str) or not task:
            return CallOutcome("The argument task is missing: say what to do", failed=True)
        return build_member_outcome(member, await conversation.context.run_member(member, task))


class _Route(_MemberAction):
    """Mode route: a member gets the user's own message and answers for the team."""

    async def ask(
        self, member: Component, arguments: Mapping[str, Any], conversation: Conversation
    ) -> CallOutcome:
        if conversation.is_routing:
            return CallOutcome("The message was passed to another member already", failed=True)
        conversation.is_routing = True
        result = await conversation.context.run_member(member, conversation.message)
        if result.status == "COMPLETED":
            conversation.routed_answer = result.content
        else:
            conversation.is_routing = False
        return build_member_outcome(member, result)


def _describe_member(member: Component) -> str:
    about = f": {member.description}" if member.description else ""
    return f"- {member.id} ({member.name}){about}"
