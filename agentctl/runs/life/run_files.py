"""The files of a run: their bytes for its models and its code."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from typing import Protocol

from agentctl.config.upkeep import Files
from agentctl.errors import NotFound
from agentctl.records.files import FileReference
from agentctl.records.run_spec import RunSpec
from agentctl.store.blobs import BlobStore, build_key
from agentctl.store.database import Database
from agentctl.store.repositories import files
from agentctl.store.visibility import EVERYONE


class FileOwner(Protocol):
    """The run that has the files."""

    @property
    def spec(self) -> RunSpec: ...
    @property
    def database(self) -> Database: ...


class RunFiles:
    """The `runtime.files.FileAccess` of a run. Its files are those of its session.

    Args:
        blobs: has their bytes.
    """

    def __init__(self, run: FileOwner, blobs: BlobStore, settings: Files) -> None:
        self._run = run
        self._blobs = blobs
        self._settings = settings

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
        return self._blobs.read(key, 0, file.size)

    async def read(self, file: FileReference) -> bytes:
        if file.file_id not in await self.find([file.file_id]):
            raise NotFound("File not found")
        return b"".join([part async for part in self.stream(file)])
