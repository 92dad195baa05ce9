"""The import of sessions that `agentctl sessions export` wrote."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import IO, Any, TypedDict

import orjson

from agentctl.admin.imports.records import read_session
from agentctl.admin.imports.store import ImportedSession, ImportReport, store_session
from agentctl.config.settings import Settings
from agentctl.errors import Conflict, ValidationFailed
from agentctl.records.runs import RunRecord
from agentctl.records.value_types import find_mismatch
from agentctl.store.database import Database

MAXIMUM_RECORD_BYTES = 268_435_456
"""Bytes of a line of JSON Lines, and of a whole file that is one JSON array."""

ReportProgress = Callable[[str, int, int | None], None]
"""Receives the name of the work, the part done and the total, if known."""


class _ExportRecord(TypedDict):
    session: dict[str, Any]
    runs: list[RunRecord]


class SessionFile:
    """A file of sessions: JSON Lines, or one JSON array.

    Args:
        file: the file, at its beginning; it can be read several times.
        settings: its limits and quotas apply.
    """

    def __init__(self, file: IO[bytes], name: str, settings: Settings) -> None:
        self._file = file
        self._name = name
        self._limits = settings.limits
        self._quotas = settings.quotas

    async def check(self, report: ReportProgress) -> int:
        """Check the whole file, and return the number of its sessions.

        Raises:
            ValidationFailed: the file is no export, or a record cannot be imported. The error names
                the line and the field.
        """
        count = 0
        for count, _ in enumerate(self._read_sessions(), 1):
            report("sessions checked", count, None)
            await asyncio.sleep(0)  # for the progress, and for an interruption
        return count

    async def store(
        self, database: Database, total: int, report: ReportProgress, *, dry_run: bool
    ) -> ImportReport:
        """Store the sessions, each in one transaction; Conflict if the file has changed."""
        result = ImportReport()
        for count, (session, left_out) in enumerate(self._read_again(), 1):
            await store_session(database, session, result, self._quotas, dry_run=dry_run)
            result.left += left_out
            report("sessions imported", count, total)
        return result

    def _read_again(self) -> Iterator[tuple[ImportedSession, list[tuple[str, str]]]]:
        """Read the sessions of a file that was checked; a fault means that it has changed."""
        try:
            yield from self._read_sessions()
        except ValidationFailed as failure:
            raise Conflict(
                f"{self._name} has changed during the import",
                cause=failure.cause,
                hint="a part of it was imported; repeat the import, which skips what exists",
            ) from None

    def _read_sessions(self) -> Iterator[tuple[ImportedSession, list[tuple[str, str]]]]:
        """Yield each session, and what is left out of it; see `read_session`."""
        session_ids = set[str]()
        run_ids = set[str]()
        for place, record in self._read_records():
            try:
                mismatch = find_mismatch(record, _ExportRecord)
                if mismatch is not None:
                    raise ValidationFailed(
                        f"{mismatch or 'the value'} is missing or has a wrong type"
                    )
                if not {"session", "runs"} <= record.keys():
                    raise ValidationFailed("session or runs is missing")

                session, left_out = read_session(record["session"], record["runs"], self._limits)
                session_id = session.row.session_id
                if session_id in session_ids:
                    raise ValidationFailed(f"session {session_id} is in the file twice")
                session_ids.add(session_id)

                for run in session.runs:
                    if run.run_id in run_ids:
                        raise ValidationFailed(f"run {run.run_id} is in the file twice")
                    run_ids.add(run.run_id)
            except ValidationFailed as failure:
                raise self._refuse(f"{place}: {failure.detail}") from None
            yield session, left_out

    def _read_records(self) -> Iterator[tuple[str, Any]]:
        """Yield the place of each record in the file, for errors, and the record."""
        self._file.seek(0)
        start = self._file.read(4_096).lstrip()[:1]
        self._file.seek(0)

        if start == b"[":
            text = self._file.read(MAXIMUM_RECORD_BYTES + 1)
            if len(text) > MAXIMUM_RECORD_BYTES:
                raise self._refuse("it is too large for one JSON array")
            for number, record in enumerate(self._parse(text, "")):
                yield f"[{number}]", record
        elif start in (b"{", b""):
            number = 0
            while line := self._file.readline(MAXIMUM_RECORD_BYTES + 1):
                number += 1
                if len(line) > MAXIMUM_RECORD_BYTES:
                    raise self._refuse(f"line {number} is too long")
                if line.strip():
                    yield f"line {number}", self._parse(line, f"line {number}: ")
        else:
            raise self._refuse("it has neither JSON Lines nor a JSON array")

    def _parse(self, text: bytes, place: str) -> Any:
        with suppress(orjson.JSONDecodeError):
            return orjson.loads(text)
        raise self._refuse(f"{place}it is not complete JSON in UTF-8")

    def _refuse(self, cause: str) -> ValidationFailed:
        return ValidationFailed(
            f"{self._name} cannot be imported",
            cause=cause,
            hint="nothing was imported; a file is written with: agentctl sessions export --all",
        )
