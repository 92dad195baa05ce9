"""`agentctl runs`: look at work and stop it. `agentctl.cli.start` starts it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from agentctl.cli import bulk, columns
from agentctl.cli.chosen import Chosen, chosen_component, component_of_run
from agentctl.cli.door import Door, with_door
from agentctl.cli.options import (
    AgentId,
    Cursor,
    DbId,
    KindOption,
    Limit,
    Output,
    PageNumber,
    SessionOption,
    SortOrder,
    TeamId,
    UserId,
    WorkflowId,
)
from agentctl.cli.output import chosen_format, show_list, show_page, show_record
from agentctl.cli.start import start_run
from agentctl.errors import StillPending
from agentctl.operations import (
    DEFAULT_LIMIT,
    MAXIMUM_CANCEL_WAIT,
    CancelRequest,
    Page,
    RunFilter,
)

if TYPE_CHECKING:
    from agentctl.records.document import Document
    from agentctl.records.runs import CancelRecord

__all__ = ["app"]

app = typer.Typer(help="Start, follow, list and cancel runs")
app.command("start", epilog='Example: agentctl runs start --agent echo --message "hello"')(
    start_run
)

RunId = Annotated[str, typer.Argument(metavar="RUN_ID")]
Status = Literal["PENDING", "RUNNING", "COMPLETED", "ERROR", "CANCELLED"]

CANCEL_WAIT = 10.0
"""Seconds that `runs cancel` waits for the end unless told otherwise (contract.md 8)."""


@app.command("list", epilog="Example: agentctl runs list --status RUNNING")
@with_door()
async def list_runs(
    door: Door,
    status: Annotated[
        Status | None, typer.Option("--status", help="Only in this state", case_sensitive=False)
    ] = None,
    type: KindOption = None,
    component: Annotated[
        str | None, typer.Option("--component", metavar="ID", help="Only of this component")
    ] = None,
    session: SessionOption = None,
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
    show_record(document, columns.RUN, form, id_field="run_id")


@app.command("cancel", epilog='Example: agentctl runs cancel RUN_ID --reason "wrong question"')
@with_door()
async def cancel_runs(
    door: Door,
    run_ids: Annotated[list[str], typer.Argument(metavar="RUN_ID...")],
    agent: AgentId = None,
    team: TeamId = None,
    workflow: WorkflowId = None,
    session: SessionOption = None,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", min=0, max=MAXIMUM_CANCEL_WAIT, help="Seconds to wait for the end, 0: none"
        ),
    ] = CANCEL_WAIT,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Kept with the run")
    ] = None,
    db: DbId = None,
    output: Output = None,
) -> None:
    """Stop runs. Exit code 8 when one is asked to stop and has not stopped yet."""
    form = chosen_format(output)
    given = chosen_component(agent, team, workflow)
    request = CancelRequest(session, wait, reason)

    async def cancel(run_id: str) -> Document[CancelRecord]:
        return await _cancel(door, run_id, given, request, db)

    unique = tuple(dict.fromkeys(run_ids))
    results = await bulk.do_all(unique, cancel)
    done = bulk.successes(results)
    if len(unique) == 1:
        for document in done:
            show_record(document, columns.CANCELS, form, id_field="run_id")
    elif done:
        show_list(_joined(done), columns.CANCELS, form, id_field="run_id")
    outcomes = [_tell(door, document.value) for document in done]
    bulk.raise_failures(unique, results)
    if "requested" in outcomes:
        raise StillPending("asked to stop, and not stopped yet", hint="look again: runs get RUN_ID")


async def _cancel(
    door: Door, run_id: str, given: Chosen | None, request: CancelRequest, db: str | None
) -> Document[CancelRecord]:
    """Cancel one run; which component and session it is of is looked up unless it was given."""
    kind, component_id = given or (None, None)
    session_id = request.session_id
    if kind is None or component_id is None:
        run = (await door.operations.get_run(run_id, db_id=db)).value
        kind, component_id = component_of_run(run)
        session_id = session_id or run["session_id"]
    asked = CancelRequest(session_id, request.wait, request.reason)
    return await door.operations.cancel_run(kind, component_id, run_id, asked)


def _tell(door: Door, record: CancelRecord) -> str:
    texts = {
        "stopped": "stopped",
        "requested": f"asked to stop, still {record['status']}:",
        "already_final": f"already final, {record['status']}:",
    }
    outcome = record["cancel"]
    door.did(f"{texts.get(outcome, outcome)} run {record['run_id']}")
    return outcome


def _joined(documents: list[Document[CancelRecord]]) -> Document[list[CancelRecord]]:
    """One document, the array of these."""
    from agentctl.records.document import Document

    return Document(b"[" + b",".join(each.raw for each in documents) + b"]")
