"""`agentctl runs cancel`: stop runs, and wait for their ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from agentctl.cli import bulk, columns
from agentctl.cli.cancel_all import cancel_all
from agentctl.cli.chosen import Chosen, chosen_component, component_of_run
from agentctl.cli.door import Door, with_door
from agentctl.cli.durations import microseconds_ago
from agentctl.cli.options import (
    AgentId,
    DbId,
    OlderThan,
    Output,
    SessionOption,
    TeamId,
    UserId,
    WorkflowId,
    Yes,
)
from agentctl.cli.output import Format, chosen_format, show_list, show_record
from agentctl.cli.progress import waiting
from agentctl.cli.terminal import check_confirmable, note
from agentctl.errors import StillPending, UsageFailed
from agentctl.operations import MAXIMUM_CANCEL_WAIT, CancelRequest, RunFilter

if TYPE_CHECKING:
    from agentctl.records.document import Document
    from agentctl.records.runs import CancelRecord

__all__ = ["cancel_runs"]

CANCEL_WAIT = 10.0
"""Seconds that `runs cancel` waits for the end unless told otherwise (contract.md 8)."""

LONGEST_WAIT = 86_400
"""Seconds that it can be told to wait: a day."""

AGAIN_SECONDS = 0.1
"""Between two requests for the same run, so that one that comes back at once is no busy loop."""


@with_door()
async def cancel_runs(
    door: Door,
    run_ids: Annotated[
        list[str] | None, typer.Argument(metavar="RUN_ID", help="Ids of the runs")
    ] = None,
    all: Annotated[
        bool, typer.Option("--all", help="Every live run that the options leave, instead of ids")
    ] = False,
    agent: AgentId = None,
    team: TeamId = None,
    workflow: WorkflowId = None,
    session: SessionOption = None,
    user: UserId = None,
    status: Annotated[
        Literal["PENDING", "RUNNING"] | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            help="Only in this state: PENDING or RUNNING",
            case_sensitive=False,
        ),
    ] = None,
    older_than: OlderThan = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="With --all: only print what would be cancelled")
    ] = False,
    yes: Yes = False,
    wait: Annotated[
        float,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=0,
            max=LONGEST_WAIT,
            help="How long to wait for the end; 0: not at all",
        ),
    ] = CANCEL_WAIT,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Kept with the run")
    ] = None,
    db: DbId = None,
    output: Output = None,
) -> None:
    """Stop runs: those of the ids, or with --all those that the options leave.

    Exit code 8 when one is asked to stop and has not stopped yet. With --session and --agent,
    --team or --workflow a run that is named is not looked up first.
    """
    form = chosen_format(output)
    given = chosen_component(agent, team, workflow)
    request = CancelRequest(session, wait, reason)
    if not all:
        only_with_all = {
            "--user": user, "--status": status, "--older-than": older_than, "--dry-run": dry_run,
        }  # fmt: skip
        unique = _named(run_ids, [name for name, value in only_with_all.items() if value])
        await _cancel_named(door, unique, given, request, db, form)
        return
    if run_ids:
        raise UsageFailed("--all and ids of runs exclude each other")
    if not dry_run:
        check_confirmable(yes=yes)
    kind, component_id = given or (None, None)
    wanted = RunFilter(
        status=status,
        component_type=kind,
        component_id=component_id,
        session_id=session,
        user_id=user,
        db_id=db,
        live=status is None,
        created_before=microseconds_ago(older_than),
    )
    await cancel_all(door, wanted, request, form, dry_run=dry_run, yes=yes)


def _named(run_ids: Sequence[str] | None, filters: Sequence[str]) -> tuple[str, ...]:
    """The ids, each once.

    Raises:
        UsageFailed: there are none, or options that choose among runs go with them.
    """
    if filters:
        raise UsageFailed(f"{filters[0]} chooses among runs, which needs --all")
    if not run_ids:
        raise UsageFailed(
            "no run to cancel is named",
            hint="give ids, or --all with --agent ID, --older-than 10m and the like",
        )
    return tuple(dict.fromkeys(run_ids))


async def _cancel_named(
    door: Door,
    run_ids: Sequence[str],
    given: Chosen | None,
    request: CancelRequest,
    db: str | None,
    form: Format,
) -> None:
    async def cancel(run_id: str) -> Document[CancelRecord]:
        return await _cancel(door, run_id, given, request, db)

    import asyncio

    what = "the run" if len(run_ids) == 1 else f"{len(run_ids)} runs"
    try:
        async with waiting(f"waiting for the end of {what}", most=request.wait):
            results = await bulk.do_all(run_ids, cancel)
    except asyncio.CancelledError:
        note(f"interrupted, it may have been asked to stop; {_look(door, run_ids[0])}")
        raise
    done = bulk.successes(results)
    if len(run_ids) == 1:
        for document in done:
            show_record(document, columns.CANCELS, form, id_field="run_id")
    elif done:
        show_list(_joined(done), columns.CANCELS, form, id_field="run_id")
    pending = [document.value["run_id"] for document in done if not _tell(door, document.value)]
    bulk.raise_failures(run_ids, results)
    if pending:
        raise StillPending("asked to stop, and not stopped yet", hint=_look(door, pending[0]))


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
    return await _until_stopped(door, (kind, component_id), run_id, asked)


async def _until_stopped(
    door: Door, component: Chosen, run_id: str, request: CancelRequest
) -> Document[CancelRecord]:
    """Ask as often as the wait needs: one request waits for `MAXIMUM_CANCEL_WAIT` at most."""
    import asyncio
    import time

    end = time.monotonic() + request.wait
    left = request.wait
    while True:
        asked = replace(request, wait=min(left, MAXIMUM_CANCEL_WAIT))
        document = await door.operations.cancel_run(*component, run_id, asked)
        left = end - time.monotonic()
        if document.value["cancel"] != "requested" or left < AGAIN_SECONDS:
            return document
        await asyncio.sleep(AGAIN_SECONDS)


def _look(door: Door, run_id: str) -> str:
    return f"look again: {door.command(f'runs get {run_id}')}"


def _tell(door: Door, record: CancelRecord) -> bool:
    """Say what came of one cancel. False: the run may go on."""
    texts = {
        "stopped": "stopped",
        "requested": f"asked to stop, still {record['status']}:",
        "already_final": f"already final, {record['status']}:",
    }
    outcome = record["cancel"]
    door.did(f"{texts.get(outcome, outcome)} run {record['run_id']}")
    return outcome != "requested"


def _joined(documents: list[Document[CancelRecord]]) -> Document[list[CancelRecord]]:
    """One document, the array of these."""
    from agentctl.records.document import Document

    return Document(b"[" + b",".join(each.raw for each in documents) + b"]")
