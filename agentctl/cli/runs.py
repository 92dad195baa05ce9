"""`agentctl runs`: look at work. `agentctl.cli.start` starts it, `agentctl.cli.cancel` stops it."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import typer

from agentctl.cli import columns
from agentctl.cli.cancel import cancel_runs
from agentctl.cli.door import Door, with_door
from agentctl.cli.help import Branch, any_of
from agentctl.cli.options import (
    Cursor,
    DbId,
    KindOption,
    Limit,
    Output,
    PageNumber,
    SortOrder,
    UserId,
)
from agentctl.cli.output import chosen_format, show_page
from agentctl.cli.start import start_run
from agentctl.operations import DEFAULT_LIMIT, Page, RunFilter

__all__ = ["app"]

app = Branch(
    help="Start, follow, list and cancel runs.",
    epilog="Example: agentctl runs list --status RUNNING",
)
app.command("start", epilog='Example: agentctl runs start --agent echo --message "hello"')(
    start_run
)

RunId = Annotated[str, typer.Argument(metavar="RUN_ID", help="Id of the run")]
Status = Literal["PENDING", "RUNNING", "COMPLETED", "ERROR", "CANCELLED"]


@app.command("list", epilog="Example: agentctl runs list --status RUNNING")
@with_door()
async def list_runs(
    door: Door,
    status: Annotated[
        Status | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            help=f"Only in this state: {any_of(get_args(Status))}",
            case_sensitive=False,
        ),
    ] = None,
    type: KindOption = None,
    component: Annotated[
        str | None, typer.Option("--component", metavar="ID", help="Only of this component")
    ] = None,
    session: Annotated[
        str | None, typer.Option("--session", metavar="ID", help="Only of this session")
    ] = None,
    user: UserId = None,
    limit: Limit = DEFAULT_LIMIT,
    page: PageNumber = 1,
    cursor: Cursor = None,
    sort_order: SortOrder = "desc",
    db: DbId = None,
    output: Output = None,
) -> None:
    """List runs across sessions, newest first."""
    form = chosen_format(output)
    part = Page(limit=limit, page=page, cursor=cursor, sort_order=sort_order)
    wanted = RunFilter(status, type, component, session, user, db, part)
    document = await door.operations.get_runs(wanted)
    show_page(document, columns.RUNS, form, id_field="run_id")


@app.command("get", epilog="Example: agentctl runs get RUN_ID")
@with_door()
async def get_run(door: Door, run_id: RunId, db: DbId = None, output: Output = None) -> None:
    """Show one run."""
    form = chosen_format(output)
    document = await door.operations.get_run(run_id, db_id=db)
    columns.show_run(document, form)


app.command("cancel", epilog='Example: agentctl runs cancel RUN_ID --reason "wrong question"')(
    cancel_runs
)
