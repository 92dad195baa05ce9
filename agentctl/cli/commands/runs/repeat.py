"""`agentctl runs retry` and `fork`: repeat runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

from agentctl.cli.commands.runs import start
from agentctl.cli.ids import ShortId
from agentctl.cli.io import read_text_or_stdin
from agentctl.cli.options import AgentId, ComponentChoice, DbId, RunId, TeamId, Yes
from agentctl.cli.parameters import build_id_option, option
from agentctl.cli.show.output import CommandOutput
from agentctl.cli.show.terminal import confirm, note
from agentctl.cli.target import Target, with_target
from agentctl.errors import NeedsConfirmation, UsageError
from agentctl.interface.requests import SUMMARY_VIEW, ForkRequest, RetryRequest
from agentctl.records.kinds import ComponentRef, component_of_run
from agentctl.transcripts.model import clean_line

_STATES = {"done": "done", "failed": "failed", "unknown": "outcome not known"}


@with_target(needs_server=("background",))
async def retry_run(
    target: Target,
    out: CommandOutput,
    run_id: RunId,
    background: start.Background = False,
    stream: start.StreamOption = None,
    idempotency_key: start.KeyOption = None,
    yes: Yes = False,
    db: DbId = None,
) -> None:
    """Repeat a finished run from its last good step.

    The new run has the same session and input. It reuses the finished tool calls of the original
    run; agents in code and broadcasts start from the beginning. Calls that may be made again are
    listed and confirmed first. Output and exit codes are the same as for `runs start`.
    """
    stream = start.choose_stream(stream, out, background=background)
    component = await _find_origin(target, run_id, db)
    new = start.RunStart(
        component,
        RetryRequest(background=background, idempotency_key=idempotency_key),
        stream=partial(target.operations.runs.stream_retried, *component, run_id),
        wait=partial(target.operations.runs.retry, *component, run_id),
    )
    await _show_repeat(target, new, out, stream=stream, yes=yes)


@with_target(needs_server=("background",))
async def fork_run(
    target: Target,
    out: CommandOutput,
    run_id: RunId,
    at: int | None = option(
        "--at", "N", "Number of messages to keep, as in `runs get --messages`", min=0
    ),
    message: str | None = option("--message -m", "TEXT", "Next message (- reads stdin)"),
    agent: AgentId = None,
    team: TeamId = None,
    session: Annotated[
        str | None,
        ShortId("session"),
        build_id_option("session", "Session of the original run (default: a new session)"),
    ] = None,
    background: start.Background = False,
    stream: start.StreamOption = None,
    idempotency_key: start.KeyOption = None,
    yes: Yes = False,
    db: DbId = None,
) -> None:
    """Start a run from the first messages of a finished run.

    It continues with a different message, agent or team. Later calls that may be made again are
    listed and confirmed first. Output and exit codes are the same as for `runs start`.
    """
    if at is None:
        look = target.command(f"runs get {run_id} --messages")
        raise UsageError("no message given to fork at", hint=f"give --at N; the numbers: {look}")

    stream = start.choose_stream(stream, out, background=background)
    request = ForkRequest(
        at=at,
        message=None if message is None else read_text_or_stdin(message, "message"),
        agent_id=agent,
        team_id=team,
        session_id=session,
        background=background,
        idempotency_key=idempotency_key,
    )

    chosen = ComponentChoice(agent, team).resolve()
    component = await _find_origin(target, run_id, db)
    new = start.RunStart(
        chosen or component,
        request,
        stream=partial(target.operations.runs.stream_forked, *component, run_id),
        wait=partial(target.operations.runs.fork, *component, run_id),
    )
    await _show_repeat(target, new, out, stream=stream, yes=yes)


async def _find_origin(target: Target, run_id: str, db: str | None) -> ComponentRef:
    """Return the component of a run that is repeated."""
    run = (await target.operations.runs.get(run_id, db_id=db, form=SUMMARY_VIEW)).value
    return component_of_run(run)


async def _show_repeat(
    target: Target, new: start.RunStart, out: CommandOutput, *, stream: bool, yes: bool
) -> None:
    """Start a run that repeats another one, and show its output.

    What it may repeat is shown on stderr, and confirmed first.
    """
    try:
        await start.show_new_run(target, new, out, stream=stream)
        return
    except NeedsConfirmation as needed:
        plan = needed.plan

    part = "step" if new.component[0] == "workflow" else "message"
    for line in _describe_plan(plan, part):
        note(line)
    confirm(f"Start the {plan['kind']}?", yes=yes)

    confirmed = replace(new, request=replace(new.request, confirm=str(plan["confirm"])))
    await start.show_new_run(target, confirmed, out, stream=stream)


def _describe_plan(plan: Mapping[str, Any], part: str) -> Iterator[str]:
    """Yield the lines about what a run begins with, and what it may repeat."""
    at = plan["at"]
    yield f"begins after {part} {at} of the run" if at else "works from the beginning"
    if plan["runs_code"]:
        yield "the code of the agent runs again, with all of its effects"
    if plan["calls_unknown"]:
        yield "the server of the run died: calls that it made at last may not be known"

    for retry in plan["retries"]:
        yield f"the run was retried already: {clean_line(retry)}"

    calls = plan["calls"]
    if calls:
        yield "tool calls that may be made again:"
    for call in calls:
        name = clean_line(call["tool_name"])
        arguments = clean_line(call["arguments"])
        yield f"  {name} {arguments} ({_STATES.get(call['state'], 'outcome not known')})"
    more_count = plan["calls_total"] - len(calls)
    if more_count > 0:
        yield f"  and {more_count} more"
