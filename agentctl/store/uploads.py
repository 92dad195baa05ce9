"""Reception of files: into the folder for uploads in progress, then into the store.

All work on bytes is done in threads, and at most `PIECE_BYTES` of a file are in memory.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

from agentctl.config.files import Files
from agentctl.errors import TooLarge, Unavailable, ValidationFailed
from agentctl.records.text import new_id
from agentctl.store.blobs import PIECE_BYTES, BlobStore, call_on_files, open_blob_store
from agentctl.store.media_types import TypeReader

MAXIMUM_UPLOADS = 16
"""Files that one process receives at once. One caller can use half of them."""


@dataclass(frozen=True, slots=True)
class ReceivedFile:
    """A whole file in the folder for uploads in progress."""

    path: Path
    size: int

    sha256: str
    """The hash of the bytes, hexadecimal."""

    media_type: str


class Uploads:
    """The store of the configuration, and the files that this process receives.

    Args:
        settings: the table `[files]`.
    """

    def __init__(self, settings: Files) -> None:
        self.settings = settings
        self._receiving: Counter[str] = Counter()

    @cached_property
    def store(self) -> BlobStore:
        """The store. The first use raises InvalidConfiguration if its extra is not installed."""
        return open_blob_store(self.settings)

    def open(self) -> BlobStore:
        """Open the store now, so that a server that cannot use it does not start.

        Raises:
            InvalidConfiguration: its extra is not installed.
        """
        return self.store

    def check_size(self, size: int) -> None:
        """Check the bytes of a file, announced or received.

        Raises:
            TooLarge: there are more than `item_bytes`.
            ValidationFailed: there are none.
        """
        if size > self.settings.item_bytes:
            raise TooLarge(f"A file has at most {self.settings.item_bytes} bytes")
        if size < 1:
            raise ValidationFailed("A file must have at least 1 byte")

    @contextlib.asynccontextmanager
    async def receive(
        self, pieces: AsyncIterable[bytes], name: str, announced: str, owner: str
    ) -> AsyncIterator[ReceivedFile]:
        """Receive a file and yield it. It does not exist after the block, unless it was kept.

        Args:
            announced: the announced type; "" without one.
            owner: the name under which the uploads of the caller count.

        Raises:
            Unavailable: too many files are received at once, or the folder cannot be written.
            TooLarge: the file has more than `item_bytes`.
            UnsupportedMediaType: see `TypeReader.find`.
        """
        with self._reserve(owner):
            file = _IncomingFile(self.store.incoming / new_id())

            try:
                size = 0
                buffer = bytearray()
                async for piece in pieces:
                    size += len(piece)
                    self.check_size(max(size, 1))
                    buffer += piece
                    if len(buffer) >= PIECE_BYTES:
                        await call_on_files(file.write, bytes(buffer))
                        buffer.clear()

                self.check_size(size)
                await call_on_files(file.write, bytes(buffer))
                sha256, media_type = await call_on_files(file.finish, name, announced)

                yield ReceivedFile(file.path, size, sha256, media_type)
            finally:
                await call_on_files(file.discard)

    async def remove_abandoned(self, before: int) -> None:
        """Remove the files of uploads whose process ended before a time, microseconds UTC."""
        await call_on_files(_remove_older, self.store.incoming, before)

    @contextlib.contextmanager
    def _reserve(self, owner: str) -> Iterator[None]:
        """Count an upload of a caller while the block lasts; Unavailable if there are too many."""
        uploads_of_all = self._receiving.total()
        uploads_of_owner = self._receiving[owner]
        if uploads_of_all >= MAXIMUM_UPLOADS or uploads_of_owner >= MAXIMUM_UPLOADS // 2:
            raise Unavailable("Too many files are uploaded at once", hint="try again later")

        self._receiving[owner] += 1
        try:
            yield
        finally:
            self._receiving[owner] -= 1
            # An addition forgets the callers without uploads.
            self._receiving += Counter()


class _IncomingFile:
    """A file that threads write, one at a time.

    A cancel abandons the thread of a write, which may still run while the file is discarded.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None
        self._is_discarded = False
        self._hash = hashlib.sha256()
        self._type = TypeReader()

    def write(self, piece: bytes) -> None:
        """Append a piece; the first call creates the file."""
        with self._lock:
            if self._is_discarded:
                return

            if self._file is None:
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                self._file = open(descriptor, "wb")  # noqa: PTH123, SIM115 - see `discard`

            self._file.write(piece)
            self._hash.update(piece)
            self._type.feed(piece)

    def finish(self, name: str, announced: str) -> tuple[str, str]:
        """Return the hash and the type of the file, which is whole."""
        with self._lock:
            assert self._file is not None
            self._file.flush()
            return self._hash.hexdigest(), self._type.find(self.path, name, announced)

    def discard(self) -> None:
        """Close and remove the file, unless the store has moved it; nothing is written after."""
        with self._lock:
            self._is_discarded = True
            if self._file is not None:
                # On a full disk the close fails; the bytes are not needed.
                with contextlib.suppress(OSError):
                    self._file.close()
            self.path.unlink(missing_ok=True)


def _remove_older(folder: Path, before: int) -> None:
    if not folder.exists():
        return
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_mtime_ns // 1_000 < before:
                path.unlink()
