"""`agentctl sessions import`: read sessions that `sessions export` wrote."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Annotated

import typer

from agentctl.cli.databases import find_databases
from agentctl.cli.io import current_io
from agentctl.cli.options import DbId, Output
from agentctl.cli.show.output import resolve_format
from agentctl.cli.show.progress import Counter, check_complete, report_import, showing_progress
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target, with_target
from agentctl.errors import UsageError


@with_target(only_locally="run it on the machine of the database, with --config FILE")
async def import_sessions(
    target: Target,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="File of sessions export (- is stdin)")
    ],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the file and the database, change nothing")
    ] = False,
    db: DbId = None,
    output: Output = None,
) -> None:
    """Import sessions with all their runs.

    Reads the formats jsonl and json of `sessions export`. The whole file is checked before the
    first change. What exists already is skipped, so an import can be repeated. Works only locally.
    Exit code 1 if a session or run was left out; stderr lists it.
    """
    from agentctl.service.imports.exports import SessionFile
    from agentctl.store.databases import open_database
    from agentctl.store.outbox import Outbox

    output_format = resolve_format(output)
    assert target.local is not None
    entry = find_databases(target.local.settings, db)[0]
    name, counter = "stdin" if str(file) == "-" else str(file), Counter("sessions checked")
    with _opening(file) as stream:
        sessions = SessionFile(stream, name, target.local.settings)
        async with showing_progress(counter):
            total = await sessions.check(counter.show)
            database = open_database(entry, create=not dry_run)
            database.outbox = Outbox(target.local.settings)
            try:
                report = await sessions.store(database, total, counter.show, dry_run=dry_run)
            finally:
                await database.close()
    report_import(report, output_format)
    if dry_run:
        note(f"nothing was changed: {name} would be imported {target.place}")
    else:
        target.report_done(f"imported {name}")
    check_complete(report)


@contextmanager
def _opening(file: Path) -> Iterator[IO[bytes]]:
    """Open a file, `-` for stdin, that can be read several times."""
    from contextlib import ExitStack
    from tempfile import TemporaryFile

    with ExitStack() as stack:
        stream: IO[bytes]
        try:
            if str(file) == "-":
                stream = current_io().stdin.buffer
            else:
                stream = stack.enter_context(file.open("rb"))
            if str(file) == "-" or not stream.seekable():
                copy = stack.enter_context(TemporaryFile())
                shutil.copyfileobj(stream, copy)
                stream = copy
        except OSError as failure:
            cause = (failure.strerror or "reading failed").lower()
            raise UsageError(f"{file} cannot be read", cause=cause) from None
        yield stream
