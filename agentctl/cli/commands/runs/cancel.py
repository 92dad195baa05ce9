"""`agentctl runs cancel`: cancel runs by id, or all live runs that match the filters.

With `--all` the command first reads all matching runs, then requests every cancel, then waits: a
run that does not stop delays no other request.
"""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from agentctl.cli.durations import microseconds_ago
from agentctl.cli.options import (
    AgentId,
    ComponentRef,
    DbId,
    OlderThan,
    Output,
    SessionOption,
    TeamId,
    UserId,
    WorkflowId,
    Yes,
    component_of_run,
    resolve_component,
)
from agentctl.cli.show import columns, progress
from agentctl.cli.show.output import Format, resolve_format, show_list, show_record
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.table import Column, Columns
from agentctl.cli.show.terminal import check_confirmable, confirm, note
from agentctl.cli.target import Target, with_target
from agentctl.errors import StillPending, UsageError
from agentctl.operations import MAXIMUM_CANCEL_WAIT, MAXIMUM_LIMIT, CancelRequest, Page, RunFilter

if TYPE_CHECKING:
    from agentctl.records.document import Document
    from agentctl.records.runs import CancelRecord

__all__ = ["cancel_all", "cancel_runs"]

CONCURRENT_REQUESTS = 16
"""Requests under way at the same time."""

POLL_ALL_SECONDS = 0.2
"""Between two looks at the runs that have not stopped yet."""

_LARGE_FIELDS = ("input", "content", "messages", "tools", "metrics")
"""Fields of a run that are not kept: there may be many runs."""

Run = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _Selection:
    """What a filter leaves.

    Attributes:
        runs: what is to be asked to stop, newest first.
        members: how many runs stop with them, because one of them asked for them.
    """

    runs: list[Run]
    members: int

    def __str__(self) -> str:
        return _count(len(self.runs), "run") + (
            f" and {_count(self.members, 'run')} of members" if self.members else ""
        )


async def cancel_all(
    target: Target,
    wanted: RunFilter,
    request: CancelRequest,
    form: Format,
    *,
    dry_run: bool,
    yes: bool,
) -> None:
    """Cancel what the filter leaves, or only say what that is.

    Args:
        wanted: the filter; it leaves live runs only.
        request: how long to wait for all the ends together, and the reason.
        yes: do not ask.

    Raises:
        Refused: the answer to the question was no.
        StillPending: some have not stopped yet.
        AgentctlError: some could not be asked.
    """
    found = await _select_runs(target, wanted)
    if dry_run or not found.runs:
        _show_selection(target, found, form)
        return
    confirm(f"Cancel {found}, {target.place}?", yes=yes)
    results = await _cancel_all_runs(target, found.runs, request)
    done = progress.successes(results)
    _show_records(done, columns.CANCELS, form)
    _note_summary(target, done)
    progress.report_failures([run["run_id"] for run in found.runs], results)
    pending = [record["run_id"] for record in done if record["cancel"] == "requested"]
    if pending:
        look = target.command(f"runs get {pending[0]}")
        raise StillPending(
            f"{_count(len(pending), 'run')} asked to stop, and not stopped yet",
            hint=f"look again: {look}",
        )


def _show_selection(target: Target, found: _Selection, form: Format) -> None:
    """Say what would be cancelled, which may be nothing."""
    if found.runs or form != "table":
        _show_records(found.runs, columns.RUNS, form)
    what = f"{found} would be cancelled" if found.runs else "there is nothing to cancel"
    note(f"{what} {target.place}")


async def _select_runs(target: Target, wanted: RunFilter) -> _Selection:
    """Read every page. New runs come before the first one: the cursor never meets them."""
    runs: list[Run] = []
    counter = Counter("runs found")
    part = Page(limit=MAXIMUM_LIMIT)
    async with showing_progress(counter):
        while True:
            page = (await target.operations.get_runs(replace(wanted, page=part))).value
            for record in page["data"]:
                runs.append(
                    {name: value for name, value in record.items() if name not in _LARGE_FIELDS}
                )
            counter.done = len(runs)
            following = page["meta"].get("next_cursor")
            if not following or following == part.cursor:
                break
            part = replace(part, cursor=following)
    ids = {run["run_id"] for run in runs}
    tops = [run for run in runs if run.get("parent_run_id") not in ids]
    return _Selection(tops, len(runs) - len(tops))


async def _cancel_all_runs(
    target: Target, runs: Sequence[Run], request: CancelRequest
) -> list[CancelRecord | BaseException]:
    """Ask every run to stop, then look again at those that have not, until the time is up."""
    import asyncio
    import time

    async def ask(run: Run) -> CancelRecord:
        asked = CancelRequest(run["session_id"], 0.0, request.reason)
        component = component_of_run(run)
        record = (await target.operations.cancel_run(*component, run["run_id"], asked)).value
        if run["run_id"] in requested and record["status"] == "CANCELLED":
            record["cancel"] = "stopped"  # it had been asked to, by us
        if record["cancel"] == "requested":
            requested.add(run["run_id"])
        else:
            counter.done += 1
        return record

    requested: set[str] = set()
    counter = Counter("runs have stopped", len(runs))
    try:
        async with showing_progress(counter):
            results = await progress.run_all(runs, ask, at_once=CONCURRENT_REQUESTS)
            end = time.monotonic() + request.wait
            while (left := end - time.monotonic()) > 0 and (again := _pending_positions(results)):
                await asyncio.sleep(min(POLL_ALL_SECONDS, left))
                looked = await progress.run_all(
                    [runs[at] for at in again], ask, at_once=CONCURRENT_REQUESTS
                )
                for at, result in zip(again, looked, strict=True):
                    results[at] = result
    except asyncio.CancelledError:
        look = target.command("runs list --live")
        note(f"interrupted: {counter.done} of {len(runs)} runs have stopped, see: {look}")
        raise
    return results


def _pending_positions(results: Sequence[CancelRecord | BaseException]) -> list[int]:
    """Which runs are still to stop."""
    return [
        at
        for at, result in enumerate(results)
        if not isinstance(result, BaseException) and result["cancel"] == "requested"
    ]


def _note_summary(target: Target, done: Sequence[CancelRecord]) -> None:
    """Say in one line what came of it."""
    tally: Tally[str] = Tally(record["cancel"] for record in done)
    texts = {
        "stopped": "stopped",
        "requested": "asked to stop and not stopped yet",
        "already_final": "already final",
    }
    parts = [f"{tally[outcome]} {text}" for outcome, text in texts.items() if tally[outcome]]
    if parts:
        target.report_done(f"{_count(len(done), 'run')}: {', '.join(parts)},")


def _show_records(records: Sequence[Any], shown: Columns | Sequence[Column], form: Format) -> None:
    from agentctl.records.document import build_document

    show_list(build_document(list(records)), shown, form, id_field="run_id")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


DEFAULT_WAIT_SECONDS = 10.0
"""Seconds that `runs cancel` waits for the end unless told otherwise (contract.md 8)."""

MAXIMUM_WAIT_SECONDS = 86_400
"""Seconds that it can be told to wait: a day."""

POLL_SECONDS = 0.1
"""Between two requests for the same run, so that one that comes back at once is no busy loop."""


@with_target()
async def cancel_runs(
    target: Target,
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
            max=MAXIMUM_WAIT_SECONDS,
            help="How long to wait for the end; 0: not at all",
        ),
    ] = DEFAULT_WAIT_SECONDS,
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
    form = resolve_format(output)
    given = resolve_component(agent, team, workflow)
    request = CancelRequest(session, wait, reason)
    if not all:
        only_with_all = {
            "--user": user, "--status": status, "--older-than": older_than, "--dry-run": dry_run,
        }  # fmt: skip
        unique = _check_run_ids(run_ids, [name for name, value in only_with_all.items() if value])
        await _cancel_named(target, unique, given, request, db, form)
        return
    if run_ids:
        raise UsageError("--all and ids of runs exclude each other")
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
    await cancel_all(target, wanted, request, form, dry_run=dry_run, yes=yes)


def _check_run_ids(run_ids: Sequence[str] | None, filters: Sequence[str]) -> tuple[str, ...]:
    """The ids, each once.

    Raises:
        UsageFailed: there are none, or options that choose among runs go with them.
    """
    if filters:
        raise UsageError(f"{filters[0]} chooses among runs, which needs --all")
    if not run_ids:
        raise UsageError(
            "no run to cancel is named",
            hint="give ids, or --all with --agent ID, --older-than 10m and the like",
        )
    return tuple(dict.fromkeys(run_ids))


async def _cancel_named(
    target: Target,
    run_ids: Sequence[str],
    given: ComponentRef | None,
    request: CancelRequest,
    db: str | None,
    form: Format,
) -> None:
    async def cancel(run_id: str) -> Document[CancelRecord]:
        return await _cancel_by_id(target, run_id, given, request, db)

    import asyncio

    what = "the run" if len(run_ids) == 1 else f"{len(run_ids)} runs"
    try:
        async with showing_progress(f"waiting for the end of {what}", limit=request.wait):
            results = await progress.run_all(run_ids, cancel)
    except asyncio.CancelledError:
        note(f"interrupted, it may have been asked to stop; {_look(target, run_ids[0])}")
        raise
    done = progress.successes(results)
    if len(run_ids) == 1:
        for document in done:
            show_record(document, columns.CANCELS, form, id_field="run_id")
    elif done:
        show_list(_join_documents(done), columns.CANCELS, form, id_field="run_id")
    pending = [
        document.value["run_id"] for document in done if not _note_outcome(target, document.value)
    ]
    progress.report_failures(run_ids, results)
    if pending:
        raise StillPending("asked to stop, and not stopped yet", hint=_look(target, pending[0]))


async def _cancel_by_id(
    target: Target, run_id: str, given: ComponentRef | None, request: CancelRequest, db: str | None
) -> Document[CancelRecord]:
    """Cancel one run; which component and session it is of is looked up unless it was given."""
    kind, component_id = given or (None, None)
    session_id = request.session_id
    if kind is None or component_id is None:
        run = (await target.operations.get_run(run_id, db_id=db)).value
        kind, component_id = component_of_run(run)
        session_id = session_id or run["session_id"]
    asked = CancelRequest(session_id, request.wait, request.reason)
    return await _cancel_until_stopped(target, (kind, component_id), run_id, asked)


async def _cancel_until_stopped(
    target: Target, component: ComponentRef, run_id: str, request: CancelRequest
) -> Document[CancelRecord]:
    """Ask as often as the wait needs: one request waits for `MAXIMUM_CANCEL_WAIT` at most."""
    import asyncio
    import time

    end = time.monotonic() + request.wait
    left = request.wait
    while True:
        asked = replace(request, wait=min(left, MAXIMUM_CANCEL_WAIT))
        document = await target.operations.cancel_run(*component, run_id, asked)
        left = end - time.monotonic()
        if document.value["cancel"] != "requested" or left < POLL_SECONDS:
            return document
        await asyncio.sleep(POLL_SECONDS)


def _look(target: Target, run_id: str) -> str:
    return f"look again: {target.command(f'runs get {run_id}')}"


def _note_outcome(target: Target, record: CancelRecord) -> bool:
    """Say what came of one cancel. False: the run may go on."""
    texts = {
        "stopped": "stopped",
        "requested": f"asked to stop, still {record['status']}:",
        "already_final": f"already final, {record['status']}:",
    }
    outcome = record["cancel"]
    target.report_done(f"{texts.get(outcome, outcome)} run {record['run_id']}")
    return outcome != "requested"


def _join_documents(documents: list[Document[CancelRecord]]) -> Document[list[CancelRecord]]:
    """One document, the array of these."""
    from agentctl.records.document import Document

    return Document(b"[" + b",".join(each.raw for each in documents) + b"]")
