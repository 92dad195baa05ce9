"""`agentctl sessions export`: sessions with their runs, and their files, as one file."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from agentctl.cli.archives import OLDEST_FIRST, Archive, Member, name_with_ending
from agentctl.cli.files import creating_file
from agentctl.cli.options import OptionalSessionIds, ToFile
from agentctl.cli.parameters import flag, option
from agentctl.cli.show.output import write_bytes
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target, with_target
from agentctl.errors import UsageError
from agentctl.interface.requests import DEFAULT_LOCATOR, SessionFilter, SessionLocator
from agentctl.interface.requests.files import FileFilter
from agentctl.interface.requests.lists import read_rows
from agentctl.records.sessions import ExportFormat
from agentctl.records.text import format_count
from agentctl.transcripts.model import clean_line

Found = tuple[str, SessionLocator]
"""A session to export: its id, and where it is."""


@with_target()
async def export_sessions(
    target: Target,
    session_ids: OptionalSessionIds = None,
    all: bool = flag("--all", "Export every session that matches the filters"),
    file_format: ExportFormat = option(
        "--format", "FORMAT", "jsonl, json or markdown", default="jsonl"
    ),
    model_calls: bool = flag("--model-calls", "Add the model calls of each run"),
    with_files: bool = flag("--with-files", "Write a ZIP archive that includes the files"),
    to_file: ToFile = None,
    where: SessionLocator = DEFAULT_LOCATOR,
) -> None:
    """Export sessions with all their runs.

    With --with-files, FILE is a ZIP archive of the export, the files of the sessions, and
    manifest.json, which lists missing files; if files are missing, the exit code is 1.

    jsonl has one line per session, `{"session": …, "runs": […]}`; json is an array of these
    objects, and markdown is a transcript. A file is written completely or not at all.
    """
    if bool(session_ids) is all:
        raise UsageError("give a SESSION_ID, or --all", hint="--all takes filters such as --user")

    counter = Counter("sessions exported", len(session_ids) if session_ids else None)
    sessions = _find_sessions(target, session_ids, where)

    if with_files:
        if to_file is None or str(to_file) == "-":
            raise UsageError("--with-files needs --to-file FILE")
        archive = Archive(to_file, {"format": "agentctl-sessions/1"}, counter)
        await archive.write(_list_members(archive, target, sessions, file_format, model_calls))
        note(f"wrote {format_count(counter.done, 'session')} to {to_file}")
        archive.check_missing()
        return

    parts = _read_sessions(target, sessions, file_format, model_calls)
    async with aclosing(sessions), aclosing(parts):
        if to_file is None or str(to_file) == "-":
            async for part, _ in parts:
                write_bytes(part)
            return

        with creating_file(to_file) as file:
            async with showing_progress(counter):
                async for part, count in parts:
                    file.write(part)
                    counter.done += count
    note(f"wrote {format_count(counter.done, 'session')} to {to_file}")


async def _list_members(
    archive: Archive,
    target: Target,
    sessions: AsyncGenerator[Found],
    file_format: ExportFormat,
    model_calls: bool,
) -> AsyncGenerator[Member]:
    """Yield the export, the list of the files of its sessions, and the bytes of each."""
    # The filters of the exported sessions, which `_read_sessions` adds.
    file_filters: list[FileFilter] = []
    ending = "md" if file_format == "markdown" else file_format
    parts = _read_sessions(target, sessions, file_format, model_calls, file_filters)
    yield f"sessions.{ending}", parts

    members = archive.list_files(target.operations, file_filters)
    async with aclosing(members):
        async for member in members:
            yield member


async def _find_sessions(
    target: Target, session_ids: list[str] | None, where: SessionLocator
) -> AsyncGenerator[Found]:
    for session_id in session_ids or ():
        yield session_id, where
    if session_ids:
        return
    wanted = SessionFilter(where, page=OLDEST_FIRST)
    async for row in read_rows(target.operations.sessions.list, wanted):
        yield row["session_id"], replace(where, user_id=row.get("user_id"))


async def _read_sessions(
    target: Target,
    sessions: AsyncGenerator[Found],
    file_format: ExportFormat,
    model_calls: bool,
    found: list[FileFilter] | None = None,
) -> AsyncGenerator[tuple[bytes, int]]:
    """Yield the parts of an export, each with the number of sessions that end with it.

    Args:
        found: receives the filter of the files of each session; Markdown has links to them then.
    """
    is_array = file_format == "json"
    one: ExportFormat = "jsonl" if is_array else file_format
    before = b"[" if is_array else b""
    done = 0
    async for session_id, where in sessions:
        parts = target.operations.sessions.export(
            session_id, where, format=one, model_calls=model_calls
        )
        async for part in parts:
            yield before + (part.removesuffix(b"\n") if is_array else part), 0
            before = b""

        if found is not None:
            files = FileFilter(where.user_id, session_id, where.db_id, page=OLDEST_FIRST)
            found.append(files)
            if file_format == "markdown":
                yield await _link_files(target, files), 0

        before = b",\n" if is_array else b""
        done = done + 1
        yield b"", 1
    if is_array:
        yield b"]\n" if done else b"[]\n", 0


async def _link_files(target: Target, files: FileFilter) -> bytes:
    lines = []
    async with aclosing(read_rows(target.operations.files.list, files)) as rows:
        async for row in rows:
            name = "".join(f"\\{each}" if each in "\\[]`*_<>&!" else each for each in row["name"])
            lines.append(f"- [{clean_line(name)}]({name_with_ending(row)})\n")
    return f"## Files\n\n{''.join(lines)}\n".encode() if lines else b""
