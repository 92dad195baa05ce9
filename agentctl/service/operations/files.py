"""The file operations (docs/contract.md "Files")."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterable, Callable
from functools import partial

import orjson

from agentctl import errors
from agentctl.interface.operations.files import FilesFamily
from agentctl.interface.requests import DEFAULT_LOCATOR
from agentctl.interface.requests.files import FileFilter, FileUpload, parse_range
from agentctl.records.document import Document, build_document
from agentctl.records.files import FilePage, FileRecord, check_file_name
from agentctl.records.sessions import SESSION_NOT_FOUND
from agentctl.records.text import check_texts, new_id
from agentctl.records.times import now
from agentctl.service.documents import documents, paging
from agentctl.service.documents.documents import RecordWriter
from agentctl.service.family import OperationFamily
from agentctl.service.reads.family import Lookups
from agentctl.store.blobs import PIECE_BYTES, build_key
from agentctl.store.database import Database, Steps, single_unit, unit
from agentctl.store.repositories import files, sessions
from agentctl.store.repositories.files import FileRow
from agentctl.store.visibility import EVERYONE

_FILE = RecordWriter(FileRecord, FileRow)


class FileOperations(OperationFamily, FilesFamily):
    """Operations on files: rows in the database of their session, bytes in the store."""

    async def list(self, filter: FileFilter) -> Document[FilePage]:
        async with self.audit("get_files"):
            database = self.lookups.database(filter.db_id)
            check_texts(user_id=filter.user_id, session_id=filter.session_id)
            page = paging.build_slice("files", filter.page)
            visibility = self.lookups.visibility
            work = files.list_page(
                visibility, filter.user_id, filter.session_id, page, database.totals
            )
            rows = await database.read(work, size="unknown")
            items = (orjson.dumps(build_file_record(row)) for row in rows.rows)
            return Document(documents.build_page_document("files", items, filter.page, rows))

    async def get(self, file_id: str, *, db_id: str | None = None) -> Document[FileRecord]:
        async with self.audit("get_file", file_id=file_id):
            row = await self.lookups.database(db_id).read(_find(self.lookups, file_id))
            return build_document(build_file_record(row))

    async def require(self, file_id: str, db_id: str | None = None) -> None:
        """Raise NotFound unless the file is found."""
        await self.lookups.database(db_id).read(_find(self.lookups, file_id))

    async def upload(
        self,
        upload: FileUpload,
        content: AsyncIterable[bytes],
        *,
        media_type: str = "",
        size: int | None = None,
    ) -> Document[FileRecord]:
        uploads = self.hosting.uploads
        settings = self.hosting.settings

        async with self.audit("upload_file") as call:
            database = self.lookups.database(upload.db_id)
            check_file_name(upload.name)
            uploads.check_size(1 if size is None else size)

            owner = await database.read(_find_owner(self.lookups, upload))
            caller = self.principal.identity

            bounded = self._receive_within_quotas(database, owner, content, size)
            async with (
                contextlib.aclosing(bounded) as pieces,
                uploads.receive(pieces, upload.name, media_type, caller) as received,
            ):
                row = FileRow(
                    file_id=new_id(),
                    user_id=owner,
                    session_id=upload.session_id,
                    run_id=None,
                    name=upload.name,
                    media_type=received.media_type,
                    size=received.size,
                    sha256=received.sha256,
                    blob=build_key(owner, received.sha256),
                    origin="upload",
                    version=1,
                    created_at=now(),
                )

                # Check all that can refuse the file before its bytes are kept. Kept bytes can be
                # removed only while no upload of the same bytes can be under way.
                reserve = files.reserve(row, settings.files, settings.quotas)
                reservation = await database.write(reserve)
                await uploads.store.keep(received.path, row.blob)

            call.add_created("file", row.file_id)
            row = await call.write(database, _store(self.lookups, row, reservation))
            return build_document(build_file_record(row))

    async def _receive_within_quotas(
        self,
        database: Database,
        owner: str | None,
        content: AsyncIterable[bytes],
        announced: int | None,
    ) -> AsyncGenerator[bytes]:
        """Yield the bytes of a file while the quotas of its owner have room for them.

        An announced size is checked before the first byte. Without one the file may have any size,
        so it is checked as it grows.

        Raises:
            QuotaExceeded: they have no room.
        """
        settings = self.hosting.settings
        checked_size = 0
        size = 0

        async def check(needed: int) -> None:
            room = files.check_room(owner, needed, now(), settings.files, settings.quotas)
            await database.read(room)

        if announced:
            await check(announced)
            checked_size = announced

        async for piece in content:
            size += len(piece)
            if size > checked_size:
                await check(size)
                # Small pieces do not cost a read each.
                checked_size = size + PIECE_BYTES
            yield piece

    async def open(
        self, file_id: str, db_id: str | None = None
    ) -> tuple[FileRow, Callable[[int, int], AsyncGenerator[bytes]]]:
        """Return a file, and a function that reads its bytes from a start up to an end."""
        async with self.audit("get_file_content", file_id=file_id):
            row = await self.lookups.database(db_id).read(_find(self.lookups, file_id))
        return row, partial(self.hosting.uploads.store.read, row.blob)

    async def get_content(
        self, file_id: str, *, db_id: str | None = None, byte_range: str | None = None
    ) -> AsyncGenerator[bytes]:
        row, read = await self.open(file_id, db_id)
        start, end = parse_range(byte_range, row.size) or (0, row.size)
        async with contextlib.aclosing(read(start, end)) as pieces:
            async for piece in pieces:
                yield piece

    async def delete(self, file_id: str, *, db_id: str | None = None) -> None:
        async with self.audit("delete_file", file_id=file_id) as call:
            database = self.lookups.database(db_id)
            await call.write(database, _delete(self.lookups, file_id))


def build_file_record(row: FileRow) -> FileRecord:
    """Build the record of a stored file."""
    record: FileRecord = _FILE.build(row, {})
    return record


@single_unit
def _find(lookups: Lookups, file_id: str) -> Steps[FileRow]:
    row = yield from files.get(file_id, lookups.visibility)
    if row is None:
        raise errors.NotFound("File not found")
    return row


@unit
def _find_owner(lookups: Lookups, upload: FileUpload) -> Steps[str | None]:
    """Find the user of a new file: the user of its session, or else the caller or `user_id`."""
    if upload.session_id is None:
        return lookups.require_owner(upload.user_id)
    check_texts(session_id=upload.session_id, user_id=upload.user_id)
    session = yield from lookups.session(upload.session_id, DEFAULT_LOCATOR)
    if upload.user_id not in (None, session.user_id):
        raise errors.NotFound(SESSION_NOT_FOUND)
    return session.user_id


@unit
def _store(lookups: Lookups, row: FileRow, reservation: int) -> Steps[FileRow]:
    if row.session_id is not None:
        yield from lookups.session(row.session_id, DEFAULT_LOCATOR, lock=True)
    return (yield from files.create(row, reservation))


@unit
def _delete(lookups: Lookups, file_id: str) -> Steps[None]:
    row = yield from _find(lookups, file_id)
    if row.session_id is not None:
        session = yield from sessions.get_for_update(row.session_id, EVERYONE)
        if session is not None and session.hold is not None:
            raise errors.Held(
                f"Session {row.session_id} is held, and its files are not deleted",
                session_ids=[row.session_id],
            )
    if not (yield from files.delete(file_id)):
        raise errors.NotFound("File not found")
