"""Files inside of other requests: base64 texts in JSON, and parts of multipart forms.

The message of a run has ids of files only. A face stores what its clients send, as an upload of the
caller with its policy, types and bounds, and starts the run with the ids (docs/files.md).
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import mimetypes
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from typing import NamedTuple

from starlette.datastructures import UploadFile

from agentctl.errors import ValidationFailed
from agentctl.interface.operations import Operations
from agentctl.interface.requests import MAXIMUM_RUN_FILES
from agentctl.interface.requests.files import READ_BYTES, FileUpload
from agentctl.server.answers import Call
from agentctl.server.content import build_too_large_body, check_announced_length
from agentctl.server.requests import parse_form
from agentctl.store.threads import call_in_thread


class GivenFile(NamedTuple):
    """A file in a request: the id of a stored file, or the bytes of a new one."""

    at: str
    """The place in the request, for errors."""

    file_id: str | None = None

    data: str = ""
    """The bytes as base64 text."""

    name: str = ""

    media_type: str = ""
    """The announced type; "" without one."""


def read_data_url(at: str, url: str, name: str = "") -> GivenFile:
    """Return the file of a `data` URL (RFC 2397), such as `data:text/plain;base64,aGk=`.

    Raises:
        ValidationFailed: it is another URL. No URL is fetched.
    """
    head, comma, data = url.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        raise ValidationFailed(
            f"{at} must be a data URL with base64: this server fetches no URL. Send the bytes, or"
            " the id of an uploaded file"
        )
    return GivenFile(at, data=data, name=name, media_type=head[5:-7].partition(";")[0])


async def store_files(
    operations: Operations, given_files: Iterable[GivenFile], db_id: str | None
) -> tuple[str, ...]:
    """Store the files of a request that have bytes; return the ids of all files, in order.

    The files of a run that is refused afterwards have no session, and are deleted after 24 hours.

    Args:
        db_id: the database of the component, where its run looks for the files; None for the
            default database.

    Raises:
        ValidationFailed: a file has no bytes, or they are not base64, or there are too many files.
        AgentctlError: an upload is refused.
    """
    files = list(given_files)
    if len(files) > MAXIMUM_RUN_FILES:
        raise ValidationFailed(
            f"{files[-1].at}: a request must have at most {MAXIMUM_RUN_FILES} files"
        )
    for file in files:
        if not (file.file_id or file.data):
            raise ValidationFailed(f"{file.at} must have the bytes of a file, or its id")

    # After all checks: a request that is refused stores nothing.
    return tuple([file.file_id or await _store(operations, file, db_id) for file in files])


async def _store(operations: Operations, file: GivenFile, db_id: str | None) -> str:
    """Store the bytes of a file as an upload of the caller; return its id."""
    try:
        data = await call_in_thread(base64.b64decode, file.data, validate=True)
    except (binascii.Error, ValueError):
        raise ValidationFailed(f"{file.at} is not base64") from None

    async def stream() -> AsyncIterator[bytes]:
        for start in range(0, len(data), READ_BYTES):
            yield data[start : start + READ_BYTES]

    name = file.name or f"file{mimetypes.guess_extension(file.media_type) or ''}"
    document = await operations.files.upload(
        FileUpload(name=name, db_id=db_id), stream(), media_type=file.media_type, size=len(data)
    )
    return document.value["file_id"]


@contextlib.asynccontextmanager
async def read_multipart(
    call: Call, limit: int
) -> AsyncIterator[tuple[list[tuple[str, str]], list[tuple[str, UploadFile]]]]:
    """Yield the fields and the files of a multipart form. Large files are on the disk meanwhile.

    Args:
        limit: maximum bytes of the body.

    Raises:
        TooLarge: the body is larger.
        BadRequest: see `parse_form`.
    """
    check_announced_length(call, limit)

    async def stream() -> AsyncGenerator[bytes]:
        size = 0
        async for piece in call.stream():
            size += len(piece)
            if size > limit:
                raise build_too_large_body(limit)
            yield piece

    part_size = call.caller.app_state.settings.limits.body_bytes
    form = await parse_form(call, stream(), max_files=MAXIMUM_RUN_FILES, max_part_size=part_size)

    fields = list[tuple[str, str]]()
    files = list[tuple[str, UploadFile]]()
    for name, value in form.multi_items():
        if isinstance(value, str):
            fields.append((name, value))
        elif value.filename or value.size:
            # Otherwise no file was chosen in a page.
            files.append((name, value))

    try:
        yield fields, files
    finally:
        await form.close()


async def store_part(operations: Operations, part: UploadFile, db_id: str | None) -> bytes:
    """Store a file of a multipart form; return the bytes of its record.

    Args:
        db_id: the database of the component that gets the file; None for the default database.
    """

    async def stream() -> AsyncIterator[bytes]:
        while piece := await part.read(READ_BYTES):
            yield piece

    # A browser may send the folder that was chosen, with separators of its system.
    name = (part.filename or "file").replace("\\", "/").rpartition("/")[2]
    document = await operations.files.upload(
        FileUpload(name=name, db_id=db_id),
        stream(),
        media_type=part.content_type or "",
        size=part.size,
    )
    return document.raw
