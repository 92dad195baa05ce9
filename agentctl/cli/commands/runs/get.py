"""`agentctl runs get`: show a run as a transcript."""

from __future__ import annotations

from typing import Annotated

import typer

from agentctl.cli.ids import ShortId
from agentctl.cli.options import (
    DbId,
    Fields,
    Full,
    LocalTime,
    Members,
    NoPager,
    Raw,
    RunId,
    TranscriptOutput,
    complete_values,
)
from agentctl.cli.show import columns
from agentctl.cli.show.output import show_record
from agentctl.cli.show.pager import Pager
from agentctl.cli.show.transcript.pages import (
    create_look,
    create_page,
    is_transcript,
    resolve_transcript_format,
)
from agentctl.cli.target import Target, with_target
from agentctl.extensions import name_products
from agentctl.requests import FULL_VIEW, SessionLocator
from agentctl.transcripts.model import build_drawn_run
from agentctl.transcripts.runs import read_members


@with_target()
async def get_run(
    target: Target,
    run_id: RunId,
    session: Annotated[
        str | None,
        ShortId("session"),
        typer.Option(
            "--session",
            metavar="ID",
            help=f"Session of the run (required on {name_products()})",
            autocompletion=complete_values("session"),
        ),
    ] = None,
    full: Full = False,
    members: Members = False,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Show when models, tools and members worked")
    ] = False,
    raw: Raw = False,
    local_time: LocalTime = False,
    no_pager: NoPager = False,
    db: DbId = None,
    output: TranscriptOutput = None,
    fields: Fields = None,
) -> None:
    """Show one run as a transcript.

    The formats json, jsonl and tsv are the record of the run.
    """
    options = {"--full": full, "--members": members, "--timeline": timeline, "--raw": raw}
    output_format = resolve_transcript_format(
        output, fields, options | {"--local-time": local_time}
    )
    where = SessionLocator(db_id=db)
    look = create_look(
        full=full, members=members, raw=raw, local_time=local_time, form=output_format
    )
    is_drawn = fields is None and is_transcript(output_format)
    view = look.run_view if is_drawn else FULL_VIEW
    if session is None:
        document = await target.operations.get_run(run_id, db_id=db, form=view)
    else:
        document = await target.operations.get_session_run(session, run_id, where, form=view)
    if not is_drawn:
        show_record(document, columns.RUN, output_format, id_field="run_id", fields=fields)
        return
    run = document.value
    children = await read_members(target.operations, run, where, view)
    with Pager(wanted=not no_pager) as pager:
        page = create_page(output_format, look, pager.write)
        page.print_run(build_drawn_run(run, children))
        if timeline:
            page.print_timeline(run, children)
        page.print_details(run)
