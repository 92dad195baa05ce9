"""Modes of files and folders: who else may change what is trusted, or read what is secret."""

from __future__ import annotations

import shlex
import stat
from collections.abc import Iterator
from pathlib import Path

from agentctl.service.checkup.finding import Finding, note, wrong

__all__ = ["check_place", "check_secret"]

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def check_place(check: str, path: Path, what: str) -> Iterator[Finding]:
    """Whether others may change a file, or put another one into its place.

    Args:
        path: the file; one that is not there is not looked at.
        what: what it is: `the configuration`.
    """
    mode = _mode(path)
    if mode is None:
        return
    if mode & stat.S_IWOTH:
        yield wrong(check, f"everybody may write {what} {path}", _chmod("o-w", path))
    elif mode & stat.S_IWGRP:
        yield note(check, f"a group may write {what} {path}", _chmod("g-w", path))
    folder = path.resolve().parent
    open_to_all = _mode(folder) or 0
    if open_to_all & stat.S_IWOTH and not open_to_all & stat.S_ISVTX:
        text = f"everybody may replace {what} {path}: its folder is open to all"
        yield wrong(check, text, _chmod("o-w", folder))


def check_secret(check: str, path: Path, what: str) -> Iterator[Finding]:
    """Whether nobody but its owner may read a file."""
    if (_mode(path) or 0) & _OTHERS:
        yield wrong(check, f"others may read {what} {path}", _chmod("600", path))


def _mode(path: Path) -> int | None:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return None


def _chmod(mode: str, path: Path) -> str:
    return f"chmod {mode} {shlex.quote(str(path))}"
