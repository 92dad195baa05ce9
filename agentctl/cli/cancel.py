"""`agentctl runs cancel`: stop runs, and wait for their ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from agentctl.cli import bulk, columns
from agentctl.cli.chosen import Chosen, chosen_component, component_of_run
from agentctl.cli.door import Door, with_door
from agentctl.cli.options import AgentId, DbId, Output, SessionOption, TeamId, WorkflowId
from agentctl.cli.output import chosen_format, show_list, show_record
from agentctl.cli.progress import waiting
from agentctl.cli.terminal import note
from agentctl.errors import StillPending
from agentctl.operations import MAXIMUM_CANCEL_WAIT, CancelRequest

if TYPE_CHECKING:
    from agentctl.records.document import Document
    from agentctl.records.runs import CancelRecord

__all__ = ["cancel_runs"]

T = TypeVar("T")

CANCEL_WAIT = 10.0
"""Seconds that `runs cancel` waits for the end unless told otherwise (contract.md 8)."""

LONGEST_WAIT = 86_400
"""Seconds that it can be told to wait: a day."""

AGAIN_SECONDS = 0.1
"""Between two requests for the same run, so that one that comes back at once is no busy loop."""


@with_door()
async def cancel_runs(
    door: Door,
    run_ids: Annotated[list[str], typer.Argument(metavar="RUN_ID", help="Ids of the runs")],
    agent: AgentId = None,
    team: TeamId = None,
    workflow: WorkflowId = None,
    session: SessionOption = None,
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
    """Stop runs.

    Exit code 8 when one is asked to stop and has not stopped yet. With --session and --agent,
    --team or --workflow a run is not looked up first.
    """
    form = chosen_format(output)
    given = chosen_component(agent, team, workflow)
    request = CancelRequest(session, wait, reason)

    async def cancel(run_id: str) -> Document[CancelRecord]:
        return await _cancel(door, run_id, given, request, db)

    unique = tuple(dict.fromkeys(run_ids))
    results = await _all(door, unique, cancel, wait)
    done = bulk.successes(results)
    if len(unique) == 1:
        for document in done:
            show_record(document, columns.CANCELS, form, id_field="run_id")
    elif done:
        show_list(_joined(done), columns.CANCELS, form, id_field="run_id")
    pending = [document.value["run_id"] for document in done if not _tell(door, document.value)]
    bulk.raise_failures(unique, results)
    if pending:
        raise StillPending("asked to stop, and not stopped yet", hint=_look(door, pending[0]))


async def _all(
    door: Door, run_ids: Sequence[str], cancel: Callable[[str], Awaitable[T]], wait: float
) -> list[T | BaseException]:
    """Do it for every run at the same time, showing that it lasts."""
    import asyncio

    what = "the run" if len(run_ids) == 1 else f"{len(run_ids)} runs"
    try:
        async with waiting(f"waiting for the end of {what}", most=wait):
            return await bulk.do_all(run_ids, cancel)
    except asyncio.CancelledError:
        note(f"interrupted, it may have been asked to stop; {_look(door, run_ids[0])}")
        raise


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
