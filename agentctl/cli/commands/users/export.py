"""`agentctl users export`: write the data of a person to a ZIP file."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from agentctl.cli.files import check_absent, creating_file, publish_file
from agentctl.cli.options import Output, UserOfData
from agentctl.cli.paging import read_pages
from agentctl.cli.show.output import resolve_format, show_record
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.cli.show.table import plain_columns
from agentctl.cli.show.terminal import note
from agentctl.cli.target import Target, with_target
from agentctl.errors import InvalidResponse, NotFound, UsageError
from agentctl.requests import MAXIMUM_LIMIT, Page, SessionFilter, SessionLocator
from agentctl.requests.approvals import ApprovalFilter
from agentctl.requests.memories import MemoryFilter
from agentctl.requests.personal_data import PersonalPart, PersonalRowsFilter

if TYPE_CHECKING:
    from zipfile import ZipFile

FORMAT = "agentctl-personal-data/1"

_COLUMNS = plain_columns("file", "user_id", "rows", "files", "bytes")

_OLDEST_FIRST = Page(limit=MAXIMUM_LIMIT, sort_by="created_at", sort_order="asc")

_README = """\
The data of one person from agentctl.

Each file with the name .jsonl has one JSON object in each line, encoded in UTF-8; times are UTC.
manifest.json names every file with its number of lines, its size and the SHA-256 of its content.

memories.jsonl                    facts about the person that agents keep
audit.jsonl                       calls of the person, and calls about the person
databases/<id>/sessions.jsonl     one line for each session, with all its runs and messages
databases/<id>/approvals.jsonl    what runs of the person asked people for, and the decisions
databases/<id>/decisions.jsonl    decisions of the person about runs of other users
databases/<id>/deliveries.jsonl   events about runs of the person that were sent to webhooks
databases/<id>/usage.jsonl        tokens, cost and times by day, component and model
"""


@with_target()
async def export_user(
    target: Target,
    user: UserOfData,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE", help="New ZIP file; never overwritten")
    ],
    output: Output = None,
) -> None:
    """Export the data of a person to a ZIP file.

    Its files are JSON Lines; manifest.json has their SHA-256 hashes and README.txt describes them.
    The file gets its name when it is complete and was read again; until then it is FILE.part. Only
    administrators can export.
    """
    output_format = resolve_format(output)
    part = out.with_name(f"{out.name}.part")
    check_absent(out)
    data = (await target.operations.get_user_data(user)).value
    counter = Counter("rows exported")
    with creating_file(part) as file:
        async with showing_progress(counter):
            manifest = await _write(file, target, user, data, counter)
    try:
        _verify(part, manifest)
        check_absent(out)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    publish_file(part, out)
    record = {
        "file": str(out),
        "user_id": user,
        "rows": sum(entry["rows"] for entry in manifest),
        "files": len(manifest),
        "bytes": out.stat().st_size,
    }
    show_record(record, _COLUMNS, output_format, id_field="file")
    note(f"wrote the data of user {user} to {out} and checked it")


async def _write(
    file: BinaryIO, target: Target, user: str, data: Any, counter: Counter
) -> list[dict[str, Any]]:
    """Write all files of the archive. Return the entries of its manifest."""
    from zipfile import ZIP_DEFLATED, ZipFile

    import orjson

    from agentctl import __version__
    from agentctl.records.times import format_rfc3339, now

    manifest: list[dict[str, Any]] = []
    with ZipFile(file, "w", ZIP_DEFLATED) as archive:

        async def write(name: str, lines: AsyncIterator[tuple[bytes, int]]) -> None:
            manifest.append(await _write_member(archive, name, lines, counter))

        await write("README.txt", _one_text(_README))
        await write("memories.jsonl", _read_memories(target, user))
        first, *_ = (database["db_id"] for database in data["databases"])
        await write("audit.jsonl", _read_part(target, user, "audit", first))
        for db_id in (database["db_id"] for database in data["databases"]):
            folder = f"databases/{db_id}"
            await write(f"{folder}/sessions.jsonl", _read_sessions(target, user, db_id))
            await write(f"{folder}/approvals.jsonl", _read_approvals(target, user, db_id))
            parts: tuple[PersonalPart, ...] = ("decisions", "deliveries", "usage")
            for name in parts:
                await write(f"{folder}/{name}.jsonl", _read_part(target, user, name, db_id))
        head = {
            "format": FORMAT,
            "user_id": user,
            "created_at": format_rfc3339(now()),
            "agentctl": __version__,
            "files": manifest,
        }
        text = orjson.dumps(head, option=orjson.OPT_INDENT_2).decode()
        await _write_member(archive, "manifest.json", _one_text(text), counter)
    return manifest


async def _write_member(
    archive: ZipFile, name: str, lines: AsyncIterator[tuple[bytes, int]], counter: Counter
) -> dict[str, Any]:
    from zipfile import ZIP_DEFLATED, ZipInfo

    digest, rows, size = hashlib.sha256(), 0, 0
    info = ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.compress_type = ZIP_DEFLATED
    info.external_attr = 0o600 << 16
    with archive.open(info, "w", force_zip64=True) as member:
        async for data, count in lines:
            member.write(data)
            digest.update(data)
            rows, size = rows + count, size + len(data)
            counter.done += count
    return {"name": name, "rows": rows, "bytes": size, "sha256": digest.hexdigest()}


def _verify(path: Path, manifest: list[dict[str, Any]]) -> None:
    """Read every file of the archive again.

    Raises:
        UsageError: the archive differs from the written data.
    """
    from zipfile import BadZipFile, ZipFile

    try:
        with ZipFile(path) as archive:
            for entry in manifest:
                with archive.open(entry["name"]) as member:
                    if hashlib.file_digest(member, "sha256").hexdigest() != entry["sha256"]:  # type: ignore[arg-type]
                        raise BadZipFile
    except (OSError, BadZipFile):
        raise UsageError(
            "The export failed: the file differs from the written data",
            cause=f"{path} was read again",
            hint="check the disk, and export again",
        ) from None


async def _one_text(text: str) -> AsyncGenerator[tuple[bytes, int]]:
    yield text.encode(), 0


async def _dump_pages(
    pages: AsyncGenerator[list[dict[str, Any]]],
) -> AsyncGenerator[tuple[bytes, int]]:
    import orjson

    async with aclosing(pages):
        async for rows in pages:
            for row in rows:
                yield orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE), 1


def _read_memories(target: Target, user: str) -> AsyncGenerator[tuple[bytes, int]]:
    return _dump_pages(
        read_pages(
            lambda cursor: target.operations.get_memories(
                MemoryFilter(user, page=replace(_OLDEST_FIRST, cursor=cursor))
            )
        )
    )


def _read_approvals(target: Target, user: str, db_id: str) -> AsyncGenerator[tuple[bytes, int]]:
    return _dump_pages(
        read_pages(
            lambda cursor: target.operations.get_approvals(
                ApprovalFilter(
                    user_id=user, db_id=db_id, page=replace(_OLDEST_FIRST, cursor=cursor)
                )
            )
        )
    )


def _read_part(
    target: Target, user: str, part: PersonalPart, db_id: str
) -> AsyncGenerator[tuple[bytes, int]]:
    first = PersonalRowsFilter(user, part, db_id)
    return _dump_pages(
        read_pages(lambda cursor: target.operations.get_user_rows(replace(first, cursor=cursor)))
    )


async def _read_sessions(
    target: Target, user: str, db_id: str
) -> AsyncGenerator[tuple[bytes, int]]:
    where = SessionLocator(user_id=user, db_id=db_id)
    pages = read_pages(
        lambda cursor: target.operations.get_sessions(
            SessionFilter(where, page=replace(_OLDEST_FIRST, cursor=cursor))
        )
    )
    async with aclosing(pages):
        async for rows in pages:
            for row in rows:
                end = b""
                try:
                    async for part in target.operations.export_session(row["session_id"], where):
                        yield part, 0
                        end = part[-1:]
                except NotFound:
                    if end:
                        raise
                    continue  # it was deleted after the list was read
                if end != b"\n":
                    raise InvalidResponse(
                        f"the export of session {row['session_id']} is not complete",
                        hint="export again",
                    )
                yield b"", 1
