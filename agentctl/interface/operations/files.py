"""The operations on files; see `agentctl.interface.operations`."""

# The methods have no statements: `execute` or a backend executes them.
# mypy: disable-error-code="empty-body"

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator
from typing import Annotated

from agentctl.interface.declarations import Family, Path, operation
from agentctl.interface.requests import DatabaseId
from agentctl.interface.requests.files import ByteRange, FileFilter, FileUpload
from agentctl.interface.requirements import NeedsScope
from agentctl.interface.responses import CONTENT_RESPONSES, HELD_RESPONSES
from agentctl.records.document import Document
from agentctl.records.files import FilePage, FileRecord

FileId = Annotated[str, Path("Id of the file", "file")]

_FILE = "/files/{file_id}"


class FilesFamily(Family):
    """The operations on files."""

    @operation("get_file", "GET", _FILE, needs=NeedsScope("sessions", "read"), tag="Files")
    async def get(self, file_id: FileId, *, db_id: DatabaseId = None) -> Document[FileRecord]:
        """Get a file without its bytes."""

    @operation(
        "get_files",
        "GET",
        "/files",
        needs=NeedsScope("sessions", "read"),
        tag="Files",
        without=("sort_by",),
    )
    async def list(self, filter: FileFilter) -> Document[FilePage]:
        """List files.

        One page of the files that the caller can see.
        """

    @operation(
        "upload_file",
        "POST",
        "/files",
        needs=NeedsScope("sessions", "write"),
        tag="Files",
        status=201,
        errors=(413, 415, 429),
    )
    async def upload(
        self,
        upload: FileUpload,
        content: AsyncIterable[bytes],
        *,
        media_type: str = "",
        size: int | None = None,
    ) -> Document[FileRecord]:
        """Upload a file.

        The body contains the bytes of the file. The type is detected from the bytes: PNG, JPEG,
        GIF, WebP, PDF, WAV, MP3, OGG, FLAC, M4A, plain text, Markdown, CSV or JSON.
        """

    @operation(
        "get_file_content",
        "GET",
        f"{_FILE}/content",
        needs=NeedsScope("sessions", "read"),
        tag="Files",
        errors=(416,),
        responses=CONTENT_RESPONSES,
    )
    def get_content(
        self, file_id: FileId, *, db_id: DatabaseId = None, byte_range: ByteRange = None
    ) -> AsyncIterator[bytes]:
        """Get the bytes of a file, or one range of them."""

    @operation(
        "delete_file",
        "DELETE",
        _FILE,
        needs=NeedsScope("sessions", "write"),
        tag="Files",
        errors=(409,),
        responses=HELD_RESPONSES,
    )
    async def delete(self, file_id: FileId, *, db_id: DatabaseId = None) -> None:
        """Delete a file.

        Runs and messages that refer to it keep the reference. A file of a held session stays.
        """
