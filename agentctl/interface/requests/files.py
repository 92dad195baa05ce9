"""Requests of the operations on files: the filter, an upload, its bytes and a range of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from os import SEEK_END
from pathlib import Path
from typing import Annotated

from agentctl.errors import RangeNotSatisfiable
from agentctl.interface.declarations import Header, Option, Query
from agentctl.interface.requests import DatabaseId, Page, UserId
from agentctl.records.files import MAXIMUM_NAME_LENGTH

READ_BYTES = 262_144
"""Bytes that are read and sent at once."""

SLOWEST_UPLOAD = 131_072
"""Minimum speed of an upload in bytes a second: a server does not wait for a slower one."""

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")

ByteRange = Annotated[
    str | None, Header("One range of bytes, such as `bytes=0-1023` (RFC 9110 14.2)", alias="Range")
]


@dataclass(frozen=True, slots=True)
class FileFilter:
    """The filter of a list of files in one database."""

    user_id: UserId = None
    session_id: Annotated[
        str | None,
        Query("Only files of this session"),
        Option("--session", "ID", "Filter by session", noun="session"),
    ] = None
    db_id: DatabaseId = None
    page: Page = field(default_factory=Page)


@dataclass(frozen=True, slots=True)
class FileUpload:
    """A file to store.

    The user of its session owns it; without a session the caller, or `user_id`.
    """

    name: Annotated[
        str,
        Query(
            "Name of the file, without a folder; required",
            min_length=1,
            max_length=MAXIMUM_NAME_LENGTH,
        ),
    ] = ""
    session_id: Annotated[
        str | None, Query("Session of the file; without a session it is deleted after 24 hours")
    ] = None
    user_id: Annotated[
        str | None, Query("User of the file; only administrators can name a different user")
    ] = None
    db_id: DatabaseId = None


class FileContent:
    """The bytes of an upload, which can be read several times.

    Args:
        source: a file, or the bytes.
        report: called with the number of bytes that were read so far.

    Raises:
        OSError: the file cannot be read.
    """

    def __init__(self, source: Path | bytes, report: Callable[[int], None] | None = None) -> None:
        self._source = source
        self._report = report
        if isinstance(source, bytes):
            self.size = len(source)
            return
        with source.open("rb") as file:
            self.size = file.seek(0, SEEK_END)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        if isinstance(self._source, bytes):
            yield self._source
            return
        with self._source.open("rb", buffering=0) as file:
            while piece := await asyncio.to_thread(file.read, READ_BYTES):
                if self._report is not None:
                    self._report(file.tell())
                yield piece


def parse_range(text: str | None, size: int) -> tuple[int, int] | None:
    """Return the index of the first byte of a range, and the index after its last byte.

    None means all bytes: there is no range, or its form is not known, so that it is ignored
    (RFC 9110 14.1.2 and 14.2).

    Raises:
        RangeNotSatisfiable: the range begins after the last byte.
    """
    match = _RANGE.fullmatch(text or "")
    if match is None or match.groups() == ("", ""):
        return None

    first, last = match.groups()
    if not first:
        # `bytes=-500`: the last 500 bytes.
        start = max(size - int(last), 0)
        end = size
    elif not last:
        start = int(first)
        end = size
    else:
        if int(last) < int(first):
            return None
        start = int(first)
        end = min(int(last) + 1, size)

    if start >= size or start >= end:
        raise RangeNotSatisfiable(size)
    return start, end
