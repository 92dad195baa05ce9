"""`agentctl sessions export`: write sessions with their runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from agentctl.cli.files import creating_file
from agentctl.cli.options import OptionalSessionIds, ToFile
from agentctl.cli.paging import read_pages
from agentctl.cli.show.output import write_bytes
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target, with_target
from agentctl.errors import UsageError
from agentctl.records.sessions import ExportFormat
from agentctl.requests import (
    DEFAULT_LOCATOR,
    MAXIMUM_LIMIT,
    Page,
    SessionFilter,
    SessionLocator,
)

if TYPE_CHECKING:
    from agentctl.records.document import Document
    from agentctl.records.sessions import SessionPage


@with_target(reads_databases=True)
async def export_sessions(
    target: Target,
    session_ids: OptionalSessionIds = None,
    all: Annotated[
        bool, typer.Option("--all", help="Export every session that matches the filters")
    ] = False,
    form: Annotated[
        ExportFormat, typer.Option("--format", metavar="FORM", help="jsonl, json or markdown")
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
            await _write_sessions(target, sessions, form, write_bytes, counter)
            return
        with creating_file(to_file) as file:
            async with showing_progress(counter):
                await _write_sessions(target, sessions, form, file.write, counter)
    note(f"wrote {counter.done} sessions to {to_file}")


async def _find_sessions(
    target: Target, session_ids: list[str] | None, where: SessionLocator
) -> AsyncGenerator[tuple[str, SessionLocator]]:
    for session_id in session_ids or ():
        yield session_id, where
    if session_ids:
        return

    def read(cursor: str | None) -> Awaitable[Document[SessionPage]]:
        page = Page(limit=MAXIMUM_LIMIT, cursor=cursor, sort_by="created_at", sort_order="asc")
        return target.operations.get_sessions(SessionFilter(where, page=page))

    async for rows in read_pages(read):
        for row in rows:
            yield row["session_id"], replace(where, user_id=row.get("user_id"))


async def _write_sessions(
    target: Target,
    sessions: AsyncGenerator[tuple[str, SessionLocator]],
    form: ExportFormat,
    write: Callable[[bytes], object],
    counter: Counter,
) -> None:
    before = b"[" if form == "json" else b""
    async for session_id, where in sessions:
        each: ExportFormat = "jsonl" if form == "json" else form
        async for part in target.operations.export_session(session_id, where, format=each):
            write(before + (part.removesuffix(b"\n") if form == "json" else part))
            before = b""
        before = b",\n" if form == "json" else b""
        counter.done += 1
    if form == "json":
        write(b"]\n" if counter.done else b"[]\n")
