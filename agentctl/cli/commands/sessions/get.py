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
from agentctl.cli.show.output import show_record
from agentctl.cli.show.pager import Pager, write_at_once
from agentctl.cli.show.transcript.pages import (
    create_look,
    create_page,
    is_transcript,
    print_transcript,
    resolve_transcript_format,
)
from agentctl.cli.target import Target, with_target
from agentctl.records.sessions import SessionView
from agentctl.requests import DEFAULT_LOCATOR, SessionLocator

DEFAULT_LAST_RUNS = 20
"""Runs of a transcript."""


@with_target(reads_databases=True)
async def get_session(
    target: Target,
    session_id: SessionId,
    last: Annotated[
        int | None,
        typer.Option(
            "--last",
            metavar="NUMBER",
            min=1,
            help=f"Number of runs to show, counted from the end (default: {DEFAULT_LAST_RUNS})",
        ),
    ] = None,
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
    options = {"--last": last is not None, "--all": all, "--full": full, "--members": members}
    options |= {"--follow": follow, "--raw": raw, "--local-time": local_time}
    output_format = resolve_transcript_format(output, fields, options)
    is_drawn = fields is None and is_transcript(output_format)
    view: SessionView = "summary" if is_drawn else "full"
    document = await target.operations.get_session_by_id(session_id, where, view=view)
    if not is_drawn:
        show_record(document, columns.SESSION, output_format, id_field="session_id", fields=fields)
        return
    look = create_look(
        full=full, members=members, raw=raw, local_time=local_time, form=output_format
    )
    number = None if all else last or DEFAULT_LAST_RUNS
    if follow:
        page = create_page(output_format, look, write_at_once)
        await follow_session(target, document.value, where, page, number, look.run_view)
        return
    with Pager(wanted=not no_pager) as pager:
        page = create_page(output_format, look, pager.write)
        await print_transcript(
            target.operations, document.value, where, page, number, look.run_view
        )
