"""The export of a session with all its runs, in parts: memory has a page of runs at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from agentctl.interface.requests import SessionLocator, SessionRunsQuery
from agentctl.records.sessions import ExportFormat
from agentctl.transcripts.markdown import format_run, format_session
from agentctl.transcripts.runs import SessionReads, SessionRuns
from agentctl.transcripts.texts import Look


def export_session(
    operations: SessionReads, session_id: str, where: SessionLocator, form: ExportFormat
) -> AsyncGenerator[bytes]:
    """Yield the parts of a session as a file.

    `jsonl` is one line, `{"session": …, "runs": […]}`, `json` an array with the same object, and
    `markdown` the whole transcript.

    Raises:
        NotFound: the session does not exist or is not visible; before the first part.
    """
    if form == "markdown":
        return _write_markdown(operations, session_id, where)
    return _write_json(operations, session_id, where, form)


async def _write_json(
    operations: SessionReads, session_id: str, where: SessionLocator, form: ExportFormat
) -> AsyncGenerator[bytes]:
    session = (await operations.get_session_by_id(session_id, where)).raw
    yield (b"[" if form == "json" else b"") + b'{"session":' + session + b',"runs":['
    after: str | None = None
    while True:
        query = SessionRunsQuery(where, after=after)
        page = await operations.get_session_runs(session_id, query)
        runs = page.value
        if runs:
            yield (b"," if after else b"") + page.raw[1:-1]
        if len(runs) < query.limit:
            break
        after = runs[-1]["run_id"]
    yield b"]}]\n" if form == "json" else b"]}\n"


async def _write_markdown(
    operations: SessionReads, session_id: str, where: SessionLocator
) -> AsyncGenerator[bytes]:
    session = (await operations.get_session_by_id(session_id, where, view="summary")).value
    look = Look(full=True, members=True)
    runs = SessionRuns(operations, session_id, where, look.run_view)
    part = await runs.find_last(None, session)
    yield _encode(format_session(session, part.describe()))
    async for number, run in runs.draw(part):
        # A long run takes a while: other requests go on.
        yield _encode(await asyncio.to_thread(format_run, run, look, number))


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")
