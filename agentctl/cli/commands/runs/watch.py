"""`agentctl runs watch`: follow a run until it ends.

In the formats table and tsv stdout is the text of the run as it arrives, in a table at a terminal
drawn as Markdown; tools, steps and members go to stderr. `jsonl` is one event in each line, `json`
the record of the run at its end, `name` the run id.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from agentctl.cli.options import (
    AgentId,
    DbId,
    Output,
    RunId,
    SessionOption,
    TeamId,
    WorkflowId,
    resolve_component,
)
from agentctl.cli.run_streams import RunWatch, WatchedRun, follow_streams
from agentctl.cli.show import columns
from agentctl.cli.show.answer import read_run_end, report_run_end
from agentctl.cli.show.output import Format, resolve_format, show_record
from agentctl.cli.show.progress import showing_progress
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target, with_target
from agentctl.records.kinds import component_of_run

if TYPE_CHECKING:
    pass


@with_target()
async def watch_run(
    target: Target,
    run_id: RunId,
    after: Annotated[
        int | None,
        typer.Option("--after", metavar="NUMBER", min=0, help="Resume after this event number"),
    ] = None,
    agent: AgentId = None,
    team: TeamId = None,
    workflow: WorkflowId = None,
    session: SessionOption = None,
    db: DbId = None,
    output: Output = None,
) -> None:
    """Follow a run until it ends.

    Ctrl-C does not cancel the run. Exit code 1 if the run ends as ERROR or is cancelled. With
    --session and --agent, --team or --workflow the record of the run is not read first.
    """
    import asyncio

    output_format = resolve_format(output)
    component = resolve_component(agent, team, workflow)
    by_component = component is not None and session is not None
    watched = WatchedRun(target, run_id, component, session, db, by_component)
    watch = await _start_watch(watched, output_format, -1 if after is None else after)
    silent = output_format in ("json", "name")  # nothing is written before the end
    progress = showing_progress("waiting for the end of the run, Ctrl-C does not cancel it")
    try:
        async with progress if silent else contextlib.nullcontext():
            await follow_streams(watch)
    except asyncio.CancelledError:
        if not watch.output.end:
            watch.note_interrupted()
        raise
    finally:
        watch.lines.flush()
    if silent:
        show_record(await watched.read_document(), columns.RUN, output_format, id_field="run_id")
    assert watched.component is not None
    report_run_end(target, run_id, await read_run_end(target, watched.component, watch.output))


async def _start_watch(watched: WatchedRun, output_format: Format, after: int) -> RunWatch:
    if watched.by_component:
        return RunWatch(watched, output_format, after, {})
    run = dict((await watched.read_document()).value)
    kind, component_id = watched.component = watched.component or component_of_run(run)
    watched.session_id = watched.session_id or str(run["session_id"])
    note(
        f"run {watched.run_id} of {kind} {component_id}, session {watched.session_id},"
        f" is {run['status']} {watched.target.place}"
    )
    return RunWatch(watched, output_format, after, run)
