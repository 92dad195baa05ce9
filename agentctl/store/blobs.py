"""The bytes of files: a folder, or a bucket of S3 (docs/files.md).

Bytes have a key of two hashes, of their user and of themselves. So the files of one user share
bytes, the files of two users never do, and no name of a file is part of a path.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, Protocol, TypeVar

from agentctl import errors
from agentctl.config.extras import build_extra_command
from agentctl.config.files import Files
from agentctl.store.threads import call_in_thread, open_in_thread

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import S3Config

PIECE_BYTES = 262_144
"""Bytes that are read, written or sent at once."""

_LISTED = 500
"""Keys of one page."""

_S3_PARTS_AT_ONCE = 2
"""Parts of one upload that are sent at the same time."""

_S3_SECONDS = timedelta(seconds=30)
"""Maximum time of one request, and of all attempts of a request that fails."""

_PROBE = "probe"
"""The key of the bytes that a check stores and deletes."""

_LAST = "~"
"""A text that sorts after all keys."""

P = ParamSpec("P")
T = TypeVar("T")


class StoredBytes(NamedTuple):
    """Bytes of a store."""

    blob: str
    """Their key."""

    stored_at: int
    """The time at which they were stored, in microseconds UTC."""


class BlobStore(Protocol):
    """A place for bytes. A place that does not work raises Unavailable."""

    incoming: Path
    """The folder for the bytes of uploads in progress.

    A file there is received bytes of this process, or of one that ended.
    """

    async def check(self) -> None:
        """Check that bytes can be stored."""
        ...

    async def keep(self, received: Path, key: str) -> None:
        """Store the bytes of a file of `incoming`, durably; the file may be moved.

        Bytes with the same key are replaced: they count as stored now.
        """
        ...

    def read(self, key: str, start: int, end: int) -> AsyncGenerator[bytes]:
        """Yield the bytes from `start` up to, without, `end`, in pieces."""
        ...

    async def measure(self, key: str) -> int | None:
        """Return the number of bytes with this key; None if there are none."""
        ...

    def list_stored(self, after: str) -> AsyncIterator[list[StoredBytes]]:
        """Yield the stored bytes after a key, in pages and in the order of their keys."""
        ...

    async def remove(self, key: str, before: int) -> bool:
        """Remove bytes unless they were stored at `before` or later, microseconds UTC.

        Returns:
            True if there are no bytes with this key any more.
        """
        ...


def build_key(user_id: str | None, sha256: str) -> str:
    """Return the key of some bytes of a user, or of bytes without a user."""
    return f"{build_owner_key(user_id)}/{sha256}"


def build_owner_key(user_id: str | None) -> str:
    """Return the part that the keys of all bytes of a user have in common."""
    return hashlib.sha256((user_id or "").encode()).hexdigest()[:16]


def open_blob_store(settings: Files) -> BlobStore:
    """Open the store of the configuration. Nothing is written or connected before its use.

    Raises:
        InvalidConfiguration: the extra `s3` is not installed.
    """
    if settings.store == "s3":
        return BucketStore(settings)
    return FolderStore(settings.folder)


class FolderStore:
    """Bytes in a folder: a folder for each user, a file for each hash."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.incoming = folder / ".incoming"

    async def check(self) -> None:
        places = (self.incoming, self._folder, self._folder.parent)
        place = next((candidate for candidate in places if candidate.exists()), self._folder)
        if not os.access(place, os.W_OK | os.X_OK):
            raise _build_unavailable(f"{place} cannot be written")

    async def keep(self, received: Path, key: str) -> None:
        await call_on_files(self._keep, received, key)

    def _keep(self, received: Path, key: str) -> None:
        path = self._folder / key
        path.parent.mkdir(mode=0o700, exist_ok=True)
        os.utime(received)

        flush(received)
        received.replace(path)
        flush(path.parent)
        flush(self._folder)

    async def read(self, key: str, start: int, end: int) -> AsyncGenerator[bytes]:
        path = self._folder / key
        with translate_failures():
            file = await open_in_thread(lambda: path.open("rb", 0))

        try:
            await call_on_files(file.seek, start)
            while start < end:
                piece = await call_on_files(file.read, min(PIECE_BYTES, end - start))
                if not piece:
                    raise _build_missing()

                start += len(piece)
                yield piece
        finally:
            file.close()

    async def measure(self, key: str) -> int | None:
        return await call_on_files(get_size, self._folder / key)

    async def list_stored(self, after: str) -> AsyncIterator[list[StoredBytes]]:
        stored_bytes = self.iterate(after)
        while page := await call_on_files(lambda: [*itertools.islice(stored_bytes, _LISTED)]):
            yield page

    def iterate(self, after: str) -> Iterator[StoredBytes]:
        """Yield the stored bytes after a key, in the order of their keys."""
        for folder in _list_names(self._folder):
            if folder < after.partition("/")[0]:
                continue
            for name in _list_names(self._folder / folder):
                key = f"{folder}/{name}"
                with contextlib.suppress(FileNotFoundError):
                    if key > after:
                        status = (self._folder / key).stat()
                        yield StoredBytes(key, status.st_mtime_ns // 1_000)

    async def remove(self, key: str, before: int) -> bool:
        return await call_on_files(self._remove, key, before)

    def _remove(self, key: str, before: int) -> bool:
        with lock_folder(self._folder, removes=True) as is_locked:
            return is_locked and self._remove_older(key, before)

    def _remove_older(self, key: str, before: int) -> bool:
        path = self._folder / key
        aside = self.incoming / f"{path.parent.name}-{path.name}"

        # An upload of the same bytes at this moment must not lose them: the time is read when no
        # upload can replace the file any more.
        try:
            path.replace(aside)
        except FileNotFoundError:
            return True

        if aside.stat().st_mtime_ns // 1_000 >= before:
            aside.replace(path)
            return False

        aside.unlink()
        return True


class BucketStore:
    """Bytes in a bucket of S3, or of a server with its interface, by the library obstore."""

    def __init__(self, settings: Files) -> None:
        try:
            from obstore.store import S3Store
        except ImportError:
            raise errors.InvalidConfiguration(
                'files.store = "s3" needs the extra s3', hint=build_extra_command("s3")
            ) from None

        self.incoming = settings.folder / ".incoming"
        self._bucket = settings.bucket

        config: S3Config = {}
        if settings.endpoint:
            config["endpoint"] = settings.endpoint
        if settings.region:
            config["region"] = settings.region

        self._store = S3Store(
            settings.bucket,
            prefix=settings.prefix or None,
            config=config,
            client_options={
                "timeout": _S3_SECONDS,
                "allow_http": settings.endpoint.startswith("http:"),
            },
            retry_config={"retry_timeout": _S3_SECONDS},
        )

    async def check(self) -> None:
        import obstore

        await self._put(_PROBE, b"probe")
        await self._translate(obstore.delete_async(self._store, _PROBE))

    async def keep(self, received: Path, key: str) -> None:
        await self._put(key, received)

    async def _put(self, key: str, source: Path | bytes) -> None:
        import obstore

        put = obstore.put_async(self._store, key, source, max_concurrency=_S3_PARTS_AT_ONCE)
        try:
            await self._translate(put)
        except FileNotFoundError:
            raise self._build_no_bucket() from None

    async def read(self, key: str, start: int, end: int) -> AsyncGenerator[bytes]:
        import obstore

        while start < end:
            until = min(start + PIECE_BYTES, end)
            reading = obstore.get_range_async(self._store, key, start=start, end=until)
            try:
                piece = bytes(await self._translate(reading))
            except FileNotFoundError:
                await self._check_bucket()
                piece = b""

            if not piece:
                raise _build_missing()

            start += len(piece)
            yield piece

    async def measure(self, key: str) -> int | None:
        metadata = await self._find(key)
        return None if metadata is None else metadata["size"]

    async def list_stored(self, after: str) -> AsyncIterator[list[StoredBytes]]:
        import obstore

        pages = obstore.list(self._store, offset=after or None, chunk_size=_LISTED)
        while page := await self._translate(_read_page(pages)):
            # S3 lists the keys in their order.
            yield [StoredBytes(metadata["path"], _read_time(metadata)) for metadata in page]

    async def remove(self, key: str, before: int) -> bool:
        import obstore

        metadata = await self._find(key)
        if metadata is None:
            return True
        if _read_time(metadata) >= before:
            return False

        await self._translate(obstore.delete_async(self._store, key))
        return True

    async def _find(self, key: str) -> ObjectMeta | None:
        import obstore

        try:
            return await self._translate(obstore.head_async(self._store, key))
        except FileNotFoundError:
            await self._check_bucket()
            return None

    async def _check_bucket(self) -> None:
        """Raise Unavailable if there is no bucket: S3 reports that as missing bytes, too."""
        import obstore

        await self._translate(_read_page(obstore.list(self._store, offset=_LAST, chunk_size=1)))

    async def _translate(self, awaitable: Awaitable[T]) -> T:
        """Wait for obstore; raise the errors of this project, and FileNotFoundError unchanged."""
        from obstore.exceptions import BaseError

        try:
            return await awaitable
        except FileNotFoundError:
            raise
        except (BaseError, OSError, ValueError) as error:
            if "NoSuchBucket" in str(error):
                raise self._build_no_bucket() from None
            raise _build_unavailable(type(error).__name__) from None

    def _build_no_bucket(self) -> errors.Unavailable:
        return _build_unavailable(
            f"there is no bucket {self._bucket}", "check bucket, endpoint and region in [files]"
        )


def _read_time(metadata: ObjectMeta) -> int:
    return round(metadata["last_modified"].timestamp() * 1_000_000)


async def _read_page(pages: AsyncIterator[Sequence[ObjectMeta]]) -> Sequence[ObjectMeta]:
    """Return the next page of a list; empty after the last one."""
    # `anext` with a default fails for a stream of obstore.
    async for page in pages:
        return page
    return ()


async def call_on_files(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function of the file system in a thread; raise the errors of this project."""
    with translate_failures():
        return await call_in_thread(function, *args, **kwargs)


@contextlib.contextmanager
def translate_failures() -> Iterator[None]:
    """Turn the errors of the file system into errors of this package."""
    try:
        yield
    except FileNotFoundError:
        raise _build_missing() from None
    except OSError as error:
        raise _build_unavailable(os.strerror(error.errno or 0).lower()) from None


@contextlib.contextmanager
def lock_folder(folder: Path, *, removes: bool = False) -> Iterator[bool]:
    """Lock a folder of bytes, if it exists. The kernel frees the lock of a killed process.

    Args:
        removes: True to remove bytes; False for a backup, which excludes a removal.

    Yields:
        False if bytes cannot be removed now.
    """
    if not folder.is_dir():
        yield True
        return

    operation = fcntl.LOCK_SH
    if removes:
        operation = fcntl.LOCK_EX | fcntl.LOCK_NB
    with lock_file(folder / ".lock", operation) as is_locked:
        yield is_locked


@contextlib.contextmanager
def lock_file(path: Path, operation: int) -> Iterator[bool]:
    """Lock a file while the block lasts; the kernel frees the lock of a killed process.

    Args:
        operation: the operation of `fcntl.flock`.

    Yields:
        False if another process has the lock, and `operation` does not wait for it.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        try:
            fcntl.flock(file, operation)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(file)


def flush(path: Path) -> None:
    """Wait until a file or a folder is on the disk."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def get_size(path: Path) -> int | None:
    """Return the size of a regular file in bytes; None if there is none."""
    return path.stat().st_size if path.is_file() else None


def _list_names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir() if path.name[0] != ".")
    except (FileNotFoundError, NotADirectoryError):
        return []


def _build_missing() -> errors.BytesMissing:
    return errors.BytesMissing(
        "The bytes of the file are missing", hint="look for the cause with: agentctl doctor"
    )


def _build_unavailable(reason: str, hint: str = "check the table [files]") -> errors.Unavailable:
    return errors.Unavailable("The store of files does not work", cause=reason, hint=hint)
