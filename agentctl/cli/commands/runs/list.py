"""`agentctl runs`: the group of commands, with `runs list` and `runs get`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from agentctl.cli.commands.runs.cancel import cancel_runs
from agentctl.cli.commands.runs.doctor import examine_runs
from agentctl.cli.commands.runs.start import start_run
from agentctl.cli.commands.runs.wait import wait_for_runs
from agentctl.cli.commands.runs.watch import watch_run
from agentctl.cli.durations import microseconds_ago
from agentctl.cli.help import CommandApp
from agentctl.cli.ids import ShortId
from agentctl.cli.options import (
    AgentId,
    DbId,
    Every,
    Fields,
    Full,
    LocalTime,
    Members,
    NewerThan,
    NoPager,
    OlderThan,
    Output,
    Raw,
    RunId,
    TeamId,
    TranscriptOutput,
    Watch,
    WorkflowId,
    complete_values,
    resolve_component,
)
from agentctl.cli.show import columns
from agentctl.cli.show.output import resolve_format, show_page, show_record
from agentctl.cli.show.pager import Pager
from agentctl.cli.show.transcript.pages import create_look, create_page, is_transcript
from agentctl.cli.show.watch import DEFAULT_SECONDS, WatchedList, check_watch, watch_list
from agentctl.cli.target import Target, with_target
from agentctl.errors import UsageError
from agentctl.extensions import name_products
from agentctl.records.kinds import ComponentKind
from agentctl.requests import (
    FULL_VIEW,
    RunFilter,
    SessionLocator,
)
from agentctl.transcripts.model import build_drawn_run
from agentctl.transcripts.runs import read_members

if TYPE_CHECKING:
    from agentctl.records.document import Document
    from agentctl.records.runs import RunPage

app = CommandApp(
    help="Start, follow, list, cancel and repair runs.",
    epilog="Example: agentctl runs list --live",
)
app.command("start", epilog='Example: agentctl runs start --agent echo --message "hello"')(
    start_run
)


@app.command("list", epilog="Example: agentctl runs list --live --older-than 10m")
@with_target(
    without=("sort_by",),
    order=(
        "status", "live", "agent", "team", "workflow", "component_type", "component_id",
        "session_id", "user_id", "older_than", "newer_than", "limit", "page", "cursor",
        "sort_order", "db_id", ...,
    ),
)  # fmt: skip
async def list_runs(
    target: Target,
    filter: RunFilter,
    agent: AgentId = None,
    team: TeamId = None,
    workflow: WorkflowId = None,
    older_than: OlderThan = None,
    newer_than: NewerThan = None,
    watch: Watch = False,
    every: Every = None,
    output: Output = None,
    fields: Fields = None,
) -> None:
    """List runs across sessions, newest first."""
    form = resolve_format(output)
    check_watch(watch, every, form)
    if filter.live and filter.status is not None:
        raise UsageError("--live and --status exclude each other")
    component = resolve_component(agent, team, workflow)
    wanted = filter if component is None else _select_component(filter, *component)

    async def read() -> Document[RunPage]:
        # With --watch an age is that of each read.
        after, before = microseconds_ago(newer_than), microseconds_ago(older_than)
        return await target.operations.get_runs(
            replace(wanted, created_after=after, created_before=before)
        )

    if watch:
        seconds = every or DEFAULT_SECONDS
        await watch_list(WatchedList(target, read, columns.RUNS, form, "run_id", fields, seconds))
        return
    document = await read()
    show_page(document, columns.RUNS, form, id_field="run_id", fields=fields)


def _select_component(filter: RunFilter, kind: ComponentKind, component_id: str) -> RunFilter:
    if filter.component_type is not None or filter.component_id is not None:
        raise UsageError("--agent, --team and --workflow exclude --type and --component")
    return replace(filter, component_type=kind, component_id=component_id)


@app.command("get", epilog="Example: agentctl runs get RUN_ID")
@with_target()
async def get_run(
    target: Target,
    run_id: RunId,
    session: Annotated[
        str | None,
        ShortId("session"),
        typer.Option(
            "--session",
            metavar="ID",
            help=f"Session of the run (required on {name_products()})",
            autocompletion=complete_values("session"),
        ),
    ] = None,
    full: Full = False,
    members: Members = False,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Show when models, tools and members worked")
    ] = False,
    raw: Raw = False,
    local_time: LocalTime = False,
    no_pager: NoPager = False,
    db: DbId = None,
    output: TranscriptOutput = None,
    fields: Fields = None,
) -> None:
    """Show one run as a transcript.

    The formats json, jsonl and tsv are the record of the run.
    """
    form = resolve_format(output)
    where = SessionLocator(db_id=db)
    look = create_look(full=full, members=members, raw=raw, local_time=local_time, form=form)
    drawn = fields is None and is_transcript(form)
    view = look.run_view if drawn else FULL_VIEW
    if session is None:
        document = await target.operations.get_run(run_id, db_id=db, form=view)
    else:
        document = await target.operations.get_session_run(session, run_id, where, form=view)
    if not drawn:
        show_record(document, columns.RUN, form, id_field="run_id", fields=fields)
        return
    run = document.value
    children = await read_members(target.operations, run, where, view)
    with Pager(wanted=not no_pager) as pager:
        page = create_page(form, look, pager.write)
        page.print_run(build_drawn_run(run, children))
        if timeline:
            page.print_timeline(run, children)
        page.print_details(run)


app.command("watch", epilog="Example: agentctl runs watch RUN_ID")(watch_run)
app.command("wait", epilog="Example: agentctl runs wait RUN_ID --wait 60")(wait_for_runs)
app.command("cancel", epilog='Example: agentctl runs cancel RUN_ID --reason "wrong question"')(
    cancel_runs
)
app.command("doctor", epilog="Example: agentctl runs doctor --fix")(examine_runs)
