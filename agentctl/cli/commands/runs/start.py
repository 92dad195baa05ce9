"""`agentctl runs start`: start a run and show its output.

In the formats table and tsv stdout is the text of the run as it arrives; ids and status go to
stderr. `json` is the record of the run, `jsonl` one event in each line, `name` the run id.
"""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from agentctl.cli.io import current_io
from agentctl.cli.options import (
    AgentId,
    ComponentRef,
    Output,
    SessionOption,
    TeamId,
    WorkflowId,
    resolve_component,
)
from agentctl.cli.show import columns
from agentctl.cli.show.answer import RunOutput, report_run_end
from agentctl.cli.show.output import Format, resolve_format, write_bytes, write_text
from agentctl.cli.show.progress import showing_progress
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target, with_target
from agentctl.errors import AgentctlError, UsageError
from agentctl.operations import CancelRequest, RunRequest

__all__ = ["start_run"]


@with_target(create=True, needs_server=("background",))
async def start_run(
    target: Target,
    message: Annotated[
        str, typer.Option("--message", "-m", metavar="TEXT", help="What to say, - for stdin")
    ],
    agent: AgentId = None,
    team: TeamId = None,
    workflow: WorkflowId = None,
    session: SessionOption = None,
    user: Annotated[
        str | None, typer.Option("--user", metavar="USER", help="Whose run it is (admins only)")
    ] = None,
    background: Annotated[
        bool, typer.Option("--background", help="Leave it running on the server")
    ] = False,
    stream: Annotated[
        bool | None,
        typer.Option("--stream/--no-stream", help="Show the answer as it arrives, or at the end"),
    ] = None,
    idempotency_key: Annotated[
        str | None,
        typer.Option(
            "--idempotency-key",
            metavar="KEY",
            help="Start at most one run: the same command again shows the run of the first",
        ),
    ] = None,
    output: Output = None,
) -> None:
    """Start a run of an agent, team or workflow, and show its answer.

    Ctrl-C cancels the run, unless it was started by an earlier command with the same
    --idempotency-key. Exit code 1 when it ends as ERROR or is cancelled.
    """
    form = resolve_format(output)
    component = resolve_component(agent, team, workflow)
    if component is None:
        raise UsageError("nothing to run is named", hint="give --agent, --team or --workflow ID")
    request = RunRequest(_read_message(message), session, user, background, idempotency_key)
    if stream is None:
        stream = not background and form in ("table", "tsv", "jsonl")
    if stream and form in ("json", "name"):
        raise UsageError(f"-o {form} shows no stream", hint="use -o jsonl, or --no-stream")
    await (_stream_run if stream else _wait_for_run)(target, component, request, form)


async def _stream_run(
    target: Target, component: ComponentRef, request: RunRequest, form: Format
) -> None:
    """Show what the stream of the run brings, until its end."""
    import asyncio

    kind, component_id = component
    answer = RunOutput(kind, to_stdout=form != "jsonl")
    events = target.operations.stream_run(kind, component_id, request)
    # Closed at once when this is interrupted: whoever runs it learns that nobody listens.
    try:
        async with contextlib.aclosing(events):  # type: ignore[type-var]
            async for event in events:
                if form == "jsonl":
                    write_bytes(event.data)
                if answer.take(event):
                    _note_started(target, request, answer.run_id, answer.session_id)
    except asyncio.CancelledError:
        answer.end_line()
        await _cancel_interrupted(target, component, request, answer)
        raise
    answer.finish(f"see what became of it: {_look(target, answer.run_id)}")
    report_run_end(target, answer.run_id, answer.end)


async def _cancel_interrupted(
    target: Target, component: ComponentRef, request: RunRequest, answer: RunOutput
) -> None:
    """Interrupted: the run is not to go on where nobody sees it, and what became of it is said."""
    if not answer.run_id:
        return
    if request.background:
        target.report_done(f"run {answer.run_id} goes on")
        return
    if request.idempotency_key is not None:
        # It may be an earlier command's. Who left has stopped it if, and only if, it was ours.
        note(f"interrupted: see what became of the run: {_look(target, answer.run_id)}")
        return
    try:
        asked = CancelRequest(answer.session_id, reason="Interrupted at the terminal")
        ended = await target.operations.cancel_run(*component, answer.run_id, asked)
        note(f"interrupted: run {answer.run_id} is {ended.value['status']}")
    except AgentctlError:
        look = _look(target, answer.run_id)
        note(f"interrupted: run {answer.run_id} may go on, see: {look}")


async def _wait_for_run(
    target: Target, component: ComponentRef, request: RunRequest, form: Format
) -> None:
    """Wait for the record of the run: at its end, or with `background` at its start."""
    import asyncio

    try:
        async with showing_progress("waiting for the answer, Ctrl-C cancels the run"):
            document = await target.operations.create_run(*component, request)
    except asyncio.CancelledError:
        look = target.command("runs list --limit 3")
        note(f"interrupted: see what became of the run: {look}")
        raise
    run = document.value
    _note_started(target, request, run["run_id"], run["session_id"])
    if form in ("table", "tsv") and not request.background:
        write_text(f"{run['content']}\n" if run["content"] else "")
    else:
        columns.show_run(document, form)
    if not request.background:
        report_run_end(target, run["run_id"], run)


def _note_started(target: Target, request: RunRequest, run_id: str, session_id: str) -> None:
    """Say which run it is. With a key it may have been started before."""
    did = "started run" if request.idempotency_key is None else "with this key: run"
    target.report_done(f"{did} {run_id} of session {session_id}")


def _look(target: Target, run_id: str) -> str:
    return target.command(f"runs get {run_id}")


def _read_message(option: str) -> str:
    """The message: the option's value, or stdin without its last line feed for `-`."""
    if option != "-":
        return option
    try:
        return current_io().stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError:
        raise UsageError("the message on stdin is not UTF-8 text") from None
