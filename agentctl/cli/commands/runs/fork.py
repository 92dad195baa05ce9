"""`agentctl runs fork`: continue a run from one of its messages, in another direction."""

from __future__ import annotations

from typing import Annotated

import typer

from agentctl.cli.commands.runs.repeat import find_origin, show_repeat
from agentctl.cli.commands.runs.show_new import (
    Background,
    KeyOption,
    NewRun,
    StreamOption,
    choose_stream,
)
from agentctl.cli.ids import ShortId
from agentctl.cli.io import read_text_or_stdin
from agentctl.cli.options import (
    AgentId,
    DbId,
    Output,
    RunId,
    TeamId,
    Yes,
    build_id_option,
    resolve_component,
)
from agentctl.cli.show.output import resolve_format
from agentctl.cli.target import Target, with_target
from agentctl.errors import UsageError
from agentctl.requests.repeats import ForkRequest


@with_target(needs_server=("background",))
async def fork_run(
    target: Target,
    run_id: RunId,
    at: Annotated[
        int | None,
        typer.Option(
            "--at", metavar="N", min=0, help="Messages to begin with, as in `runs get --messages`"
        ),
    ] = None,
    message: Annotated[
        str | None,
        typer.Option("--message", "-m", metavar="TEXT", help="Next message (- reads stdin)"),
    ] = None,
    agent: AgentId = None,
    team: TeamId = None,
    session: Annotated[
        str | None,
        ShortId("session"),
        build_id_option("session", "Session of the run, or a new one (default: a new one)"),
    ] = None,
    background: Background = False,
    stream: StreamOption = None,
    idempotency_key: KeyOption = None,
    yes: Yes = False,
    db: DbId = None,
    output: Output = None,
) -> None:
    """Start a run whose conversation begins with the first messages of a run that has ended.

    It goes on with another message, or with another agent or team. Calls after these messages that
    may be made again are listed and confirmed first. Output and exit codes are those of
    `runs start`.
    """
    output_format = resolve_format(output)
    if at is None:
        look = target.command(f"runs get {run_id} --messages")
        raise UsageError("no message given to fork at", hint=f"give --at N; the numbers: {look}")
    stream = choose_stream(stream, output_format, background=background)
    text = None if message is None else read_text_or_stdin(message, "message")
    chosen = resolve_component(agent, team, None)
    component = await find_origin(target, run_id, db, "fork_run")
    operations = target.operations

    def build(confirm: str | None) -> NewRun:
        request = ForkRequest(
            at=at,
            message=text,
            agent_id=agent,
            team_id=team,
            session_id=session,
            background=background,
            confirm=confirm,
            idempotency_key=idempotency_key,
        )
        return NewRun(
            component=chosen or component,
            stream=lambda: operations.stream_forked_run(*component, run_id, request),
            wait=lambda: operations.fork_run(*component, run_id, request),
            background=background,
            has_key=idempotency_key is not None,
        )

    await show_repeat(target, build, output_format, stream=stream, yes=yes)
