"""Checks of files: permissions of configuration files, and the store of uploaded files."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from agentctl.config.settings import Settings
from agentctl.errors import AgentctlError
from agentctl.records.system import Finding, from_failure, note, ok, wrong
from agentctl.store.blobs import open_blob_store
from agentctl.store.databases import open_database
from agentctl.store.repositories.files import list_newest

NEWEST_FILES = 200
"""Files of a database whose bytes are looked up."""

_STORE = "files"

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def check_permissions(check: str, path: Path, what: str) -> Iterator[Finding]:
    """Check that other users cannot change or replace a file.

    Args:
        path: the file; a missing file has no findings.
        what: the name of the file in the findings: `the configuration`.
    """
    mode = _mode(path)
    if mode is None:
        return

    if mode & stat.S_IWOTH:
        yield wrong(check, f"every user may write {what} {path}", _format_chmod("o-w", path))
    elif mode & stat.S_IWGRP:
        yield note(check, f"a group may write {what} {path}", _format_chmod("g-w", path))

    folder = path.resolve().parent
    folder_mode = _mode(folder) or 0
    if folder_mode & stat.S_IWOTH and not folder_mode & stat.S_ISVTX:
        text = f"every user may replace {what} {path}: its folder is world-writable"
        yield wrong(check, text, _format_chmod("o-w", folder))


def check_private(check: str, path: Path, what: str) -> Iterator[Finding]:
    """Check that only the owner may read a file."""
    if (_mode(path) or 0) & _OTHERS:
        yield wrong(check, f"other users may read {what} {path}", _format_chmod("600", path))


def _mode(path: Path) -> int | None:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None


def suggest_write_access(folder: Path, mode: str) -> str:
    """Return the remedy for a folder that cannot be written; `mode` is an argument of `chmod`."""
    if os.statvfs(folder).f_flag & os.ST_RDONLY:
        return "its file system is mounted read-only: mount it for writing"
    return f"{_format_chmod(mode, folder)}, as its owner"


def _format_chmod(mode: str, path: Path) -> str:
    return f"chmod {mode} {shlex.quote(str(path))}"


async def check_store(settings: Settings) -> list[Finding]:
    """Check that the store of files can be written, and has the bytes of the newest files."""
    try:
        store = open_blob_store(settings.files)
        await store.check()
        findings = [ok(_STORE, "the store of files can be written")]

        for entry in settings.databases:
            database = open_database(entry, create=False)
            try:
                rows = await database.read(list_newest(NEWEST_FILES))
            finally:
                await database.close()

            missing = [row.file_id for row in rows if await store.measure(row.blob) is None]
            if missing:
                text = f"{len(missing)} of the newest {len(rows)} files of database {entry.id}"
                text += f" have no bytes in the store, such as {missing[0]}"
                findings.append(wrong(_STORE, text, "restore the bytes, or delete these files"))
    except AgentctlError as failure:
        return [from_failure(_STORE, failure)]
    return findings
