"""`agentctl runs list`, `failures`, `get`, `watch` and `wait`: read runs.

In the formats table and tsv stdout of `watch` is the text of the run as it arrives, in a table at a
terminal drawn as Markdown; tools, steps and members go to stderr. `jsonl` is one event in each
line, `json` the record of the run at its end, `name` the run id.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from functools import partial

from agentctl.cli.approvals import build_waiting
from agentctl.cli.commands.runs.cancel import MAXIMUM_WAIT_SECONDS
from agentctl.cli.follow import WatchedRun, is_settled
from agentctl.cli.lists import NO_AGES, AgeOptions, ListOutput, WatchedOutput, note_unindexed
from agentctl.cli.options import (
    NO_CHOICE,
    ComponentChoice,
    DbId,
    RunId,
    RunIds,
    SessionOption,
    select_component,
)
from agentctl.cli.parameters import flag, option
from agentctl.cli.show import columns
from agentctl.cli.show.answer import read_run_end, report_run_end
from agentctl.cli.show.event_lines import create_event_lines
from agentctl.cli.show.output import CommandOutput
from agentctl.cli.show.progress import (
    Counter,
    report_failures,
    run_all,
    showing_progress,
    successes,
)
from agentctl.cli.show.terminal import note
from agentctl.cli.show.transcript.pages import Pager, TraceLinks, TranscriptOutput, create_page
from agentctl.cli.target import Target, with_target
from agentctl.errors import RunFailed, StillPending, UsageError
from agentctl.interface.operations.runs import ModelCallDetail
from agentctl.interface.requests import FULL_VIEW, RunFilter, RunView, SessionLocator
from agentctl.records.document import Document
from agentctl.records.runs import RunRecord
from agentctl.records.text import format_count
from agentctl.transcripts.model import build_drawn_run
from agentctl.transcripts.runs import CausesReader, list_model_calls, read_members

_STATES = {
    "incomplete": "some of the messages are deleted, or were too large to keep",
    "unknown": "the messages of this call were not recorded",
}


_LIST_ORDER = (
    "status", "live", "agent", "team", "workflow", "component_type", "component_id", "session_id",
    "user_id", "search", "older_than", "newer_than", "metadata", "tag", "error", "error_code",
    "limit", "page", "cursor", "sort_order", "all_pages", "db_id", ...,
)  # fmt: skip
"""The options of `runs list` in the order of its help."""


@with_target(without=("sort_by",), order=_LIST_ORDER, reads="stored")
async def list_runs(
    target: Target,
    out: WatchedOutput,
    filter: RunFilter,
    choice: ComponentChoice = NO_CHOICE,
    ages: AgeOptions = NO_AGES,
) -> None:
    """List runs across sessions, newest first.

    --search finds runs whose messages or answers contain all words, in the order of their sessions;
    `refu*` finds words that begin with refu.
    """
    out.check()
    if filter.live and filter.status is not None:
        raise UsageError("--live and --status cannot be used together")
    # The record of a run can be large, and tables have none of its texts.
    matching = select_component(replace(filter, form=out.run_view), choice.resolve())
    read = ages.limit_each(target.operations.runs.list)
    if filter.search is None:
        await out.show(target, read, matching, columns.RUNS, "run_id")
        return
    note_rest = partial(note_unindexed, target, noun="run")
    await out.show(target, read, matching, columns.FOUND_RUNS, "run_id", note_rest=note_rest)


_FAILURES_ORDER = (
    "agent", "team", "workflow", "component_type", "component_id", "session_id", "user_id",
    "search", "older_than", "newer_than", "metadata", "tag", "error", "error_code", "limit",
    "page", "cursor", "sort_order", "all_pages", "db_id", ...,
)  # fmt: skip
"""The options of `runs failures` in the order of its help."""


@with_target(
    without=("sort_by", "status", "live", "at_work"), order=_FAILURES_ORDER, reads="stored"
)
async def list_failures(
    target: Target,
    out: ListOutput,
    filter: RunFilter,
    choice: ComponentChoice = NO_CHOICE,
    ages: AgeOptions = NO_AGES,
) -> None:
    """List failed runs with the exceptions that ended them, newest first."""
    read = ages.limit_each(target.operations.runs.list_failures)
    matching = select_component(filter, choice.resolve())
    await out.show(target, read, matching, columns.FAILURES, "run_id", noun="failed runs")


_GET_ORDER = (
    "run_id", "session", "full", "members", "timeline", "messages", "model_calls", "call", "raw",
    "local_time", "no_pager", "db", ...,
)  # fmt: skip
"""The arguments and options of `runs get` in the order of its help."""


@with_target(order=_GET_ORDER, reads="stored", service_flags=("model_calls", "call"))
async def get_run(
    target: Target,
    out: TranscriptOutput,
    run_id: RunId,
    session: SessionOption = None,
    timeline: bool = flag("--timeline", "Show a timeline of models, tools and members"),
    messages: bool = flag("--messages", "List messages with their numbers, for `runs fork`"),
    model_calls: bool = flag("--model-calls", "List model calls with the models that answered"),
    call: str | None = option("--call", "ID", "List the messages that a model call received"),
    db: DbId = None,
) -> None:
    """Show one run as a transcript.

    The formats json, jsonl and tsv print the record of the run.
    """
    where = SessionLocator(db_id=db)
    if call is not None:
        sent = await target.operations.runs.get_model_call(run_id, call, db_id=db)
        _show_sent(out, sent)
        return

    if model_calls:
        calls = await list_model_calls(target.operations, run_id, db)
        out.show_list(calls, columns.MODEL_CALLS, "id")
        return

    if messages:
        whole = await _read_run(target, run_id, session, where, FULL_VIEW)
        rows = [{"number": n, **each} for n, each in enumerate(whole.value["messages"], 1)]
        out.show_list(rows, columns.MESSAGES, "number")
        return

    form = out.resolve(timeline=timeline)
    if form is None:
        document = await _read_run(target, run_id, session, where, FULL_VIEW)
        out.show_record(document, columns.RUN, "run_id")
        return

    look = out.create_look(form)
    run = (await _read_run(target, run_id, session, where, look.run_view)).value
    children = await read_members(target.operations, run, where, look.run_view)
    drawn = build_drawn_run(run, children)
    await CausesReader(target.operations, db).add_to(drawn)

    with Pager(wanted=not out.no_pager) as pager:
        page = create_page(form, look, pager.write)
        page.print_run(drawn)
        if timeline:
            page.print_timeline(run, children)
        page.print_details(await TraceLinks(target.operations).add_to(run))


def _show_sent(out: TranscriptOutput, call: Document[ModelCallDetail]) -> None:
    """Show the messages of a model call; the format json has all of its record."""
    if out.format == "json" and out.fields is None:
        out.show_record(call, columns.RUN, "id")
        return
    rows = [{"number": at, **each} for at, each in enumerate(call.value["messages"], 1)]
    out.show_list(rows, columns.SENT_MESSAGES, "number")
    if call.value["state"] != "complete":
        note(_STATES[call.value["state"]])


async def _read_run(
    target: Target, run_id: str, session: str | None, where: SessionLocator, view: RunView
) -> Document[RunRecord]:
    if session is None:
        return await target.operations.runs.get(run_id, db_id=where.db_id, form=view)
    return await target.operations.sessions.get_run(session, run_id, where, form=view)


@with_target()
async def watch_run(
    target: Target,
    out: CommandOutput,
    run_id: RunId,
    after: int | None = option("--after", "NUMBER", "Resume after this event number", min=0),
    choice: ComponentChoice = NO_CHOICE,
    session: SessionOption = None,
    db: DbId = None,
) -> None:
    """Follow a run until it ends.

    Ctrl-C does not cancel the run. Exit code 1 if the run ends as ERROR or is cancelled. With
    --session and --agent, --team or --workflow, the record of the run is not read first.
    """
    run = WatchedRun(target, run_id, choice.resolve(), session, db)
    component = run.component
    if component is None or not run.by_component:
        component = run.use((await run.read_document()).value)
        note(
            f"run {run_id} of {component[0]} {component[1]}, session {run.session_id},"
            f" is {run.state['status']} {target.place}"
        )

    run.last = -1 if after is None else after
    lines = create_event_lines(component[0], out.format, run_id=run_id, whole=run.last < 0)

    silent = out.format in ("json", "name")  # nothing is written before the end
    progress = showing_progress("waiting for the end of the run, Ctrl-C does not cancel it")

    try:
        async with progress if silent else contextlib.nullcontext():
            await run.follow(out.format, lines)
    except asyncio.CancelledError:
        if not lines.output.end:
            run.note_interrupted()
        raise
    finally:
        lines.flush()
    if silent:
        out.show_record(await run.read_document(), columns.RUN, "run_id")
    report_run_end(target, run_id, await read_run_end(target, component, lines.output))


@with_target()
async def wait_for_runs(
    target: Target,
    out: CommandOutput,
    run_ids: RunIds,
    wait: float | None = option(
        "--wait",
        "SECONDS",
        "Seconds to wait for the runs to end (default: no limit)",
        min=0,
        max=MAXIMUM_WAIT_SECONDS,
    ),
    choice: ComponentChoice = NO_CHOICE,
    session: SessionOption = None,
    db: DbId = None,
) -> None:
    """Wait for runs to end, and show them.

    Exit code 0 if every run is COMPLETED, 1 if a run ended as ERROR or was cancelled, 8 if a run
    has not ended within --wait, 9 if a run is waiting for approval. Ctrl-C does not cancel the
    runs. --session and --agent, --team or --workflow name the session and component of the runs.
    """
    form = out.run_view
    deadline = None if wait is None else time.monotonic() + wait
    counter = Counter("runs have ended", len(run_ids))
    component = choice.resolve()

    async def wait_for(run_id: str) -> RunRecord:
        run = WatchedRun(target, run_id, component, session, db)
        record = await run.wait_for_end(deadline, form)
        counter.done += is_settled(record)
        return record

    async with showing_progress(counter, limit=wait):
        results = await run_all(run_ids, wait_for)

    records = successes(results)
    if records:
        out.show_list(records, columns.RUNS, "run_id")
    report_failures(run_ids, results)

    all_runs = format_count(len(run_ids), "run")
    live_ids = [record["run_id"] for record in records if not is_settled(record)]
    if live_ids:
        hint = f"follow one with: {target.command(f'runs watch {live_ids[0]}')}"
        raise StillPending(f"{len(live_ids)} of {all_runs} not ended within {wait:g} s", hint=hint)

    failed_runs = [row for row in records if row["status"] not in ("COMPLETED", "PAUSED")]
    if failed_runs:
        command = target.command(f"runs get {failed_runs[0]['run_id']}")
        hint = f"show one with: {command}"
        raise RunFailed(f"{len(failed_runs)} of {all_runs} not completed", hint=hint)

    paused_runs = [record for record in records if record["status"] == "PAUSED"]
    if paused_runs:
        raise build_waiting(target, paused_runs[0]["run_id"], paused_runs[0]["approvals"])
