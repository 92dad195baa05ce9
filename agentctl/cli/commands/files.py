"""`agentctl files`: upload, list, show, download and delete files."""

from __future__ import annotations

import hashlib
from contextlib import aclosing
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from agentctl.cli.files import creating_file
from agentctl.cli.help import CommandApp
from agentctl.cli.ids import ShortId
from agentctl.cli.io import read_file_or_stdin
from agentctl.cli.lists import ListOutput
from agentctl.cli.options import DbId, SessionOption, ToFile, Yes
from agentctl.cli.parameters import argument, option
from agentctl.cli.show.output import CommandOutput, FieldsOutput, write_bytes
from agentctl.cli.show.progress import Counter, report_failures, run_all, showing_progress
from agentctl.cli.show.table import Column, Columns, plain_columns
from agentctl.cli.show.terminal import confirm, note
from agentctl.cli.target import Target, with_target
from agentctl.errors import InvalidResponse, UsageError
from agentctl.interface.requests.files import FileContent, FileFilter, FileUpload
from agentctl.records.document import Document
from agentctl.records.files import FileRecord
from agentctl.records.text import format_bytes, format_count

app = CommandApp(
    help="Upload, list, show, download and delete files.",
    epilog="Example: agentctl files upload invoice.pdf --session s1",
)

FileId = Annotated[str, ShortId("file"), argument("FILE_ID", "File id")]

_COLUMNS = plain_columns(
    "file_id", "name", "media_type", "size", "user_id", "session_id", "run_id", "origin", "version",
    "created_at", "sha256",
)  # fmt: skip
_LIST_COLUMNS = Columns(
    tsv=_COLUMNS,
    table=[
        Column("file_id", heading="file id", look="id"),
        Column("name", look="text"),
        Column("media_type", heading="type"),
        Column("size", lambda record: format_bytes(record["size"])),
        Column("user_id", heading="user"),
        Column("session_id", heading="session", look="id"),
        Column("origin"),
        Column("created_at", heading="created"),
    ],
)


@app.command("upload", epilog="Example: agentctl files upload invoice.pdf --session s1")
@with_target()
async def upload_file(
    target: Target,
    out: CommandOutput,
    file: Annotated[str, argument("FILE", "File to upload (- reads stdin)")],
    name: str | None = option("--name", "NAME", "Name of the file (default: the name of FILE)"),
    session: SessionOption = None,
    user: str | None = option("--user", "USER", "User of the file; administrators only"),
    db: DbId = None,
) -> None:
    """Upload a file: a picture, a document, a sound or a text.

    The type is detected from the content. A file without a session is deleted after 24 hours,
    unless a run uses it.
    """
    if file == "-" and name is None:
        raise UsageError("a file from stdin has no name", hint="pass --name NAME")
    upload = FileUpload(name or Path(file).name, session, user, db)
    document = await send_file(target, file, upload)
    out.show_record(document, _COLUMNS, "file_id")
    target.report_done(f"uploaded file {document.value['file_id']}")


async def send_file(target: Target, file: str, upload: FileUpload) -> Document[FileRecord]:
    """Upload a file, and show how much of it was sent.

    Args:
        file: its path; `-` reads stdin.
    """
    counter = Counter("kB uploaded")
    source = read_file_or_stdin(file) if file == "-" else Path(file)
    try:
        content = FileContent(source, lambda done: counter.set(done // 1_000))
    except OSError as failure:
        cause = (failure.strerror or "reading failed").lower()
        raise UsageError(f"{file} cannot be read", cause=cause) from None
    counter.total = content.size // 1_000
    async with showing_progress(counter):
        return await target.operations.files.upload(upload, content, size=content.size)


@app.command("list", epilog="Example: agentctl files list --session s1")
@with_target()
async def list_files(target: Target, out: ListOutput, filter: FileFilter) -> None:
    """List files, the newest first."""
    await out.show(target, target.operations.files.list, filter, _LIST_COLUMNS, "file_id")


@app.command("get", epilog="Example: agentctl files get 019a9f2e-6c1b-7d3f-9a44-1f0c5b7e2d35")
@with_target()
async def get_file(target: Target, out: FieldsOutput, file_id: FileId, db: DbId = None) -> None:
    """Show a file without its bytes."""
    out.show_record(await target.operations.files.get(file_id, db_id=db), _COLUMNS, "file_id")


@app.command("download", epilog="Example: agentctl files download FILE_ID --to-file invoice.pdf")
@with_target()
async def download_file(
    target: Target, file_id: FileId, to_file: ToFile = None, db: DbId = None
) -> None:
    """Write the bytes of a file to a new file, by default with its name in this folder.

    The file is written completely or not at all. An existing file is never overwritten.
    """
    record = (await target.operations.files.get(file_id, db_id=db)).value
    pieces: Any = target.operations.files.get_content(file_id, db_id=db)
    async with aclosing(pieces):
        if str(to_file) == "-":
            async for piece in pieces:
                write_bytes(piece)
            return

        path = to_file or Path(Path(record["name"]).name)
        counter = Counter("kB downloaded", record["size"] // 1_000)
        hashed = hashlib.sha256()
        size = 0
        with creating_file(path) as file:
            async with showing_progress(counter):
                async for piece in pieces:
                    file.write(piece)
                    hashed.update(piece)
                    size += len(piece)
                    counter.set(size // 1_000)
            if hashed.hexdigest() != record["sha256"]:
                raise InvalidResponse("The content does not match the file: nothing was written")
    note(f"wrote {size} bytes to {path}")


@app.command("delete", epilog="Example: agentctl files delete FILE_ID --yes")
@with_target()
async def delete_files(
    target: Target,
    file_ids: Annotated[list[str], ShortId("file"), argument("FILE_ID", "File ids")],
    yes: Yes = False,
    db: DbId = None,
) -> None:
    """Delete files."""
    what = f"file {file_ids[0]}" if len(file_ids) == 1 else format_count(len(file_ids), "file")
    confirm(f"Delete {what}, {target.place}?", yes=yes)
    results = await run_all(file_ids, partial(target.operations.files.delete, db_id=db), at_once=4)
    report_failures(file_ids, results)
    target.report_done(f"deleted {what}")
