"""The leader of a team, by the mode of the team: its instructions, its delegation tools, and the
reports of a broadcast (docs/contract.md "Team modes and workflows").
"""

from __future__ import annotations

import asyncio
import json
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from agentctl.records.items import DELEGATE
from agentctl.records.text import replace_unstorable
from agentctl.runtime.components.delegations import SET_SHARED_CONTEXT, delegation_tools
from agentctl.runtime.pauses import (
    MEMBER_PREFIX,
    CallOutcome,
    CallPause,
    JournaledCall,
    Parked,
    Paused,
)
from agentctl.runtime.tools.memories import OwnAction

if TYPE_CHECKING:
    from agentctl.runtime.component import Component
    from agentctl.runtime.context import MemberResult, RunEnvironment
    from agentctl.runtime.pauses import InputSchema
    from agentctl.runtime.transcript.conversation import Action, Conversation

SHARED_CONTEXT = "shared_context"
"""Key of the session state with the text that the leader shares with all members."""

MAXIMUM_SHARED_LENGTH = 16_000
"""Characters of the shared context."""

_DUTIES = {
    "coordinate": "You lead a team. Give tasks to its members where that helps, and answer the "
    "user from what they report.",
    "route": "You lead a team. Pass the user's message to the one member who is best suited to "
    "answer it.",
    "broadcast": "You lead a team. Every member was given the user's message. Answer the user "
    "from what they report.",
}


def build_leader_instructions(
    team: Component, members: Mapping[str, Component], inputs: Mapping[str, InputSchema]
) -> str:
    """Join the team's own instructions, the duty of the leader in its mode, and the members.

    Args:
        inputs: the schemas of the members whose task is an object, by the id of the member.
    """
    lines = ["Members:"]
    for member in members.values():
        description = f": {member.description}" if member.description else ""
        lines.append(f"- {member.id} ({member.name}){description}")

    if team.team.mode == "coordinate":
        for member_id, input_schema in inputs.items():
            schema = json.dumps(input_schema.schema, ensure_ascii=False)
            lines.append(
                f"The task of {member_id} is the JSON text of an object with this JSON Schema:"
                f" {schema}"
            )

    parts = [team.team.instructions, _DUTIES[team.team.mode], "\n".join(lines)]
    return "\n\n".join(part for part in parts if part)


def build_member_actions(team: Component, members: Mapping[str, Component]) -> list[Action]:
    """Return the delegation tools of the leader in the mode of the team."""
    actions: list[Action] = []
    for tool in delegation_tools(team.team):
        if tool["name"] == SET_SHARED_CONTEXT:
            actions.append(_SetSharedContext(tool))
        elif tool["name"] == DELEGATE:
            actions.append(_Delegate(tool, members))
        else:
            actions.append(_Route(tool, members))
    return actions


def share_context(task: str, context: RunEnvironment) -> str:
    """Return a task of a member with the shared context of the session, if there is one."""
    shared = context.state.values.get(SHARED_CONTEXT)
    if not isinstance(shared, str) or not shared:
        return task
    return f"{task}\n\nShared context of the team:\n{shared}"


def build_member_outcome(member: Component, result: MemberResult) -> CallOutcome:
    """Return the result of a member's run for the leader.

    A failure of the member is no failure of the tool. The state of a call that waits is the id of
    the member's run.
    """
    if result.status in ("PAUSED", "PARKED"):
        is_parked = result.status == "PARKED"
        return CallOutcome("", pause=CallPause([], result.run_id, is_parked))

    if result.status == "COMPLETED":
        return CallOutcome(result.content)

    if result.status == "CANCELLED":
        text = f"The member {member.id} was cancelled"
    else:
        text = f"The member {member.id} failed: {result.error_detail or 'no reason is known'}"
    return CallOutcome(text, failed=True, counts_as_failure=False)


async def collect_reports(
    members: dict[str, Component], conversation: Conversation, state: Mapping[str, Any] | None
) -> str:
    """Send the message to all members concurrently and return the prompt of the leader.

    The reports are not added to the messages, so that later runs of the session do not carry them.
    Each report is the content of the member's run.

    Args:
        state: the reports and the waiting members of the leg before; None in the first leg.
    """
    conversation.context.checkpoint()
    reports: dict[str, str] = dict(state["reports"]) if state is not None else {}
    waiting_run_ids: dict[str, str] = dict(state["waiting"]) if state is not None else {}

    # A member that the configuration has got since the pause was not asked.
    asked_members = [
        member for member in members.values() if state is None or member.id in waiting_run_ids
    ]

    async with asyncio.TaskGroup() as group:
        tasks = {
            member.id: group.create_task(
                _run_member(member, conversation, waiting_run_ids.get(member.id))
            )
            for member in asked_members
        }

    results = {member_id: task.result() for member_id, task in tasks.items()}
    if any(result.status == "PARKED" for result in results.values()):
        raise Parked
    waiting_run_ids = {
        member_id: result.run_id
        for member_id, result in results.items()
        if result.status == "PAUSED"
    }

    for member_id, result in results.items():
        if member_id not in waiting_run_ids:
            member = members[member_id]
            text = build_member_outcome(member, result).text
            reports[member_id] = f"{member_id} ({member.name}):\n{text}"

    if waiting_run_ids:
        kept_state = {
            "conversation": conversation.keep(),
            "reports": reports,
            "waiting": waiting_run_ids,
        }
        raise Paused([], kept_state)

    ordered_reports = [reports[member_id] for member_id in members if member_id in reports]
    return "\n\n".join(
        [conversation.context.spec.input, "What the members report:", *ordered_reports]
    )


async def _run_member(
    member: Component, conversation: Conversation, run_id: str | None
) -> MemberResult:
    context = conversation.context
    task = share_context(context.spec.input, context)
    result = await context.run_member(member, task, run_id=run_id)
    outcome = build_member_outcome(member, result)
    if context.journal is not None and outcome.pause is None:
        call = JournaledCall(f"{MEMBER_PREFIX}{member.id}", member.id, {}, kind="member")
        await context.journal.end_call(call, outcome)
    return result


class _SetSharedContext(OwnAction):
    """Replace the text that every member receives with its task, in this run and in later runs."""

    async def perform(
        self, arguments: Mapping[str, Any], conversation: Conversation
    ) -> CallOutcome:
        text = arguments.get("state")
        if not isinstance(text, str) or len(text) > MAXIMUM_SHARED_LENGTH:
            return CallOutcome(
                f"The argument state is a text of at most {MAXIMUM_SHARED_LENGTH} characters",
                failed=True,
            )
        conversation.context.state.values[SHARED_CONTEXT] = replace_unstorable(text)
        return CallOutcome("Every member receives this text with its next task")


@dataclass(frozen=True, slots=True)
class _MemberAction(OwnAction):
    """A delegation tool: runs the member that the leader names."""

    members: Mapping[str, Component]

    async def perform(
        self, arguments: Mapping[str, Any], conversation: Conversation
    ) -> CallOutcome:
        member_id = arguments.get("member_id")
        member = self.members.get(member_id) if isinstance(member_id, str) else None
        if member is None:
            names = ", ".join(self.members)
            return CallOutcome(f"The argument member_id is one of: {names}", failed=True)
        return await self.run_member(member, arguments, conversation)

    @abstractmethod
    async def run_member(
        self, member: Component, arguments: Mapping[str, Any], conversation: Conversation
    ) -> CallOutcome: ...


class _Delegate(_MemberAction):
    """Mode coordinate: a member does a task, and the leader gets its report."""

    async def run_member(
        self, member: Component, arguments: Mapping[str, Any], conversation: Conversation
    ) -> CallOutcome:
        task = arguments.get("task")
        if not isinstance(task, str) or not task:
            return CallOutcome("The argument task is missing: say what to do", failed=True)
        context = conversation.context
        run_id = conversation.take_state()
        result = await context.run_member(member, share_context(task, context), run_id=run_id)
        return build_member_outcome(member, result)


class _Route(_MemberAction):
    """Mode route: a member gets the user's message and answers for the team."""

    async def run_member(
        self, member: Component, arguments: Mapping[str, Any], conversation: Conversation
    ) -> CallOutcome:
        if conversation.is_routing:
            return CallOutcome("The message was passed to another member already", failed=True)
        conversation.is_routing = True
        run_id = conversation.take_state()
        task = share_context(conversation.context.spec.input, conversation.context)
        result = await conversation.context.run_member(member, task, run_id=run_id)
        outcome = build_member_outcome(member, result)
        if outcome.failed:
            conversation.is_routing = False
        return replace(outcome, is_routed=result.status == "COMPLETED")
