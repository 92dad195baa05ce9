"""The files of a run: their bytes for its models and its code, and those that it saves.

The record of the run names both, and its stream has an event for each file that it saves.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

import orjson

from agentctl.config.upkeep import Files
from agentctl.errors import Conflict, NotFound, TooLarge
from agentctl.records.files import FileReference, check_file_name
from agentctl.records.run_spec import RunSpec
from agentctl.records.text import new_id
from agentctl.records.times import format_rfc3339, now
from agentctl.runtime.transcript.events import FileSaved, RunEvent
from agentctl.store.blobs import PIECE_BYTES, build_key
from agentctl.store.database import Database, Steps, unit
from agentctl.store.repositories import files, run_reads, runs, sessions
from agentctl.store.repositories.files import FileRow
from agentctl.store.threads import call_in_thread
from agentctl.store.uploads import Uploads
from agentctl.store.visibility import EVERYONE
from agentctl.work.event_loop import retry_while_unavailable

MAXIMUM_SAVED_FILES = 100
"""Files that one run saves."""

_ENDING = re.compile(r"\.[A-Za-z0-9]{1,8}")
"""The ending of a name that the copy of a file has, too: some libraries look at it."""


class FileOwner(Protocol):
    """The run that has the files."""

    @property
    def spec(self) -> RunSpec: ...
    @property
    def database(self) -> Database: ...
    @property
    def attempt(self) -> int: ...
    @property
    def stop_requested(self) -> asyncio.Future[None]: ...
    def emit(self, event: RunEvent) -> None: ...


class RunFiles:
    """The `runtime.files.FileAccess` of a run. Its files are those of its session.

    Args:
        uploads: receives what the runs of the process save, and has the store.

    Attributes:
        folder: has the copies of files; it ends with the leg. None for none.
    """

    def __init__(self, run: FileOwner, uploads: Uploads) -> None:
        self._run = run
        self._uploads = uploads
        self.folder: TemporaryDirectory[str] | None = None

    async def find(self, file_ids: Iterable[str]) -> dict[str, FileReference]:
        rows = await self._run.database.read(files.get_all([*file_ids], EVERYONE))
        spec = self._run.spec
        owner = spec.session_id, spec.user_id
        return {
            row.file_id: row.build_reference()
            for row in rows
            if (row.session_id, row.user_id) == owner
        }

    def stream(self, file: FileReference) -> AsyncIterator[bytes]:
        key = build_key(self._run.spec.user_id, file.sha256)
        return self._uploads.store.read(key, 0, file.size)

    async def read(self, file: FileReference) -> bytes:
        if file.file_id not in await self.find([file.file_id]):
            raise NotFound("File not found")
        return b"".join([part async for part in self.stream(file)])

    async def path(self, file: FileReference) -> Path:
        if file.file_id not in await self.find([file.file_id]):
            raise NotFound("File not found")
        if self.folder is None:
            self.folder = TemporaryDirectory(prefix="agentctl-", ignore_cleanup_errors=True)
        ending = Path(file.name).suffix
        ending = ending if _ENDING.fullmatch(ending) else ""
        path = Path(self.folder.name, f"{file.file_id}{ending}")
        with await call_in_thread(path.open, "wb") as copy:
            async for part in self.stream(file):
                await call_in_thread(copy.write, part)
        return path

    async def save(self, name: str, data: bytes) -> FileReference:
        run, uploads, at = self._run, self._uploads, now()
        spec, settings = run.spec, uploads.settings
        check_file_name(name)
        uploads.check_size(len(data))
        async with uploads.receive(_split(data), name, "", spec.user_id or "") as received:
            row = FileRow(
                file_id=new_id(),
                user_id=spec.user_id,
                session_id=spec.session_id,
                run_id=spec.run_id,
                name=name,
                media_type=received.media_type,
                size=received.size,
                sha256=received.sha256,
                blob=build_key(spec.user_id, received.sha256),
                origin="run",
                version=1,
                created_at=at,
            )
            begin = files.begin(row.user_id, row.size, row.blob, at, settings.user_day_bytes)
            await run.database.write(begin)
            await uploads.store.keep(received.path, row.blob)
        save = _save(row, run.attempt, settings)
        stored = await retry_while_unavailable(
            lambda: run.database.write(save), stopped=run.stop_requested
        )
        if stored.file_id == row.file_id:
            run.emit(FileSaved(_build_record(stored)))
        return stored.build_reference()


async def _split(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]


def _build_record(row: FileRow) -> dict[str, Any]:
    created_at = format_rfc3339(row.created_at)
    return {**asdict(row.build_reference()), "version": row.version, "created_at": created_at}


@unit
def _save(row: FileRow, attempt: int, settings: Files) -> Steps[FileRow]:
    """Store a file that a run has saved; return that of an earlier call with the same bytes.

    Raises:
        Conflict: the run does not execute any more.
        TooLarge: the files of the run would be too many, or too large together.
        QuotaExceeded: the user has stored too much in the day.
    """
    run_id, session_id = row.run_id, row.session_id
    assert run_id is not None
    assert session_id is not None
    state = yield from run_reads.lock_state(run_id)
    session = yield from sessions.get_for_update(session_id, EVERYONE)
    if state is None or session is None or (state.status, state.attempt) != ("RUNNING", attempt):
        raise Conflict("The run does not execute any more: its file was not saved")
    made = yield from files.list_of_run(session_id, run_id)
    for known in made:
        if (known.name, known.sha256) == (row.name, row.sha256):
            return known
    if len(made) >= MAXIMUM_SAVED_FILES:
        raise TooLarge(f"A run can save {MAXIMUM_SAVED_FILES} files")
    if sum(known.size for known in made) + row.size > settings.run_bytes:
        raise TooLarge(f"The files that a run saves have at most {settings.run_bytes} bytes")
    row = yield from files.create(row, settings.user_day_bytes)
    yield from runs.add_file(run_id, orjson.dumps(_build_record(row)).decode())
    return row
