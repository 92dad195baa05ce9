"""`agentctl sessions`: the group of commands, to list, show, rename and delete sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from agentctl.cli.commands.sessions.export import export_sessions
from agentctl.cli.commands.sessions.follow import follow_session
from agentctl.cli.commands.sessions.imports import import_sessions
from agentctl.cli.commands.sessions.stat import show_statistics
from agentctl.cli.help import CommandApp
from agentctl.cli.ids import ShortId
from agentctl.cli.options import (
    DbId,
    Every,
    Fields,
    Full,
    LocalTime,
    Members,
    NoPager,
    Output,
    Raw,
    SessionId,
    SessionIds,
    TranscriptOutput,
    Watch,
    Yes,
    complete_values,
)
from agentctl.cli.show import columns, progress
from agentctl.cli.show.output import resolve_format, show_list, show_page, show_record, write_line
from agentctl.cli.show.pager import Pager, write_at_once
from agentctl.cli.show.terminal import confirm, note
from agentctl.cli.show.transcript.pages import (
    create_look,
    create_page,
    is_transcript,
    print_transcript,
)
from agentctl.cli.show.watch import DEFAULT_SECONDS, WatchedList, check_watch, watch_list
from agentctl.cli.target import Target, with_target
from agentctl.errors import UsageError
from agentctl.requests import (
    DEFAULT_LOCATOR,
    MAXIMUM_LIMIT,
    BulkDeletion,
    Page,
    SessionFilter,
    SessionLocator,
    SessionRunsQuery,
)

app = CommandApp(
    help="List, show, measure, export, import, rename, summarize and delete sessions.",
    epilog="Example: agentctl sessions list --type agent --limit 5",
)

app.command("export", epilog="Example: agentctl sessions export s1 --format markdown")(
    export_sessions
)
app.command("import", epilog="Example: agentctl sessions import sessions.jsonl")(import_sessions)
app.command("stat", epilog="Example: agentctl sessions stat --by day --newer-than 7d")(
    show_statistics
)

DEFAULT_LAST_RUNS = 20
"""Runs of a transcript."""

LAST_USED = SessionFilter(page=Page(sort_by="updated_at"))

_PAGE = ("limit", "page", "cursor", "sort_by", "sort_order")


@app.command("list", epilog="Example: agentctl sessions list --type agent --limit 5")
@with_target(
    reads_databases=True,
    order=("type", "component_id", "user_id", "session_name", *_PAGE, "db_id", "table", ...),
)
async def list_sessions(
    target: Target,
    filter: SessionFilter = LAST_USED,
    watch: Watch = False,
    every: Every = None,
    output: Output = None,
    fields: Fields = None,
) -> None:
    """List sessions, most recently used first."""
    form = resolve_format(output)
    check_watch(watch, every, form)
    if watch:
        await watch_list(
            WatchedList(
                target,
                lambda: target.operations.get_sessions(filter),
                columns.SESSIONS,
                form,
                "session_id",
                fields,
                every or DEFAULT_SECONDS,
            )
        )
        return
    document = await target.operations.get_sessions(filter)
    show_page(document, columns.SESSIONS, form, id_field="session_id", fields=fields)
    if target.product is not None:
        _note_problems(document.value["data"])


def _note_problems(sessions: Sequence[Mapping[str, Any]]) -> None:
    for session in sessions:
        if session.get("problem"):
            note(f"session {session['session_id']} cannot be read: {session['problem']}")


@app.command("get", epilog="Example: agentctl sessions get s1 --last 3")
@with_target(reads_databases=True)
async def get_session(
    target: Target,
    session_id: SessionId,
    last: Annotated[
        int,
        typer.Option(
            "--last", metavar="NUMBER", min=1, help="Number of runs to show, counted from the end"
        ),
    ] = DEFAULT_LAST_RUNS,
    all: Annotated[bool, typer.Option("--all", help="Show all runs")] = False,
    full: Full = False,
    members: Members = False,
    follow: Annotated[
        bool,
        typer.Option("--follow", help="Go on with live and new runs until Ctrl-C"),
    ] = False,
    raw: Raw = False,
    local_time: LocalTime = False,
    no_pager: NoPager = False,
    where: SessionLocator = DEFAULT_LOCATOR,
    output: TranscriptOutput = None,
    fields: Fields = None,
) -> None:
    """Show one session as a transcript.

    The formats json, jsonl and tsv are the record of the session. Ctrl-C during --follow leaves the
    runs alive.
    """
    form = resolve_format(output)
    if follow and output is None and form == "tsv":
        form = "text"
    if follow and (fields is not None or not is_transcript(form)):
        raise UsageError("--follow shows a transcript only", hint="use -o text or -o markdown")
    document = await target.operations.get_session_by_id(session_id, where)
    if fields is not None or not is_transcript(form):
        show_record(document, columns.SESSION, form, id_field="session_id", fields=fields)
        return
    look = create_look(full=full, members=members, raw=raw, local_time=local_time, form=form)
    if follow:
        page = create_page(form, look, write_at_once)
        await follow_session(
            target, document.value, where, page, None if all else last, look.run_view
        )
        return
    with Pager(wanted=not no_pager) as pager:
        page = create_page(form, look, pager.write)
        await print_transcript(
            target.operations, document.value, where, page, None if all else last, look.run_view
        )


@app.command("runs", epilog="Example: agentctl sessions runs s1")
@with_target(reads_databases=True)
async def list_session_runs(
    target: Target,
    session_id: SessionId,
    limit: Annotated[
        int,
        typer.Option(
            "--limit", metavar="NUMBER", min=1, max=MAXIMUM_LIMIT, help="Maximum number of results"
        ),
    ] = MAXIMUM_LIMIT,
    after: Annotated[
        str | None,
        ShortId("run"),
        typer.Option(
            "--after",
            metavar="RUN_ID",
            help="Return only the runs after this one",
            autocompletion=complete_values("run"),
        ),
    ] = None,
    where: SessionLocator = DEFAULT_LOCATOR,
    output: Output = None,
    fields: Fields = None,
) -> None:
    """List the runs of a session, oldest first."""
    form = resolve_format(output)
    query = SessionRunsQuery(where, limit, after)
    document = await target.operations.get_session_runs(session_id, query)
    show_list(document, columns.RUNS_OF_SESSION, form, id_field="run_id", fields=fields)
    if form != "json" and len(document.value) == limit:
        note(f"showing {limit} runs; next page: --after {document.value[-1]['run_id']}")


@app.command("rename", epilog='Example: agentctl sessions rename s1 "Trip to Rome"')
@with_target(without=("type", "user_id"))
async def rename_session(
    target: Target,
    session_id: SessionId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="New name")],
    where: SessionLocator = DEFAULT_LOCATOR,
    output: Output = None,
) -> None:
    """Rename a session."""
    form = resolve_format(output)
    document = await target.operations.rename_session(session_id, name, where)
    show_record(document, columns.RENAMED, form, id_field="session_id")
    target.report_done(f"renamed session {session_id}")


@app.command("summarize", epilog="Example: agentctl sessions summarize s1")
@with_target(without=("type", "user_id"))
async def summarize_session(
    target: Target,
    session_id: SessionId,
    where: SessionLocator = DEFAULT_LOCATOR,
    output: Output = None,
) -> None:
    """Summarize a session now."""
    form = resolve_format(output)
    async with progress.showing_progress("summarizing the session"):
        document = await target.operations.summarize_session(session_id, where)
    show_record(document, columns.SUMMARIZED, form, id_field="session_id")
    target.report_done(f"summarized session {session_id}")


@app.command("delete", epilog="Example: agentctl sessions delete s1 --yes")
@with_target()
async def delete_sessions(
    target: Target,
    session_ids: SessionIds,
    yes: Yes = False,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Cancel live runs first; deletes one session at a time")
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the sessions that would be deleted, delete none"),
    ] = False,
    db: DbId = None,
) -> None:
    """Delete sessions and their runs.

    Several sessions are deleted together: all of them or none.
    """
    unique = tuple(session_ids)
    if dry_run:
        await _print_sessions(target, unique, SessionLocator(db_id=db))
        return
    what = f"session {unique[0]}" if len(unique) == 1 else f"{len(unique)} sessions"
    confirm(f"Delete {what} with all runs, {target.place}?", yes=yes)
    if cancel or len(unique) == 1:
        await _delete_each(target, unique, SessionLocator(db_id=db), cancel)
        return
    await target.operations.delete_sessions(BulkDeletion(unique, db))
    target.report_done(f"deleted {what}")


async def _delete_each(
    target: Target, session_ids: tuple[str, ...], where: SessionLocator, cancel: bool
) -> None:
    async def delete(session_id: str) -> None:
        await target.operations.delete_session(session_id, where, cancel=cancel)
        target.report_done(f"deleted session {session_id}")

    results = await progress.run_all(session_ids, delete)
    progress.report_failures(session_ids, results)


async def _print_sessions(
    target: Target, session_ids: tuple[str, ...], where: SessionLocator
) -> None:
    for session_id in session_ids:
        await target.operations.get_session_by_id(session_id, where)
    for session_id in session_ids:
        write_line(session_id)
