"""`agentctl runs get`: show a run as a transcript."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

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
    build_id_option,
)
from agentctl.cli.show import columns
from agentctl.cli.show.output import resolve_format, show_list, show_record
from agentctl.cli.show.pager import Pager
from agentctl.cli.show.transcript.pages import (
    TraceLinks,
    create_look,
    create_page,
    is_transcript,
    resolve_transcript_format,
)
from agentctl.cli.target import Target, with_target
from agentctl.extensions import name_products
from agentctl.requests import FULL_VIEW, SessionLocator
from agentctl.transcripts.model import build_drawn_run
from agentctl.transcripts.runs import Causes, read_members

if TYPE_CHECKING:
    from agentctl.records.document import Document
    from agentctl.records.runs import RunRecord
    from agentctl.requests import RunView


@with_target()
async def get_run(
    target: Target,
    run_id: RunId,
    session: Annotated[
        str | None,
        ShortId("session"),
        build_id_option("session", f"Session of the run (required on {name_products()})"),
    ] = None,
    full: Full = False,
    members: Members = False,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Show when models, tools and members worked")
    ] = False,
    messages: Annotated[
        bool, typer.Option("--messages", help="List its messages with their numbers, for runs fork")
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
    where = SessionLocator(db_id=db)
    if messages:
        whole = await _read_run(target, run_id, session, where, FULL_VIEW)
        rows = [{"number": n, **each} for n, each in enumerate(whole.value["messages"], 1)]
        chosen = resolve_format(output)
        show_list(rows, columns.MESSAGES, chosen, id_field="number", fields=fields)
        return
    options = {"--full": full, "--members": members, "--timeline": timeline, "--raw": raw}
    output_format = resolve_transcript_format(
        output, fields, options | {"--local-time": local_time}
    )
    look = create_look(
        full=full, members=members, raw=raw, local_time=local_time, form=output_format
    )
    is_drawn = fields is None and is_transcript(output_format)
    view = look.run_view if is_drawn else FULL_VIEW
    document = await _read_run(target, run_id, session, where, view)
    if not is_drawn:
        show_record(document, columns.RUN, output_format, id_field="run_id", fields=fields)
        return
    run = document.value
    children = await read_members(target.operations, run, where, view)
    drawn = build_drawn_run(run, children)
    await Causes(target.operations, db).add_to(drawn)
    with Pager(wanted=not no_pager) as pager:
        page = create_page(output_format, look, pager.write)
        page.print_run(drawn)
        if timeline:
            page.print_timeline(run, children)
        page.print_details(await TraceLinks(target.operations).add_to(run))


async def _read_run(
    target: Target, run_id: str, session: str | None, where: SessionLocator, view: RunView
) -> Document[RunRecord]:
    if session is None:
        return await target.operations.get_run(run_id, db_id=where.db_id, form=view)
    return await target.operations.get_session_run(session, run_id, where, form=view)
