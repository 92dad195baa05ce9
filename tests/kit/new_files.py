"""New SQLite databases of a test process: copies of a file that the product has created once.

To apply all migrations takes ten times as long, and was a third of the time of the tests of
services. The product creates the databases of all other processes, and those of the tests with the
fixture `without_copies`, whose subject is the creation.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agentctl.store import schema as versions
from agentctl.store.sqlite import schema

__all__ = ["without_copies"]

_create = schema._create


@functools.cache
def _build_file(number: int, *migrations: versions.Migration) -> bytes:
    """Return the bytes of a new database, as the product creates it by these migrations."""
    with tempfile.TemporaryDirectory(prefix="agentctl-new-file-") as folder:
        path = Path(folder, "new.db")
        assert _create(path)
        assert list(Path(folder).iterdir()) == [path]
        return path.read_bytes()


def _copy(path: Path) -> bool:
    """Do the same as `schema._create`."""
    if any(Path(f"{path}{suffix}").exists() for suffix in ("", "-wal", "-shm", "-journal")):
        return _create(path)

    content = _build_file(versions.SCHEMA_VERSION, *versions.load_migrations("sqlite"))
    # Another name first: another process or thread that creates this file finds all of it, or none.
    with tempfile.NamedTemporaryFile(dir=path.parent) as file:
        file.write(content)
        file.flush()
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(file.name)
            return True
    return _create(path)


def pytest_configure() -> None:
    schema._create = _copy


@pytest.fixture
def without_copies() -> Iterator[None]:
    """Let the product create the databases of a test."""
    schema._create = _create
    yield
    schema._create = _copy
