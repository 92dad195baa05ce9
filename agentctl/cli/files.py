"""Files that commands create, key pairs among them. None is ever overwritten."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from agentctl.errors import Conflict, UsageError


def find_program_folder() -> Path:
    """Return the folder of the `agentctl` that runs, for commands that are printed to be copied."""
    script = Path(sys.argv[0]).absolute()
    return (script if script.name == "agentctl" else Path(sys.executable)).parent


def create_directory(directory: Path, mode: int = 0o777) -> None:
    """Create a directory and its parents unless it exists; UsageError if it cannot be created."""
    try:
        directory.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as failure:
        raise UsageError(
            f"{directory} cannot be created as a directory", cause=(failure.strerror or "").lower()
        ) from None


def check_absent(*paths: Path) -> None:
    """Raise Conflict if one of the paths exists; a dangling link counts."""
    for path in paths:
        if os.path.lexists(path):
            raise Conflict(
                f"{path} already exists",
                hint="nothing was written or changed; choose another path, or move the file away",
            )


def create_file(path: Path, data: bytes) -> None:
    """Write a new file that every user can read.

    Raises:
        Conflict: it exists.
        UsageError: it cannot be written; no part of it stays.
    """
    try:
        with path.open("xb") as file:
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    path.unlink()
                raise
    except FileExistsError:
        # It raises the error with a hint, unless the file is gone again.
        check_absent(path)
        raise
    except OSError as failure:
        raise _unwritable_file(path, failure) from None


@dataclass(frozen=True, slots=True)
class KeyPair:
    """The files of a key pair. `public` is None for a shared secret, which has no public half."""

    private: Path
    public: Path | None
    key_id: str


def public_path(private: Path) -> Path:
    """Return `signing.pub.pem` for `signing.pem`."""
    return private.with_name(private.name.removesuffix(".pem") + ".pub.pem")


def write_key_pair(private: Path, algorithm: str) -> KeyPair:
    """Generate a key and write it to `private` (0600) and `public_path(private)` (0644).

    Raises:
        Conflict: one of the files exists.
        InvalidKey: unknown algorithm, or a file cannot be written; no file stays.
    """
    from agentctl.auth.keys import signing
    from agentctl.auth.keys.files import write_private_key

    public = None if algorithm.startswith("HS") else public_path(private)
    check_absent(private, *([public] if public else []))
    secret = signing.generate_key(algorithm)
    write_private_key(private, secret)
    try:
        if public is not None:
            create_file(public, signing.build_public_pem(secret, algorithm))
    except BaseException:
        private.unlink(missing_ok=True)
        raise
    return KeyPair(private, public, signing.signing_key_thumbprint(secret, algorithm))


@contextmanager
def creating_file(path: Path) -> Iterator[BinaryIO]:
    """Create a file that only its owner can read, and yield it for writing.

    An exception in the block removes the file: a part of an export could pass for the whole.

    Raises:
        Conflict: it exists.
        UsageError: it cannot be written.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        check_absent(path)
        raise
    except OSError as failure:
        raise _unwritable_file(path, failure) from None

    try:
        with open(descriptor, "wb") as file:  # noqa: PTH123 - a descriptor is no path
            yield file
            file.flush()
            os.fsync(descriptor)
    except BaseException as failure:
        with suppress(OSError):
            path.unlink()
        if isinstance(failure, OSError):
            raise _unwritable_file(path, failure) from None
        raise


@contextmanager
def replacing_private_file(path: Path) -> Iterator[Callable[[bytes], None]]:
    """Yield the function that writes a file, new or old, which only its owner can read then.

    The temporary file exists before the block begins, so a folder that cannot be written fails
    first. Without a call, and after an exception, the old file stays.

    Raises:
        OSError: it cannot be written.
    """
    import tempfile

    # mkstemp creates the file with mode 0600.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-")
    try:
        with os.fdopen(handle, "wb") as file:

            def replace(data: bytes) -> None:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                Path(name).replace(path)

            yield replace
    finally:
        Path(name).unlink(missing_ok=True)


def publish_file(part: Path, path: Path) -> None:
    """Rename a whole file, and return when the name is on the disk; UsageError if that fails."""
    try:
        part.rename(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as failure:
        raise _unwritable_file(path, failure) from None


def _unwritable_file(path: Path, failure: OSError) -> UsageError:
    return UsageError(
        f"{path} cannot be written", cause=(failure.strerror or "writing failed").lower()
    )
