"""The output of a command that starts a run: its events as they arrive, or its record."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from agentctl.cli.approvals import build_waiting
from agentctl.cli.commands.runs.decide import RunQuestions
from agentctl.cli.show import columns
from agentctl.cli.show.answer import RunOutput, read_run_end, report_run_end
from agentctl.cli.show.event_lines import EventLines, create_event_lines, with_activity
from agentctl.cli.show.output import Format, show_record, write_json, write_text
from agentctl.cli.show.progress import showing_progress
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target
from agentctl.errors import AgentctlError, Unavailable, UsageError
from agentctl.light_dataclass import dataclass
from agentctl.records.events import parse_event
from agentctl.records.kinds import ComponentRef
from agentctl.requests import CancelRequest

if TYPE_CHECKING:
    from agentctl.records.document import Document
    from agentctl.records.runs import RunRecord
    from agentctl.requests import StreamEvent

Background = Annotated[
    bool, typer.Option("--background", help="Return at once; the run continues on the server")
]
StreamOption = Annotated[
    bool | None,
    typer.Option("--stream/--no-stream", help="Show the output as it arrives, or at the end"),
]
KeyOption = Annotated[
    str | None,
    typer.Option(
        "--idempotency-key",
        metavar="KEY",
        help="Start at most one run: a repeated command shows the run of the first",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """A run to start.

    Attributes:
        component: the component that executes it.
        stream: starts it and returns its events.
        wait: starts it and returns its record.
        has_key: True if the request has an idempotency key.
    """

    component: ComponentRef
    stream: Callable[[], AsyncIterator[StreamEvent]]
    wait: Callable[[], Awaitable[Document[RunRecord]]]
    background: bool
    has_key: bool


def choose_stream(stream: bool | None, output_format: Format, *, background: bool) -> bool:
    """Return True if the events of a new run are shown.

    Args:
        stream: the option; None without it.

    Raises:
        UsageError: the format has no events.
    """
    if stream is None:
        return not background and output_format in ("table", "wide", "tsv", "jsonl")
    if stream and output_format in ("json", "name"):
        raise UsageError(
            f"-o {output_format} excludes --stream", hint="use -o jsonl, or --no-stream"
        )
    return stream


async def show_new_run(target: Target, new: NewRun, output_format: Format, *, stream: bool) -> None:
    """Start a run and show its output, see `runs start`."""
    await (_stream_run if stream else _wait_for_run)(target, new, output_format)


async def _stream_run(target: Target, new: NewRun, output_format: Format) -> None:
    import asyncio

    component = new.component
    lines = create_event_lines(component[0], output_format)
    run_output = lines.output
    stream = new.stream()
    asking = RunQuestions(target, component, output_format)
    try:
        while True:
            await _show_stream(target, stream, new, output_format, lines)
            if run_output.asked is None:
                break
            lines.flush()
            decisions = await asking.ask(run_output.run_id, run_output.asked)
            stream = asking.stream(run_output.run_id, decisions)
    except (asyncio.CancelledError, KeyboardInterrupt):
        lines.flush()
        await _cancel_interrupted(target, new, run_output)
        raise
    finally:
        lines.end_answer()
    lines.flush()
    if not run_output.end:
        look = target.get_run_command(run_output.run_id, run_output.session_id)
        raise Unavailable("the stream ended before the run did", hint=f"check the run with: {look}")
    end = await read_run_end(target, component, run_output)
    report_run_end(target, run_output.run_id, end, run_output.seconds)


async def _show_stream(
    target: Target,
    stream: AsyncIterator[StreamEvent],
    new: NewRun,
    output_format: Format,
    lines: EventLines,
) -> None:
    run_output = lines.output
    events = with_activity(stream, new.component[1], lambda: lines.in_line)
    # Close the stream at once on an interrupt: the server then detects the disconnect.
    async with contextlib.aclosing(events):
        async for event in events:
            if output_format == "jsonl":
                write_json(event.data)
            is_first = not run_output.run_id
            reader = run_output if is_first or output_format == "jsonl" else lines
            reader.take(parse_event(event.name, event.data, event.seq))
            if is_first:
                _note_started(target, new, run_output.run_id, run_output.session_id)


async def _cancel_interrupted(target: Target, new: NewRun, run_output: RunOutput) -> None:
    run_id = run_output.run_id
    if not run_id:
        return
    look = target.get_run_command(run_id, run_output.session_id)
    if new.background:
        target.report_done(f"run {run_id} continues")
        return
    if new.has_key:
        # On a server the run continues; a local run of this process ends with it.
        note(f"interrupted: check the run with: {look}")
        return
    try:
        cancel = CancelRequest(run_output.session_id, reason="Interrupted at the terminal")
        record = (await target.operations.cancel_run(*new.component, run_id, cancel)).value
        note(f"interrupted: run {run_id} is {record['status']}")
    except AgentctlError:
        note(f"interrupted: run {run_id} may continue; check it with: {look}")


async def _wait_for_run(target: Target, new: NewRun, output_format: Format) -> None:
    import asyncio

    try:
        async with showing_progress("waiting for the run, Ctrl-C cancels it"):
            document = await new.wait()
    except asyncio.CancelledError:
        look = target.command("runs list --limit 3")
        note(f"interrupted: check the run with: {look}")
        raise
    run = document.value
    run_id = run["run_id"]
    _note_started(target, new, run_id, run["session_id"])
    asking = RunQuestions(target, new.component, output_format)
    while run["status"] == "PAUSED" and not new.background and asking.may_ask:
        try:
            # The record of agentctl has no arguments: no one is asked about a call unseen.
            shown = [each for each in run["approvals"] if "arguments" in each]
            decisions = await asking.ask(run_id, shown)
            async with showing_progress("waiting for the run"):
                document = await asking.continue_run(run_id, decisions)
        except (asyncio.CancelledError, KeyboardInterrupt):
            note(f"interrupted: check the run with: {target.get_run_command(run_id, None)}")
            raise
        run = document.value
    if output_format in ("table", "wide", "tsv") and not new.background:
        content = run.get("content")
        write_text(f"{content}\n" if content else "")
    else:
        show_record(document, columns.RUN, output_format, id_field="run_id")
    if run["status"] == "PAUSED":
        raise build_waiting(target, run_id, run["approvals"])
    if not new.background:
        report_run_end(target, run_id, run)


def _note_started(target: Target, new: NewRun, run_id: str, session_id: str) -> None:
    started = "started run" if not new.has_key else "with this key: run"
    target.report_done(f"{started} {run_id} of session {session_id}")
