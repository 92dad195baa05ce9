"""One run of a team, by its mode (contract.md 5)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from agentctl.config.settings import Team
from agentctl.runtime.agent import run_conversation
from agentctl.runtime.conversation import Conversation
from agentctl.runtime.leadership import build_member_outcome

if TYPE_CHECKING:
    from agentctl.runtime.catalog import Catalog
    from agentctl.runtime.component import Component
    from agentctl.runtime.context import RunContext
    from agentctl.runtime.runners import Runner

__all__ = ["run_team"]


async def run_team(
    team: Component,
    message: str,
    history: list[dict[str, Any]],
    context: RunContext,
    catalog: Catalog,
) -> None:
    """Run a team to its end; the transcript holds the leader's messages and the team's answer.

    coordinate: the leader delegates as it sees fit and answers.
    route: the member that the leader picks answers. When it picks none, its own words are the
    answer; when the member fails, it may pick another.
    broadcast: all members get the message at once and the leader answers from all.

    Raises:
        RunFailure: the leader's model or a tool of the leader ended the run.
    """
    assert isinstance(team.spec, Team)
    runner = catalog.runner(team)
    conversation = Conversation(context, message, runner.actions, publishes=not runner.routes)
    conversation.add_prompt(runner.system)
    if team.spec.mode == "route":
        await _route(runner, history, conversation)
    elif team.spec.mode == "broadcast":
        prompt = await _collect_reports(catalog.members(team), conversation)
        await run_conversation(runner, prompt, history, conversation)
    else:
        await run_conversation(runner, message, history, conversation)


async def _route(runner: Runner, history: list[dict[str, Any]], conversation: Conversation) -> None:
    await run_conversation(runner, conversation.message, history, conversation)
    if conversation.routed_answer is not None:
        conversation.set_answer(conversation.routed_answer)
    else:
        conversation.publish_held_text()


async def _collect_reports(members: dict[str, Component], conversation: Conversation) -> str:
    """Give every member the message at the same time; returns what the leader is asked.

    The answers are not put into the messages, so that later runs of the session do not carry them
    along; each is the content of its own run.
    """
    conversation.context.checkpoint()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_collect_report(member, conversation)) for member in members.values()
        ]
    answers = [task.result() for task in tasks]
    return "\n\n".join([conversation.message, "What the members report:", *answers])


async def _collect_report(member: Component, conversation: Conversation) -> str:
    result = await conversation.context.run_member(member, conversation.message)
    return f"{member.id} ({member.name}):\n{build_member_outcome(member, result).text}"
