"""Execution of a team's run, by the mode of the team (docs/contract.md "Team modes and
workflows").
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from agentctl.runtime.components.agent import (
    begin_conversation,
    continue_conversation,
    run_conversation,
)
from agentctl.runtime.components.leadership import build_member_outcome, share_context
from agentctl.runtime.journal import MEMBER_PREFIX, JournaledCall, Parked
from agentctl.runtime.pauses import Paused
from agentctl.runtime.transcript.conversation import Conversation

if TYPE_CHECKING:
    from agentctl.runtime.component import Component
    from agentctl.runtime.components.catalog import Catalog
    from agentctl.runtime.context import MemberResult, RunEnvironment


async def run_team(team: Component, context: RunEnvironment, catalog: Catalog) -> None:
    """Run a team to its end. The transcript has the leader's messages and the team's answer.

    coordinate: the leader delegates tasks as it sees fit and answers.
    route: the leader selects a member, which answers. If that member fails, the leader may select
    another one. If the leader selects none, its own text is the answer.
    broadcast: all members get the message at once, and the leader answers from their reports.

    Raises:
        ExecutionError: the leader's model or a tool of the leader ended the run.
        Paused: the leader or a member waits for people.
    """
    runner = await catalog.prepare_runner(team, context)
    output = catalog.output_schema(team, context.spec.output_schema)
    if runner.routes:
        output = None
    conversation = Conversation(
        context, runner.actions, rules=runner.rules, publishes=not runner.routes and output is None
    )
    state = context.leg.state if context.leg is not None else None
    if state is not None and "reports" not in state:
        await continue_conversation(runner, state, conversation, output)
    else:
        if state is None:
            await begin_conversation(runner, conversation)
        else:
            conversation.restore(state["conversation"])
        prompt = conversation.message
        if team.team.mode == "broadcast":
            prompt = await _collect_reports(catalog.members(team), conversation, state)
        await run_conversation(runner, prompt, conversation, output)
    if conversation.routed_answer is not None:
        conversation.set_answer(conversation.routed_answer)
    elif runner.routes:
        conversation.publish_held_text()


async def _collect_reports(
    members: dict[str, Component], conversation: Conversation, state: Mapping[str, Any] | None
) -> str:
    """Send the message to all members concurrently and return the prompt of the leader.

    The reports are not added to the messages, so that later runs of the session do not carry them.
    Each report is the content of the member's run.

    Args:
        state: the reports and the waiting members of the leg before; None in the first leg.

    Raises:
        Paused: a member waits.
        Parked: another process goes on.
    """
    conversation.context.checkpoint()
    reports: dict[str, str] = dict(state["reports"]) if state is not None else {}
    waiting: dict[str, str] = dict(state["waiting"]) if state is not None else {}
    # A member that the configuration has got since the pause was not asked.
    asked = [member for member in members.values() if state is None or member.id in waiting]

    async with asyncio.TaskGroup() as group:
        tasks = {
            member.id: group.create_task(_run_member(member, conversation, waiting.get(member.id)))
            for member in asked
        }

    results = {member_id: task.result() for member_id, task in tasks.items()}
    if any(result.status == "PARKED" for result in results.values()):
        raise Parked
    waiting = {
        member_id: result.run_id
        for member_id, result in results.items()
        if result.status == "PAUSED"
    }

    for member_id, result in results.items():
        if member_id not in waiting:
            member = members[member_id]
            text = build_member_outcome(member, result).text
            reports[member_id] = f"{member_id} ({member.name}):\n{text}"

    if waiting:
        kept = {"conversation": conversation.keep(), "reports": reports, "waiting": waiting}
        raise Paused([], kept)
    ordered = [reports[member_id] for member_id in members if member_id in reports]
    return "\n\n".join([conversation.message, "What the members report:", *ordered])


async def _run_member(
    member: Component, conversation: Conversation, run_id: str | None
) -> MemberResult:
    context = conversation.context
    task = share_context(conversation.message, context)
    result = await context.run_member(member, task, run_id=run_id)
    outcome = build_member_outcome(member, result)
    if context.journal is not None and outcome.pause is None:
        call = JournaledCall(f"{MEMBER_PREFIX}{member.id}", member.id, {}, kind="member")
        await context.journal.end_call(call, outcome)
    return result
