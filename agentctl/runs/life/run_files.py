"""The data that a component and the code of its run keep: files, the store and the memories.

The record of the run names the files that it has and those that it saves, and its stream has an
event for each file that it saves.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import orjson

from agentctl.agents import Memory
from agentctl.config.files import Files
from agentctl.config.quotas import Quotas
from agentctl.errors import Conflict, NotFound, TooLarge, ValidationFailed
from agentctl.records.files import FileReference, check_file_name
from agentctl.records.store_items import ItemPut, ItemSearch, Namespace, StoreItem
from agentctl.records.text import new_id
from agentctl.records.times import format_rfc3339, now
from agentctl.runs.states import ExecutedRun
from agentctl.runtime.transcript.events import FileSaved
from agentctl.store.blobs import PIECE_BYTES, build_key
from agentctl.store.database import Database, Steps, Work, unit
from agentctl.store.repositories import files, memories, run_reads, runs, sessions, store_items
from agentctl.store.repositories.files import FileRow
from agentctl.store.repositories.memories import MAXIMUM_FOUND, MemoryRow
from agentctl.store.repositories.quotas import check_added
from agentctl.store.repositories.store_items import FoundItems, Space
from agentctl.store.threads import call_in_thread, open_in_thread
from agentctl.store.uploads import Uploads
from agentctl.store.visibility import EVERYONE, Visibility
from agentctl.work.event_loop import retry_until_stopped

T = TypeVar("T")


class RunItems:
    """The items that a run can reach: those of its user, or those that users share.

    Args:
        database: the system database, which has the items.
    """

    def __init__(
        self, database: Database, run: ExecutedRun, quotas: Quotas, *, is_shared: bool
    ) -> None:
        self._database = database
        self._run = run
        self._quotas = quotas
        self._space = Space("", "shared") if is_shared else Space(run.spec.user_id or "")

    async def get(self, namespace: Namespace, key: str, *, refresh: bool) -> StoreItem | None:
        items = await self._read(store_items.get(self._space, namespace, key, now()), refresh)
        return items[0] if items else None

    async def search(self, item_search: ItemSearch, *, refresh: bool) -> list[StoreItem]:
        return await self._read(store_items.search(self._space, item_search, now()), refresh)

    async def list_namespaces(self) -> list[Namespace]:
        work = store_items.list_namespaces(self._space, now())
        return await retry_until_stopped(
            lambda: self._database.read(work, size="run"), self._run.stop_requested
        )

    async def put(self, puts: Sequence[ItemPut]) -> None:
        # A call in a thread continues after a cancel: it writes nothing any more.
        self._run.checkpoint()
        put = store_items.put(self._space, puts, self._quotas, now())
        await retry_until_stopped(lambda: self._database.write(put), self._run.stop_requested)

    async def _read(self, work: Work[FoundItems], refresh: bool) -> list[StoreItem]:
        """Read items; with `refresh`, extend the lifetime of those whose lifetime is limited."""
        found_items = await retry_until_stopped(
            lambda: self._database.read(work, size="run"), self._run.stop_requested
        )
        if refresh and found_items.limited:
            extend = store_items.refresh(found_items.limited, now())
            await retry_until_stopped(
                lambda: self._database.write(extend), self._run.stop_requested
            )
        return found_items.items


class RunMemories:
    """The memories of one user, as `agentctl.agents.Memories`.

    Args:
        database: the system database, which has the memories.
    """

    def __init__(
        self, database: Database, user_id: str, run: ExecutedRun, *, quotas: Quotas
    ) -> None:
        self._database = database
        self._quotas = quotas
        self._user_id = user_id
        self._run = run
        self._visibility = Visibility(everyone=False, user_id=user_id)

    async def remember(self, memory: str, topics: Sequence[str] = ()) -> Memory:
        """Store a fact; a memory with the same text is returned instead.

        Raises:
            QuotaExceeded: the user has as many memories as the quotas allow.
        """
        run = self._run.spec
        row = memories.build_memory(
            self._user_id,
            memory,
            topics,
            now=now(),
            agent_id=run.component_id if run.component_type == "agent" else None,
            team_id=run.component_id if run.component_type == "team" else None,
            run_id=run.run_id,
        )
        stored_row = await self._write(_create_once(row, self._quotas))
        return _to_memory(stored_row)

    async def recall(self, text: str = "", *, limit: int = 10) -> list[Memory]:
        if not 1 <= limit <= MAXIMUM_FOUND:
            raise ValidationFailed(f"limit must be a number from 1 to {MAXIMUM_FOUND}")
        rows = await self._read(memories.search(self._user_id, text, limit))
        if not rows:
            rows = await self._read(memories.list_recent(self._user_id, limit))
        return [_to_memory(row) for row in rows]

    async def update(self, memory_id: str, memory: str) -> bool:
        return await self._write(_replace_text(memory_id, self._visibility, memory))

    async def forget(self, memory_id: str) -> bool:
        if await self._read(memories.get(memory_id, self._visibility)) is None:
            return False
        # After an unknown outcome it is repeated, and may find that the memory is gone already.
        await self._write(memories.delete(memory_id, self._visibility))
        return True

    async def _read(self, work: Work[T]) -> T:
        return await retry_until_stopped(
            lambda: self._database.read(work), self._run.stop_requested
        )

    async def _write(self, work: Work[T]) -> T:
        return await retry_until_stopped(
            lambda: self._database.write(work), self._run.stop_requested
        )


@unit
def _create_once(row: MemoryRow, quotas: Quotas) -> Steps[MemoryRow]:
    """Store a memory, unless the user has one with the same text.

    Models repeat themselves, and a tool call that was interrupted may be made again. A write with
    an unknown outcome is repeated with the same id, also if its text has no words to search for.
    """
    owner = Visibility(everyone=False, user_id=row.user_id)
    stored_row = yield from memories.get(row.memory_id, owner)
    if stored_row is not None:
        return stored_row

    for similar_row in (yield from memories.search(row.user_id, row.memory, MAXIMUM_FOUND)):
        if similar_row.memory == row.memory:
            return similar_row

    yield from memories.create(row)
    yield from check_added(quotas, row.user_id, "memories")
    return row


@unit
def _replace_text(memory_id: str, visibility: Visibility, memory: str) -> Steps[bool]:
    """Replace the text of a memory, which keeps its topics; return False if it is gone."""
    row = yield from memories.get(memory_id, visibility)
    if row is None:
        return False

    topics: list[str] = orjson.loads(row.topics)
    updated_row = yield from memories.update(memory_id, visibility, memory, topics, now())
    return updated_row is not None


def _to_memory(row: MemoryRow) -> Memory:
    return Memory(
        row.memory_id,
        row.memory,
        tuple(orjson.loads(row.topics)),
        datetime.fromtimestamp(row.updated_at / 1_000_000, UTC),
    )


MAXIMUM_SAVED_FILES = 100
"""Files that one run saves."""

_SUFFIX = re.compile(r"\.[A-Za-z0-9]{1,8}")
"""The suffix of a name that the copy of a file gets, too: some libraries read the type from it."""


class RunFiles:
    """The `runtime.files.FileAccess` of a run. Its files are those of its session.

    Args:
        uploads: receives the files that the runs of the process save, and has their store.
    """

    folder: TemporaryDirectory[str] | None
    """Has the copies of files, and is removed after the leg; None without copies."""

    def __init__(self, run: ExecutedRun, uploads: Uploads, quotas: Quotas) -> None:
        self._run = run
        self._uploads = uploads
        self._quotas = quotas
        self.folder = None

    async def find(self, file_ids: Iterable[str]) -> dict[str, FileReference]:
        work = files.get_all([*file_ids], EVERYONE)
        rows = await retry_until_stopped(
            lambda: self._run.database.read(work), self._run.stop_requested
        )

        # A model may name any id: files of other sessions and users do not exist for it.
        spec = self._run.spec
        return {
            row.file_id: row.build_reference()
            for row in rows
            if row.session_id == spec.session_id and row.user_id == spec.user_id
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
        suffix = Path(file.name).suffix
        if not _SUFFIX.fullmatch(suffix):
            suffix = ""
        path = Path(self.folder.name, f"{file.file_id}{suffix}")

        with await open_in_thread(lambda: path.open("wb")) as copy:
            async for part in self.stream(file):
                await call_in_thread(copy.write, part)
        return path

    async def save(self, name: str, data: bytes) -> FileReference:
        run = self._run
        uploads = self._uploads
        settings = uploads.settings
        spec = run.spec
        at = now()
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

            # The place first: bytes without one would not count for quotas.
            reserve = _reserve(row, run.attempt, settings, self._quotas)
            reserved = await retry_until_stopped(
                lambda: run.database.write(reserve), run.stop_requested
            )
            if isinstance(reserved, FileRow):
                return reserved.build_reference()
            await uploads.store.keep(received.path, row.blob)

        save = _save(row, run.attempt, settings, reserved)
        stored_row = await retry_until_stopped(lambda: run.database.write(save), run.stop_requested)
        if stored_row.file_id == row.file_id:
            run.emit(FileSaved(_build_record(stored_row)))
        return stored_row.build_reference()


async def _split(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), PIECE_BYTES):
        yield data[start : start + PIECE_BYTES]


def _build_record(row: FileRow) -> dict[str, Any]:
    created_at = format_rfc3339(row.created_at)
    return {**asdict(row.build_reference()), "version": row.version, "created_at": created_at}


@unit
def _reserve(row: FileRow, attempt: int, settings: Files, quotas: Quotas) -> Steps[FileRow | int]:
    """Take the place of a file that a run saves, before its bytes are kept.

    Returns:
        The number of the reservation, or the file of an earlier call with the same bytes.

    Raises:
        Conflict: the run does not execute any more.
        TooLarge: the files of the run would be too many, or too large together.
        QuotaExceeded: the user has stored too much, in the day or altogether.
    """
    earlier_row = yield from _check_saved(row, attempt, settings)
    if earlier_row is not None:
        return earlier_row
    return (yield from files.reserve(row, settings, quotas))


@unit
def _save(row: FileRow, attempt: int, settings: Files, reservation: int) -> Steps[FileRow]:
    """Store a file whose bytes are kept; return the file of an earlier call with the same bytes.

    Raises:
        Conflict: the run does not execute any more.
        TooLarge: the run has saved other files since, and they are too many or too large together.
    """
    earlier_row = yield from _check_saved(row, attempt, settings)
    if earlier_row is not None:
        return earlier_row

    stored_row = yield from files.create(row, reservation)
    assert stored_row.run_id is not None
    record = orjson.dumps(_build_record(stored_row)).decode()
    yield from runs.add_file(stored_row.run_id, record)
    return stored_row


def _check_saved(row: FileRow, attempt: int, settings: Files) -> Steps[FileRow | None]:
    """Check that a run may save a file; return the file of an earlier call with the same bytes."""
    run_id = row.run_id
    session_id = row.session_id
    assert run_id is not None
    assert session_id is not None

    # The run first, its session second, as the end of a run locks them (`store.database`).
    state = yield from run_reads.lock_state(run_id)
    session = yield from sessions.get_for_update(session_id, EVERYONE)
    if state is None or session is None or (state.status, state.attempt) != ("RUNNING", attempt):
        raise Conflict("The run does not execute any more: its file was not saved")

    saved_rows = yield from files.list_of_run(session_id, run_id)
    for saved_row in saved_rows:
        if (saved_row.name, saved_row.sha256) == (row.name, row.sha256):
            return saved_row

    if len(saved_rows) >= MAXIMUM_SAVED_FILES:
        raise TooLarge(f"A run can save {MAXIMUM_SAVED_FILES} files")
    saved_bytes = sum(saved_row.size for saved_row in saved_rows)
    if saved_bytes + row.size > settings.run_bytes:
        raise TooLarge(f"The files that a run saves have at most {settings.run_bytes} bytes")
    return None
