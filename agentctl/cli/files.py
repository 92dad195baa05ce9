"""Files that a command makes for its user. Nothing is ever overwritten."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from agentctl.errors import Conflict, UsageFailed

__all__ = ["make_folder", "refuse_existing", "write_new"]


def make_folder(directory: Path, mode: int = 0o777) -> None:
    """Make a folder and those above it; one that is there stays as it is.

    Raises:
        UsageFailed: it cannot be made.
    """
    try:
        directory.mkdir(mode=mode, parents=True, exist_ok=True)
    except OSError as failure:
        raise UsageFailed(
            f"{directory} cannot be made a directory", cause=(failure.strerror or "").lower()
        ) from None


def refuse_existing(*paths: Path) -> None:
    """Nothing is overwritten.

    Raises:
        Conflict: one of these is there already, be it a link to nothing.
    """
    for path in paths:
        if os.path.lexists(path):
            raise Conflict(
                f"{path} exists already",
                hint="nothing was written or changed; name another place, or move it away",
            )


def write_new(path: Path, data: bytes) -> None:
    """Write a file that is not there yet, for everybody to read.

    Raises:
        Conflict: it is there already.
        UsageFailed: it cannot be written; nothing is left behind.
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
        refuse_existing(path)
        raise
    except OSError as failure:
        raise UsageFailed(
            f"{path} cannot be written", cause=(failure.strerror or "writing failed").lower()
        ) from None
