"""`agentctl runs cancel`: cancel runs by id, or all live runs that match the filters.

With `--all` the command first reads all matching runs, then requests every cancel, then waits: a
run that does not stop delays no other request.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal

from agentctl.cli import options
from agentctl.cli.lists import NO_AGES, AgeOptions, check_row_count
from agentctl.cli.parameters import flag, option
from agentctl.cli.show import columns
from agentctl.cli.show.output import CommandOutput
from agentctl.cli.show.progress import (
    Counter,
    report_failures,
    run_all,
    showing_progress,
    successes,
)
from agentctl.cli.show.terminal import check_confirmable, confirm, note
from agentctl.cli.target import Target, with_target
from agentctl.errors import StillPending, UsageError
from agentctl.interface.declarations import list_status_filters
from agentctl.interface.operations.cancels import cancel_until_stopped
from agentctl.interface.requests import MAXIMUM_LIMIT, SUMMARY_VIEW, CancelRequest, Page, RunFilter
from agentctl.interface.requests.lists import read_pages
from agentctl.records.document import Document
from agentctl.records.kinds import ComponentRef, component_of_run
from agentctl.records.phase import describe_phase
from agentctl.records.runs import CancelRecord
from agentctl.records.text import format_count
from agentctl.records.times import now

DEFAULT_WAIT_SECONDS = 10.0
"""Default of --wait (docs/contract.md "Command line")."""

MAXIMUM_WAIT_SECONDS = 86_400

POLL_ALL_SECONDS = 0.2
"""Pause between two rounds of requests for the runs that have not stopped."""

CONCURRENT_REQUESTS = 16
"""Maximum number of cancels that are requested at the same time."""

Run = dict[str, Any]

_NO_OPTIONS = ("status", "session_id", "page", "live", "form", *list_status_filters(RunFilter))
"""The filters of runs that `runs cancel --all` does not have, or declares itself."""

_ORDER = (
    "run_ids", "all", "agent", "team", "workflow", "component_type", "component_id", "session",
    "user_id", "status", "older_than", "newer_than", "metadata", "tag", "dry_run", "yes", "wait",
    "reason", "db_id", ...,
)  # fmt: skip
"""The options of `runs cancel` in the order of its help."""


@with_target(without=_NO_OPTIONS, order=_ORDER)
async def cancel_runs(
    target: Target,
    out: CommandOutput,
    filter: RunFilter,
    run_ids: options.OptionalRunIds = None,
    all: bool = flag("--all", "Cancel every live run that matches the filters"),
    choice: options.ComponentChoice = options.NO_CHOICE,
    session: options.SessionOption = None,
    status: Literal["PENDING", "RUNNING", "PAUSED"] | None = option(
        "--status", "STATUS", "Filter by status: PENDING, RUNNING or PAUSED", case_sensitive=False
    ),
    ages: AgeOptions = NO_AGES,
    dry_run: bool = flag("--dry-run", "With --all: list the runs without cancelling them"),
    yes: options.Yes = False,
    wait: float = option(
        "--wait",
        "SECONDS",
        "Seconds to wait for the runs to stop (0: return at once)",
        min=0,
        max=MAXIMUM_WAIT_SECONDS,
        default=DEFAULT_WAIT_SECONDS,
    ),
    reason: str | None = option("--reason", "TEXT", "Reason to record"),
) -> None:
    """Cancel runs by id, or all live runs that match the filters.

    Exit code 8 if a run has not stopped yet, or has ended but its work continues. With --session
    and --agent, --team or --workflow, a run is cancelled by id without reading it first.
    """
    component = choice.resolve()
    request = CancelRequest(session, wait, reason)
    if all and run_ids:
        raise UsageError("--all and RUN_ID cannot be used together")

    if all:
        if not dry_run:
            check_confirmable(yes=yes)
        matching = replace(
            ages.limit(options.select_component(filter, component)),
            session_id=session,
            status=status,
            live=status is None,
        )
        await _cancel_all(target, matching, request, out, dry_run=dry_run, yes=yes)
        return

    filters = {
        "--type": filter.component_type,
        "--component": filter.component_id,
        "--user": filter.user_id,
        "--status": status,
        "--older-than": ages.older_than,
        "--newer-than": ages.newer_than,
        "--metadata": filter.metadata,
        "--tag": filter.tag,
    }
    for name, value in {**filters, "--dry-run": dry_run}.items():
        if value:
            raise UsageError(f"{name} is a filter and needs --all")

    if not run_ids:
        raise UsageError(
            "no runs given", hint="give a RUN_ID, or --all with filters such as --agent ID"
        )
    await _cancel_by_ids(target, run_ids, component, request, filter.db_id, out)


async def _cancel_by_ids(
    target: Target,
    run_ids: Sequence[str],
    component: ComponentRef | None,
    request: CancelRequest,
    db: str | None,
    out: CommandOutput,
) -> None:
    import asyncio

    cancel = partial(_cancel_by_id, target, component, request, db)
    what = "the run" if len(run_ids) == 1 else f"{len(run_ids)} runs"
    try:
        async with showing_progress(f"waiting for the end of {what}", limit=request.wait):
            results = await run_all(run_ids, cancel)
    except asyncio.CancelledError:
        look = target.command(f"runs get {run_ids[0]}")
        note(f"interrupted, the cancel may have been requested; check with: {look}")
        raise

    documents = successes(results)
    if documents and len(run_ids) == 1:
        out.show_record(documents[0], columns.CANCELS, "run_id")
    elif documents:
        whole = b"[" + b",".join(document.raw for document in documents) + b"]"
        joined: Document[list[CancelRecord]] = Document(whole)
        out.show_list(joined, columns.CANCELS, "run_id")

    records = [document.value for document in documents]
    for record in records:
        _report_outcome(target, record)
    report_failures(run_ids, results)
    _check_stopped(target, records)


def _report_outcome(target: Target, record: CancelRecord) -> None:
    phase = describe_phase(record, now())
    outcome = {
        "requested": f"cancel requested, still {record['status']}:",
        "already_final": f"already final, {record['status']}:",
    }.get(record["cancel"], _find_outcome(record))
    target.report_done(f"{outcome} run {record['run_id']}")
    if phase["sentence"]:
        note(f"  {phase['sentence']}")
    if phase["warning"]:
        note(f"warning: {phase['warning']}: agentctl cannot interrupt it")


def _find_outcome(record: CancelRecord) -> str:
    outcome = record["cancel"]
    return "ended" if outcome == "stopped" and describe_phase(record, 0)["warning"] else outcome


async def _cancel_by_id(
    target: Target,
    component: ComponentRef | None,
    request: CancelRequest,
    db: str | None,
    run_id: str,
) -> Document[CancelRecord]:
    session_id = request.session_id
    if component is None:
        run = (await target.operations.runs.get(run_id, db_id=db, form=SUMMARY_VIEW)).value
        component = component_of_run(run)
        session_id = session_id or run["session_id"]
    located = replace(request, session_id=session_id)
    return await cancel_until_stopped(target.operations, component, run_id, located)


async def _cancel_all(
    target: Target,
    filter: RunFilter,
    request: CancelRequest,
    out: CommandOutput,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Cancel all runs that match a filter, or show them.

    Args:
        filter: of live runs only.
        request: the reason, and the time to wait for all runs together.
    """
    runs, members = await _select_runs(target, filter)
    what = _count_runs(len(runs))
    if members:
        what += f" and {_count_runs(members)} of members"

    if dry_run or not runs:
        if runs or not out.is_table:
            out.show_list(runs, columns.RUNS, "run_id")
        outcome = f"{what} would be cancelled" if runs else "no live runs to cancel"
        note(f"{outcome} {target.place}")
        return

    confirm(f"Cancel {what}, {target.place}?", yes=yes)
    results = await _request_cancels(target, runs, request)

    records = successes(results)
    out.show_list(records, columns.CANCELS, "run_id")

    counts = Tally[str](_find_outcome(record) for record in records)
    texts = {
        "stopped": "stopped",
        "ended": "ended, but work continues",
        "requested": "cancel requested and not stopped yet",
        "already_final": "already final",
    }
    if parts := [f"{counts[outcome]} {text}" for outcome, text in texts.items() if counts[outcome]]:
        target.report_done(f"{_count_runs(len(records))}: {', '.join(parts)},")
    report_failures([run["run_id"] for run in runs], results)
    _check_stopped(target, records)


async def _select_runs(target: Target, filter: RunFilter) -> tuple[list[Run], int]:
    """Return the runs, newest first, and the number of their member runs, which stop with them.

    New runs precede the first page, so a cursor never reaches them.
    """
    runs: list[Run] = []
    counter = Counter("runs found")
    every = replace(filter, page=Page(limit=MAXIMUM_LIMIT), form=SUMMARY_VIEW)
    async with showing_progress(counter):
        async for rows in read_pages(target.operations.runs.list, every):
            runs += rows
            check_row_count(runs)
            counter.done = len(runs)
    ids = {run["run_id"] for run in runs}
    top_level = [run for run in runs if run.get("parent_run_id") not in ids]
    return top_level, len(runs) - len(top_level)


async def _request_cancels(
    target: Target, runs: Sequence[Run], request: CancelRequest
) -> list[CancelRecord | BaseException]:
    import asyncio

    requested_ids: set[str] = set()
    counter = Counter("runs have stopped", len(runs))

    async def cancel(run: Run) -> CancelRecord:
        run_id = run["run_id"]
        immediate_request = CancelRequest(run["session_id"], 0.0, request.reason)
        document = await target.operations.runs.cancel(
            *component_of_run(run), run_id, immediate_request
        )

        record = document.value
        if run_id in requested_ids and record["status"] == "CANCELLED":
            # An earlier request of this command stopped it.
            record["cancel"] = "stopped"
        if record["cancel"] == "requested":
            requested_ids.add(run_id)
        else:
            counter.done += 1
        return record

    try:
        async with showing_progress(counter):
            results = await run_all(runs, cancel, at_once=CONCURRENT_REQUESTS)

            end = time.monotonic() + request.wait
            while (left := end - time.monotonic()) > 0:
                pending = [index for index, result in enumerate(results) if _is_pending(result)]
                if not pending:
                    break

                await asyncio.sleep(min(POLL_ALL_SECONDS, left))
                pending_runs = [runs[index] for index in pending]
                new_results = await run_all(pending_runs, cancel, at_once=CONCURRENT_REQUESTS)
                for index, result in zip(pending, new_results, strict=True):
                    results[index] = result
    except asyncio.CancelledError:
        look = target.command("runs list --live")
        note(
            f"interrupted: {counter.done} of {len(runs)} runs have stopped, list them with: {look}"
        )
        raise

    return results


def _is_pending(result: CancelRecord | BaseException) -> bool:
    return not isinstance(result, BaseException) and result["cancel"] == "requested"


def _check_stopped(target: Target, records: Sequence[CancelRecord]) -> None:
    pending = [record for record in records if _is_pending(record)]
    if pending:
        look = target.command(f"runs get {pending[0]['run_id']}")
        raise StillPending(
            f"cancel requested, but {_count_runs(len(pending))} not stopped yet",
            hint=f"check again with: {look}",
        )

    held = [record for record in records if describe_phase(record, now())["warning"]]
    if held:
        look = target.command(f"runs get {held[0]['run_id']}")
        raise StillPending(
            f"{_count_runs(len(held))} ended, but work continues", hint=f"check again with: {look}"
        )


def _count_runs(number: int) -> str:
    return format_count(number, "run")
