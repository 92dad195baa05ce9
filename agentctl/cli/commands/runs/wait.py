"""`agentctl runs wait`: wait until runs have ended."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from agentctl.cli.approvals import build_waiting
from agentctl.cli.commands.runs.cancel import MAXIMUM_WAIT_SECONDS
from agentctl.cli.options import (
    AgentId,
    DbId,
    Output,
    RunIds,
    SessionOption,
    TeamId,
    WorkflowId,
    resolve_component,
)
from agentctl.cli.run_streams import WatchedRun
from agentctl.cli.show import columns
from agentctl.cli.show.output import choose_view, resolve_format, show_list
from agentctl.cli.show.progress import (
    Counter,
    report_failures,
    run_all,
    showing_progress,
    successes,
)
from agentctl.cli.target import Target, with_target
from agentctl.errors import RunFailed, StillPending
from agentctl.records.runs import FINAL_STATUSES
from agentctl.requests import SUMMARY_VIEW

if TYPE_CHECKING:
    from agentctl.records.runs import RunRecord
    from agentctl.requests import RunView

FIRST_POLL_SECONDS = 0.1
LAST_POLL_SECONDS = 2.0
"""The pause between two reads of a run doubles from the first to the last of these."""


@with_target()
async def wait_for_runs(
    target: Target,
    run_ids: RunIds,
    wait: Annotated[
        float | None,
        typer.Option(
            "--wait",
            metavar="SECONDS",
            min=0,
            max=MAXIMUM_WAIT_SECONDS,
            help="Seconds to wait for the runs to end (default: no limit)",
        ),
    ] = None,
    agent: AgentId = None,
    team: TeamId = None,
    workflow: WorkflowId = None,
    session: SessionOption = None,
    db: DbId = None,
    output: Output = None,
) -> None:
    """Wait until runs have ended, and show them.

    Exit code 0 if every run is COMPLETED, 1 if one ended as ERROR or was cancelled, 8 if one has
    not ended within --wait, 9 if one waits for a decision. Ctrl-C cancels no run. With --session
    and --agent, --team or --workflow the runs are those of this component and session.
    """
    output_format = resolve_format(output)
    form = choose_view(output_format, None)
    deadline = None if wait is None else time.monotonic() + wait
    counter = Counter("runs have ended", len(run_ids))
    component = resolve_component(agent, team, workflow)
    by_component = component is not None and session is not None

    async def wait_for(run_id: str) -> RunRecord:
        run = WatchedRun(target, run_id, component, session, db, by_component)
        record = await _wait_for_end(run, deadline, form)
        counter.done += _is_settled(record)
        return record

    async with showing_progress(counter, limit=wait):
        results = await run_all(run_ids, wait_for)
    records = successes(results)
    if records:
        show_list(records, columns.RUNS, output_format, id_field="run_id")
    report_failures(run_ids, results)
    live = [record["run_id"] for record in records if not _is_settled(record)]
    if live:
        hint = f"follow one with: {target.command(f'runs watch {live[0]}')}"
        count = f"{len(live)} of {len(run_ids)} runs"
        raise StillPending(f"{count} not ended within {wait:g} s", hint=hint)
    paused = [record for record in records if record["status"] == "PAUSED"]
    failed = [record for record in records if record["status"] not in ("COMPLETED", "PAUSED")]
    if failed:
        hint = "show one with: " + target.command(f"runs get {failed[0]['run_id']}")
        raise RunFailed(f"{len(failed)} of {len(run_ids)} runs not completed", hint=hint)
    if paused:
        raise build_waiting(target, paused[0]["run_id"], paused[0]["approvals"])


def _is_settled(record: RunRecord) -> bool:
    """Return True if the run has ended, or goes on only after a decision."""
    return record["status"] == "PAUSED" or record["status"] in FINAL_STATUSES


async def _wait_for_end(run: WatchedRun, deadline: float | None, form: RunView) -> RunRecord:
    import asyncio

    pause = FIRST_POLL_SECONDS
    while True:
        record = (await run.read_document(SUMMARY_VIEW)).value
        left = pause if deadline is None else deadline - time.monotonic()
        if _is_settled(record) or left <= 0:
            if form is SUMMARY_VIEW:
                return record
            return (await run.read_document(form)).value
        await asyncio.sleep(min(pause, left))
        pause = min(2 * pause, LAST_POLL_SECONDS)
