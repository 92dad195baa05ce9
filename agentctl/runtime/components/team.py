"""Execution of a team's run, by the mode of the team (docs/contract.md "Team modes and
workflows").
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agentctl.runtime.components.agent import run_conversation
from agentctl.runtime.components.leadership import build_member_outcome, share_context
from agentctl.runtime.conversation import Conversation
from agentctl.runtime.tools.memories import add_memories

if TYPE_CHECKING:
    from agentctl.runtime.component import Component
    from agentctl.runtime.components.catalog import Catalog
    from agentctl.runtime.context import RunEnvironment


async def run_team(team: Component, context: RunEnvironment, catalog: Catalog) -> None:
    """Run a team to its end. The transcript has the leader's messages and the team's answer.

    coordinate: the leader delegates tasks as it sees fit and answers.
    route: the leader selects a member, which answers. If that member fails, the leader may select
    another one. If the leader selects none, its own text is the answer.
    broadcast: all members get the message at once, and the leader answers from their reports.

    Raises:
        ExecutionError: the leader's model or a tool of the leader ended the run.
    """
    runner = await catalog.prepare_runner(team, context)
    output = catalog.output_schema(team, context.spec.output_schema)
    publishes = not runner.routes and output is None
    conversation = Conversation(context, runner.actions, publishes=publishes)
    conversation.add_prompt(runner.system)
    conversation.add_summary()
    await add_memories(runner.memory, conversation)
    if team.team.mode == "route":
        await run_conversation(runner, conversation.message, conversation)
        if conversation.routed_answer is not None:
            conversation.set_answer(conversation.routed_answer)
        else:
            conversation.publish_held_text()
    elif team.team.mode == "broadcast":
        prompt = await _collect_reports(catalog.members(team), conversation)
        await run_conversation(runner, prompt, conversation, output)
    else:
        await run_conversation(runner, conversation.message, conversation, output)


async def _collect_reports(members: dict[str, Component], conversation: Conversation) -> str:
    """Send the message to all members concurrently and return the prompt of the leader.

    The reports are not added to the messages, so that later runs of the session do not carry them.
    Each report is the content of the member's run.
    """
    conversation.context.checkpoint()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_collect_report(member, conversation)) for member in members.values()
        ]
    reports = [task.result() for task in tasks]
    return "\n\n".join([conversation.message, "What the members report:", *reports])


async def _collect_report(member: Component, conversation: Conversation) -> str:
    task = share_context(conversation.message, conversation.context)
    result = await conversation.context.run_member(member, task)
    return f"{member.id} ({member.name}):\n{build_member_outcome(member, result).text}"
