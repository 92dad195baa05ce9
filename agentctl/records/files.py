"""File records: pictures, documents and sounds by reference (docs/files.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NotRequired

from typing_extensions import TypedDict

from agentctl.errors import ValidationFailed
from agentctl.records.sessions import PageMeta
from agentctl.records.text import check_text, escape_controls
from agentctl.records.times import Timestamp

FileOrigin = Literal["upload", "run"]

MAXIMUM_NAME_LENGTH = 255
"""Characters of the name of a file."""


class FileRecord(TypedDict):
    """A file without its bytes.

    `session_id` is null until the upload or a run names one; the file is deleted after 24 hours
    then. `run_id` is the run that made it, null for an upload. `version` counts the files of the
    session with the same name, from 1. `size` is in bytes.
    """

    file_id: str
    name: str
    media_type: str
    size: int
    sha256: str
    user_id: str | None
    session_id: str | None
    run_id: str | None
    origin: FileOrigin
    version: int
    created_at: Timestamp


class FilePage(TypedDict):
    """A page of files."""

    data: list[FileRecord]
    meta: PageMeta


@dataclass(frozen=True, slots=True)
class FileReference:
    """A file as runs, events and histories hold it: never its bytes."""

    file_id: str
    name: str

    media_type: str
    """The type that its bytes have, such as `image/png`."""

    size: int
    """Bytes."""

    sha256: str
    """The hash of the bytes, hexadecimal."""


class RunFileRecord(TypedDict):
    """A file of a run: one of its message, or one that it has saved, with `created_at`."""

    file_id: str
    name: str
    media_type: str
    size: int
    sha256: str
    version: NotRequired[int]
    created_at: NotRequired[Timestamp]


def is_saved(file: Mapping[str, Any]) -> bool:
    """Return True for a file that a run has saved, False for one of its message."""
    return "created_at" in file


def is_reference(value: object) -> bool:
    """Return True for a stored reference: an object with the fields of `FileReference`."""
    if not isinstance(value, dict):
        return False
    for name in FileReference.__dataclass_fields__:
        expected_type = int if name == "size" else str
        if type(value.get(name)) is not expected_type:
            return False
    return True


def check_file_name(name: str) -> str:
    """Return the name of a file if every system can show and store it.

    Raises:
        ValidationFailed: it is empty or too long, has a path, or characters that are not shown.
    """
    check_text("name", name)
    if not name.strip() or len(name) > MAXIMUM_NAME_LENGTH:
        raise ValidationFailed(f"name must be 1 to {MAXIMUM_NAME_LENGTH} characters")
    if name in (".", "..") or "/" in name or "\\" in name:
        raise ValidationFailed("name must be the name of a file without its folder")
    if escape_controls(name) != name:
        raise ValidationFailed(
            "name must not contain control characters or characters that change the direction"
        )
    return name
