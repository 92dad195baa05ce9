"""Verified exports of many sessions: files that `sessions import` reads."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from agentctl.cli.files import create_directory, creating_file, publish_file
from agentctl.errors import InvalidResponse, NotFound
from agentctl.interface.requests import SessionLocator
from agentctl.records.kinds import Record

if TYPE_CHECKING:
    from agentctl.interface.operations import Operations

_BLOCK = 1_048_576


class ExportFolder:
    """A folder that receives files of sessions, each with a line for a session.

    A file is written as `NAME.part`, read again and compared, and only then named `NAME`: a file
    with a name is whole, and on the disk.
    """

    def __init__(self, folder: Path, operations: Operations) -> None:
        create_directory(folder, 0o700)
        self._folder = folder
        self._operations = operations
        self._prefix = f"sessions-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"
        self.files: list[Path] = []

    async def write(self, sessions: Sequence[Record], where: SessionLocator) -> list[str]:
        """Write a file of some sessions, and return the ids of those that are in it.

        A session that was deleted in the meantime is left out.

        Args:
            sessions: records with `session_id` and `run_count`.
            where: their database.

        Raises:
            Conflict, UsageError: the file cannot be written.
            InvalidResponse: the file does not have what it should have; it is removed.
        """
        path = self._folder / f"{self._prefix}-{len(self.files) + 1:05}.jsonl"
        part = path.with_name(f"{path.name}.part")
        digest = hashlib.sha256()
        written = list[Record]()
        with creating_file(part) as file:
            for session in sessions:
                with suppress(NotFound):
                    async for piece in self._operations.export_session(
                        session["session_id"], where
                    ):
                        file.write(piece)
                        digest.update(piece)
                    written.append(session)
        try:
            if _hash_file(part) != digest.digest():
                raise _build_error(path, "it has other bytes than were written")
            _check_sessions(part, written)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        publish_file(part, path)
        self.files.append(path)
        return [session["session_id"] for session in written]


def _hash_file(path: Path) -> bytes:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.digest()


def _check_sessions(path: Path, sessions: Sequence[Record]) -> None:
    with path.open("rb") as file:
        found = list(_read_sizes(file))
    if [session_id for session_id, _ in found] != [each["session_id"] for each in sessions]:
        raise _build_error(path, "it does not have the sessions that were exported")
    for (session_id, runs), session in zip(found, sessions, strict=True):
        if runs < session["run_count"]:
            cause = f"session {session_id} has {runs} of {session['run_count']} runs in it"
            raise _build_error(path, cause)


def _read_sizes(file: BinaryIO) -> Iterator[tuple[object, int]]:
    """Yield the id and the number of runs of each session of a file."""
    import orjson

    for line in file:
        try:
            record = orjson.loads(line)
            yield record["session"]["session_id"], len(record["runs"])
        except (ValueError, KeyError, TypeError):
            yield None, 0


def _build_error(path: Path, cause: str) -> InvalidResponse:
    return InvalidResponse(
        f"The export {path.name} is not whole",
        cause=cause,
        hint="none of its sessions was removed; run the command again",
    )
