"""`agentctl sessions get`: show a session as a transcript."""

from __future__ import annotations

from typing import Annotated

import typer

from agentctl.cli.commands.sessions.follow import follow_session
from agentctl.cli.options import (
    Fields,
    Full,
    LocalTime,
    Members,
    NoPager,
    Raw,
    SessionId,
    TranscriptOutput,
)
from agentctl.cli.show import columns
from agentctl.cli.show.output import resolve_format, show_record
from agentctl.cli.show.pager import Pager, write_at_once
from agentctl.cli.show.transcript.pages import (
    create_look,
    create_page,
    is_transcript,
    print_transcript,
)
from agentctl.cli.target import Target, with_target
from agentctl.errors import UsageError
from agentctl.records.sessions import SessionView
from agentctl.requests import DEFAULT_LOCATOR, SessionLocator

DEFAULT_LAST_RUNS = 20
"""Runs of a transcript."""


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
        bool, typer.Option("--follow", help="Go on with live and new runs until Ctrl-C")
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
    output_format = resolve_format(output)
    if follow and output is None and output_format == "tsv":
        output_format = "text"
    is_drawn = fields is None and is_transcript(output_format)
    if follow and not is_drawn:
        raise UsageError("--follow shows a transcript only", hint="use -o text or -o markdown")
    view: SessionView = "summary" if is_drawn else "full"
    document = await target.operations.get_session_by_id(session_id, where, view=view)
    if not is_drawn:
        show_record(document, columns.SESSION, output_format, id_field="session_id", fields=fields)
        return
    look = create_look(
        full=full, members=members, raw=raw, local_time=local_time, form=output_format
    )
    number = None if all else last
    if follow:
        page = create_page(output_format, look, write_at_once)
        await follow_session(target, document.value, where, page, number, look.run_view)
        return
    with Pager(wanted=not no_pager) as pager:
        page = create_page(output_format, look, pager.write)
        await print_transcript(
            target.operations, document.value, where, page, number, look.run_view
        )
