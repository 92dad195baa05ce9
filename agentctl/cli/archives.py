"""ZIP archives of exports: written in pieces, read again, and published when they are whole.

`manifest.json` names each member with its SHA-256 hash, and each file whose bytes the store lacks.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentctl.cli.files import check_absent, creating_file, publish_file
from agentctl.cli.show.progress import Counter, showing_progress
from agentctl.errors import BytesMissing, InvalidResponse, NotFound, PartFailed, UsageError
from agentctl.interface.requests import MAXIMUM_LIMIT, Page
from agentctl.interface.requests.files import FileFilter
from agentctl.interface.requests.lists import Row, read_rows
from agentctl.records.text import format_count
from agentctl.records.times import format_rfc3339, now

if TYPE_CHECKING:
    from zipfile import ZipFile

    from agentctl.interface.operations import Operations

OLDEST_FIRST = Page(limit=MAXIMUM_LIMIT, sort_by="created_at", sort_order="asc")
"""The pages of exported lists: rows that are added meanwhile come last."""

Pieces = AsyncIterator[tuple[bytes, int]]
"""The content of a member, each piece with the number of its rows."""

Member = tuple[str, Pieces]
"""A file of the archive: its name and its content."""

_FILE_ID = re.compile(r"[A-Za-z0-9-]{1,64}")
_ENDING = re.compile(r"\.[A-Za-z0-9]{1,8}")


class Archive:
    """An archive of an export.

    Args:
        file: its path. It is `FILE.part` until it is whole.
        head: the first entries of the manifest.

    Attributes:
        entries: the members, as in the manifest.
        missing: the files without bytes, as in the manifest.
    """

    def __init__(self, file: Path, head: dict[str, Any], counter: Counter) -> None:
        self.file = file
        self.entries: list[dict[str, Any]] = []
        self.missing: list[Row] = []
        self._head = head
        self._counter = counter

    async def write(self, members: AsyncGenerator[Member]) -> None:
        """Write all members and the manifest, and read the archive again.

        Raises:
            Conflict: the file exists.
            UsageError: it cannot be written.
        """
        from zipfile import ZIP_DEFLATED, ZipFile

        part = self.file.with_name(f"{self.file.name}.part")
        check_absent(self.file)

        with creating_file(part) as stream:
            async with showing_progress(self._counter):
                with ZipFile(stream, "w", ZIP_DEFLATED) as archive:
                    async with aclosing(members):
                        async for name, pieces in members:
                            self.entries.append(await self._add(archive, name, pieces))
                    # Only now all entries are known.
                    await self._add(archive, "manifest.json", one_text(self._format_manifest()))

        try:
            _verify(part, self.entries)
            # The rename would replace a file that was created meanwhile.
            check_absent(self.file)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        publish_file(part, self.file)

    def _format_manifest(self) -> str:
        import orjson

        from agentctl import __version__

        manifest = {
            **self._head,
            "created_at": format_rfc3339(now()),
            "agentctl": __version__,
            "files": self.entries,
        }
        if self.missing:
            manifest["missing"] = self.missing
        return orjson.dumps(manifest, option=orjson.OPT_INDENT_2).decode()

    def check_missing(self) -> None:
        """Raise PartFailed if there are files without bytes."""
        if self.missing:
            raise PartFailed(
                f"The bytes of {format_count(len(self.missing), 'file')} are missing",
                cause=f"{self.file} has the rest; its manifest names them, such as"
                f" {self.missing[0]['file_id']}",
                hint="restore them from a backup, or delete these files, and export again",
            )

    async def _add(self, archive: ZipFile, name: str, pieces: Pieces) -> dict[str, Any]:
        from zipfile import ZIP_DEFLATED, ZipInfo

        info = ZipInfo(name, (1980, 1, 1, 0, 0, 0))
        info.compress_type = ZIP_DEFLATED
        info.external_attr = 0o600 << 16

        digest = hashlib.sha256()
        rows = 0
        size = 0
        with archive.open(info, "w", force_zip64=True) as member:
            async for data, count in pieces:
                member.write(data)
                digest.update(data)
                rows += count
                size += len(data)
                self._counter.done += count

        return {"name": name, "rows": rows, "bytes": size, "sha256": digest.hexdigest()}

    async def list_files(
        self, operations: Operations, filters: Sequence[FileFilter]
    ) -> AsyncGenerator[Member]:
        """Yield `files.jsonl` with the records of files, and a member with the bytes of each."""
        yield "files.jsonl", _list_records(operations, filters)
        for file_filter in filters:
            contents = self.list_contents(operations, file_filter, name_with_ending)
            async with aclosing(contents):
                async for member in contents:
                    yield member

    async def list_contents(
        self, operations: Operations, filter: FileFilter, name: Callable[[Row], str]
    ) -> AsyncGenerator[Member]:
        """Yield a member with the bytes of each file; note the files without bytes.

        Args:
            name: returns the name of the member.

        Raises:
            InvalidResponse: the bytes do not have the hash of the file.
        """
        async with aclosing(read_rows(operations.files.list, filter)) as rows:
            async for row in rows:
                pieces: Any = operations.files.get_content(row["file_id"], db_id=filter.db_id)
                async with aclosing(pieces):
                    try:
                        first = await anext(pieces, b"")
                    except NotFound:
                        # It was deleted after the list was read.
                        continue
                    except BytesMissing:
                        named_fields = ("file_id", "name", "session_id", "size", "sha256")
                        self.missing.append({key: row.get(key) for key in named_fields})
                        continue
                    yield name(row), _check_content(row, first, pieces)


def name_content(row: Row) -> str:
    """Return the name of the member with the bytes of a file.

    Raises:
        InvalidResponse: the id of the file could be a path.
    """
    if not _FILE_ID.fullmatch(row["file_id"]):
        raise InvalidResponse("The id of a file has characters that no id has")
    return f"files/{row['file_id']}"


def name_with_ending(row: Row) -> str:
    """Return the name as `name_content` does, with the ending that programs look at."""
    ending = Path(row["name"]).suffix
    if not _ENDING.fullmatch(ending):
        return name_content(row)
    return name_content(row) + ending


async def _list_records(operations: Operations, filters: Sequence[FileFilter]) -> Pieces:
    import orjson

    for file_filter in filters:
        async with aclosing(read_rows(operations.files.list, file_filter)) as rows:
            async for row in rows:
                yield orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE), 0


async def _check_content(row: Row, first: bytes, pieces: AsyncIterator[bytes]) -> Pieces:
    digest = hashlib.sha256(first)
    yield first, 0
    async for piece in pieces:
        digest.update(piece)
        yield piece, 0

    if digest.hexdigest() != row["sha256"]:
        raise InvalidResponse(
            f"the content does not match file {row['file_id']}",
            hint="restore them from a backup, or delete the file, and export again",
        )


async def one_text(text: str) -> Pieces:
    """Yield a text as the content of a member."""
    yield text.encode(), 0


def _verify(path: Path, entries: list[dict[str, Any]]) -> None:
    """Read every file of the archive again."""
    from zipfile import BadZipFile, ZipFile

    try:
        with ZipFile(path) as archive:
            for entry in entries:
                with archive.open(entry["name"]) as member:
                    if hashlib.file_digest(member, "sha256").hexdigest() != entry["sha256"]:  # type: ignore[arg-type]
                        raise BadZipFile
    except (OSError, BadZipFile):
        raise UsageError(
            "The export failed: the file differs from the written data",
            cause=f"{path} was read again",
            hint="check the disk, and export again",
        ) from None
