"""`agentctl sessions export`: write sessions with their runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from agentctl.cli.files import creating_file
from agentctl.cli.options import OptionalSessionIds, ToFile
from agentctl.cli.paging import read_pages
from agentctl.cli.run_tree import print_transcript
from agentctl.cli.show.output import write_bytes
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.terminal import note
from agentctl.cli.show.transcript.pages import MarkdownPage, create_look
from agentctl.cli.target import Target, with_target
from agentctl.errors import UsageError
from agentctl.requests import (
    DEFAULT_LOCATOR,
    MAXIMUM_LIMIT,
    Page,
    SessionFilter,
    SessionLocator,
    SessionRunsQuery,
)

if TYPE_CHECKING:
    from agentctl.records.document import Document
    from agentctl.records.sessions import SessionPage

Form = Literal["jsonl", "json", "markdown"]
Record = dict[str, Any]


@with_target(reads_databases=True)
async def export_sessions(
    target: Target,
    session_ids: OptionalSessionIds = None,
    all: Annotated[
        bool, typer.Option("--all", help="Export every session that matches the filters")
    ] = False,
    form: Annotated[
        Form, typer.Option("--format", metavar="FORM", help="jsonl, json or markdown")
    ] = "jsonl",
    to_file: ToFile = None,
    where: SessionLocator = DEFAULT_LOCATOR,
) -> None:
    """Export sessions with all their runs.

    jsonl has a line for each session, `{"session": …, "runs": […]}`, json is an array of these, and
    markdown is a transcript. A file is written completely or not at all.
    """
    if bool(session_ids) is all:
        raise UsageError("give a SESSION_ID, or --all", hint="--all takes filters such as --user")
    counter = Counter("sessions exported", len(session_ids) if session_ids else None)
    async with aclosing(_find_sessions(target, session_ids, where)) as sessions:
        if to_file is None or str(to_file) == "-":
            await _write_sessions(target, sessions, where, form, write_bytes, counter)
            return
        with creating_file(to_file) as file:
            async with showing_progress(counter):
                await _write_sessions(target, sessions, where, form, file.write, counter)
    note(f"wrote {counter.done} sessions to {to_file}")


async def _find_sessions(
    target: Target, session_ids: list[str] | None, where: SessionLocator
) -> AsyncGenerator[Record]:
    for session_id in session_ids or ():
        yield dict((await target.operations.get_session_by_id(session_id, where)).value)
    if session_ids:
        return

    def read(cursor: str | None) -> Awaitable[Document[SessionPage]]:
        page = Page(limit=MAXIMUM_LIMIT, cursor=cursor, sort_by="created_at", sort_order="asc")
        return target.operations.get_sessions(SessionFilter(where, page=page))

    async for rows in read_pages(read):
        for row in rows:
            located = SessionLocator(where.type, row.get("user_id"), where.db_id, where.table)
            document = await target.operations.get_session_by_id(row["session_id"], located)
            yield dict(document.value)


async def _write_sessions(
    target: Target,
    sessions: AsyncGenerator[Record],
    where: SessionLocator,
    form: Form,
    write: Callable[[bytes], object],
    counter: Counter,
) -> None:
    import orjson

    before = b"[" if form == "json" else b""
    async for session in sessions:
        if form == "markdown":
            await _write_transcript(target, session, where, write)
        else:
            runs = [run async for run in _read_runs(target, session, where)]
            write(before + orjson.dumps({"session": session, "runs": runs}))
            write(b"\n" if form == "jsonl" else b"")
            before = b",\n" if form == "json" else b""
        counter.done += 1
    if form == "json":
        write(b"]\n" if counter.done else b"[]\n")


async def _read_runs(
    target: Target, session: Record, where: SessionLocator
) -> AsyncGenerator[Record]:
    after: str | None = None
    while True:
        query = SessionRunsQuery(where, after=after)
        found = (await target.operations.get_session_runs(session["session_id"], query)).value
        for run in found:
            yield dict(run)
        if len(found) < query.limit:
            return
        after = found[-1]["run_id"]


async def _write_transcript(
    target: Target, session: Record, where: SessionLocator, write: Callable[[bytes], object]
) -> None:
    look = create_look(full=True, members=True, raw=False, local_time=False, form="markdown")
    page = MarkdownPage(look, lambda text: write(text.encode("utf-8", "backslashreplace")))
    await print_transcript(target.operations, session, where, page, None, look.run_view)
