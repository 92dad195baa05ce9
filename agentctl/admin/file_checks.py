"""Checks that the store of files has the bytes that databases name, and no other bytes."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing

from agentctl.config.files import Files
from agentctl.config.settings import Database
from agentctl.records.times import HOUR, now
from agentctl.store.blobs import BlobStore, open_blob_store
from agentctl.store.migrating import Reader, open_reader
from agentctl.store.repositories.files import FileBytes, find_known, list_bytes
from agentctl.store.sqlite.backup_bytes import CopiedFiles

MISSING = "files whose bytes are missing"
_SIZE = "files whose bytes have another size"
_HASH = "files whose bytes have another hash"
UNNAMED = "bytes that no file names"

FILE_REMEDIES = {
    **dict.fromkeys(
        (MISSING, _SIZE, _HASH), "restore the bytes from a backup, or delete the files"
    ),
    UNNAMED: "delete them from the store, unless a former or another database needs them",
}
"""The remedies of the faults."""

UNNAMED_AGE = 2 * HOUR
"""Age from which bytes must have a file, in microseconds; a cleanup deletes other bytes before."""

_PAGE = 512
"""Rows of one read."""

_AT_ONCE = 16
"""Number of bytes that the store is asked for at the same time."""

Report = Callable[[str, str], None]
"""Called with a fault, or "", and a file or bytes that were checked."""


async def check_files(
    read: Reader,
    store: BlobStore,
    after: str,
    report: Callable[[str, FileBytes], None],
    *,
    deep: bool = False,
) -> None:
    """Check the bytes that a database names; report each with its fault.

    Args:
        read: reads the database.
        after: the key of the last bytes that were checked before; `""` to check all.
        report: called with the fault, `""` for intact bytes, and the bytes.
        deep: True to read all bytes and compare their hashes.
    """
    while page := await read(list_bytes(after, _PAGE)):
        for start in range(0, len(page), _AT_ONCE):
            group = page[start : start + _AT_ONCE]
            faults = await asyncio.gather(
                *(_find_fault(store, file_bytes, deep) for file_bytes in group)
            )
            for fault, file_bytes in zip(faults, group, strict=True):
                report(fault, file_bytes)
        after = page[-1].blob


async def _find_fault(store: BlobStore, file_bytes: FileBytes, deep: bool) -> str:
    """Return the fault of bytes in the store; `""` for intact bytes."""
    size = await store.measure(file_bytes.blob)
    if size is None:
        return MISSING
    if not size == file_bytes.size == file_bytes.largest:
        return _SIZE

    if not deep:
        return ""

    digest = hashlib.sha256()
    async with aclosing(store.read(file_bytes.blob, 0, size)) as pieces:
        async for piece in pieces:
            digest.update(piece)

    return "" if file_bytes.blob.endswith(f"/{digest.hexdigest()}") else _HASH


async def find_unnamed(
    entries: Sequence[Database], store: BlobStore, after: str, report: Report
) -> None:
    """Look for old bytes that no database names, and that no cleanup will delete."""
    async with AsyncExitStack() as stack:
        readers = [await stack.enter_async_context(open_reader(entry)) for entry in entries]
        before = now() - UNNAMED_AGE
        async for page in store.list_stored(after):
            unknown_keys = {stored.blob for stored in page if stored.stored_at < before}
            for read in readers:
                unknown_keys -= await read(find_known([*unknown_keys]))
            for stored in page:
                report(UNNAMED if stored.blob in unknown_keys else "", stored.blob)


async def count_files(
    entry: Database, files: Files, report: Callable[[str, int, int], None]
) -> CopiedFiles:
    """Count the bytes that a database names, and how many of them the store lacks."""
    file_count = 0
    size = 0
    missing_count = 0
    missing_file = None

    def count(fault: str, file_bytes: FileBytes) -> None:
        nonlocal file_count, size, missing_count, missing_file
        file_count += 1
        size += file_bytes.size
        if fault:
            missing_count += 1
            missing_file = missing_file or file_bytes.file_id
        report("files looked for", file_count, 0)

    async with open_reader(entry) as read:
        await check_files(read, open_blob_store(files), "", count)
    return CopiedFiles(file_count, size, 0, missing_count, missing_file)
