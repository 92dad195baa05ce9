"""`agentctl runs retry`: start a run that has ended again, from its last good step."""

from __future__ import annotations

from agentctl.cli.commands.runs.repeat import find_origin, show_repeat
from agentctl.cli.commands.runs.show_new import (
    Background,
    KeyOption,
    NewRun,
    StreamOption,
    choose_stream,
)
from agentctl.cli.options import DbId, Output, RunId, Yes
from agentctl.cli.show.output import resolve_format
from agentctl.cli.target import Target, with_target
from agentctl.requests.repeats import RetryRequest


@with_target(needs_server=("background",))
async def retry_run(
    target: Target,
    run_id: RunId,
    background: Background = False,
    stream: StreamOption = None,
    idempotency_key: KeyOption = None,
    yes: Yes = False,
    db: DbId = None,
    output: Output = None,
) -> None:
    """Start a run that has ended again, from its last good step.

    The new run has the same session and input. It begins with the finished tool calls of the first
    one; agents in code and broadcasts work from the beginning. Calls that may be made again are
    listed and confirmed first. Output and exit codes are those of `runs start`.
    """
    output_format = resolve_format(output)
    stream = choose_stream(stream, output_format, background=background)
    component = await find_origin(target, run_id, db, "retry_run")
    operations = target.operations

    def build(confirm: str | None) -> NewRun:
        request = RetryRequest(
            background=background, confirm=confirm, idempotency_key=idempotency_key
        )
        return NewRun(
            component=component,
            stream=lambda: operations.stream_retried_run(*component, run_id, request),
            wait=lambda: operations.retry_run(*component, run_id, request),
            background=background,
            has_key=idempotency_key is not None,
        )

    await show_repeat(target, build, output_format, stream=stream, yes=yes)
